"""A write that torch has two reasons to refuse: what may not be written to where gradients are followed is told first, before the
sizes, dtypes and dims of what is written, and programs that catch the error see that one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu

Tensor = torch.Tensor

# Wrong for a target of four elements and nine of what is written.
WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "mul_": lambda p, v: p.mul_(v),
    "copy_": lambda p, v: p.copy_(v),
    "+=": lambda p, v: p.__iadd__(v),
    "items": lambda p, v: p.__setitem__(slice(0, 2), v),
    "an item": lambda p, v: p.__setitem__(9, v),
    "addmm_": lambda p, v: p.addmm_(v, v),
    "masked_fill_": lambda p, v: p.masked_fill_(v, 1.0),
    "clamp_": lambda p, v: p.clamp_(),
    "fill_": lambda p, v: p.fill_(v),
    "cumsum_": lambda p, v: p.cumsum_(4),
    "add_ of another kind": lambda p, v: p.add_(v[:4].to(torch.complex64)),
    "relu_": lambda p, v: torch.relu_(p),
    "several at once": lambda p, v: torch._foreach_mul_([p], [v]),
    "a view": lambda p, v: p.unsqueeze(0).mul_(v),
    "one of several": lambda p, v: p.split(2)[0].mul_(v),
    "detached": lambda p, v: p.detach().mul_(v),
    "right": lambda p, v: p.mul_(v[:4]),
}
TARGETS: dict[str, Callable[[], Tensor]] = {
    "leaf": lambda: torch.ones(4, requires_grad=True),
    "view of a leaf": lambda: torch.ones(5, requires_grad=True)[1:],
    "one of several": lambda: (torch.ones(8, requires_grad=True) * 1).split(4)[0],
    "inner": lambda: torch.ones(4, requires_grad=True) * 1,
    "plain": lambda: torch.ones(4),
}


@pytest.mark.parametrize("with_grad", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_as_eager_says(target: str, with_grad: bool) -> None:
    for name, write in WRITES.items():
        for mode in (torch.enable_grad, torch.no_grad):

            def program(p: Tensor, v: Tensor, write: Any = write, mode: Any = mode) -> str:
                try:
                    with mode():
                        write(p, v)
                except (RuntimeError, IndexError) as refused:
                    return f"{type(refused).__name__}: {refused}"
                return "done"

            compiled = tinycompile.compile(program, backend="eager")
            said = [run(TARGETS[target](), torch.ones(9, requires_grad=with_grad)) for run in (compiled, program)]
            assert said[0] == said[1], (name, mode)


def into_another(x: Tensor) -> Tensor:
    out = torch.zeros(3)
    torch.mul(x, 2, out=out)
    return out.sum()


@pytest.mark.parametrize("name", ["grad", "vjp", "jvp", "vmap", "none"])
def test_out_where_something_is_differentiated(name: str) -> None:
    def program(x: Tensor) -> Any:
        if name == "grad":
            return torch.func.grad(into_another)(x)
        if name == "vjp":
            return torch.func.vjp(into_another, x)[0]
        if name == "jvp":
            return torch.func.jvp(into_another, (x,), (x,))[0]
        return torch.func.vmap(into_another)(x[None]) if name == "vmap" else into_another(x)

    def said(run: Callable[[Tensor], Any]) -> Any:
        try:
            return run(torch.arange(3.0)).tolist()
        except (RuntimeError, NotImplementedError) as refused:
            return f"{type(refused).__name__}: {refused}"

    assert said(tinycompile.compile(program, backend="eager")) == said(program)


@pytest.mark.parametrize("wide", [torch.complex64, torch.complex128, torch.float16, torch.bfloat16, torch.int16], ids=str)
@pytest.mark.parametrize("narrow", [torch.float64, torch.int8, torch.uint8, torch.int16, torch.bool], ids=str)
def test_types_are_called_as_torch_calls_them(narrow: torch.dtype, wide: torch.dtype) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        try:
            return x.add_(y).dtype
        except RuntimeError as refused:
            return str(refused)

    compiled = tinycompile.compile(program, backend="eager")
    said = [run(torch.ones(2, dtype=narrow), torch.ones(2, dtype=wide)) for run in (compiled, program)]
    assert said[0] == said[1]
