"""``import`` inside a function: what is loaded is found in ``sys.modules`` in each call; the code of what is not runs in its
place, and once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure

DONE: list[str] = []
X = torch.ones(2)
FILES = {
    "imported_once.py": "from tests.capture.test_imports import DONE\nDONE.append(__name__)\nSCALE = 3.0\n",
    "imported_package/__init__.py": "from tests.capture.test_imports import DONE\nDONE.append(__name__)\n",
    "imported_package/inner.py": "from tests.capture.test_imports import DONE\nDONE.append(__name__)\nSCALE = 2.0\n",
    "imported_lazily.py": "from tests.capture.test_imports import DONE\n"
    "def __getattr__(name):\n    DONE.append(name)\n    if name == 'SCALE':\n        return 4.0\n    raise AttributeError(name)\n",
    "imported_broken.py": "from tests.capture.test_imports import DONE\nDONE.append(__name__)\n1 / 0\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "tests.capture.test_imports", sys.modules[__name__])
    importlib.invalidate_caches()
    forget()
    yield
    forget()


def forget(*names: str) -> None:
    for name in [n for n in sys.modules if n.startswith("imported_") and (not names or n in names)]:
        del sys.modules[name]


def a_module(x: Any) -> Any:
    DONE.append("before")
    import imported_once

    DONE.append("after")
    return x * imported_once.SCALE, imported_once


def a_name(x: Any) -> Any:
    DONE.append("before")
    from imported_once import SCALE as scale

    return x * scale


def a_submodule(x: Any) -> Any:
    DONE.append("before")
    import imported_package.inner
    import imported_package.inner as inner

    return x * imported_package.inner.SCALE, inner


def from_a_package(x: Any) -> Any:
    DONE.append("before")
    from imported_package import inner

    return x * inner.SCALE, inner


def a_computed_name(x: Any) -> Any:
    DONE.append("before")
    from imported_lazily import SCALE

    DONE.append("after")
    return x * SCALE


def a_computed_name_that_is_none(x: Any) -> Any:
    DONE.append("before")
    try:
        from imported_lazily import OTHER  # noqa: F401
    except ImportError as error:
        return x + 1, str(error).partition("(")[0]
    return x


def one_that_fails(x: Any) -> Any:
    DONE.append("before")
    try:
        import imported_broken  # noqa: F401
    except ZeroDivisionError:
        return x + 1
    return x


def one_that_is_none(x: Any) -> Any:
    try:
        import imported_nowhere  # noqa: F401
    except ImportError as error:
        return x + 1, str(error)
    return x


FUNCTIONS = [
    a_module, a_name, a_submodule, from_a_package, a_computed_name, a_computed_name_that_is_none, one_that_fails,
    one_that_is_none,
]  # fmt: skip
CHANGES: list[Callable[[], Any]] = [
    lambda: None,
    lambda: None,
    forget,
    lambda: None,
    lambda: forget("imported_package.inner"),
    lambda: forget("imported_once", "imported_package", "imported_package.inner"),
    lambda: None,
]


def observed(fn: Callable[..., Any]) -> list[Any]:
    """What calls give and do, with changes of what is loaded between them."""
    seen = []
    forget()
    for change in CHANGES:
        change()
        DONE.clear()
        made = fn(X)
        result, *more = made if isinstance(made, tuple) else (made,)
        loaded = [getattr(m, "__name__", m) for m in more], [sys.modules.get(getattr(m, "__name__", "")) is m for m in more]
        seen.append((result.tolist(), loaded, list(DONE)))
    return seen


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_imports(fn: Callable[..., Any]) -> None:
    assert observed(tinycompile.compile(fn, backend="eager")) == observed(fn)


@pytest.mark.parametrize("fn", [a_module, a_name, a_submodule, from_a_package], ids=lambda fn: fn.__name__)
def test_what_is_loaded_is_imported_without_a_break(fn: Callable[..., Any]) -> None:
    want = fn(X)
    found = tinycompile.compile(fn, backend="eager", fullgraph=True)(X)
    assert torch.equal(*(r[0] if isinstance(r, tuple) else r for r in (found, want)))
