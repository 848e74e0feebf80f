"""``import`` inside a function: of a module that is loaded it is a look into ``sys.modules``, of another one its code runs."""

from __future__ import annotations

import builtins
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.lookups import hook_of
from tinycompile.capture.provenance import is_the_programs, natively
from tinycompile.capture.sources import HeldItem
from tinycompile.capture.trust import is_trusted
from tinycompile.capture.values.classes import PyModuleValue
from tinycompile.capture.values.function import BuiltinValue

if TYPE_CHECKING:
    from tinycompile.capture.bytecode import Instruction
    from tinycompile.capture.execute import Frame
    from tinycompile.capture.tracer import Tracer

_IMPORT = __import__


def import_name(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``import``: a module that is imported once stays, unless the program takes it away or puts another in its place."""
    level, names = (v.constant(tr) for v in frame.pop(2))
    _check_plain(tr, ins.arg)
    full = _full_name(frame.globals, ins.arg, level)
    if tr.options.resume:
        _check_loaded(full, names)
    found = _imported(tr, frame, ins.arg, names, level)
    if not isinstance(found, ModuleType):
        raise GraphBreak("unsupported-value", f"an import of {ins.arg}, which is a {type(found).__name__} in sys.modules")
    for name in {full, found.__name__}:
        module = sys.modules.get(name)
        if module is not None:
            tr.guards.item(HeldItem(tr.guards.hold(sys.modules, "modules"), name, f"module {name}"), module, equal=False)
    frame.stack.append(tr.from_python(found))


def _check_plain(tr: Tracer, name: str) -> None:
    """Break where the program has a say in how modules are imported, or has changed ``sys.modules`` by now."""
    known = tr.known(sys.modules)
    if known is not None and tr.effects.changes(known):
        raise GraphBreak("side-effect", f"an import of {name}, and sys.modules was changed")
    importer = tr.global_value(builtins.__dict__, "__import__")
    if not isinstance(importer, BuiltinValue) or importer.fn is not _IMPORT:
        raise GraphBreak("unknown-function", f"an import of {name} by an __import__ of the program's")


def _full_name(globals_: dict[str, Any], name: str, level: int) -> str:
    """The name in ``sys.modules``, of one that is given relative to the package of the code."""
    if not level:
        return name
    spec = globals_.get("__spec__")
    package = globals_.get("__package__") or getattr(spec, "parent", None)
    try:
        return importlib.util.resolve_name("." * level + name, package)
    except ImportError as error:
        raise GraphBreak("user-exception", f"an import of {'.' * level}{name}: {error}") from None


def _check_loaded(full: str, names: Sequence[str] | None) -> None:
    """Break where code of the program's runs in an import: it is to run in its place, and once."""
    module = sys.modules.get(full)
    package = full.partition(".")[0]
    if module is None:
        if package in sys.stdlib_module_names or is_trusted(package) or is_missing(package):
            return
        raise GraphBreak("unknown-function", f"an import of {full}, which is not loaded")
    if names and hook_of(module) is not None and not {"__path__", *names} <= vars(module).keys():
        raise GraphBreak("unknown-function", f"an import from {full}, which computes names")


def _imported(tr: Tracer, frame: Frame, name: str, names: Sequence[str] | None, level: int) -> ModuleType:
    """The module. That there is none is guarded: each call looks for it anew, as Python does."""
    try:
        return natively(_IMPORT, name, frame.globals, None, names, level)
    except ModuleNotFoundError as error:
        if level or error.name is None or error.name != name.partition(".")[0] or not is_missing(error.name):
            raise GraphBreak("user-exception", f"an import of {name}: {error}") from None
        tr.guards.check(f"{tr.guards.hold(is_missing, 'is_missing').name}({error.name!r})", f"there is no module {error.name}")
        raise
    except Exception as error:  # noqa: BLE001 (what the module's own code raises)
        raise GraphBreak("user-exception", f"an import of {name}: {error}") from None


def is_missing(name: str) -> bool:
    """Whether there is no module of this name, loaded or to be found."""
    return name not in sys.modules and importlib.util.find_spec(name) is None


def import_from(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``from module import name``."""
    module = frame.stack[-1]
    try:
        found = module.get_attr(tr, ins.arg)
    except AttributeError as error:
        if not isinstance(module, PyModuleValue) or not is_the_programs(error):
            raise
        raise _no_such_name(module.module, ins.arg) from None
    frame.stack.append(found)


def _no_such_name(module: ModuleType, name: str) -> ImportError:
    """Python's own complaint; a module that is only in ``sys.modules`` would be found there."""
    if sys.modules.get(module.__name__) is module and hook_of(module) is None:
        try:
            exec(f"from {module.__name__} import {name}", {})
        except ImportError as error:
            return error.with_traceback(None)
    raise GraphBreak("unsupported-value", f"{name!r} is imported from {module.__name__}")


HANDLERS = {"IMPORT_NAME": import_name, "IMPORT_FROM": import_from}
