"""Watching calls that go past the dispatcher: torch's own functions on tensors of ours, writes in place, values read by Python.

They are ops all the same, with a key set and a key whose turn it is. A watcher is put in place of the methods of ``Tensor``
that make them: while nobody watches, a call costs what it always does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from tinycompile.base.torch_private import any_autocast
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import BACKENDS, Key, KeySet
from tinycompile.dispatch.local_keys import LOCAL
from tinycompile.eager import shortcut
from tinycompile.eager.batched import BatchedTensor
from tinycompile.eager.methods import OPERATORS
from tinycompile.eager.tensor import Tensor, device_and_keys
from tinycompile.ops.in_place import names_a_write, writes_first
from tinycompile.ops.record import BoundCall


class TorchsCall(NamedTuple):
    """One such call. ``name``: ATen's (``add_``, ``sort``, ``index``); ``key``: whose turn it is; ``kind``: ``extern`` (torch's
    own function), ``write`` (in place, ``out=``) or ``read`` (Python's values); ``args``: the user's, keywords' values behind
    the others; ``written``: the tensors that are written to."""

    name: str
    key: Key
    kind: str
    keyset: KeySet
    args: tuple[Any, ...]
    written: tuple[Any, ...]


Watcher = Callable[[TorchsCall, Callable[[], Any]], Any]
"""``watcher(call, run)`` makes the call by ``run()``, whose result it returns."""

# ATen's names for Python's.
_NAMES = {"__getitem__": "index", "__setitem__": "index_put_"}
for _name in OPERATORS:
    _base = _name[1:] if _name[0] in "ri" and _name[1:] in OPERATORS else _name
    _NAMES[f"__{_name}__"] = f"{_base}_" if _base != _name and _name[0] == "i" else _base
# What is asked of a tensor and is no op.
_NO_OPS = frozenset(
    (
        "backward",
        "grad",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "requires_grad_",
        "retain_grad",
        "record_stream",
    )
)
_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__complex__", "__index__")

_WATCHERS: list[Watcher] = []
_lock = threading.Lock()


def watch(watcher: Watcher) -> None:
    """Hand every such call to ``watcher`` from now on, in every thread."""
    with _lock:
        _WATCHERS.append(watcher)
        shortcut.take_whole_way(True)
        for (cls, name), (_, watched) in _PLACES.items():
            setattr(cls, name, watched)


def unwatch(watcher: Watcher) -> None:
    """End :func:`watch`. Raises ValueError when it does not watch."""
    with _lock:
        _WATCHERS.remove(watcher)
        if _WATCHERS:
            return
        shortcut.take_whole_way(False)
        for (cls, name), (plain, _) in _PLACES.items():
            if name in _READS:
                delattr(cls, name)
            else:
                setattr(cls, name, plain)


class _Running(threading.local):
    args: tuple[Any, ...] = ()


_running = _Running()
"""``args``: of the call that is being made, which one method may hand on to another."""


def _told(args: tuple[Any, ...], call: Callable[[], TorchsCall], run: Callable[[], Any]) -> Any:
    held = _running.args
    if len(held) == len(args) > 0 and all(a is b for a, b in zip(held, args, strict=True)):
        return run()
    before, _running.args = _running.args, args
    try:
        about = call()
        for watcher in tuple(_WATCHERS):
            run = partial(watcher, about, run)
        return run()
    finally:
        _running.args = before


# --- the methods -------------------------------------------------------------------------------------------------------------


def _extern(plain: Any) -> Any:
    def watched(cls: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        run = partial(plain.__func__, cls, fn, args, kwargs)
        name = _name_of(fn)
        if name in _NO_OPS:
            return run()
        given = (*args, *kwargs.values())
        out = kwargs.get("out")
        written = args[:1] if name == "__setitem__" or writes_first(fn, args, kwargs) else _as_tuple(out)
        return _told(given, lambda: _call(_NAMES.get(name, name), "extern", given, written), run)

    return classmethod(watched)


def _name_of(fn: Callable[..., Any]) -> str:
    """torch's name of a function, or of the attribute that it gets."""
    name: str = getattr(fn, "__name__", "torch")
    return getattr(getattr(fn, "__self__", None), "__name__", name) if name == "__get__" else name


def _write(plain: Any) -> Any:
    def watched(cls: Any, bound: BoundCall, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name = _name_of(fn)
        if not bound.inplace or not names_a_write(name):
            name = f"{bound.op.name}_" if bound.inplace else bound.op.name
        written = args[:1] if bound.inplace else _as_tuple(bound.out)
        run = partial(plain.__func__, cls, bound, fn, args, kwargs)
        given = (*args, *kwargs.values())
        return _told(given, lambda: _call(name, "write", given, written), run)

    return classmethod(watched)


def _taken(plain: Any) -> Any:
    def watched(cls: Any, fn: Callable[..., Any], data: Any, options: Mapping[str, Any]) -> Any:
        device = options.get("device")
        _, keys = device_and_keys(torch.get_default_device() if device is None else torch.device(device))
        call = TorchsCall(_name_of(fn), KeySet(keys & BACKENDS).highest(), "extern", KeySet(keys), (data,), ())
        return _told((data,), lambda: call, partial(plain.__func__, cls, fn, data, options))

    return classmethod(watched)


def _set_item(plain: Any) -> Any:
    def watched(self: Any, index: Any, value: Any) -> None:
        given = self, index, value
        _told(given, lambda: _call("index_put_", "write", given, (self,)), partial(plain, self, index, value))

    return watched


def _reading(plain: Any) -> Any:
    name = plain.__name__.strip("_")

    def watched(self: Any) -> Any:
        return _told((self,), lambda: _call(name, "read", (self,), ()), partial(plain, self))

    watched.__name__ = plain.__name__
    return watched


_MAKERS = {"_extern": _extern, "_write": _write, "__setitem__": _set_item}
_PLACES: dict[tuple[type, str], tuple[Any, Any]] = {
    **{
        (cls, name): (cls.__dict__[name], make(cls.__dict__[name]))
        for cls in (Tensor, BatchedTensor)
        for name, make in _MAKERS.items()
    },
    (Tensor, "_taken"): (Tensor.__dict__["_taken"], _taken(Tensor.__dict__["_taken"])),
    **{(Tensor, name): (None, _reading(getattr(Tensor, name))) for name in _READS},
}
"""(class, name) -> (the method, its watched form). Those of ``_READS`` are inherited."""


def _as_tuple(out: Any) -> tuple[Any, ...]:
    return () if out is None else tuple(out) if isinstance(out, (tuple, list)) else (out,)


# --- what they are -----------------------------------------------------------------------------------------------------------


def _call(name: str, kind: str, args: tuple[Any, ...], written: Sequence[Any]) -> TorchsCall:
    keyset = _keyset(args)
    if Key.BATCHED in keyset:
        key = Key.BATCHED
    elif Key.AUTOGRAD in keyset and torch.is_grad_enabled() and kind != "read":
        key = Key.AUTOGRAD
    else:
        key = KeySet(keyset & BACKENDS).highest()
    return TorchsCall(name, key, kind, keyset, args, tuple(written))


def _keyset(args: Sequence[Any]) -> KeySet:
    """As the dispatcher's: a CPU scalar goes where the others are."""
    mask = 0
    for tensor in dispatcher.tensors_in(args):
        mask |= dispatcher.keys_of(tensor)
    if mask & BACKENDS & ~Key.CPU.bit or not mask & BACKENDS:
        mask = mask & ~Key.CPU.bit if mask & BACKENDS else mask | Key.CPU.bit
    mask |= LOCAL.include | (Key.AUTOCAST.bit if any_autocast() else 0)
    return KeySet(mask & ~LOCAL.exclude)
