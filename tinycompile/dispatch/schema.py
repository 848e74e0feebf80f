"""Operator schemas in ATen's notation: ``add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.expr import Expr

# Spellings that read as something other than a Python literal.
_WORDS: dict[str, Any] = {
    "None": None, "True": True, "False": False, "inf": float("inf"), "nan": float("nan"), "Mean": 1, "Sum": 2,
    "contiguous_format": torch.contiguous_format, "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last, "strided": torch.strided,
    **{name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64", "int32", "int64", "bool")},
    "float": torch.float32, "double": torch.float64, "half": torch.float16, "long": torch.int64, "int": torch.int32,
}  # fmt: skip


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()  # the default of an argument that has none


@dataclass(frozen=True, slots=True)
class Argument:
    """``type``: ATen's spelling without the alias mark (``Tensor``, ``int[2]?``). ``alias``: ``a``, ``a!`` or ``""``."""

    name: str
    type: str
    default: Any = MISSING
    kw_only: bool = False
    alias: str = ""
    default_text: str = ""

    @property
    def optional(self) -> bool:
        """Whether None is a value of it."""
        return self.type.endswith("?")

    @property
    def is_list(self) -> bool:
        """Whether it takes a list."""
        return "[" in self.type

    @property
    def base(self) -> str:
        """The element's type: ``int[2]?`` is ``int``."""
        return re.split(r"[\[?]", self.type, maxsplit=1)[0]

    def __str__(self) -> str:
        text = f"{_aliased(self.type, self.alias)} {self.name}"
        return text if self.default is MISSING else f"{text}={self.default_text}"


@dataclass(frozen=True, slots=True)
class Return:
    """One result."""

    name: str
    type: str
    alias: str = ""

    def __str__(self) -> str:
        return f"{_aliased(self.type, self.alias)} {self.name}".strip()


@dataclass(frozen=True)
class Schema:
    """A parsed schema; ``str()`` gives the notation back."""

    name: str
    overload: str
    args: tuple[Argument, ...]
    returns: tuple[Return, ...]

    @cached_property
    def positions(self) -> dict[str, int]:
        """Argument name -> position."""
        return {a.name: i for i, a in enumerate(self.args)}

    @cached_property
    def defaults(self) -> tuple[Any, ...]:
        """One default (or MISSING) an argument."""
        return tuple(a.default for a in self.args)

    @cached_property
    def positional(self) -> int:
        """How many arguments can be given by position."""
        return sum(not a.kw_only for a in self.args)

    @cached_property
    def device_arg(self) -> int | None:
        """The position of the argument of type Device, if there is one."""
        return next((i for i, a in enumerate(self.args) if a.base == "Device"), None)

    @cached_property
    def mutates(self) -> bool:
        """Whether some argument is written."""
        return any("!" in a.alias for a in self.args)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Arguments in schema order, defaults filled in. Raises TypeError worded as torch words it."""
        given = len(args)
        if kwargs or given != self.positional or given != len(self.args):
            args = self._filled(args, kwargs)
        for value, refused in zip(args, self._refused, strict=True):
            if type(value) in refused:
                raise TypeError(self._complaint(args))
        return tuple(args)

    @cached_property
    def _refused(self) -> tuple[frozenset[type], ...]:
        """For each argument the types that are certainly wrong."""
        absent: tuple[set[type], set[type]] = {_Missing, type(None)}, {_Missing}
        refused = (_NEVER[a.base] - _SEQUENCES if a.is_list else _NEVER[a.base] for a in self.args)
        return tuple(never | absent[self._takes_none(i)] for i, never in enumerate(refused))

    def _filled(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        given = len(args)
        if given > self.positional:
            s, were = ("" if self.positional == 1 else "s"), ("was" if given == 1 else "were")
            raise TypeError(f"{self.name}() takes {self.positional} positional argument{s} but {given} {were} given")
        values = [*args, *self.defaults[given:]]
        for name, value in kwargs.items():
            at = self.positions.get(name)
            if at is None:
                raise TypeError(f"{self.name}() got an unexpected keyword argument '{name}'")
            if at < given:
                raise TypeError(f"{self.name}() got multiple values for argument '{name}'")
            values[at] = value
        return values

    def _complaint(self, values: Sequence[Any]) -> str:
        """What is wrong with values of which one at least is missing or of a refused type."""
        missing = [f'"{a.name}"' for a, v in zip(self.args, values, strict=True) if v is MISSING]
        if missing:
            return f"{self.name}() missing {len(missing)} required positional arguments: {', '.join(missing)}"
        at = next(i for i, v in enumerate(values) if type(v) in self._refused[i])
        return self._mismatch(at, values[at])

    def _takes_none(self, at: int) -> bool:
        return self.args[at].optional or self.args[at].default is None

    def _mismatch(self, at: int, value: Any) -> str:
        arg = self.args[at]
        kind = _SHOWN.get(arg.base, arg.base)
        wanted = f"tuple of {kind}s" if arg.is_list else kind
        place = "" if arg.kw_only else f" (position {at + 1})"
        return f"{self.name}(): argument '{arg.name}'{place} must be {wanted}, not {type(value).__name__}"

    def __str__(self) -> str:
        parts: list[str] = []
        for i, arg in enumerate(self.args):
            if arg.kw_only and (i == 0 or not self.args[i - 1].kw_only):
                parts.append("*")
            parts.append(str(arg))
        full = f"{self.name}.{self.overload}" if self.overload else self.name
        plain = len(self.returns) == 1 and not self.returns[0].name
        returns = ", ".join(map(str, self.returns))
        return f"{full}({', '.join(parts)}) -> {returns if plain else f'({returns})'}"


# Types that are certainly wrong for an argument; whatever else comes is the meta rule's to judge (symbolic sizes, fakes, ...).
_TEXT = frozenset({str, bytes, dict, set})
_SEQUENCES = frozenset({list, tuple})
_NEVER: dict[str, frozenset[type]] = {
    "Tensor": _TEXT,
    "Scalar": _TEXT | {list, tuple},
    "int": _TEXT | {float, complex, Device},
    "SymInt": _TEXT | {float, complex, Device},
    "float": _TEXT | {list, tuple, complex},
    "bool": _TEXT | {list, tuple, float, complex},
    "str": frozenset({int, float, bool, list, tuple, dict, Expr}),
    "ScalarType": _TEXT | {float, list, tuple},
    "Device": frozenset({float, list, tuple, dict, torch.dtype}),
    "Layout": frozenset({str, int, float, list, tuple}),
    "MemoryFormat": frozenset({str, int, float, list, tuple}),
    "Generator": frozenset({str, int, float, list, tuple}),
    "Dimname": frozenset(),
}
_SHOWN = {
    "Scalar": "Number", "SymInt": "int", "ScalarType": "torch.dtype", "Device": "torch.device", "Layout": "torch.layout",
    "MemoryFormat": "torch.memory_format", "Generator": "torch.Generator",
}  # fmt: skip

_HEAD = re.compile(r"\s*([A-Za-z_]\w*(?:::\w+)?)(?:\.(\w+))?\s*\((.*)\)\s*->\s*(.+?)\s*$", re.DOTALL)
_TYPE = re.compile(r"([A-Za-z]\w*)(?:\(([a-z]!?(?:\s*->\s*[*\w|]+)?)\))?((?:\[\d*\])?\??(?:\[\d*\])?\??)$")


def parse(text: str) -> Schema:
    """Read a schema. Raises ValueError that names the part it can't read."""
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(f"not a schema: {text!r} (expected 'name(Type arg, ...) -> Type')")
    name, overload, inner, result = head.groups()
    args: list[Argument] = []
    kw_only = False
    for part in _split(inner):
        if part == "*":
            kw_only = True
        else:
            args.append(_argument(part, kw_only, text))
    if len({a.name for a in args}) != len(args):
        raise ValueError(f"an argument is named twice in {text!r}")
    several = result.startswith("(") and result.endswith(")")
    returns = tuple(_return(part, text) for part in _split(result[1:-1] if several else result))
    return Schema(name.removeprefix("aten::"), overload or "", tuple(args), returns)


def _argument(part: str, kw_only: bool, text: str) -> Argument:
    declared, eq, default = part.partition("=")
    kind, _, name = declared.strip().rpartition(" ")
    if not name.isidentifier():
        raise ValueError(f"can't read the argument {part!r} in {text!r}")
    plain, alias = _type(kind, text)
    default = default.strip()
    return Argument(name, plain, _literal(default, text) if eq else MISSING, kw_only, alias, default)


def _return(part: str, text: str) -> Return:
    kind, _, name = part.partition(" ")
    plain, alias = _type(kind, text)
    return Return(name.strip(), plain, alias)


def _type(kind: str, text: str) -> tuple[str, str]:
    match = _TYPE.match(kind.strip())
    if match is None or match[1] not in _NEVER:
        raise ValueError(f"unknown type {kind!r} in {text!r}; there are {', '.join(_NEVER)}")
    return match[1] + match[3], match[2] or ""


def _aliased(kind: str, alias: str) -> str:
    return kind if not alias else re.sub(r"^\w+", lambda m: f"{m[0]}({alias})", kind)


def _literal(text: str, schema: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text[:1] in "\"'" and text[-1:] == text[:1] and len(text) >= 2:
        return text[1:-1]
    if text[:1] == "[" and text[-1:] == "]":
        return tuple(_literal(part, schema) for part in _split(text[1:-1]))
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    raise ValueError(f"can't read the default {text!r} in {schema!r}")


def _split(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, start, quote = [], 0, 0, ""
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        elif c == "," and not depth:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [p.strip() for p in parts if p.strip()]
