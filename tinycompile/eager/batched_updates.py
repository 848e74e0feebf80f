"""Functions that update an argument on their way (running statistics, the norms of looked-up rows): under vmap it must be each
example's own where the input is. What all examples share is refused, in torch's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from tinycompile.eager.batched import EXTERN_RULES, BatchedTensor
from tinycompile.eager.torch_words import said_of_examples


class Update(NamedTuple):
    """``parameters`` up to the last that matters, the input first; ``written`` of them are, where ``when`` is true."""

    parameters: tuple[str, ...]
    written: tuple[str, ...]
    when: str
    default: Any
    wrong: Callable[[torch.Tensor], torch.Tensor]
    """A call that torch's vmap refuses."""

    def refuse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Raise RuntimeError where an example's input would update what all share."""
        given = {**dict(zip(self.parameters, args)), **kwargs}  # noqa: B905  # there may be more
        x: Any = given.get("input")
        written = [given[name] for name in self.written if given.get(name) is not None]
        if given.get(self.when, self.default) and _is_batched(x) and not all(_is_batched(w, x.level) for w in written):
            raise RuntimeError(said_of_examples(self.wrong))
        return NotImplemented


def _is_batched(tensor: Any, level: int | None = None) -> bool:
    return isinstance(tensor, BatchedTensor) and tensor.batched and level in (None, tensor.level)


def _normalises(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x.expand(2, 1), torch.zeros(1), torch.ones(1), training=True)


def _renorms(x: torch.Tensor) -> torch.Tensor:
    return F.embedding(x.long(), torch.ones(2, 1), max_norm=1.0)


_STATISTICS, _ROWS = ("running_mean", "running_var"), ("weight",)
_ATEN = ("input", "weight", "bias", *_STATISTICS)
_UPDATES = {
    F.batch_norm: Update(("input", *_STATISTICS, "weight", "bias", "training"), _STATISTICS, "training", False, _normalises),
    torch.batch_norm: Update((*_ATEN, "training"), _STATISTICS, "training", False, _normalises),
    torch.native_batch_norm: Update((*_ATEN, "training"), _STATISTICS, "training", False, _normalises),
    F.instance_norm: Update(
        ("input", *_STATISTICS, "weight", "bias", "use_input_stats"), _STATISTICS, "use_input_stats", True, _normalises
    ),
    torch.instance_norm: Update((*_ATEN, "use_input_stats"), _STATISTICS, "use_input_stats", False, _normalises),
    F.embedding: Update(("input", "weight", "padding_idx", "max_norm"), _ROWS, "max_norm", None, _renorms),
    F.embedding_bag: Update(("input", "weight", "offsets", "max_norm"), _ROWS, "max_norm", None, _renorms),
}
for _fn, _update in _UPDATES.items():
    EXTERN_RULES[_fn] = lambda *args, _of=_update, **kwargs: _of.refuse(args, kwargs)
