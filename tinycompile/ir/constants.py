"""Scalar ops on constants alone: their results are constants. The vocabulary's numpy functions say which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tinycompile.base.dtypes import NARROW
from tinycompile.base.expr import Expr
from tinycompile.ir.loops import Const, Scalar, Statement
from tinycompile.ops.scalar import SCALAR_OPS

_DIVISIONS = frozenset(("floordiv", "truncdiv", "mod", "fmod"))


def fold_constants(body: Sequence[Statement]) -> list[Statement]:
    """The body with each Scalar whose arguments are known numbers made a Const of its name.

    Narrow values (``base/dtypes.py``) are known but stay casts, since no Const is of such a type. Integer division by 0 or -1
    stays, and so does the check of an index that is out of range: the backend tells."""
    known: dict[str, torch.Tensor] = {}
    folded: list[Statement] = []
    for s in body:
        if isinstance(s, Const) and not isinstance(s.value, Expr):
            known[s.name] = torch.tensor(s.value, dtype=s.dtype, device="cpu")
        elif isinstance(s, Scalar) and all(a in known for a in s.args):
            value = _apply(s, [known[a] for a in s.args])
            if value is not None:
                known[s.name] = value
                if s.dtype not in NARROW:
                    folded.append(Const(s.name, s.dtype, value.item(), s.origin))
                    continue
        folded.append(s)
    return folded


def _apply(s: Scalar, args: list[torch.Tensor]) -> torch.Tensor | None:
    if s.op == "cast":
        return args[0].to(s.dtype)
    if s.op in _DIVISIONS and not s.dtype.is_floating_point and args[1].item() in (0, -1):
        return None
    if s.op == "checked" and not args[0].item():
        return None
    with np.errstate(all="ignore"):
        result: Any = SCALAR_OPS[s.op].numpy(*(a.numpy() for a in args))
    return torch.from_numpy(np.array(result)).to(s.dtype)
