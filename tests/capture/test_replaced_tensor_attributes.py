"""What a program puts over the attributes of ``torch.Tensor`` that say what a tensor is: nothing of ours asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.base.errors import GraphBreakError
from tinycompile.base.known_tensors import FACTS, tensors_are_torchs
from tinycompile.ir.interpreter import torch_function

pytestmark = pytest.mark.cpu
ASKED: list[str] = []
ABSENT = object()


def raises(*args: Any, **kwargs: Any) -> Any:
    ASKED.append("raises")
    raise ValueError("the program's")


def a_text(t: Any) -> str:
    ASKED.append("text")
    return "a text"


KINDS: dict[str, Any] = {"text": property(a_text), "raises": property(raises), "None": None, "method": raises}
ATTRIBUTES = sorted(
    FACTS - {"_cdata", "_backward_hooks"}  # (with which torch's own Python does what it does)
)


@contextlib.contextmanager
def replaced(name: str, by: Any, cls: type = torch.Tensor) -> Iterator[None]:
    kept = vars(cls).get(name, ABSENT)
    setattr(cls, name, by)
    try:
        yield
    finally:
        if kept is ABSENT:
            delattr(cls, name)
        else:
            setattr(cls, name, kept)


def computes(x, y):
    return torch.relu(x + y) * 2


def writes(x, y):
    x.mul_(2)
    return torch.sort(x * y)[0]


def breaks(x, y):
    z = x + y
    tinycompile.graph_break()
    return z * 2


FUNCTIONS = (computes, writes, breaks)


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """What a function gives; of an error its class and text."""
    try:
        return fn(*args)
    except Exception as error:  # noqa: BLE001  # it is compared
        return type(error), str(error)


def same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b


def given(rows: int, requires_grad: bool) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(rows * 4.0).reshape(rows, 4)
    return x, torch.ones(rows, 4, requires_grad=requires_grad)


def asked_by(fn: Callable[..., Any], args: tuple[Any, ...], name: str, by: Any) -> tuple[Any, list[str]]:
    """What comes of a call, and what was asked of the program, while an attribute is replaced."""
    ASKED.clear()
    with replaced(name, by):
        found = outcome(fn, *args)
        return found, list(ASKED)


@pytest.mark.parametrize("requires_grad", (False, True), ids=("", "grad"))
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_compiled_code_does_what_eager_does(name: str, fn: Callable[..., Any], requires_grad: bool) -> None:
    """Before the first call, after it, and after one with other sizes, which become symbols."""
    for kind, by in KINDS.items():
        compiled = tinycompile.compile(fn, backend="eager")
        for rows in (3, 5, 7):
            expected, asked = asked_by(fn, given(rows, requires_grad), name, by)
            found, asked_compiled = asked_by(compiled, given(rows, requires_grad), name, by)
            assert same(found, expected), (kind, rows)
            assert asked_compiled == asked, (kind, rows)
            assert same(compiled(*given(rows, requires_grad)), fn(*given(rows, requires_grad)))


@pytest.mark.parametrize("requires_grad", (False, True), ids=("", "grad"))
@pytest.mark.parametrize("name", ("shape", "dtype", "device", "size", "stride", "data_ptr", "numel", "requires_grad"))
def test_kernels_do_what_eager_does(name: str, requires_grad: bool) -> None:
    compiled = tinycompile.compile(computes)
    for rows in (3, 5, 7):
        for by in KINDS.values():
            expected, _ = asked_by(computes, given(rows, requires_grad), name, by)
            found, asked = asked_by(compiled, given(rows, requires_grad), name, by)
            assert same(found, expected) and not asked
        assert same(compiled(*given(rows, requires_grad)), computes(*given(rows, requires_grad)))


def reads(x):
    return x * 2, x.shape


def replaces_inside(x):
    y = x + 1
    torch.Tensor.shape = "a text"  # type: ignore[assignment]
    try:
        return y * 2, x.shape
    finally:
        del torch.Tensor.shape


def test_the_program_reads_what_it_put_there() -> None:
    x = torch.ones(2)
    compiled = tinycompile.compile(reads, backend="eager")
    assert compiled(x)[1] == x.shape
    with replaced("shape", property(a_text)):
        assert compiled(x)[1] == "a text"
        assert compiled(torch.ones(3))[1] == "a text"
    assert compiled(x)[1] == x.shape


def test_it_is_replaced_inside() -> None:
    compiled = tinycompile.compile(replaces_inside, backend="eager")
    for rows in (2, 3, 4):
        found, shape = compiled(torch.ones(rows))
        assert shape == "a text" and found.shape == (rows,)


def test_it_is_told_apart_from_what_else_a_program_puts_there() -> None:
    assert tensors_are_torchs()
    with replaced("something", 1):
        assert tensors_are_torchs()
        with replaced("shape", 1, torch.nn.Parameter):
            assert not tensors_are_torchs()
        with replaced("shape", 1):
            assert not tensors_are_torchs()
    assert tensors_are_torchs()


def test_the_whole_graph_can_not_be_had_meanwhile() -> None:
    compiled = tinycompile.compile(reads, backend="eager", fullgraph=True)
    with replaced("shape", property(a_text)), pytest.raises(GraphBreakError, match="tensor-attributes"):
        compiled(torch.ones(2))
    assert not compiled.breaks


@pytest.mark.parametrize("backend", ("eager", None))
def test_what_was_replaced_for_a_time_is_not_kept(backend: str | None) -> None:
    """Nodes of graphs name methods of torch's: what the program had there is not found for them, then or later."""
    torch_function.cache_clear()
    compiled = tinycompile.compile(writes, backend=backend)
    for name in ("copy_", "mul_", "sort"):
        with replaced(name, raises):
            asked_by(compiled, given(3, requires_grad=False), name, raises)
        for rows in (3, 4):
            assert same(compiled(*given(rows, requires_grad=False)), writes(*given(rows, requires_grad=False)))
        again = tinycompile.compile(writes, backend=backend)
        assert same(again(*given(3, requires_grad=False)), writes(*given(3, requires_grad=False)))


def test_kernels_ask_torch_where_a_tensor_lies() -> None:
    compiled = tinycompile.compile(computes)
    x, y = given(3, requires_grad=False)
    expected = compiled(x, y)
    for by in KINDS.values():
        found, asked = asked_by(compiled, (x, y), "data_ptr", by)
        assert same(found, expected) and not asked
