"""Methods of built-in classes under overrides: what ``super()`` and the unbound method mean is the built-in, not the override."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r


class Dice(random.Random):
    def random(self) -> float:
        return 0.5

    def real(self) -> float:
        return super().random()


def seeded() -> tuple[torch.Tensor, Dice]:
    dice = Dice()
    dice.seed(3)
    return r(4), dice


@breaks(args=seeded)
def method_of_a_class_in_c(x: Any, dice: Any) -> Any:
    return x * dice.real(), dice.random(), random.Random.random(dice)


class Whole(int):
    def __add__(self, other: Any) -> Any:
        return "add"

    def real_add(self, other: Any) -> Any:
        return super().__add__(other), int.__add__(self, other)

    def __bool__(self) -> bool:
        return False


class Text(str):
    def upper(self) -> str:
        return "mine" + super().upper()

    def __len__(self) -> int:
        return 1


@breaks(args=lambda: (r(4), Whole(3), Text("ab")))
def methods_of_numbers_and_strings(x: Any, i: Any, s: Any) -> Any:
    return i + 1, i.real_add(2), int.__bool__(i), bool(i), s.upper(), str.__len__(s), len(s), x


class Row(list):  # type: ignore[type-arg]
    def append(self, value: Any) -> None:
        log("append")
        super().append(value)

    def __len__(self) -> int:
        return 99

    def __getitem__(self, at: Any) -> Any:
        return "mine", super().__getitem__(at)

    def asked(self) -> Any:
        return len(self), super().__len__(), list.__len__(self), self[0], list.__getitem__(self, 0), list(list.__iter__(self))


@case
def methods_of_lists(x: Any) -> Any:
    row = Row([1, x])
    row.append(2)
    list.append(row, 3)
    return row, row.asked(), dict.get({"a": 1}, "a"), tuple.index((1, 2), 2)


class Noted(OrderedDict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        log(key)
        super().__setitem__(key, value)


@breaks
def an_ordered_dict_stores_by_the_overriding_method(x: Any) -> Any:
    d = Noted(a=x, b=1)
    d.update(c=2)
    d.setdefault("d", 3)
    d["e"] = 4
    return d, d.copy()


class Watched(nn.Linear):
    def __setattr__(self, name: str, value: Any) -> None:
        log(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        log(("del", name))
        super().__delattr__(name)


WATCHED = Watched(4, 4)


def watched() -> tuple[Watched, torch.Tensor]:
    vars(WATCHED).pop("seen", None)
    vars(WATCHED).pop("count", None)
    vars(WATCHED)["old"] = 1
    return WATCHED, r(2, 4)


@case(args=watched)
def a_module_that_watches_its_attributes(m: Any, x: Any) -> Any:
    y = m(x)
    m.seen = y
    m.count = 3
    del m.old
    return y + m.seen


class Compared:
    def __eq__(self, other: object) -> bool:
        log("eq")
        return super().__eq__(other) is True

    def __hash__(self) -> int:
        return 1


@case
def equality_of_objects(x: Any) -> Any:
    a, b = Compared(), Compared()
    return a == a, a == b, a != b, object.__eq__(a, b), object.__eq__(a, a), x + 1  # noqa: PLR0124


class Measured:
    @property
    def size(self) -> int:
        return 1

    @size.setter
    def size(self, value: int) -> None:
        log(value)


class Longer(Measured):
    @property
    def size(self) -> Any:
        return Measured.size.fget(self) + 1  # type: ignore[attr-defined]

    @size.setter
    def size(self, value: int) -> None:
        Measured.size.fset(self, value + 1)  # type: ignore[attr-defined]


@case
def properties_of_a_class(x: Any) -> Any:
    longer = Longer()
    longer.size = 4
    p = Measured.size
    facts = p is None, bool(p), isinstance(p, property), hasattr(p, "fget"), p.fdel is None, p == None  # noqa: E711
    return longer.size, facts, [p] == [None], p is Measured.size, p, x + 1


class Slotted:
    __slots__ = ("a",)


@case
def words_for_slots_texts_and_unpacking(x: Any) -> Any:
    """Which say other things than for other attributes, and in other versions of Python."""

    def documented(v: Any) -> Any:
        """Text."""
        return v + len(x)

    said: list[Any] = [documented.__doc__, (lambda: 1).__doc__, documented.__qualname__]
    s = Slotted()
    try:
        s.a
    except AttributeError as error:
        said.append(str(error))
    try:
        del s.a
    except AttributeError as error:
        said.append(str(error))
    for odd in (5, None, s, 2.5):
        try:
            a, b = odd
        except TypeError as error:
            said.append(str(error))
        try:
            a, *b = odd
        except TypeError as error:
            said.append(str(error))
    return said


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.chain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Identity())


STACK = Stack()


@case(args=lambda: (STACK, r(2, 4)))
def slices_of_module_lists(m: Any, x: Any) -> Any:
    some = m.layers[1:]
    for layer in m.layers[:2]:
        x = layer(x)
    for at, layer in enumerate(some[1:], 1):
        x = layer(x) * at
    kinds = type(some) is nn.ModuleList, isinstance(m.chain[:2], nn.Sequential), isinstance(some, list)
    return x, kinds, len(some), bool(m.layers[4:]), some[-1] is m.layers[-1], m.layers[::2][1] is m.layers[2]


@breaks(args=lambda: (STACK, r(2, 4)))
def slices_of_module_lists_given_away(m: Any, x: Any) -> Any:
    some = m.layers[1:3]
    y = m.chain[:2](x)
    return y, type(some), len(some), [n for n, _ in some.named_parameters()], m.layers[:1] == m.layers[:1]


class Tied(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = nn.Linear(3, 3)
        self.c = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


class Few(nn.Module):
    """Which overrides what other walks call."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        log("asked")
        yield from list(super().named_parameters(*args, **kwargs))[:1]


TIED, FEW = Tied(), Few()


@case(args=lambda: (TIED, r(4)))
def walks_with_other_arguments(m: Any, x: Any) -> Any:
    names = [
        [n for n, _ in m.named_parameters(prefix="p")],
        [n for n, _ in m.named_parameters("p", False)],
        [n for n, _ in m.named_parameters("p", recurse=True)],
        [n for n, _ in m.named_parameters(remove_duplicate=False)],
        [n for n, _ in m.named_parameters(recurse=False)],
        [n for n, _ in m.named_modules(prefix="z")],
        [n for n, _ in m.named_modules(remove_duplicate=False)],
        [n for n, _ in m.named_buffers("q", recurse=True, remove_duplicate=False)],
        [n for n, _ in m.c.named_children()],
    ]
    return names, len(list(m.parameters(False))), len(list(m.buffers(recurse=False))), len(list(m.modules())), x + 1


@case(args=lambda: (FEW, r(4)))
def walks_over_an_override(m: Any, x: Any) -> Any:
    return len(list(m.parameters())), [n for n, _ in m.named_parameters()], len(list(m.modules())), x + 1


class Recording(OrderedDict):
    """Looks its items up itself, as the results of transformers' models do."""

    def __getitem__(self, key: Any) -> Any:
        log("get")
        if isinstance(key, str):
            return dict(self.items())[key]
        return tuple(self.values())[key]


@case(args=lambda: (r(4),))
def methods_of_an_ordered_dict_that_ask_for_no_item(x: Any) -> Any:
    made = Recording()
    made["a"] = x + 1
    made.update(b=x * 2)
    made |= {"c": 3}
    same = made == Recording(a=1), made != {"a": 1}
    return made["a"], made[1], made.get("c"), made.get("d"), list(made.items()), list(reversed(made)), same


class Storing(OrderedDict):
    def __setitem__(self, key: Any, value: Any) -> None:
        log(f"set {key}")
        super().__setitem__(key, value)


@breaks(args=lambda: (r(4),))
def methods_of_an_ordered_dict_that_store_by_the_override(x: Any) -> Any:
    made = Storing(a=x + 1)
    made.update(b=2)
    return made["a"] * made.get("b"), list(made.items())
