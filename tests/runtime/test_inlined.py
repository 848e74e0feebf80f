"""A wrapper's launches in place: the same calls of the C function, by the same arguments, from other code."""

from __future__ import annotations

import traceback
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tinycompile.base import torch_private
from tinycompile.base.device import Device
from tinycompile.base.expr import ceildiv, sym
from tinycompile.ir.source import Config, KernelArg, KernelSource, Source
from tinycompile.runtime.autotune import Tuned
from tinycompile.runtime.inlined import Launch, inline
from tinycompile.runtime.launch import static_launcher
from tinycompile.runtime.linked import Linked, unwatch, watch, wrapper_file

pytestmark = pytest.mark.pure

N = sym("n", 2)
FIXED = KernelSource(
    "fixed", "triton", "", (KernelArg("x", "pointer", "float32"), KernelArg("y", "pointer", "float32")), (8,), (Config(()),)
)
SIZED = KernelSource(
    "sized",
    "triton",
    "",
    (KernelArg("x", "pointer", "float32"), KernelArg("n", "size", "int32", N, False)),
    (2, ceildiv(N, sym("BLOCK", 1))),
    (Config((("BLOCK", 64),)),),
)
OPEN = KernelSource("open", "triton", "", SIZED.args, (ceildiv(N, sym("BLOCK", 1)),), SIZED.configs)  # may launch nothing

WRAPPER = """\
def call(x):
    run = x + 1
    n = x.size(0)
    fixed(stream(), x, run)
    if n > 2:
        sized(stream(), run, n)
        open(stream(), run, n)
    sized(stream(), run, n + 1)
    return (run,)
"""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What reaches torch's launcher of cubins."""
    seen: list[tuple[Any, ...]] = []
    torchs = SimpleNamespace(_load_kernel=lambda *args: (len(args[1]), 0, 0), _launch_kernel=lambda *args: seen.append(args))
    monkeypatch.setattr(torch_private, "static_launcher", torchs)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return seen


def launcher(source: KernelSource) -> Any:
    metadata = SimpleNamespace(name=source.name, shared=0, num_warps=4, global_scratch_size=0, profile_scratch_size=0)
    code = f"{source.name} of {__name__}".encode()
    made = static_launcher(
        source, source.configs[0], SimpleNamespace(metadata=metadata, metadata_group={"k.cubin": "k"}, asm={"cubin": code})
    )
    assert made is not None
    return made


def linked(kernels: tuple[KernelSource, ...] = (FIXED, SIZED, OPEN), wrapper: str = WRAPPER, **others: Any) -> Any:
    source = Source("f", Device("cuda", 0), kernels, wrapper)
    namespace: dict[str, Any] = {"stream": lambda: 7, **{k.name: launcher(k) for k in kernels}, **others}
    made = Linked(source, namespace)
    return made, made.link()


def test_which_launches_are_in_place(calls: list[tuple[Any, ...]]) -> None:
    _, call = linked()
    names = set(call.__code__.co_names)
    assert "fixed" not in names and "open" in names  # a grid that may be empty is looked at first
    assert "sized" in names  # where an argument is more than a name, for it may occur twice
    assert call.__code__.co_filename == "<tinycompile f wrapper>"


@pytest.mark.parametrize("size", [1, 2, 100])
def test_the_same_launches_as_written(calls: list[tuple[Any, ...]], size: int) -> None:
    made, call = linked()
    x = torch.zeros(size)

    def addresses(result: torch.Tensor) -> list[tuple[Any, ...]]:
        known = {x.data_ptr(): "x", result.data_ptr(): "run"}
        told = [(*a[:7], tuple(known.get(v, v) for v in a[7]), a[8]) for a in calls]
        calls.clear()
        return told

    in_place = addresses(call(x)[0])
    call.__code__ = made._as_written
    assert in_place == addresses(call(x)[0]) and len(in_place) == (4 if size > 2 else 2)
    assert in_place[0] == (5, 8, 1, 1, 4, 0, "OOOO", ("x", "run", None, None), 7)


def test_who_watches_sees_each_launch(calls: list[tuple[Any, ...]]) -> None:
    _, call = linked()
    seen: list[str] = []

    def watcher(source: Source, kind: str, name: str, function: Any) -> Any:
        return lambda *args: (seen.append(name), function(*args))

    before = call.__code__
    watch(watcher)
    try:
        call(torch.zeros(100))
    finally:
        unwatch(watcher)
    assert seen == ["fixed", "sized", "open", "sized"] and len(calls) == 4
    assert call.__code__.co_code == before.co_code
    call(torch.zeros(100))
    assert len(seen) == 4 and len(calls) == 8


def test_nothing_is_in_place_while_a_launcher_is_to_be_chosen(calls: list[tuple[Any, ...]]) -> None:
    chosen = launcher(SIZED)
    open_ = Tuned(SIZED, (chosen,), timer=lambda *_: [1.0])
    made, call = linked((FIXED, SIZED), WRAPPER.replace("        open(stream(), run, n)\n", ""), sized=open_)
    made.replace("sized", open_)
    assert "fixed" in call.__code__.co_names
    open_.settled = lambda winner: made.replace("sized", winner)
    call(torch.zeros(100))
    assert "fixed" not in call.__code__.co_names
    call(torch.zeros(100))
    assert len(calls) == 6


def test_kernels_that_come_later_are_put_in_place(calls: list[tuple[Any, ...]]) -> None:
    def unbuilt(*_: Any) -> None:
        raise AssertionError

    made, call = linked((FIXED,), "def call(x):\n    fixed(stream(), x, x)\n    return ()\n", fixed=unbuilt)
    made.update({"fixed": unbuilt})
    assert "fixed" in call.__code__.co_names
    made.update({"fixed": launcher(FIXED)})
    call(torch.zeros(3))
    assert "fixed" not in call.__code__.co_names and len(calls) == 1


def test_tracebacks_name_the_wrappers_line(calls: list[tuple[Any, ...]]) -> None:
    made, call = linked()
    with pytest.raises(AttributeError, match="data_ptr") as failure:
        call(_NoPointer())
    last = [f for f in traceback.extract_tb(failure.value.__traceback__) if f.filename == wrapper_file(made.source)][-1]
    assert WRAPPER.splitlines()[last.lineno - 1].strip() == "fixed(stream(), x, run)"


class _NoPointer:
    """Has no memory."""

    def __add__(self, other: int) -> _NoPointer:
        return self

    def size(self, dim: int) -> int:
        return 1


def test_a_launchs_names_are_never_the_wrappers_own() -> None:
    """``run`` and ``min`` are variables of the wrapper here."""
    namespace: dict[str, Any] = {}
    launch = Launch("run(min(3, 4), a0, stream)", ("a0",), {"run": lambda *args: namespace["seen"].append(args), "min": min})
    text = "def call(min):\n    run = min\n    k(stream(), run)\n    return run\n"
    code = inline(text, "f", {"k": launch}, namespace)
    namespace.update(seen=[], stream=lambda: 9)
    exec("def call(min): ...", namespace)
    namespace["call"].__code__ = code
    assert namespace["call"](5) == 5 and namespace["seen"] == [(3, 5, 9)]
