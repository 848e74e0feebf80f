"""The dispatcher: which kernel a call runs, decided by the key sets of its tensors.

A call's key set is the union of its tensors' ``keys``, with the thread's included keys added (and AUTOCAST in a region of
torch's autocast) and its excluded keys removed.
Keys are tried from the highest down. The first that has something to run wins: a kernel registered for the op and the key,
or the key's boxed fallback, or, at a backend, the op's composite (its decomposition). Other keys are fallen through.
The choice is made once per (op, key set) and cached.

    kernel:   fn(*args), or fn(keyset, *args) when registered ``with_keyset``; args in schema order, defaults filled in
    fallback: fn(op_name, keyset, args)

A kernel that wants the next key down calls ``redispatch(op_name, keyset.below(key), args)``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from tinycompile.base.device import Device
from tinycompile.base.torch_private import any_autocast
from tinycompile.dispatch.keys import BACKENDS, Key, KeySet, backend_key
from tinycompile.dispatch.local_keys import LOCAL
from tinycompile.dispatch.schema import Schema, parse

Boxed = Callable[[str, KeySet, tuple[Any, ...]], Any]


class Choice(NamedTuple):
    """What a call runs: ``kind`` is ``kernel``, ``fallback`` or ``composite``; ``fn`` is the function that was registered."""

    key: Key
    kind: str
    fn: Callable[..., Any]
    run: Boxed

    def __str__(self) -> str:
        return f"{self.key.name} {self.kind} {getattr(self.fn, '__qualname__', self.fn)}"


# ``watcher(op_name, keyset, choice) -> run``: stands in for ``choice.run`` while it watches; see ``watch``.
Watcher = Callable[[str, KeySet, Choice], Boxed]


@dataclass
class _Entry:
    """One op: its kernels by key, and the choices made so far by key set."""

    schema: Schema
    kernels: dict[Key, tuple[Callable[..., Any], Boxed]] = field(default_factory=dict)
    composite: Callable[..., Any] | None = None
    devices_may_differ: bool = False
    placed_by: int | None = None  # where the argument is that says on which device the result is
    choices: dict[int, tuple[KeySet, Boxed]] = field(default_factory=dict)
    leaves: set[int] = field(default_factory=set)
    may_be_leaf: bool = True

    def forget(self) -> None:
        """Choose anew from now on."""
        self.choices = {}
        self.leaves.clear()


_AUTOCAST, _AUTOGRAD, _BATCHED = Key.AUTOCAST.bit, Key.AUTOGRAD.bit, Key.BATCHED.bit
_ENTRIES: dict[str, _Entry] = {}
_FALLBACKS: dict[Key, Boxed] = {}
_WATCHERS: list[Watcher] = []
_LEAVES: set[Boxed] = set()
_lock = threading.Lock()  # for registration; calls take no lock


def define(schema: Schema | str) -> Schema:
    """Add an op. Raises ValueError when the name is taken."""
    parsed = parse(schema) if isinstance(schema, str) else schema
    with _lock:
        if parsed.name in _ENTRIES:
            raise ValueError(f"op {parsed.name} is defined already")
        _ENTRIES[parsed.name] = _Entry(parsed, placed_by=parsed.device_arg)
    return parsed


def undefine(op_name: str) -> None:
    """Remove an op and its kernels."""
    with _lock:
        _entry(op_name)
        del _ENTRIES[op_name]


def is_defined(op_name: str) -> bool:
    """Whether ``define`` has seen the name."""
    return op_name in _ENTRIES


def schema_of(op_name: str) -> Schema:
    """The op's schema. Raises KeyError for an unknown op."""
    return _entry(op_name).schema


def names() -> tuple[str, ...]:
    """Every op that is defined."""
    return tuple(_ENTRIES)


def register(op_name: str, key: Key, kernel: Callable[..., Any] | None, *, with_keyset: bool = False) -> None:
    """Set the op's kernel for a key, in place of the last one; None removes it."""
    entry = _entry(op_name)
    with _lock:
        if kernel is None:
            entry.kernels.pop(key, None)
        else:
            entry.kernels[key] = kernel, _boxed(kernel, with_keyset)
        entry.forget()


def let_devices_differ(op_name: str) -> None:
    """Leave it to the op to judge tensors of several devices (``copy_``: yes; ``add``: the dispatcher refuses)."""
    entry = _entry(op_name)
    entry.devices_may_differ, entry.placed_by = True, None


def devices_may_differ(op_name: str) -> bool:
    """Whether that was said of the op."""
    return _entry(op_name).devices_may_differ


def composite(op_name: str, fn: Callable[..., Any]) -> None:
    """Set what the op does, in terms of other ops, at backends that have neither a kernel for it nor a fallback."""
    entry = _entry(op_name)
    with _lock:
        entry.composite = fn
        entry.forget()


def fallback(key: Key, kernel: Boxed | None, *, leaf: bool = False) -> Boxed | None:
    """Set what a key does for ops that have no kernel of their own for it; None removes it. Returns what it did before.

    ``leaf``: what it does for most ops can be done without it; see :func:`leaves`."""
    with _lock:
        if leaf and kernel is not None:
            _LEAVES.add(kernel)
        before = _FALLBACKS.pop(key, None)
        if kernel is not None:
            _FALLBACKS[key] = kernel
        for entry in _ENTRIES.values():
            entry.forget()
    return before


def leaves(op_name: str) -> set[int]:
    """The key sets, of those met so far, whose highest key does the usual while nobody watches: a backend calls torch's own
    function, Autograd leaves a node behind. The set is live. Who finds a call's keys there may do it, in a thread that includes
    or excludes none and is in no region of autocast."""
    return _entry(op_name).leaves


def never_leaf(op_name: str) -> None:
    """The op is more than torch's function (a view that knows its base): it always takes the whole way."""
    entry = _entry(op_name)
    entry.may_be_leaf = False
    entry.forget()


def call(op_name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call an op. Raises TypeError for bad arguments, RuntimeError for tensors on several devices."""
    return call_bound(op_name, _entry(op_name).schema.bind(args, kwargs))


def call_bound(op_name: str, args: tuple[Any, ...]) -> Any:
    """``call`` for arguments that are in schema order already, with all defaults."""
    entry = _entry(op_name)
    mask = _keys_of(entry, args) | LOCAL.include
    if any_autocast():
        mask |= _AUTOCAST
    return _run(entry, mask & ~LOCAL.exclude, args)


def redispatch(op_name: str, keyset: int, args: Sequence[Any]) -> Any:
    """Call with exactly this key set; ``args`` in schema order with all defaults. Excluded keys stay excluded."""
    return _run(_entry(op_name), keyset & ~LOCAL.exclude, tuple(args))


def _run(entry: _Entry, mask: int, args: tuple[Any, ...]) -> Any:
    choice = entry.choices.get(mask)
    if choice is None:
        keyset = KeySet(mask)
        chosen = _choose(entry, keyset)
        choice = entry.choices[mask] = keyset, _watched(entry.schema.name, keyset, chosen)
        if entry.may_be_leaf and chosen.kind == "fallback" and chosen.fn in _LEAVES and choice[1] is chosen.run:
            entry.leaves.add(mask)
    return choice[1](entry.schema.name, choice[0], args)


def _choose(entry: _Entry, keyset: KeySet) -> Choice:
    for key in keyset:
        if key in entry.kernels:
            return Choice(key, "kernel", *entry.kernels[key])
        if key in _FALLBACKS:
            return Choice(key, "fallback", _FALLBACKS[key], _FALLBACKS[key])
        if key in BACKENDS and entry.composite is not None:
            return Choice(key, "composite", entry.composite, _boxed(entry.composite, with_keyset=False))
    have = ", ".join(key.name for key in entry.kernels) or "none"
    raise NotImplementedError(
        f"Could not run '{entry.schema.name}' with keys {keyset}: no kernel, fallback or decomposition (kernels: {have})"
    )


def watch(watcher: Watcher) -> None:
    """From now on ``watcher`` is asked once for each (op, key set) what shall run in place of the choice, in every thread.

    Calls cost nothing more while nobody watches: a watcher is built into the cached choices, which are made anew."""
    with _lock:
        _WATCHERS.append(watcher)
        _choose_anew()


def unwatch(watcher: Watcher) -> None:
    """End :func:`watch`. Raises ValueError when it does not watch."""
    with _lock:
        _WATCHERS.remove(watcher)
        _choose_anew()


def _choose_anew() -> None:
    for entry in _ENTRIES.values():
        entry.forget()


def _watched(name: str, keyset: KeySet, choice: Choice) -> Boxed:
    run = choice.run
    for watcher in tuple(_WATCHERS):
        run = watcher(name, keyset, choice._replace(run=run))
    return run


def _boxed(fn: Callable[..., Any], with_keyset: bool) -> Boxed:
    if with_keyset:
        return lambda name, keyset, args: fn(keyset, *args)
    return lambda name, keyset, args: fn(*args)


def _entry(op_name: str) -> _Entry:
    try:
        return _ENTRIES[op_name]
    except KeyError:
        raise KeyError(f"no op {op_name!r} is defined") from None


# --- key sets of calls -------------------------------------------------------------------------------------------------------


def _keys_of(entry: _Entry, args: tuple[Any, ...]) -> int:
    """The union of the tensors' keys; the backend of the device that is named. Checks that devices agree."""
    mask = 0
    device: Any = None
    mixed = False
    for arg in args:  # the usual call: some of our tensors, all on one device, and numbers
        kind = _KINDS.get(type(arg))
        if kind == _OURS:
            mask |= arg.keys
            if device is None:
                device = arg.device
            elif arg.device is not device:
                break
        elif kind != _PLAIN:
            break
    else:
        if mask & BACKENDS and not mask & _BATCHED and entry.placed_by is None:
            return mask
    mask, device = 0, None
    tensors = tensors_in(args)
    for tensor in tensors:
        mask |= keys_of(tensor)
        if device is None:
            device = tensor.device
        elif tensor.device is not device and tensor.device != device:
            mixed = True
    if mixed:
        if not entry.devices_may_differ:
            check_devices(tensors)
        for tensor in tensors:  # a CPU scalar goes where the others are
            if not _is_cpu_scalar(tensor) and keys_of(tensor) & BACKENDS & ~Key.CPU.bit:
                mask &= ~Key.CPU.bit
    if mask & _BATCHED and mask & _AUTOGRAD:
        mask = _of_highest_level(tensors, mask)
    chosen = None if entry.placed_by is None else args[entry.placed_by]
    if chosen is not None:
        mask = mask & ~BACKENDS | 1 << backend_key(Device.of(chosen).type)
    return mask if mask & BACKENDS else mask | Key.CPU.bit


def _of_highest_level(tensors: Sequence[Any], mask: int) -> int:
    """Under vmap only tensors of the innermost level are on the tape of this call; those below are its constants."""
    level = max(getattr(t, "level", 0) for t in tensors)
    if any(getattr(t, "level", 0) == level and keys_of(t) & _AUTOGRAD for t in tensors):
        return mask
    return mask & ~_AUTOGRAD


_PLAIN, _SEQUENCE, _TENSOR, _OURS = 0, 1, 2, 3
_KINDS: dict[type, int] = {tuple: _SEQUENCE, list: _SEQUENCE}  # what was found out about each class of argument


def tensors_in(args: Sequence[Any]) -> list[Any]:
    """Ours and torch's tensors among the arguments, also in lists."""
    found: list[Any] = []
    for arg in args:
        kind = _KINDS.get(type(arg))
        if kind is None:
            kind = _KINDS[type(arg)] = _kind(arg)
        if kind >= _TENSOR:
            found.append(arg)
        elif kind == _SEQUENCE:
            found += tensors_in(arg)
    return found


def results_in(result: Any) -> list[Any]:
    """The tensors of a call's result: one, or several in a tuple of whatever class (``torch.return_types.sort``)."""
    return tensors_in(result if isinstance(result, tuple) else (result,))


def _kind(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return _TENSOR
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):  # named ones, and the program's own
        return _SEQUENCE
    return _OURS if isinstance(getattr(value, "keys", None), int) else _PLAIN


def keys_of(tensor: Any) -> int:
    """A tensor's own keys; a torch tensor has its backend's."""
    return 1 << backend_key(tensor.device.type) if isinstance(tensor, torch.Tensor) else tensor.keys


def _is_cpu_scalar(tensor: Any) -> bool:
    return tensor.device.type == "cpu" and len(tensor.shape) == 0


def check_devices(tensors: Sequence[Any]) -> None:
    """CPU scalars may go anywhere; the rest must be on one device. Raises RuntimeError in torch's words."""
    wide = [t for t in tensors if not _is_cpu_scalar(t)]
    for tensor in wide[1:]:
        first, other = Device.of(wide[0].device), Device.of(tensor.device)
        if first != other and "meta" in (first.type, other.type):
            raise RuntimeError(f"Tensor on device {other} is not on the expected device {first}!")
        if first != other:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {first} and {other}!"
            )


def check_targets(targets: Sequence[Any], read: Sequence[Any]) -> None:
    """What is written to (``out=``, in place) lies where all that is read does. Raises RuntimeError in torch's words: CPU
    scalars may go with tensors elsewhere, but not alone, nor be written to with what comes from there."""
    devices = [Device.of(t.device) for t in (*targets, *([t for t in read if not _is_cpu_scalar(t)] or read))]
    common = next((d for d in devices if d.type != "cpu"), Device("cpu"))
    for device in devices:
        if device != common:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {common} and {device}!"
            )


# --- introspection -----------------------------------------------------------------------------------------------------------


def resolve(op_name: str, keyset: int) -> Choice:
    """What a call with this key set would run. Raises NotImplementedError when nothing would."""
    return _choose(_entry(op_name), KeySet(keyset))


def keyset_of(op_name: str, /, *args: Any, **kwargs: Any) -> KeySet:
    """The key set with which ``call`` would dispatch these arguments now."""
    entry = _entry(op_name)
    mask = _keys_of(entry, entry.schema.bind(args, kwargs)) | LOCAL.include
    if any_autocast():
        mask |= _AUTOCAST
    return KeySet(mask & ~LOCAL.exclude)


def table(op_name: str) -> str:
    """The op's dispatch table as text: one line a key, from the highest priority down."""
    entry = _entry(op_name)
    lines = [str(entry.schema)]
    for key in sorted(Key, reverse=True):
        try:
            choice = _choose(entry, KeySet.of(key))
            lines.append(f"  {key.name:<14} {choice.kind:<10} {getattr(choice.fn, '__qualname__', choice.fn)}")
        except NotImplementedError:
            lines.append(f"  {key.name:<14} {'error' if key in BACKENDS else 'fall through'}")
    return "\n".join(lines)
