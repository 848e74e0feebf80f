"""The models with inputs that a test can afford, and the contract for a model: outputs and gradients against float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
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
    """``make()``: the module. ``inputs(dtype)``: arguments of one call."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[torch.dtype], tuple[Any, ...]]
    training: bool = False


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


MODELS = [
    Model("gpt", lambda: GPT(GPTConfig()), _gpt_inputs),
    Model("gpt_written_out", lambda: GPT(GPTConfig(flash=False, bias=False)), _gpt_inputs),
    Model("llama", lambda: Llama(ModelArgs()), lambda dtype: (_ids(2, 13),)),
    Model("vit", ViT, _images),
    Model("resnet", resnet_tiny, _images),
    Model("resnet_bottleneck", resnet_bottleneck, _images),
    Model("resnet_training", resnet_tiny, _images, training=True),
    Model("unet", UNet, lambda dtype: (torch.randn(2, 3, 16, 16, dtype=dtype), torch.tensor([3, 700]))),
    Model(
        "unet_bilinear",
        lambda: UNet(mode="bilinear"),
        lambda dtype: (torch.randn(2, 3, 16, 16, dtype=dtype), torch.tensor([3, 700])),
    ),
    Model("t5", T5, _t5_inputs),
    Model("lstm", LSTM, lambda dtype: (torch.randn(5, 3, 8, dtype=dtype),)),
    Model("lstm_bidirectional", lambda: LSTM(bidirectional=True), lambda dtype: (torch.randn(5, 3, 8, dtype=dtype),)),
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


def assert_as_good(got: Outcome, want: Outcome, exact: Outcome) -> None:
    """Metadata equal to eager's; errors against float64 at most twice eager's and an ulp."""
    assert len(got.outputs) == len(want.outputs)
    for i, (g, w, e) in enumerate(zip(got.outputs, want.outputs, exact.outputs)):
        assert (g.shape, g.dtype, g.stride(), g.requires_grad) == (w.shape, w.dtype, w.stride(), w.requires_grad), i
        _close(f"output {i}", g, w, e)
    assert list(got.gradients) == list(want.gradients)
    for name, w in want.gradients.items():
        g = got.gradients[name]
        assert (g.shape, g.dtype, g.stride()) == (w.shape, w.dtype, w.stride()), name
        _close(name, g, w, exact.gradients[name])
    for name, w in want.buffers.items():
        _close(name, got.buffers[name], w, exact.buffers[name])


def _close(name: str, got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor) -> None:
    if not want.is_floating_point():
        assert torch.equal(got, want), name
        return
    g, w, e = got.detach().double(), want.detach().double(), exact.detach().double()
    assert torch.equal(g.isfinite(), w.isfinite()), name
    g, w, e = (t.masked_fill(~w.isfinite(), 0) for t in (g, w, e))
    ulp = torch.finfo(want.dtype).eps * e.abs().max()
    for norm in (lambda t: t.abs().max(), lambda t: t.square().mean().sqrt()):
        ours, theirs = norm(g - e), norm(w - e)
        assert ours <= 2 * theirs + ulp, f"{name}: error {ours:.3e}, eager's {theirs:.3e}, ulp {ulp:.3e}"
