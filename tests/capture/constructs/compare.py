"""What a call of a case does, seen from outside, and whether two such calls did the same."""

from __future__ import annotations

import contextlib
import io
import sys
from collections import defaultdict, deque
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.capture.constructs.registry import LOG, Case


def observed(run: Any, case: Case, rounds: int = 1) -> list[Any]:
    """For each call: the result or the error, the arguments afterwards, what user code logged, what was printed."""
    seen = []
    for _ in range(rounds):
        LOG.clear()
        args = case.args()
        grad = torch.is_grad_enabled()
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                result = run(*args)
            except Exception as error:  # noqa: BLE001
                result = (type(error), str(error), vars(error), chained(error))
        assert torch.is_grad_enabled() == grad
        seen.append([result, args, list(LOG), printed.getvalue()])
    return seen


def chained(error: BaseException | None) -> Any:
    """The exceptions that one knows of, in words."""
    if error is None:
        return None
    return [repr(error), error.__suppress_context__, chained(error.__cause__), chained(error.__context__)]


def alike(got: Any, want: Any, at: str = "result", seen: dict[int, int] | None = None) -> None:
    """Equal in type, structure and content, and with the same objects in several places (``seen``: pairs met so far, by id)."""
    seen = {} if seen is None else seen
    assert type(got) is type(want), f"{at}: {type(got)} for {type(want)}"
    if _has_identity(want):
        if id(want) in seen:
            assert seen[id(want)] == id(got), f"{at}: another object than elsewhere"
            return
        assert id(got) not in seen.values(), f"{at}: the same object as elsewhere"
        seen[id(want)] = id(got)
    if isinstance(want, torch.Tensor):
        facts = [(t.dtype, t.shape, t.stride(), t.requires_grad) for t in (got, want)]
        assert facts[0] == facts[1], f"{at}: {facts[0]} for {facts[1]}"
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True, msg=lambda m: f"{at}: {m}")
    elif isinstance(want, np.ndarray):
        assert got.dtype == want.dtype and np.array_equal(got, want), at
    elif isinstance(want, dict):
        _same_dict(got, want, at, seen)
    elif isinstance(want, (list, tuple, deque)):
        assert len(got) == len(want), f"{at}: {len(got)} items for {len(want)}"
        for i, (g, w) in enumerate(zip(got, want)):
            alike(g, w, f"{at}[{i}]", seen)
        if isinstance(want, deque):
            assert got.maxlen == want.maxlen, at
    elif isinstance(want, BaseException):
        alike(got.args, want.args, f"{at}.args", seen)
        assert chained(got) == chained(want), f"{at}'s causes"
    elif isinstance(want, (FunctionType, MethodType)) or not _plain_object(want):
        assert got == want or isinstance(want, (FunctionType, MethodType)) or got != got, f"{at}: {got!r} for {want!r}"
    for name, value in _attributes(want).items():
        alike(_attributes(got)[name], value, f"{at}.{name}", seen)


def _same_dict(got: Any, want: Any, at: str, seen: dict[int, int]) -> None:
    assert len(got) == len(want), f"{at}: keys {list(got)} for {list(want)}"
    for (k, g), (key, w) in zip(got.items(), want.items()):
        alike(k, key, f"{at} key", seen)
        alike(g, w, f"{at}[{key!r}]", seen)
    if isinstance(want, defaultdict):
        assert (got.default_factory is None) == (want.default_factory is None), at


def _has_identity(value: Any) -> bool:
    return isinstance(value, (list, dict, set, deque, torch.Tensor, np.ndarray)) or _plain_object(value)


def _is_of_the_tests(cls: type) -> bool:
    """Also one that only says that it is another module's."""
    module = sys.modules.get(cls.__module__)
    return cls.__module__.startswith("tests.") or not (cls.__flags__ & 1 << 9 == 0 or hasattr(module, cls.__qualname__))


def _plain_object(value: Any) -> bool:
    """An instance of a user's class that is compared by its attributes."""
    return isinstance(value, SimpleNamespace) or (
        _is_of_the_tests(type(value)) and not isinstance(value, (int, str, tuple, type)) and type(value).__hash__ is not None
    )


def _attributes(value: Any) -> dict[str, Any]:
    if isinstance(value, SimpleNamespace):
        return vars(value)
    if not _is_of_the_tests(type(value)) or isinstance(value, (type, torch.nn.Module)):
        return {}
    slots = [s for c in type(value).__mro__ for s in getattr(c, "__slots__", ()) if s != "__dict__" and hasattr(value, s)]
    return {
        **{s: getattr(value, s) for s in slots},
        **{k: v for k, v in getattr(value, "__dict__", {}).items() if k not in ("_name_", "__objclass__")},
    }
