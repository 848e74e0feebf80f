"""``checkpoint``: the function is followed, and its values are marked as those that the backward computes again."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from torch.utils import checkpoint as torchs

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.torch_calls import tensors_in
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import FALSE
from tinycompile.eager.checkpoint import checkpoint
from tinycompile.eager.fake import FakeTensor

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

# What of torch's options changes no value.
_FREE = ("use_reentrant", "preserve_rng_state", "determinism_check")
_OTHERS = ("context_fn", "debug", "early_stop")


@rule(torchs.checkpoint)
def _torchs(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    reentrant = kwargs.get("use_reentrant")
    if reentrant is not FALSE and (reentrant is None or reentrant.constant(tr) is not False):
        raise GraphBreak("unsupported-argument", "checkpoint with use_reentrant=True runs a backward of its own")
    if any(name in kwargs for name in _OTHERS):
        raise GraphBreak("unsupported-argument", "checkpoint with a context, debugging or without an early stop is torch's")
    return _followed(tr, args, {k: v for k, v in kwargs.items() if k not in _FREE})


@rule(checkpoint)
def _ours(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _followed(tr, args, {k: v for k, v in kwargs.items() if k != "preserve_rng_state"})


def _followed(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """The call. What it returns is the program's, and may be kept; random numbers are kept in any case, or their seeds. What
    the function changes outside itself it would change once more in the backward."""
    count, changes = len(tr.builder.nodes), tr.effects.count
    result = args[0].call(tr, args[1:], kwargs)
    if tr.effects.count != changes and tr.grad_enabled:
        raise GraphBreak("side-effect", "a function under checkpoint changes what is outside, once more in the backward")
    made = list(itertools.islice(tr.builder.nodes, count, None))
    tr.effects.checkpoints.append((count, made))
    given = {t.fake.ref.name for t in tensors_in(tr, [result]) if type(t.fake) is FakeTensor}
    tr.effects.recomputed |= set(made) - given
    return result
