"""Matrix products with an activation in their epilogue: one library kernel, whose result is written once."""

from __future__ import annotations

import torch

from tinycompile.base import torch_private
from tinycompile.base.meta import TensorMeta
from tinycompile.ops.declare import declare
from tinycompile.ops.linalg import linear_meta
from tinycompile.ops.record import Extern
from tinycompile.ops.samples import call, t

ACTIVATIONS = ("relu", "gelu")


def _meta(x: TensorMeta, weight: TensorMeta, bias: TensorMeta, activation: str) -> TensorMeta:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is one of {', '.join(ACTIVATIONS)}, not {activation}")
    return linear_meta(x, weight, bias)


def _eager(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    made = torch_private.addmm_activation(bias, rows, weight.t(), use_gelu=activation == "gelu")
    return made.view(*x.shape[:-1], weight.shape[0])


declare(
    "linear_activation(Tensor self, Tensor weight, Tensor bias, str activation) -> Tensor",
    _meta,
    Extern(),
    _eager,
    (),
    lambda: [
        call(t(3, 4), t(5, 4), t(5), "relu"),
        call(t(2, 3, 4), t(5, 4), t(5), "gelu"),
        call(t(2, 3, 4, dtype="bfloat16"), t(5, 4, dtype="bfloat16"), t(5, dtype="bfloat16"), "gelu"),
    ],
    ulp=8.0,
    doc="relu, or gelu by tanh, of a linear layer with a bias. The sum is not rounded before the activation.",
)
