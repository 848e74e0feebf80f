"""``globals``, ``locals``, ``vars``; frames and handled exceptions; what makes classes and methods."""

from __future__ import annotations

import builtins
import collections
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import FrameAsked, GraphBreak
from tinycompile.capture.bytecode import VERSION, Instruction
from tinycompile.capture.opcodes.stack import callee_at
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values.base import Kwargs, Lazy, Value
from tinycompile.capture.values.classes import ClassValue, PyModuleValue
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.exception import Traceback
from tinycompile.capture.values.function import BoundFunction, BuiltinValue, Cell
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.execute import Frame
    from tinycompile.capture.tracer import Tracer


@rule(globals)
def _globals(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tr.globals_value(tr.frames[-1].globals)


@rule(locals)
def _locals(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """The variables that are bound now. Before 3.13 all calls in one frame give one dict, which each call brings up to date."""
    frame, known = tr.frames[-1], None
    code = frame.code
    found = {n: frame.slots.get(n) for n in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))}
    bound = {n: v.content if isinstance(v, Cell) else v for n, v in found.items()}
    if VERSION < (3, 13):
        _, known = tr.shown.get(id(frame), (frame, None))
    shown = DictValue(tr) if known is None else known
    for name, value in bound.items():
        if value is not None:
            shown.set_item(tr, Const(name), tr.force(value))
        elif shown.contains(tr, Const(name)):
            shown.del_item(tr, Const(name))
    tr.shown[id(frame)] = frame, shown
    return shown


_SHOWING: dict[Any, int] = {locals: 0, vars: 0, dir: 0, eval: 1, exec: 1}  # and with how many arguments at most
_NAMES = frozenset(fn.__name__ for fn in _SHOWING)


def may_show_again(tr: Tracer, frame: Frame) -> bool:
    """Whether a frame that gave its variables may be asked for them once more, which brings the same dict up to date."""
    return id(frame) in tr.shown and VERSION < (3, 13) and _asks_often(frame)


def leaves_showing(frame: Frame, callee_asks: bool) -> bool:
    """Whether the next instruction, which is left to Python, may show the frame's variables, and so may something behind it:
    before 3.13 in one dict, which has what was shown first in front, and what ``exec`` assigns. ``callee_asks``: it calls what
    asks for the frame."""
    if VERSION >= (3, 13):
        return False
    if callee_asks:
        return bool(_asking(frame))
    callee = callee_at(frame)
    if callee is None or not _asks_often(frame):
        return False
    found, ins = list.__getitem__(frame.stack, callee), frame.instructions[frame.at]
    fn = found.obj if isinstance(found, Lazy) else found.fn if isinstance(found, BuiltinValue) else None
    most = next((count for known, count in _SHOWING.items() if known is fn), None)
    return most is not None and (ins.op != "CALL" or ins.arg <= most)


def _asks_often(frame: Frame) -> bool:
    loops = any(ins.target is not None and ins.target <= at for at, ins in enumerate(frame.instructions))
    return len(_asking(frame)) > (not loops)


def _asking(frame: Frame) -> list[Instruction]:
    return [ins for ins in frame.instructions if ins.op == "LOAD_GLOBAL" and ins.arg in _NAMES]


@rule(vars)
def _vars(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        return _locals(tr, args, kwargs)
    if isinstance(args[0], (ObjectValue, PyModuleValue, ClassValue)):
        return args[0].get_attr(tr, "__dict__")
    raise GraphBreak("unsupported-value", f"vars() of {args[0].describe()}")


@rule(sys._getframe, inspect.currentframe)
def _frame(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    asked = args[0].value if args and isinstance(args[0], Const) and isinstance(args[0].value, int) else 0
    raise FrameAsked("sys._getframe() or inspect.currentframe()", asked)


@rule(sys.exc_info)
def _exc_info(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if tr.handled is not None:
        return TupleValue([tr.from_python(tr.handled.python_type(tr)), tr.handled, Traceback()])
    if tr.resumed or sys.exc_info()[0] is not None:
        raise GraphBreak("unsupported-value", "sys.exc_info() of what a caller handles")
    tr.guards.check(f"{tr.guards.hold(sys.exc_info, 'exc_info').name}()[0] is None", "no exception is being handled")
    return TupleValue([NONE, NONE, NONE])


@rule(sys.exception)
def _handled_exception(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _exc_info(tr, args, kwargs).get_item(tr, Const(1))


@rule(types.MethodType)
def _method(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    fn, receiver = args
    return BoundFunction(fn, receiver)


@rule(builtins.__build_class__)
def _build_class(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreak("class-body", "a class statement")


@rule(collections.namedtuple)
def _namedtuple(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreak("class-body", "collections.namedtuple()")
