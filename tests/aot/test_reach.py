"""What a backward comes to, where the results of a function depend on different inputs: hooks, what is freed, gradients."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.aot.reach import _Shared
from tinycompile.base import torch_private

Leaf = torch.Tensor
Fn = Callable[..., tuple[torch.Tensor, ...]]


def _apart(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    return (a * a).sum(), (b.exp() * b).sum()


def _overlapping(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    h = a.sin() * b
    return (h * a).sum(), h.exp(), (b * c).tanh()


def _two_heads(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    h = (a @ a.t()).relu()
    return h @ b, h @ c


def _with_a_constant(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    return a * 2, b > 0, b * c, c.argmax()


def _with_views(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    return a.t(), (a * b)[0], c.view(-1), c.exp()[:, 1:]


def _cut_off(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    return a * b.detach(), b.cos() + (c > 0)


def _written(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    h = a * 1
    h[0] = b[1]
    return h, (c * c).mul_(b)


def _one_result_twice(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    h = a.exp()
    return h, b * c, h


PROGRAMS = [_apart, _overlapping, _two_heads, _with_a_constant, _with_views, _cut_off, _written, _one_result_twice]


def _leaves() -> list[Leaf]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


def _differentiable(results: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [r for r in results if r.requires_grad]


def _outcome(use: Callable[[Fn, list[Leaf], list[Any]], Any], fn: Fn) -> Any:
    """What a use of a function gives, what it notes, and the gradients that it leaves."""
    leaves, notes = _leaves(), list[Any]()
    try:
        result = use(fn, leaves, notes)
    except RuntimeError as error:  # what was accumulated before it depends on the engine's order
        return str(error).partition(" [")[0]
    return result, notes, [x.grad for x in leaves]


def _hooks_on_leaves(fn: Fn, leaves: list[Leaf], notes: list[Any]) -> None:
    for i, x in enumerate(leaves):
        x.register_hook(lambda g, i=i: notes.append((i, g.clone())))
        x.register_hook(lambda g: g * 2)
        x.register_post_accumulate_grad_hook(lambda x, i=i: notes.append((i, x.grad.clone())))
    _differentiable(fn(*leaves))[0].sum().backward()
    notes.sort(key=lambda note: note[0])


def _hooks_on_results(fn: Fn, leaves: list[Leaf], notes: list[Any]) -> None:
    results = _differentiable(fn(*leaves))
    for i, r in enumerate(results):
        r.register_hook(lambda g, i=i: notes.append(i) or g * (i + 2))
    results[-1].sum().backward()


def _one_after_the_other(fn: Fn, leaves: list[Leaf], notes: list[Any]) -> None:
    for r in _differentiable(fn(*(x.sin() for x in leaves))):
        r.sum().backward()
        notes.append([x.grad is None for x in leaves])


def _all_together(fn: Fn, leaves: list[Leaf], notes: list[Any]) -> None:
    sum(((i + 1) * r).sum() for i, r in enumerate(_differentiable(fn(*leaves)))).backward()  # type: ignore[union-attr]


def _retained(fn: Fn, leaves: list[Leaf], notes: list[Any]) -> None:
    loss = torch.stack([r.sum() for r in _differentiable(fn(*leaves))]).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    loss.backward()


def _of_some_inputs(fn: Fn, leaves: list[Leaf], notes: list[Any]) -> Any:
    results = _differentiable(fn(*(x.sin() for x in leaves)))
    results[0].sum().backward(inputs=[leaves[0]], retain_graph=True)
    return torch.autograd.grad([r.sum() for r in results], leaves[1:], allow_unused=True)


def _twice_differentiated(fn: Fn, leaves: list[Leaf], notes: list[Any]) -> Any:
    results = _differentiable(fn(*leaves))
    first = torch.autograd.grad([(r * r).sum() for r in results], leaves, create_graph=True, allow_unused=True)
    return torch.autograd.grad([(g * g).sum() for g in first if g is not None], leaves, allow_unused=True)


def _one_twice_differentiated(fn: Fn, leaves: list[Leaf], notes: list[Any]) -> None:
    first = torch.autograd.grad((_differentiable(fn(*leaves))[0] ** 2).sum(), leaves, create_graph=True, allow_unused=True)
    sum((g * g).sum() for g in first if g is not None).backward()  # type: ignore[union-attr]


def _edited_result(fn: Fn, leaves: list[Leaf], notes: list[Any]) -> None:
    first, *others = _differentiable(fn(*(x * 1 for x in leaves)))
    with torch.no_grad():
        first.mul_(2)
    torch.autograd.backward([r.sum() for r in others])
    first.sum().backward()


def _in_a_batch(fn: Fn, leaves: list[Leaf], notes: list[Any]) -> Any:
    result = _differentiable(fn(*leaves))[-1]
    tangents = torch.stack([torch.ones_like(result), torch.ones_like(result) * 2])
    return torch.autograd.grad(result, leaves, tangents, is_grads_batched=True, allow_unused=True)


def _long_way_of_one(fn: Fn, leaves: list[Leaf], notes: list[Any]) -> None:
    """The engine may come to the gate of one result before it has come to the other."""
    first, *others = _differentiable(fn(*leaves))
    loss = first.sum()
    for r in others:
        deep = r
        for _ in range(50):
            deep = deep * 1.01
        loss = loss + deep.sum()
    loss.backward()


USES = [
    _hooks_on_leaves,
    _hooks_on_results,
    _one_after_the_other,
    _all_together,
    _retained,
    _of_some_inputs,
    _twice_differentiated,
    _one_twice_differentiated,
    _edited_result,
    _in_a_batch,
    _long_way_of_one,
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("fn", PROGRAMS)
def test_as_eager(fn: Fn, use: Callable[..., Any]) -> None:
    expected, got = _outcome(use, fn), _outcome(use, tinycompile.compile(fn, fullgraph=True))
    if isinstance(expected, str):
        assert got == expected
    else:
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_gradients_of_a_run_are_no_others() -> None:
    """A backward that fails, or that goes to some inputs, leaves nothing to the next; two threads keep theirs apart."""
    leaves = _leaves()
    first, second, third = tinycompile.compile(_overlapping, fullgraph=True)(*leaves)
    handle = second.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (first + second.sum()).backward(retain_graph=True)
    handle.remove()
    for x in leaves:
        x.grad = None
    kept: dict[int, Any] = {}

    def work(n: int) -> None:
        for _ in range(20):
            found = torch.autograd.grad([first * n, second, third], leaves, [first, second, third], retain_graph=True)
            kept[n] = found

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for n in (1, 2):
        f, s, t = _overlapping(*leaves)
        torch.testing.assert_close(kept[n], torch.autograd.grad([f * n, s, t], leaves, [f, s, t]))


@pytest.mark.parametrize("backwards", [0, 1, 2], ids=["none", "of one result", "of both"])
def test_memory_goes_with_the_graph(backwards: int) -> None:
    def fn(a: Any, b: Any) -> tuple[Any, ...]:
        return (a.exp() * a.sin()).exp(), (b.exp() * b.sin()).exp()

    gc.collect()
    gc.disable()
    try:
        a, b = (torch.randn(300, requires_grad=True) for _ in range(2))
        results = list(tinycompile.compile(fn, fullgraph=True)(a * 1, b * 1))
        gone = [weakref.ref(r) for r in results] + [weakref.ref(r.grad_fn) for r in results]
        for r in results[:backwards]:
            r.sum().backward()
            del r
        del results
        assert not [ref for ref in gone if ref() is not None]
    finally:
        gc.enable()


def test_saved_tensors_are_freed_by_the_backward() -> None:
    saved: list[weakref.ref[Any]] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        kept = t.clone()
        saved.append(weakref.ref(kept))
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        first, second = tinycompile.compile(_apart, fullgraph=True)(*_leaves())
    assert saved
    (first + second).backward()
    assert not [ref for ref in saved if ref() is not None]
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        second.backward()


def test_two_gates_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's engine has a thread for each device: while one gate runs the backward of both, the other waits for its part."""
    monkeypatch.setattr(torch_private, "engine_run", lambda: 7)
    monkeypatch.setattr(torch_private, "keeps_graph", lambda: True)
    entered = threading.Event()

    def backward(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        entered.set()
        time.sleep(0.2)
        return (None, None, tangents[0] * 2, tangents[0] * 3)

    shared = _Shared(torch.empty(0), backward, 1, ((0,), (1,)))
    shared.take(0, torch.ones(2), {0, 1})
    found: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: shared.gradients(n)})) for n in (0, 1)]
    threads[0].start()
    assert entered.wait(10)
    threads[1].start()
    for t in threads:
        t.join(10)
    assert torch.equal(found[0][0], torch.full((2,), 2.0)) and torch.equal(found[1][0], torch.full((2,), 3.0))
    assert not shared._runs
