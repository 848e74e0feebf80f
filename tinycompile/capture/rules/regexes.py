"""Regular expressions over known text: what they find is computed while capturing. Patterns and matches are constants."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values.base import Kwargs, Value

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

_FUNCTIONS = (re.compile, re.match, re.fullmatch, re.search, re.split, re.findall, re.finditer, re.sub, re.subn, re.escape)


def _found(fn: Any, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    unknown = next((v for v in (*args, *kwargs.values()) if not v.is_constant), None)
    if unknown is not None:
        raise GraphBreak("unsupported-value", f"re.{fn.__name__} with {unknown.describe()}")
    made = natively(fn, *(a.constant(tr) for a in args), **{k: v.constant(tr) for k, v in kwargs.items()})
    return tr.computed(made, *args, *kwargs.values())


for _fn in _FUNCTIONS:
    rule(_fn)(functools.partial(_found, _fn))
