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


# --- views of what got its history in the graph --------------------------------------------------------------------------


def made_behind(y: torch.Tensor, p: torch.Tensor, view: Any) -> torch.Tensor:
    y.sub_(p)
    return view(y)


def written_itself(y: torch.Tensor, p: torch.Tensor, view: Any) -> torch.Tensor:
    made = view(y)
    made.add_(p.sum())
    return made


def looked_at(y: torch.Tensor, p: torch.Tensor, view: Any) -> tuple[torch.Tensor, torch.Tensor]:
    made = view(y)
    y.mul_(p)
    return made, (made * 2).sum()


def looked_at_in_between(y: torch.Tensor, p: torch.Tensor, view: Any) -> tuple[torch.Tensor, torch.Tensor]:
    made, loss = looked_at(y, p, view)
    y.mul_(p)
    return made, loss


def of_a_written_view(y: torch.Tensor, p: torch.Tensor, view: Any) -> torch.Tensor:
    whole = y.view_as(y)
    whole.sub_(p)
    return view(whole)


def made_before(y: torch.Tensor, p: torch.Tensor, view: Any) -> torch.Tensor:
    made = view(y)
    y.sub_(p)
    return made


def without_gradients_first(y: torch.Tensor, p: torch.Tensor, view: Any) -> torch.Tensor:
    made = view(y)
    y.sub_(1)
    made.mul_(2)
    y.add_(p)
    return made


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [
        *(made_behind, written_itself, looked_at, looked_at_in_between, of_a_written_view, made_before),
        without_gradients_first,
    ],
)
def test_views_of_what_got_its_history(program: Callable[..., Any], backend: str | None) -> None:
    """torch takes a view for a leaf that it has not been asked about since, and refuses the write."""

    def gradient(run: Any, view: Any) -> Any:
        y, p = torch.arange(1, 5.0), torch.arange(1, 5.0).div(3).requires_grad_()
        made = run(y, p, view)
        several = made if isinstance(made, tuple) else (made,)
        try:
            several[0].mul_(2)
        except RuntimeError as refused:
            return [str(refused)]
        (y.sum() + sum(t.sum() for t in several[1:])).backward()
        return [y.detach(), several[0].detach(), p.grad]

    compiled = tinycompile.compile(program, backend=backend)
    for kind in ("slice", "unfold", "view_as"):  # (writes through the second break the graph)
        expected, got = (gradient(run, VIEWS[kind]) for run in (program, compiled))
        if isinstance(expected[0], str):
            assert got == expected, kind
        else:
            torch.testing.assert_close(got, expected, msg=lambda text, kind=kind: f"{kind}: {text}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_that_plain_python_writes_to(backend: str | None) -> None:
    def program(y: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        view = y.view_as(y)
        view.sub_(p)
        part = view.unfold(0, 1, 1)
        part.relu_()  # (its elements may overlap: the graph ends before)
        return view, y

    def gradient(run: Any) -> Any:
        y, p = torch.arange(1, 5.0), torch.arange(1, 5.0).div(-3).requires_grad_()
        view, whole = run(y, p)
        assert whole is y
        (view.sum() + whole.sum()).backward()
        return [y.detach(), p.grad]

    torch.testing.assert_close(gradient(tinycompile.compile(program, backend=backend)), gradient(program))
