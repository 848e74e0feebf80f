"""The models with inputs that a test can afford, and the contract for a model: outputs and gradients against float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.models.gpt import GPT, GPTConfig
from tests.models.llama import Llama, ModelArgs
from tests.models.lstm import LSTM
from tests.models.resnet import resnet_bottleneck, resnet_tiny
from tests.models.t5 import T5
from tests.models.unet import UNet
from tests.models.vit import ViT


@dataclass(frozen=True)
class Model:
    """``make()``: the module. ``inputs(dtype)``: arguments of one call. ``wide_only``: for runs with TINYCOMPILE_TESTS=full."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[torch.dtype], tuple[Any, ...]]
    training: bool = False
    wide_only: bool = False


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(1, 96, shape)


def _gpt_inputs(dtype: torch.dtype) -> tuple[Any, ...]:
    return _ids(2, 17), _ids(2, 17)


def _t5_inputs(dtype: torch.dtype) -> tuple[Any, ...]:
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[1, 7:] = 0
    return _ids(2, 11), mask, _ids(2, 9)


def _images(dtype: torch.dtype) -> tuple[Any, ...]:
    return (torch.randn(4, 3, 32, 32, dtype=dtype),)


def _noisy(dtype: torch.dtype) -> tuple[Any, ...]:
    return torch.randn(2, 3, 8, 8, dtype=dtype), torch.tensor([3, 700])


def _steps(dtype: torch.dtype) -> tuple[Any, ...]:
    return (torch.randn(3, 4, 8, dtype=dtype),)


MODELS = [
    Model("gpt", lambda: GPT(GPTConfig()), _gpt_inputs),
    Model("gpt_written_out", lambda: GPT(GPTConfig(flash=False, bias=False)), _gpt_inputs, wide_only=True),
    Model("llama", lambda: Llama(ModelArgs(n_layers=1)), lambda dtype: (_ids(2, 13),)),
    Model("llama_deep", lambda: Llama(ModelArgs()), lambda dtype: (_ids(2, 13),), wide_only=True),
    Model("vit", lambda: ViT(depth=1), _images),
    Model("vit_deep", ViT, _images, wide_only=True),
    Model("resnet", resnet_tiny, _images),
    Model("resnet_bottleneck", resnet_bottleneck, _images, wide_only=True),
    Model("resnet_training", resnet_tiny, _images, training=True),
    Model("unet", lambda: UNet(mults=(1,)), _noisy),
    Model("unet_bilinear", lambda: UNet(mode="bilinear"), _noisy, wide_only=True),
    Model("t5", lambda: T5(n_layers=1), _t5_inputs),
    Model("t5_deep", T5, _t5_inputs, wide_only=True),
    Model("lstm", LSTM, _steps),
    Model("lstm_bidirectional", lambda: LSTM(bidirectional=True), _steps, wide_only=True),
]


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in nested containers, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, (list, tuple)) else []


def wide(module: nn.Module) -> nn.Module:
    """A copy in float64, buffers too."""
    return copy.deepcopy(module).double()


def widened(value: Any) -> Any:
    """Arguments in float64."""
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def backward(outputs: Any) -> None:
    """A scalar of all floating outputs, the same for any precision, and its backward."""
    total = 0.0
    for i, t in enumerate(t for t in tensors(outputs) if t.is_floating_point()):
        weights = torch.linspace(0.5, 1.5, t.numel(), dtype=torch.float64).reshape(t.shape) / (i + 1)
        total = total + (t * weights.to(t.dtype)).sum()
    total.backward()


@dataclass(frozen=True)
class Outcome:
    """What one call left behind."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]

    def named(self) -> dict[str, torch.Tensor]:
        """All of it by name."""
        outputs = {f"output {i}": t for i, t in enumerate(self.outputs)}
        return {**outputs, **{f"d {n}": g for n, g in self.gradients.items()}, **self.buffers}


def outcome(module: nn.Module, call: Callable[..., Any], inputs: tuple[Any, ...], gradients: bool) -> Outcome:
    """Call ``call``, which runs ``module``, and look at outputs, gradients of parameters and floating inputs, and buffers."""
    inputs = tuple(x.clone().requires_grad_() if gradients and _floating(x) else x for x in inputs)
    found: dict[str, torch.Tensor] = {}
    if gradients:
        result = call(*inputs)
        backward(result)
        for name, p in module.named_parameters():
            assert p.grad is not None, name
            found[name], p.grad = p.grad, None
        found.update({f"input {i}": x.grad for i, x in enumerate(inputs) if _floating(x)})
    else:
        with torch.no_grad():
            result = call(*inputs)
    return Outcome(tensors(result), found, {name: b.clone() for name, b in module.named_buffers()})


def _floating(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def assert_as_good(got: Sequence[Outcome], want: Sequence[Outcome], exact: Sequence[Outcome]) -> None:
    """Metadata equal to eager's. Errors against float64 at most twice eager's and an ulp, as means over a few draws of the
    inputs: of the hundreds of tensors that a model's gradients are, one draw has some where eager was lucky."""
    excesses: dict[str, list[torch.Tensor]] = {}
    for g, w, e in zip(got, want, exact, strict=True):
        ours, theirs, true = g.named(), w.named(), e.named()
        assert list(ours) == list(theirs)
        for name, tensor in theirs.items():
            assert _metadata(ours[name]) == _metadata(tensor), name
            if tensor.is_floating_point():
                excesses.setdefault(name, []).append(_errors(ours[name], tensor, true[name]))
            else:
                assert torch.equal(ours[name], tensor), name
    for name, found in excesses.items():
        for ours, theirs, ulp in torch.stack(found).mean(0).tolist():
            assert ours <= 2 * theirs + ulp, f"{name}: error {ours:.3e}, eager's {theirs:.3e}, ulp {ulp:.3e}"


def _metadata(t: torch.Tensor) -> tuple[Any, ...]:
    return t.shape, t.dtype, t.stride(), t.requires_grad


def _errors(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """By norm (maximum, RMS): our error, eager's, and an ulp of the largest value."""
    g, w, e = got.detach().double(), want.detach().double(), exact.detach().double()
    assert torch.equal(g.isfinite(), w.isfinite())
    g, w, e = (t.masked_fill(~w.isfinite(), 0) for t in (g, w, e))
    ulp = torch.finfo(want.dtype).eps * e.abs().max()
    norms = (lambda t: t.abs().max(), lambda t: t.square().mean().sqrt())
    return torch.stack([torch.stack([norm(g - e), norm(w - e), ulp]) for norm in norms])
