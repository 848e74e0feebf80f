"""Views that a graph returns are written to by its caller, with what requires grad: the history is eager's, whatever backward the
graph has, and if it has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tinycompile

pytestmark = pytest.mark.cpu
BACKENDS = (None, "eager", "aot_eager")

Graph = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]

# What else the graph computes, of a tensor without gradients, a leaf, and one that may be written to.
BESIDE: dict[str, Graph] = {
    "a gradient": lambda y, p, z: p.sum(),
    "a gradient and a write": lambda y, p, z: (z.zero_(), p.sum())[1],
    "no gradient": lambda y, p, z: (p.detach() + 1).sum(),
    "no gradient and a write": lambda y, p, z: (z.zero_(), (p.detach() + 1).sum())[1],
    "random numbers": lambda y, p, z: p.sum() + 0 * torch.rand(2).sum(),
    "complex values": lambda y, p, z: torch.complex(p, p).abs().sum(),
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda y: y[1:],
    "view": lambda y: y.view(2, 2).t(),
    "unfold": lambda y: y.unfold(0, 2, 2),
    "view_as": lambda y: y.view_as(y),
    "detach": lambda y: y.detach()[1:],
    "data": lambda y: y.data.view(2, 2),
    "one of several": lambda y: y.split(2)[0],
}


def written_later(run: Callable[..., Any]) -> Any:
    y, p, z = torch.arange(1, 5.0), torch.arange(1, 5.0).div(3).requires_grad_(), torch.ones(2)
    view, factor = run(y, p, z)
    try:
        view.mul_(p.sum() * factor)
    except RuntimeError as refused:
        return str(refused)
    seen = [view.requires_grad, view.is_leaf, y.requires_grad, view._base is y, view.detach(), y.detach(), z]
    (y if y.requires_grad else view).sum().backward()
    return [*seen, p.grad]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("beside", BESIDE)
def test_a_view_of_an_input(beside: str, backend: str | None) -> None:
    for kind, view in VIEWS.items():
        if backend is None and kind in ("view", "unfold", "data"):
            continue  # kernels are built for each

        def program(y: torch.Tensor, p: torch.Tensor, z: torch.Tensor, view: Any = view) -> Any:
            return view(y), BESIDE[beside](y, p, z)

        expected, got = written_later(program), written_later(tinycompile.compile(program, backend=backend, fullgraph=True))
        if isinstance(expected, str):
            assert got == expected, kind
        else:
            torch.testing.assert_close(got, expected, msg=lambda text, kind=kind: f"{kind}: {text}")


def behind_a_write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.zero_()
    return (x * 1).view(-1)


def of_complex_values(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.complex(x, y)).view(-1)


def twice(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y.zero_()
    view = (x * 1).view(-1)
    return view, view


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [behind_a_write, of_complex_values, twice])
def test_a_view_of_what_the_graph_computed(program: Any, backend: str | None) -> None:
    def gradient(run: Any) -> Any:
        x, y = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)
        made = run(x, y)
        several = made if isinstance(made, tuple) else (made, made)
        assert several[0] is several[1]
        several[0].mul_(2)
        several[1].sum().backward()
        return [several[0].detach(), x.grad]

    torch.testing.assert_close(gradient(tinycompile.compile(program, backend=backend, fullgraph=True)), gradient(program))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_that_flattens_behind_its_buffers(backend: str | None) -> None:
    def gradient(run: Callable[[nn.Module], Any]) -> Any:
        model = nn.Sequential(nn.BatchNorm1d(3), nn.Flatten(0))
        made = run(model)(torch.arange(6.0).view(2, 3))
        made.mul_(2)
        made.sum().backward()
        return [made.detach(), model[0].bias.grad]

    compiled = gradient(lambda model: tinycompile.compile(model, backend=backend, fullgraph=True))
    torch.testing.assert_close(compiled, gradient(lambda model: model))


# --- special methods that are called by name -----------------------------------------------------------------------------


def sets_an_item(y: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    view = y[1:]
    view.__setitem__(0, p.sum())
    return y


def sets_several(y: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    y.__setitem__(slice(1, None), y.__mul__(2).__getitem__(slice(0, -1)).__mul__(p.__getitem__(0)))
    return y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [sets_an_item, sets_several])
def test_special_methods_by_name(program: Any, backend: str | None) -> None:
    def gradient(run: Any) -> Any:
        y, p = torch.arange(1, 5.0), torch.arange(1, 5.0).requires_grad_()
        assert run(y, p) is y and y.requires_grad
        y.sum().backward()
        return [y.detach(), p.grad]

    torch.testing.assert_close(gradient(tinycompile.compile(program, backend=backend, fullgraph=True)), gradient(program))


@pytest.mark.parametrize("name, args", [("__getitem__", ()), ("__setitem__", (0,)), ("__dir__", ()), ("__format__", ("",))])
def test_special_methods_with_arguments_too_few_or_beyond_graphs(name: str, args: tuple[Any, ...]) -> None:
    def program(x: torch.Tensor) -> Any:
        return getattr(x * 2, name)(*args)

    def told(run: Any) -> Any:
        try:
            return run(torch.ones(3))
        except TypeError as error:
            return str(error)

    assert told(tinycompile.compile(program)) == told(program)
