"""``torch.ops.aten``'s views, each bound as torch's function or method of that name: what they give shares memory with what
they are given, so their records must be known wherever writes are followed."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.ops import table
from tinycompile.ops.table import Args, Binder, add, call_of, in_one_list

Kwargs = dict[str, Any]

# Those that are called as torch's own of that name ...
_SAME = (
    "adjoint", "broadcast_to", "chunk", "conj", "contiguous", "detach", "diagonal", "dsplit", "expand", "expand_as", "flatten",
    "hsplit", "moveaxis", "movedim", "narrow", "permute", "positive", "ravel", "real", "reshape", "reshape_as", "resolve_conj",
    "resolve_neg", "select", "split", "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t", "tensor_split", "transpose",
    "unbind", "unflatten", "unfold", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "unsqueeze", "view",
    "view_as", "vsplit",
)  # fmt: skip
# ... and as a tensor's attributes.
_ATTRIBUTES = {"numpy_T": "T", "matrix_H": "H", "mT": "mT", "mH": "mH"}
_LISTS = frozenset(("expand", "permute", "reshape", "view"))  # whose methods take sizes one by one too


def _of_self(bind: Binder) -> Binder:
    """ATen names the tensor ``self``."""

    def binder(args: Args, kwargs: Kwargs) -> Any:
        return bind((kwargs.pop("self"), *args) if "self" in kwargs else args, kwargs)

    return binder


def _record(name: str) -> Binder:
    return lambda args, kwargs: call_of(name, *args, **kwargs)


def _views() -> None:
    for name in _SAME:
        bind = table.binder_of(name)
        _add(name, in_one_list(bind, 1) if name in _LISTS else bind)
    for name, attribute in _ATTRIBUTES.items():
        _add(name, table.bind_attribute(attribute))
    for name in ("alias", "slice"):
        _add(name, _record(name))


def _add(name: str, bind: Binder) -> None:
    """Of the packet and each of its overloads."""
    packet = getattr(torch.ops.aten, name)
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    for fn in (packet, *(o for o in overloads if "Tensor" in str(o._schema))):  # some are of TorchScript's lists
        add(fn, _of_self(bind))


GROUPS = (_views,)
