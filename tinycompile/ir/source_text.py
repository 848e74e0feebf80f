"""Source as JSON text and back: how generated code rests in the disk cache. No pickle; dims are printed and parsed."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tinycompile.base import expr as ex
from tinycompile.base.device import Device
from tinycompile.base.expr_text import parse
from tinycompile.base.shapes import Relation
from tinycompile.ir.source import ChoiceSource, Config, KernelArg, KernelSource, Source


def dump_source(source: Source) -> str:
    """JSON text; the inverse of :func:`load_source`."""
    return json.dumps(_plain(source))  # indented, it would be written by Python, at a tenth of the speed


def _plain(value: Any) -> Any:
    if isinstance(value, Device):
        return str(value)
    if isinstance(value, ex.Expr):
        return {"dim": str(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


def _dim(value: Any) -> Any:
    return parse(value["dim"]) if isinstance(value, dict) else value


def load_source(text: str) -> Source:
    """Rebuild a Source. Raises ValueError, KeyError or TypeError on text that is none."""
    data = json.loads(text)
    kernels = tuple(_kernel(k) for k in data.pop("kernels"))
    data["externs"] = tuple((name, kind, target) for name, kind, target in data["externs"])
    data["aliases"] = tuple((o, i) for o, i in data["aliases"])
    data["choices"] = tuple(
        ChoiceSource(c["name"], c["library"], tuple((way, kernel) for way, kernel in c["ways"]), tuple(c["writes"]))
        for c in data["choices"]
    )
    data["relations"] = tuple(Relation(**{**r, "expr": _dim(r["expr"])}) for r in data["relations"])
    for positions in ("aligned", "donated", "overwritten"):
        data[positions] = tuple(data[positions])
    return Source(kernels=kernels, **{**data, "device": Device.of(data["device"])})


def _kernel(data: dict[str, Any]) -> KernelSource:
    args = tuple(KernelArg(**{**a, "value": _dim(a["value"])}) for a in data["args"])
    configs = tuple(Config(**{**c, "constants": tuple((n, v) for n, v in c["constants"])}) for c in data["configs"])
    changed = {
        "args": args,
        "configs": configs,
        "grid": tuple(_dim(g) for g in data["grid"]),
        "bytes_moved": _dim(data["bytes_moved"]),
        "flops": _dim(data["flops"]),
        "lines": tuple(data["lines"]),
    }
    return KernelSource(**{**data, **changed})
