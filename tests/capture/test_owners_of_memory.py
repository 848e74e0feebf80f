"""Which results are views, of what, and who sees a write to one: as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tinycompile

pytestmark = pytest.mark.cpu
BACKENDS = ("eager", "aot_eager", None)
Fn = Callable[..., Any]

# What torch gives in memory of its own, whatever it is composed of here.
MADE: dict[str, Fn] = {
    "stack": lambda x, y: torch.stack([x, y]),
    "stack_last": lambda x, y: torch.stack([x, y], -1),
    "roll": lambda x, y: torch.roll(x, 1),
    "roll_dim": lambda x, y: torch.roll(x, 1, 1),
    "rot90": lambda x, y: torch.rot90(x),
    "kron": lambda x, y: torch.kron(x, y),
    "put": lambda x, y: torch.put(x, torch.tensor([0]), y[0, :1]),
    "index_put": lambda x, y: torch.index_put(x, (torch.tensor([0]),), y[0]),
    "index_put_inner": lambda x, y: torch.ops.aten.index_put(x[None], [None, torch.tensor([0])], y[0]),
    "index_fill": lambda x, y: torch.index_fill(x, 0, torch.tensor(0), 1.0),
    "index_fill_number": lambda x, y: torch.index_fill(x[0, 0], 0, torch.tensor([0]), 1.0),
    "take": lambda x, y: torch.take(x, torch.tensor(1)),
    "take_of_number": lambda x, y: torch.take(x[0, 0], torch.tensor(0)),
    "one_hot": lambda x, y: F.one_hot(x.detach().long().clamp(0, 3)),
    "pixel_shuffle": lambda x, y: F.pixel_shuffle(x.view(4, 3, 1), 2),
    "block_diag": lambda x, y: torch.block_diag(x, y),
    "hstack": lambda x, y: torch.hstack([x]),
    "vstack": lambda x, y: torch.vstack([x[0], y[0]]),
    "dstack": lambda x, y: torch.dstack([x, y]),
    "tile": lambda x, y: torch.tile(x, (2,)),
    "repeat": lambda x, y: x.repeat(1, 1),
    "flip": lambda x, y: x.flip(0),
    "pad": lambda x, y: F.pad(x, (1, 1)),
    "outer": lambda x, y: torch.outer(x[0], y[0]),
    "select_scatter": lambda x, y: torch.select_scatter(x * 1, y[0], 0, 0),
    "cumsum": lambda x, y: x.cumsum(0),
    "einsum_sum": lambda x, y: torch.einsum("ij->i", x),
    "view_copy": lambda x, y: torch.view_copy(x, (12,)),
}
# Views of the argument.
VIEWS: dict[str, Fn] = {
    "turned": lambda x: torch.einsum("ij->ji", x),
    "in_order": lambda x: torch.einsum("ij->ij", x),
    "ordered_by_letter": lambda x: torch.einsum("ba", x),
    "ellipsis": lambda x: torch.einsum("...i->i...", x),
    "middle": lambda x: torch.einsum("a...c->c...a", x[None]),
    "diagonal": lambda x: torch.einsum("ii->i", x[:, :3]),
    "diagonals": lambda x: torch.einsum("bii->bi", x[None, :, :3]),
    "spaces": lambda x: torch.einsum("i j -> j i", x),
    "diagonal_first": lambda x: torch.einsum("bii->ib", x[None, :, :3]),
    "reshape": lambda x: x.reshape(-1),
    "broadcast": lambda x: torch.broadcast_tensors(x, x)[0],
    "movedim": lambda x: torch.movedim(x, 0, 1),
    "atleast": lambda x: torch.atleast_3d(x),
    "ravel": lambda x: torch.ravel(x),
    "product_of_one": lambda x: torch.masked.prod(x[0, 1]),
}
# Writes to all or a part of memory that the function owns.
WRITES: dict[str, Fn] = {
    "view": lambda z: z.view(-1)[0].fill_(1),
    "reshape": lambda z: z.reshape(-1).add_(1),
    "turned": lambda z: z.t().mul_(2),
    "unsqueezed": lambda z: z.unsqueeze(0).mul_(2),
    "squeezed": lambda z: z.squeeze().mul_(2),
    "unflattened": lambda z: z.unflatten(1, (2, 2)).mul_(2),
    "moved": lambda z: z.movedim(0, 1)[1:].mul_(2),
    "permuted": lambda z: z.permute(1, 0)[0].zero_(),
    "as_itself": lambda z: z.view_as(z).mul_(2),
    "row": lambda z: z[0].fill_(1),
    "rows": lambda z: z[1:].mul_(2),
    "put": lambda z: z.put_(torch.tensor([0]), torch.ones(1)),
    "named": lambda z: z.__setitem__((slice(None), torch.tensor(0)), 1.0),
    "whole": lambda z: z.mul_(2),
}
SOURCES: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.arange(12.0).view(3, 4).clone(),
    "leaf": lambda: torch.arange(12.0).view(3, 4).clone().requires_grad_(),
    "inner": lambda: torch.arange(12.0).view(3, 4).clone().requires_grad_() * 1,
    "part": lambda: torch.arange(24.0)[6:18].view(3, 4),
}


def place(t: Tensor | None, known: dict[str, Tensor]) -> str:
    if t is None:
        return "none"
    return next((name for name, other in known.items() if other is t), "another")


def memory(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def owner(result: Tensor, *given: Tensor) -> list[Any]:
    """All that tells whose memory a result is in."""
    known = {f"input {i}": x for i, x in enumerate(given)}
    known |= {f"base of input {i}": x._base for i, x in enumerate(given) if x._base is not None}
    found = [result._is_view(), place(result._base, known), place(result, known), result.storage_offset(), result.requires_grad]
    shares = [memory(x) == memory(result) for x in given]
    try:
        result.detach_()
    except RuntimeError as error:
        return [*found, shares, str(error)]
    return [*found, shares, "detached"]


def owners(results: tuple[Tensor, ...], x: Tensor) -> list[Any]:
    """The same of results whose memory the first has."""
    return [owner(part, results[0], x) for part in results[::-1]]


def both(fn: Fn, backend: str | None, made: Callable[[], Tensor], told: Callable[[Fn, Tensor], Any]) -> None:
    compiled = tinycompile.compile(fn, backend=backend)
    for _ in range(2):
        assert told(compiled, made()) == told(fn, made())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MADE)
def test_what_an_op_makes_is_no_view(name: str, backend: str | None) -> None:
    def fn(x: Tensor) -> Any:
        return MADE[name](x, x + 1)

    for made in SOURCES.values():
        for mode in (True, False):
            with torch.set_grad_enabled(mode):
                both(fn, backend, made, lambda f, x: owner(f(x), x))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_through_a_view_is_no_view(name: str, backend: str | None) -> None:
    def fn(x: Tensor) -> Any:
        z = x * 2
        WRITES[name](z)
        return z

    def made_here(x: Tensor) -> Any:
        z = torch.ones(3, 4)
        WRITES[name](z)
        return z

    def used_later(x: Tensor) -> Any:
        z = x * 2
        WRITES[name](z)
        return z, z[1:]

    for made in SOURCES.values():
        for mode in (True, False):
            with torch.set_grad_enabled(mode):
                both(fn, backend, made, lambda f, x: owner(f(x), x))
                both(made_here, backend, made, lambda f, x: owner(f(x), x))
                both(used_later, backend, made, lambda f, x: owners(f(x), x))


def gradients(fn: Fn, x: Tensor) -> Any:
    """The result, and its first and second gradient."""
    z = fn(x)
    if not x.requires_grad:
        return z.tolist()
    first = torch.autograd.grad(z.sin().sum(), x, create_graph=True)[0]
    return z.tolist(), first.tolist(), torch.autograd.grad(first.sum(), x)[0].tolist()


@pytest.mark.parametrize("name", WRITES)
def test_the_history_stays(name: str) -> None:
    def fn(x: Tensor) -> Any:
        z = x * 2
        WRITES[name](z)
        return z

    for made in SOURCES.values():
        both(fn, "eager", made, gradients)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", VIEWS)
def test_views_see_writes_to_what_they_view(name: str, backend: str | None) -> None:
    def before(x: Tensor) -> Any:
        z = x * 1
        part = VIEWS[name](z)
        z.mul_(2)
        return part * 1, z

    def through(x: Tensor) -> Any:
        z = x * 1
        VIEWS[name](z).mul_(3)
        return z

    def outside(x: Tensor) -> Any:
        return VIEWS[name](x)

    def told(fn: Fn, x: Tensor) -> Any:
        found = fn(x)
        if fn.__name__ == "outside" and not x.is_leaf:
            found.mul_(2)
        loss = sum((t.sum() for t in (found if isinstance(found, tuple) else (found,))), x.square().sum())
        grads = torch.autograd.grad(loss, x)[0].tolist() if x.requires_grad else None
        results = found if isinstance(found, tuple) else (found,)
        return [*(t.tolist() for t in results), x.tolist(), grads, memory(results[-1]) == memory(x)]

    for fn in (before, through, outside):
        for kind in ("plain", "leaf", "inner"):
            both(fn, backend, SOURCES[kind], told)
