"""Special methods that a program gives its enumerations: asked in each call, as those of any object are."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure
STATE = {"word": "g"}
LOG: list[str] = []


def said(name: str) -> str:
    LOG.append(name)
    return STATE["word"]


class Any_(enum.Enum):
    """All that is asked of a member that is nothing else."""

    A, B = 1, 2

    def __str__(self):
        return "s" + said("str")

    def __repr__(self):
        return "r" + said("repr")

    def __format__(self, spec):
        return said("format") + spec

    def __eq__(self, other):
        return said("eq") == "g"

    def __hash__(self):
        return len(said("hash"))

    def __lt__(self, other):
        return said("lt") == "g"

    def __bool__(self):
        return said("bool") == "g"

    def __len__(self):
        return len(said("len"))

    def __int__(self):
        return len(said("int"))

    def __index__(self):
        return len(said("index"))

    def __contains__(self, item):
        return said("contains") == item

    def __getitem__(self, key):
        return said("getitem") * key

    def __iter__(self):
        return iter(said("iter"))

    def __call__(self):
        return said("call")

    def __invert__(self):
        return said("invert")

    def __add__(self, other):
        return NotImplemented if other is None else said("add")

    def __rmul__(self, other):
        return said("rmul")

    def __iadd__(self, other):
        return said("iadd")

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return said(name)

    @classmethod
    def of_class(cls):
        return said(cls.__name__)

    @staticmethod
    def of_none():
        return said("static")

    @classmethod
    def _missing_(cls, value):
        return cls.A if said("missing") == "g" else cls.B


class Number(enum.IntEnum):
    A = 1

    def __str__(self):
        return said("str")

    def __add__(self, other):
        return said("add")

    def __eq__(self, other):
        return said("eq") == "g"

    __hash__ = int.__hash__

    def __bool__(self):
        return said("bool") == "g"

    def __index__(self):
        return len(said("index"))


class Text(str, enum.Enum):
    A = "a"

    def __str__(self):
        return said("str")

    def __ne__(self, other):
        return said("ne") == "g"

    def upper(self):
        return said("upper")

    def __radd__(self, other):
        return said("radd")


class Bits(enum.Flag):
    A, B = 1, 2

    def __or__(self, other):
        return said("or")

    def __contains__(self, other):
        return said("contains") == "g"

    @classmethod
    def _missing_(cls, value):
        said("missing")
        return super()._missing_(value)


def iadd(member):
    member += 1
    return member


ASKED = """
str(Any_.A) ; repr(Any_.A) ; ascii(Any_.A) ; f"{Any_.A}" ; f"{Any_.A!s}" ; f"{Any_.A!r:>4}" ; f"{Any_.A:z}" ; format(Any_.A, "z")
"%s %r" % (Any_.A, Any_.B) ; "{}".format(Any_.A) ; Any_.A == Any_.B ; Any_.A != 3 ; 3 == Any_.A ; Any_.A < 2 ; 2 > Any_.A
bool(Any_.A) ; 1 if Any_.A else 2 ; not Any_.A ; Any_.A or 1 ; len(Any_.A) ; int(Any_.A) ; float(Any_.A) ; [4, 5, 6][Any_.A]
"g" in Any_.A ; Any_.A[2] ; list(Any_.A) ; [*Any_.A] ; Any_.A() ; ~Any_.A ; Any_.A + 1 ; 2 * Any_.A ; iadd(Any_.A) ; Any_.A.name_of
Any_.A.of_class() ; Any_.A.of_none() ; hash(Any_.A) ; {Any_.A: 1}.get(Any_.B) ; Any_.A in (Any_.B, 3) ; Any_.A in {Any_.B}
(Any_.A, 1) == (Any_.B, 1) ; (Any_.A, 1) == (Any_.A, 1) ; Any_.A in (Any_.A, 3) ; [e].index(Any_.A) ; e in [Any_.A] ; [e] == [Any_.A]
{1: e} == {1: Any_.A} ; [e, e].count(Any_.A) ; [e] < [Any_.A] ; [e].remove(Any_.A) ; [Any_.A].index(3) ; [1, Any_.A].count(1) ; sorted([Any_.A, Any_.B])[0] is Any_.A ; Any_(1) is Any_.A
Any_("zz") is Any_.A ; e == Any_.B ; str(e) ; 1 if e else 2 ; Any_.A is e ; Any_.A.__str__() ; str([Any_.A]) ; any([Any_.A])
Any_.A != x ; Any_.A == x ; x == Any_.A ; x != Any_.A ; slice(Any_.A) == slice(Any_.B) ; slice(Any_.A) == slice(Any_.A) ; slice(1, Any_.A) != slice(1, 2)
max(Any_.A, Any_.B) is Any_.B ; range(5)[Any_.A] ; Any_.A in range(3) ; Any_.A + None
str(Number.A) ; f"{Number.A}" ; f"{Number.A:3}" ; Number.A + 1 ; 1 + Number.A ; Number.A == 1 ; 1 == Number.A ; bool(Number.A)
[5, 6, 7][Number.A] ; Number.A * 3 ; x * Number.A ; x == Number.A ; Number.A in (2, 3) ; int(Number.A) ; sum([Number.A, Number.A])
str(Text.A) ; f"{Text.A}" ; f"{Text.A:>3}" ; Text.A == "a" ; Text.A != "a" ; "a" != Text.A ; Text.A.upper() ; Text.A + "q" ; "q" + Text.A
"".join([Text.A]) ; {"a": 1}[Text.A] ; Text.A.startswith("a") ; len(Text.A) ; Text.A in "abc" ; "%s" % Text.A ; Text("a")
Bits.A | Bits.B ; Bits.B in Bits.A ; Bits.A & Bits.B ; ~Bits.A is Bits.B ; Bits(3) in Bits.A ; bool(Bits.A) ; Bits.A ^ Bits.B
"""
USES = [use for line in ASKED.strip().split("\n") for use in line.split(" ; ")]


def told(fn: Callable[..., Any], x: torch.Tensor) -> tuple[Any, list[str]]:
    LOG.clear()
    try:
        made = fn(x, Any_.A)[0]
    except Exception as error:
        made = type(error), str(error)
    if isinstance(made, torch.Tensor):
        made = made.tolist()
    shown = [type(made), object.__repr__(made) if isinstance(made, enum.Enum) else repr(made)]
    return shown, list(LOG)


@pytest.mark.parametrize("use", USES)
def test_special_methods_are_asked_in_each_call(use: str) -> None:
    fn = eval(f"lambda x, e: ({use}, x + 1)")
    told(fn, torch.ones(1))  # which makes the members of flags that are made once
    compiled = CompiledFunction(fn, Options(backend="eager"))
    for word in ("g", "hh", "g"):
        STATE["word"] = word
        assert told(compiled, torch.ones(1)) == told(fn, torch.ones(1)), word
    STATE["word"] = "g"


def test_an_operator_may_read_tensors() -> None:
    class Scale(enum.Enum):
        A = 1

        def __mul__(self, other):
            return other * scale

        def __add__(self, other):
            return scale * 2

    scale = torch.ones(2)
    f = CompiledFunction(lambda x: (Scale.A * x, Scale.A + 1, x * 2), Options(backend="eager", fullgraph=True))
    for _ in range(2):
        assert [t.tolist() for t in f(torch.ones(2))] == [scale.tolist(), (scale * 2).tolist(), [2.0, 2.0]]
        scale.add_(1)


def test_a_text_of_its_own_breaks_no_graph() -> None:
    """What programs write most: ``__str__`` of members that are texts or numbers."""

    class Mode(str, enum.Enum):
        SUM, MEAN = "sum", "mean"

        def __str__(self):
            return str(self.value)

    class Axis(enum.IntEnum):
        ROWS = 0

        def __str__(self):
            return self.name.lower()

    def run(x: torch.Tensor, mode: Mode) -> Any:
        total = x.sum(Axis.ROWS) if mode == Mode.SUM and mode in (Mode.SUM, "sum") else x
        return (
            total * {Mode.SUM: 2}[mode],
            f"{mode}-{Axis.ROWS}",
            [3, 4][Axis.ROWS],
            Axis.ROWS + 1,
            mode != "mean",
            int(Axis.ROWS),
        )

    f = CompiledFunction(run, Options(backend="eager", fullgraph=True))
    assert f(torch.ones(2, 2), Mode.SUM)[1:] == run(torch.ones(2, 2), Mode.SUM)[1:] and len(f.all_entries) == 1


def test_what_a_class_comes_to_define_is_seen() -> None:
    class Plain(enum.Enum):
        A = 1

    f = CompiledFunction(lambda x: (x, str(Plain.A), Plain.A == 3, bool(Plain.A)), Options(backend="eager"))
    assert f(torch.ones(1))[1:] == ("Plain.A", False, True)
    Plain.__eq__ = lambda self, other: True  # type: ignore[method-assign,assignment]
    Plain.__hash__ = lambda self: 1  # type: ignore[method-assign,assignment]
    assert f(torch.ones(1))[1:] == ("Plain.A", True, True)
    Plain.__bool__ = lambda self: False  # type: ignore[attr-defined]
    Plain.__str__ = lambda self: "new"  # type: ignore[method-assign,assignment]
    assert f(torch.ones(1))[1:] == ("new", True, False)
