"""Which arguments functions written in C take, by number and name. What Python would refuse is left to Python, in its words."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tinycompile.capture.breaks import GraphBreak

# How many positional arguments those take that have no signature before Python 3.13: at least, at most.
_COUNTS: dict[str, tuple[int, float]] = {
    "bool": (0, 1), "bytes": (0, 3), "dict": (0, 1), "frozenset": (0, 1), "int": (0, 2), "set": (0, 1), "str": (0, 3),
    "type": (1, 3),
    "OrderedDict": (0, 1), "deque": (0, 2), "defaultdict": (0, math.inf), "slice": (1, 3), "super": (0, 2), "range": (1, 3),
    "getattr": (2, 3), "iter": (1, 2), "next": (1, 2), "vars": (0, 1), "max": (1, math.inf), "min": (1, math.inf),
    "map": (2, math.inf), "filter": (2, 2), "islice": (2, 4), "repeat": (1, 2), "reduce": (2, 3), "partial": (1, math.inf),
    "itemgetter": (1, math.inf), "attrgetter": (1, math.inf), "methodcaller": (1, math.inf), "cmp_to_key": (0, 1),
    "dict.clear": (0, 0), "dict.copy": (0, 0), "dict.items": (0, 0), "dict.keys": (0, 0), "dict.values": (0, 0),
    "dict.pop": (1, 2), "dict.update": (0, 1), "set.add": (1, 1), "set.clear": (0, 0), "set.copy": (0, 0),
    "set.discard": (1, 1),
    "set.isdisjoint": (1, 1), "set.issubset": (1, 1), "set.issuperset": (1, 1), "set.pop": (0, 0), "set.remove": (1, 1),
    "set.symmetric_difference": (1, 1), "set.symmetric_difference_update": (1, 1), "frozenset.copy": (0, 0),
    "frozenset.isdisjoint": (1, 1), "frozenset.issubset": (1, 1), "frozenset.issuperset": (1, 1),
    "frozenset.symmetric_difference": (1, 1), "deque.append": (1, 1), "deque.appendleft": (1, 1), "deque.clear": (0, 0),
    "deque.copy": (0, 0), "deque.count": (1, 1), "deque.extend": (1, 1), "deque.extendleft": (1, 1), "deque.index": (1, 3),
    "deque.insert": (2, 2), "deque.pop": (0, 0), "deque.popleft": (0, 0), "deque.remove": (1, 1), "deque.reverse": (0, 0),
    "deque.rotate": (0, 1), "dict.__getitem__": (1, 1), "list.__getitem__": (1, 1), "set.__contains__": (1, 1),
    "frozenset.__contains__": (1, 1), "deque.__reversed__": (0, 0), "dict_keys.isdisjoint": (1, 1),
    "dict_items.isdisjoint": (1, 1), "dict_keys.__reversed__": (0, 0), "dict_values.__reversed__": (0, 0),
    "dict_items.__reversed__": (0, 0), "OrderedDict.__reversed__": (0, 0), "OrderedDict.clear": (0, 0),
    "OrderedDict.copy": (0, 0), "OrderedDict.items": (0, 0), "OrderedDict.keys": (0, 0), "OrderedDict.values": (0, 0),
    "OrderedDict.pop": (1, 2), "OrderedDict.update": (0, 1), "defaultdict.copy": (0, 0), "defaultdict.__missing__": (1, 1),
    "Size.numel": (0, 0),
}  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _signature(fn: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


_C_MODULES = ("builtins", "itertools", "math", "_operator", "_functools", "_collections")


def by_position(fn: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """The same call of a function of Python's with what may be given by position given so: there rules look for it."""
    signature = _signature(fn) if kwargs and getattr(fn, "__module__", None) in _C_MODULES else None
    if signature is None:
        return args, kwargs
    given = signature.bind(*args, **kwargs)
    return given.args, given.kwargs


def check_arguments(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], bound: bool = False) -> None:
    """Leave a call to Python that this refuses. ``bound``: a method of a class, and ``args`` are without its first argument."""
    signature = _signature(fn)
    given = [None, *args] if bound else args
    try:
        if signature is not None:
            signature.bind(*given, **kwargs)
            return
    except TypeError as error:
        raise GraphBreak("user-exception", f"{fn.__qualname__}: {error}") from None
    least, most = _COUNTS.get(fn.__qualname__.removeprefix("collections."), (0, math.inf))
    if len(args) > most or len(args) + len(kwargs) < least:
        raise GraphBreak("user-exception", f"{fn.__qualname__} takes another number of arguments")
