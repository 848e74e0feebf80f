"""Where a value came from: the one object that names it, in guards as in rebuilt code.

A source's ``text`` is a Python expression over the user's parameters and the names of *held* objects: those that the guard
itself keeps (a globals dict, a module, a closure cell) and whose identity needs no further path.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def is_name(text: str) -> bool:
    """Whether an attribute can be written behind a dot."""
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text)


@dataclass(frozen=True, slots=True)
class Source:
    """Base of all sources; equality is by how the value is reached."""

    @property
    def text(self) -> str:
        """A Python expression for the value."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The expression as a person would write it."""
        return self.text

    @property
    def base(self) -> Source | None:
        """The source that this one starts from."""
        return None


@dataclass(frozen=True, slots=True)
class Local(Source):
    """A parameter of the captured function."""

    name: str

    @property
    def text(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Held(Source):
    """An object that the guard keeps under a name; no guard is needed to know which it is."""

    name: str
    shown: str
    value: Any = field(compare=False, repr=False, default=None)

    @property
    def text(self) -> str:
        return self.name

    @property
    def label(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True)
class Part(Source):
    """What is found in, or asked of, the value of another source."""

    of: Source

    @property
    def base(self) -> Source | None:
        return self.of


@dataclass(frozen=True, slots=True)
class Attr(Part):
    """``base.name``, for attributes that are read without running Python code."""

    name: str

    @property
    def text(self) -> str:
        return f"{self.of.text}.{self.name}" if is_name(self.name) else f"{self.of.text}.__getattribute__({self.name!r})"

    @property
    def label(self) -> str:
        return f"{self.of.label}.{self.name}"


@dataclass(frozen=True, slots=True)
class Own(Part):
    """``base.name`` for an attribute in an object's ``__dict__``, where looking for one that is not there calls the program."""

    name: str

    @property
    def text(self) -> str:
        return f"{self.of.text}.__dict__[{self.name!r}]"

    @property
    def label(self) -> str:
        return f"{self.of.label}.{self.name}"


@dataclass(frozen=True, slots=True)
class Slot(Part):
    """``base.name`` for an attribute in a slot, where looking for one that is not set calls the program."""

    slot: Held

    @property
    def text(self) -> str:
        return f"{self.slot.text}.__get__({self.of.text})"

    @property
    def label(self) -> str:
        return f"{self.of.label}.{self.slot.value.__name__}"


@dataclass(frozen=True, slots=True)
class Item(Part):
    """``base[key]`` for a literal key."""

    key: Any

    @property
    def text(self) -> str:
        return f"{self.of.text}[{self.key!r}]"

    @property
    def label(self) -> str:
        return f"{self.of.label}[{self.key!r}]"


@dataclass(frozen=True, slots=True)
class StrideOf(Part):
    """A stride of a tensor."""

    dim: int

    @property
    def text(self) -> str:
        return f"{self.of.text}.stride({self.dim})"

    @property
    def label(self) -> str:
        return f"{self.of.label}.stride({self.dim})"


@dataclass(frozen=True, slots=True)
class Asked(Source):
    """``ask(base)``, for a held function of ours that looks something up."""

    ask: Held
    of: Source

    @property
    def text(self) -> str:
        return f"{self.ask.text}({self.of.text})"

    @property
    def base(self) -> Source | None:
        return self.of


@dataclass(frozen=True, slots=True)
class KeyItem(Part):
    """``base[key]`` for a key that is held, having no literal."""

    key: Held

    @property
    def text(self) -> str:
        return f"{self.of.text}[{self.key.text}]"

    @property
    def label(self) -> str:
        return f"{self.of.label}[{self.key.label}]"


@dataclass(frozen=True, slots=True)
class KeyAt(Part):
    """The key of a dict that comes at some place."""

    at: int

    @property
    def text(self) -> str:
        return f"(*{self.of.text},)[{self.at}]"

    @property
    def label(self) -> str:
        return f"key {self.at} of {self.of.label}"


@dataclass(frozen=True, slots=True)
class HeldItem(Source):
    """``mapping[key]`` where the mapping itself is held: a global, a module's parameter, an attribute of a held object.

    Many of these are guarded at once, at C speed. ``pinned``: a tensor here is guarded by identity (it is a module's)."""

    of: Held
    key: Any
    shown: str
    pinned: bool = False

    @property
    def text(self) -> str:
        return f"{self.of.text}[{self.key!r}]"

    @property
    def label(self) -> str:
        return self.shown

    @property
    def base(self) -> Source | None:
        return self.of

    @property
    def mapping(self) -> Mapping[str, Any]:
        """The dict itself."""
        return self.of.value


@dataclass(frozen=True, slots=True)
class Called(Source):
    """``fn(...)``, for a held function that keeps its results; ``arguments``: as source."""

    fn: Held
    arguments: str

    @property
    def text(self) -> str:
        return f"{self.fn.text}({self.arguments})"

    @property
    def label(self) -> str:
        return f"{self.fn.label}({self.arguments})"


@dataclass(frozen=True, slots=True)
class Computed(Source):
    """A tensor that the rebuilt code makes of a number."""

    expression: str

    @property
    def text(self) -> str:
        return self.expression


def strides_of(text: str) -> str:
    """The expression for the strides of the tensor at ``text``."""
    return f"{text}.stride()"


def is_argument(source: Source) -> bool:
    """Whether a value comes from a parameter of the captured function, by whatever path."""
    while source.base is not None:
        source = source.base
    return isinstance(source, Local)
