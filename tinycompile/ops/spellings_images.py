"""Functions on images that take one number for all their dims, or a list with one a dim: of a list of one, torch says that it
is too short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinycompile.ops.record import OPS, BoundCall
from tinycompile.ops.table import Args, SchemaBinder, add, call_of, is_tensor

Kwargs = dict[str, Any]
Bound = BoundCall | None


def one_a_dim(bind: Callable[[Args, Kwargs], Bound], dims: int | None) -> Callable[[Args, Kwargs], Bound]:
    """``bind``, but for lists that are too short. ``dims``: how many an image has; None: all but examples and channels."""

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        x: Any = args[0] if args else kwargs.get("input")
        if any(isinstance(v, (tuple, list)) and len(v) == 1 for v in (*args[1:], *kwargs.values())) and is_tensor(x):
            if (len(x.shape) - 2 if dims is None else dims) != 1:
                return None
        return bind(args, kwargs)

    return binder


def _upsample(mode: str, align_corners: bool | None) -> Callable[[Args, Kwargs], Bound]:
    def binder(args: Args, kwargs: Kwargs) -> Bound:
        given = dict(zip(("input", "size", "scale_factor"), args, strict=False)) | kwargs
        x = given.pop("input", None)
        return call_of("interpolate", x, given.get("size"), given.get("scale_factor"), mode, align_corners)

    return binder


def _images() -> None:
    add("torch.nn.functional.upsample_nearest", one_a_dim(_upsample("nearest", None), None))
    add("torch.nn.functional.upsample_bilinear", one_a_dim(_upsample("bilinear", True), None))
    add("torch.nn.functional.interpolate", one_a_dim(SchemaBinder(OPS["interpolate"]), None))
    add("torch.nn.functional.unfold", one_a_dim(SchemaBinder(OPS["im2col"]), 2))
    for rank in (1, 2, 3):
        name = f"adaptive_avg_pool{rank}d"
        add(f"torch.nn.functional.{name}", one_a_dim(SchemaBinder(OPS[name]), rank))


GROUPS = (_images,)
