"""Match statements: every kind of pattern."""

from __future__ import annotations

import collections
import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tests.capture.constructs.registry import case
from tests.capture.corpus import r


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Shape:
    kind: str
    size: int = 2


class Positional:
    __match_args__ = ("first", "second")

    def __init__(self, first, second):
        self.first, self.second = first, second


@case
def match_literals(x):
    out = []
    for value in (0, 1, "a", None, True, 2.5, b"b", -3):
        match value:
            case None:
                out.append("none")
            case True:
                out.append("true")
            case 0:
                out.append("zero")
            case "a":
                out.append("text")
            case 2.5:
                out.append("float")
            case b"b":
                out.append("bytes")
            case -3:
                out.append("negative")
            case _:
                out.append(value)
    return x + len(out), out


@case
def match_alternatives(x):
    match x.shape[0]:
        case 1 | 2:
            return x
        case 3 | 4 | 5:
            return x * 2
    return x - 1


@case
def match_capture_and_guard(x):
    match x.shape[0]:
        case n if n > 10:
            return x
        case n if n > 3:
            return x * n
        case _:
            return x - 1


@case
def match_value_pattern(x):
    colour = Colour.BLUE
    match colour:
        case Colour.RED:
            return x
        case Colour.BLUE:
            return x * 2


@case
def match_dotted_constant(x):
    match x.dtype:
        case torch.float64:
            return x
        case torch.float32:
            return x * 3


@case
def match_sequences(x):
    out = []
    for value in ([1, 2], (3,), [], [1, 2, 3, 4], "ab", ("c", x)):
        match value:
            case []:
                out.append("empty")
            case [only]:
                out.append(("one", only))
            case [1, second]:
                out.append(("two", second))
            case [first, *middle, last]:
                out.append((first, middle, last))
            case _:
                out.append("no sequence")
    return out


@case
def match_star_forms(x):
    match [1, 2, 3, 4]:
        case [*everything]:
            a = everything
    match (1, 2, 3):
        case [*_, last]:
            b = last
    match (1, 2, 3):
        case [first, *_]:
            c = first
    return x + len(a) + b + c


@case
def match_nested_sequences(x):
    match [(1, [2, 3]), x]:
        case [(a, [b, c]), t]:
            return t * a + b - c
    return x


@case
def match_mappings(x):
    out = []
    for value in ({"kind": "a", "v": 1}, {"kind": "b"}, {}, {"other": 2, "z": 3}, [1]):
        match value:
            case {"kind": "a", "v": v}:
                out.append(v)
            case {"kind": kind, **rest}:
                out.append((kind, rest))
            case {"other": 2, **rest}:
                out.append(rest)
            case {}:
                out.append("mapping")
            case _:
                out.append("none")
    return x, out


@case
def match_mapping_of_tensors(x):
    match {"x": x, "n": 2}:
        case {"x": t, "n": int(n)}:
            return t * n


@case(args=lambda: (collections.OrderedDict(mode="add", by=3), r(4)))
def match_mapping_argument(d, x):
    match d:
        case {"mode": "mul", "by": by}:
            return x * by
        case {"mode": "add", "by": by}:
            return x + by


@case
def match_builtin_classes(x):
    out = []
    for value in (1, 1.5, "s", [1], (2,), {"a": 1}, True, b"x", None):
        match value:
            case bool(b):
                out.append(("bool", b))
            case int(n):
                out.append(("int", n))
            case float():
                out.append("float")
            case str(s):
                out.append(s)
            case list(v) | tuple(v):
                out.append(v)
            case dict():
                out.append("dict")
            case bytes():
                out.append("bytes")
            case _:
                out.append("other")
    return x, out


@case
def match_tensor_class(x):
    match x:
        case torch.nn.Parameter():
            return x
        case torch.Tensor(ndim=2):
            return x * 2
        case torch.Tensor(ndim=1, shape=(n,)):
            return x * 3 + n


@case
def match_dataclass(x):
    match Shape("square", 3):
        case Shape("circle"):
            return x
        case Shape("square", size):
            return x * size


@case(args=lambda: (Shape("circle", 5), r(4)))
def match_dataclass_argument(s, x):
    match s:
        case Shape(kind="square", size=n):
            return x - n
        case Shape(kind="circle", size=n) if n > 2:
            return x * n


@case
def match_positional_class(x):
    match Positional(x, 2):
        case Positional(t, 3):
            return t
        case Positional(first=t, second=k):
            return t * k


@case(args=lambda: (Positional(r(4), [1, 2]),))
def match_positional_argument(p):
    match p:
        case Positional(t, [a, b]):
            return t * a + b


@case
def match_named_tuple(x):
    match Pair(x, 2):
        case Pair(left=t, right=1):
            return t
        case Pair(t, n):
            return t * n


@case
def match_as_pattern(x):
    match (1, [2, 3]):
        case (int() as a, [_, _] as rest):
            return x * a, rest


@case
def match_falls_through(x):
    match 5:
        case 1:
            x = x + 1
        case 2:
            x = x + 2
    return x


@case
def match_in_loop_with_return(x):
    for op in ("add", "mul", "stop", "add"):
        match op:
            case "add":
                x = x + 1
            case "mul":
                x = x * 2
            case "stop":
                return x
    return x * 0


@case
def match_or_with_captures(x):
    match ("b", 4):
        case ("a", n) | (n, "a"):
            return x
        case ("b", n) | ("c", n):
            return x + n


@case
def match_attribute_missing(x):
    match Shape("s"):
        case Shape(colour=c):
            return x * c
        case Shape(size=s):
            return x * s
