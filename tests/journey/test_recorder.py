"""That a profile lists what ran, all of it and nothing else, in every thread."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch.profiler import record_function

import tinycompile
from tinycompile.base import torch_private
from tinycompile.eager import no_trace, shortcut
from tinycompile.eager.batched import BatchedTensor
from tinycompile.eager.tensor import Tensor
from tinycompile.journey.events import Step

pytestmark = pytest.mark.cpu
HERE = "test_recorder.py"


def profiled(fn: Callable[[], Any]) -> tinycompile.Profile:
    with tinycompile.profile() as p:
        fn()
    return p


def names(p: tinycompile.Profile) -> list[str]:
    return [s.name for s in p.walk()]


def x() -> Tensor:
    return tinycompile.from_torch(torch.arange(12.0).reshape(3, 4))


def w() -> Tensor:
    return x().requires_grad_() * 1


AT = tinycompile.tensor([0, 2])
SQUARE = tinycompile.eye(3)
HALF = tinycompile.from_torch(torch.arange(12).reshape(3, 4) > 5)
PAST_THE_TABLE: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Any], str, int]] = {
    # the tensor, the call, what ATen calls it, the bytes that it moves
    "method in place": (x, lambda a: a.add_(1), "add_", 96),
    "operator in place": (x, lambda a: a.__iadd__(1), "add_", 96),
    "told to be in place": (x, lambda a: F.relu(a, inplace=True), "relu_", 96),
    "fill": (x, lambda a: a.fill_(2), "fill_", 48),
    "copy": (x, lambda a: a.copy_(a.torch() + 1), "copy_", 96),
    "out": (x, lambda a: torch.add(a, 1, out=a), "add", 96),
    "indices": (x, lambda a: a[AT], "index", 2 * 32 + 16),
    "mask": (x, lambda a: a[a.torch() > 5], "index", 2 * 24 + 12),
    "set a row": (x, lambda a: a.__setitem__(0, 1.0), "index_put_", 16),
    "set by indices": (x, lambda a: a.__setitem__(AT, 1.0), "index_put_", 32 + 16),
    "set by a mask": (x, lambda a: a.__setitem__(HALF, 1.0), "index_put_", 24 + 12),
    "several results": (x, lambda a: a.sort(), "sort", 48 + 48 + 96),
    "linear algebra": (lambda: SQUARE, torch.linalg.inv, "linalg_inv", 72),
    "sparse": (lambda: SQUARE, lambda a: a.to_sparse(), "to_sparse", 36 + 12 + 48),
    "no tensor": (x, lambda a: torch.equal(a, a), "equal", 48),
    "a number": (lambda: x().sum(), lambda a: a.item(), "item", 4),
    "a bool": (lambda: x().sum(), bool, "bool", 4),
    "a view in place": (x, lambda a: a.t_(), "t_", 0),
    "a view": (x, lambda a: a.view(torch.int32), "view", 0),
}


@pytest.mark.parametrize("case", PAST_THE_TABLE)
def test_ops_that_go_past_the_dispatcher_are_recorded(case: str) -> None:
    make, call, name, moved = PAST_THE_TABLE[case]
    a = make()
    for _ in range(2):  # the short way, too
        p = profiled(lambda: call(a))
        (step,) = [s for s in p.steps if s.kind == "op"]
        assert (step.name, step.keyset, [h.key for h in step.handlers]) == (name, "{CPU}", ["CPU"])
        assert HERE in step.line and step.operands and step.moved == moved
        assert name in ("t_", "view") or any(k.name.startswith("aten::") for k in step.kernels)
        if name == "t_":
            break


ODD = {
    "empty list": [],
    "list": [0, 1],
    "lists": ([0, 1], [1, 2]),
    "bool": True,
    "mask of a dim": (slice(None), [True, False, True, False]),
    "mask of two": tinycompile.ones(3, 4) > 0,
    "numpy": numpy.array([0, 2]),
    "ellipsis": (..., 0),
    "new dim": (None, 1),
    "mixed": (tinycompile.tensor([True, False, True]), 0),
}


@pytest.mark.parametrize("case", ODD)
def test_whatever_the_index_is(case: str) -> None:
    a, index = x(), ODD[case]
    count = a.torch()[index if not isinstance(index, tuple) and not isinstance(index, Tensor) else _torchs(index)].numel()
    for make in (x, w):
        a = make()
        p = profiled(lambda: a.__setitem__(index, 1.0))
        assert names(p)[0] == "index_put_" and (a == 1).sum().item() >= count
        moved = sum(s.moved or 0 for s in p.walk())
        assert moved >= 4 * count and (case in ("mask of two", "mixed") or moved == 4 * count)
    assert profiled(lambda: x()[index]).steps


def _torchs(index: Any) -> Any:
    return tuple(map(_torchs, index)) if isinstance(index, tuple) else index.torch() if isinstance(index, Tensor) else index


@pytest.mark.parametrize("case", [c for c in PAST_THE_TABLE if c not in ("out", "told to be in place", "sparse", "copy")])
def test_on_the_tape_too(case: str) -> None:
    _, call, name, _ = PAST_THE_TABLE[case]
    a = w() if PAST_THE_TABLE[case][0] is x else w().sum() if name in ("item", "bool") else SQUARE.clone().requires_grad_() * 1
    (step,) = [s for s in profiled(lambda: call(a)).steps if s.kind == "op"]
    assert step.name == name and step.keyset == "{AUTOGRAD, CPU}" and step.handlers[0].key in ("AUTOGRAD", "CPU")
    assert HERE in step.line


def test_under_vmap_they_hold_what_runs_below() -> None:
    a, at = x(), tinycompile.tensor([0, 1, 2])
    p = profiled(lambda: tinycompile.vmap(lambda r, i: (r * 1).add_(1)[i])(a, at))
    assert [s.name for s in p.steps if s.kind == "op"] == ["mul", "add_", "index"]
    add, index = [s for s in p.steps if s.name in ("add_", "index")]
    assert add.keyset == index.keyset == "{BATCHED, CPU}" and [h.key for h in add.handlers] == ["BATCHED"]
    assert {c.name for c in add.children} == {"add_"} and "index" in {c.name for c in index.children}


def test_what_is_no_op_is_not_listed() -> None:
    a = x()
    p = profiled(lambda: (a.dim(), a.is_inference(), a.size(), a.requires_grad_()))
    assert not [s for s in p.steps if s.kind == "op"]


def test_nothing_of_it_stays() -> None:
    held = [dict(vars(cls)) for cls in (Tensor, BatchedTensor)]
    writable = set(shortcut._WRITABLE)
    with tinycompile.profile(), tinycompile.trace_storages():
        assert Tensor.__dict__["_extern"] is not held[0]["_extern"] and not shortcut._WRITABLE
    assert [dict(vars(cls)) for cls in (Tensor, BatchedTensor)] == held and shortcut._WRITABLE == writable
    assert not no_trace.around


# --- what did not run --------------------------------------------------------------------------------------------------------


def test_shapes_that_were_worked_out_are_no_ops() -> None:
    a = tinycompile.ones(4, requires_grad=True)
    for _ in range(2):
        steps = list(profiled(lambda: torch.dot(a, tinycompile.ones(4))).walk())
        assert steps and not any(h.key == "OUTLINE" for s in steps for h in s.handlers)
    p = profiled(lambda: tinycompile.vmap(lambda r: F.hinge_embedding_loss(r, tinycompile.ones(4)))(x()))
    assert not any(h.key == "OUTLINE" for s in p.walk() for h in s.handlers)


def test_what_autocast_asks_torch_is_no_op() -> None:
    m = tinycompile.ones(3, 4)

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            m @ m.t()

    (matmul,) = [s for s in profiled(run).walk() if s.name == "matmul"]
    assert [k.name for k in matmul.kernels] == ["aten::matmul"]


def test_a_call_that_fails_is_listed_once() -> None:
    def fail() -> None:
        with pytest.raises(RuntimeError, match="size|shape"):
            x() @ x()

    assert [n for n in names(profiled(fail)) if "matmul" in n] == ["matmul"]
    assert "aten::detach" not in names(profiled(fail))


def test_the_compilers_work_on_later_pieces_is_not_the_programs() -> None:
    def f(a):
        b = torch.sin(a) * 2
        c = torch.kthvalue(torch.tensor(b.tolist()), 1)[0]
        tinycompile.graph_break()
        return torch.cos(c) * 3

    compiled, a = tinycompile.compile(f), torch.randn(5, 3)
    first, second = profiled(lambda: compiled(a)), profiled(lambda: compiled(a))
    told = [[(s.kind, s.name) for s in p.walk()] for p in (first, second)]
    assert told[0] == told[1] and ("library", "torch.kthvalue") in told[0]


# --- labels ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["step::fwd", "aten::mul", "fwd"])
def test_labels_of_the_programs_are_no_ops(label: str) -> None:
    a, m = tinycompile.ones(3), torch.randn(4, 4)

    def run() -> None:
        with record_function(label):
            torch.mm(m, m), a * 2

    p = profiled(run)
    assert [(s.kind, s.name, [k.name for k in s.kernels]) for s in p.walk()] == [
        ("torch", "aten::mm", ["aten::mm"]),
        ("op", "mul", ["aten::mul"]),
    ]
    assert p.steps[0].end <= p.steps[1].start


# --- threads -----------------------------------------------------------------------------------------------------------------


def in_thread(fn: Callable[[], Any]) -> None:
    thread = threading.Thread(target=fn)
    thread.start()
    thread.join()


def test_calls_of_ours_are_told_in_every_thread_and_the_rest_is_said_to_be_missing() -> None:
    r, a = torch.randn(4, 4, requires_grad=True), x()
    f = tinycompile.compile(lambda t: torch.relu(t @ t) + 1)
    f(r.detach())

    def run() -> None:
        a.sin(), a.add_(1), a[AT], a.t(), f(r.detach())

    here, there = profiled(run), profiled(lambda: in_thread(run))
    told = [[(s.kind, s.name, s.moved, len(s.kernels)) for s in p.walk() if s.kind != "torch"] for p in (here, there)]
    assert told[0] == told[1] and here.problem is None and "sees one thread" in (there.problem or "")
    assert {s.thread for s in here.walk()} == {threading.get_native_id()} != {s.thread for s in there.walk()}
    assert all(s.start <= k.start <= k.end <= s.end for s in there.walk() for k in s.kernels)
    alone = profiled(lambda: in_thread(lambda: (r @ r).sum().backward()))
    assert not alone.steps and "sees one thread" in (alone.problem or "")


def test_threads_of_a_compile_are_no_matter() -> None:
    p = tinycompile.profile()
    with p, p._recorder.aside():
        in_thread(lambda: None)
    assert p.problem is None


def test_profiles_of_several_threads_do_not_disturb_each_other() -> None:
    """Torch's tracer is one's at a time: others are told so, and time by the host's clock. (Recording all threads, or in two, it
    crashed here.)"""
    problems: list[Any] = []

    def work() -> None:
        a = x()
        for _ in range(20):
            p = profiled(lambda: [(a.sin(), a.add_(0)) for _ in range(3)])
            mine = [s for s in p.walk() if s.thread == threading.get_native_id()]
            told = [(s.name, [k.name.removeprefix("aten::") for k in s.kernels]) for s in mine]
            if told != [("sin", ["sin"]), ("add_", ["add_"])] * 3:
                problems.append((p.problem, mine))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_a_profile_left_in_another_thread_takes_nothing_with_it() -> None:
    a = x()
    p = tinycompile.profile()
    p.__enter__()
    a.sin()
    in_thread(lambda: p.__exit__(None, None, None))
    assert [s.name for s in p.steps] == ["sin"] and "left in another thread" in (p.problem or "")
    q = profiled(lambda: a.cos())
    assert q.problem is None and [(s.name, [k.name for k in s.kernels]) for s in q.steps] == [("cos", ["aten::cos"])]
    assert not torch_private.profiler_runs()


def test_what_still_runs_at_the_end_ends_there() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(value: float) -> float:
        begun.set()
        goes_on.wait(10)
        return value

    thread = threading.Thread(target=x().apply_, args=(slow,))
    with tinycompile.profile() as p:
        thread.start()
        begun.wait(10)
    before = json.dumps(json.loads(p.chrome_trace())["traceEvents"], default=str), str(p)
    goes_on.set()
    thread.join()
    assert (json.dumps(json.loads(p.chrome_trace())["traceEvents"], default=str), str(p)) == before
    (step,) = [s for s in p.steps if s.kind == "op"]
    assert step.name == "apply_" and 0 < step.nanoseconds and step.end == p.end
    assert all(h.nanoseconds >= 0 for h in step.handlers)
    p.html()


def test_leaving_what_was_not_entered() -> None:
    with tinycompile.profile() as p:
        pass
    for other in (p, tinycompile.profile()):
        with pytest.raises(RuntimeError, match="left once"):
            other.__exit__(None, None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profiled(lambda: x().sin())


def roots_lie_apart(steps: list[Step]) -> bool:
    return all(a.end <= b.start for a, b in zip(steps, steps[1:], strict=False) if a.thread == b.thread)


def test_steps_lie_in_each_other_or_apart() -> None:
    p = profiled(lambda: (x().add_(1), tinycompile.vmap(lambda a: (a * 1).add_(1))(x()), w().sum().backward()))
    assert roots_lie_apart(p.steps) and all(roots_lie_apart(s.children) for s in p.walk())


def test_work_of_a_module_of_torchs_has_the_line_that_called_it() -> None:
    linear, gelu = tinycompile.compile(torch.nn.Linear(4, 4)), tinycompile.compile(torch.nn.GELU())
    r = torch.randn(2, 4, requires_grad=True)
    gelu(linear(r)).sum().backward()

    p = profiled(lambda: gelu(linear(r)).sum().backward())
    told = [s for s in p.walk() if s.kind in ("kernel", "library")]
    assert len(told) > 2 and all(HERE in s.line and not s.lines for s in told)
