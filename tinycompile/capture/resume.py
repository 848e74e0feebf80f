"""Functions that go on in the middle of another: one instruction in plain Python, or all the rest.

A frame that capture left lives on as a *state*: a tuple of its bound variables and of its operand stack, whose shape a
``Place`` tells. The code made here is the user's own with instructions before it that load a state, so tracebacks show the
user's lines and an exception finds the user's handlers. The state comes in one extra free variable, appended last, so that no
index of the original shifts.

    step   load the state; do the instruction; return (the state then, Outcome). An exception goes to the user's handler, and
           then the frame runs to its end in plain Python
    rest   load the state; jump to the instruction
    throw  load the state; leave the block that is being left there, if any; raise an error, which stands behind the state.
           It goes to the user's handlers, ``__exit__`` of ``with`` blocks among them

All empty the cell of the state first: the frame alone holds its objects then, and what the program drops dies there.

Needs nothing but the standard library.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

from tinycompile.capture.assemble import UNIT, Chunk, Position, encode, prepend
from tinycompile.capture.bytecode import VERSION, ExceptionEntry, Instruction, decode, exception_table

STATE = ".state"  # the extra free variable; no name that a program can have


@dataclass(frozen=True, slots=True)
class Slot:
    """A bound variable: a local, or (``cell``) the cell of one that inner functions share."""

    name: str
    cell: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a frame is: the canonical instruction that comes next, which variables are bound, and which entries of the operand
    stack are values (False: a NULL, below the arguments of a call or from an inlined comprehension). ``followed``: the
    instruction is captured behind the break, and not done in plain Python."""

    code: CodeType
    at: int
    slots: tuple[Slot, ...]
    stack: tuple[bool, ...]
    followed: bool = False

    @property
    def instruction(self) -> Instruction:
        """The next instruction."""
        return decode(self.code)[self.at]

    @property
    def size(self) -> int:
        """The length of a state."""
        return len(self.slots) + sum(self.stack)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One way in which a step can end, where the frame is then, and what it leaves on the stack: a method without its NULL."""

    index: int
    place: Place
    left: tuple[bool, ...]


class NotResumableError(Exception):
    """There is no code for this instruction on its own."""


def is_resumable(code: CodeType) -> bool:
    """Whether a frame of this code can be left and entered again: not those of generators and coroutines, nor of classes."""
    kinds = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    names = _variables(code)
    return not code.co_flags & kinds and bool(code.co_flags & inspect.CO_OPTIMIZED) and len(set(names)) == len(names)


# --- what instructions do to the stack ----------------------------------------------------------------------

# Instructions that touch only the frame and never fail: they are captured after the break, never done on their own.
TRIVIAL = frozenset(
    {
        "LOAD_CONST", "POP_TOP", "COPY", "SWAP", "PUSH_NULL", "STORE_FAST", "LOAD_FAST_AND_CLEAR", "MAKE_CELL", "JUMP",
        "RETURN_VALUE", "MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE",
    }
)  # fmt: skip


def is_trivial(place: Place) -> bool:
    """Whether the next instruction is one of these, or is to be followed. One that deletes a variable is, where the variable is
    bound."""
    ins = place.instruction
    return place.followed or ins.op in TRIVIAL or (ins.op == "DELETE_FAST" and any(s.name == ins.arg for s in place.slots))


def moved(place: Place) -> tuple[Place, tuple[int, ...]] | None:
    """For an instruction that does nothing but let go of an object: where the frame is behind it, and which entries of the
    state it has then. None for any other."""
    ins, last = place.instruction, place.size - 1
    bound = {slot.name: i for i, slot in enumerate(place.slots) if not slot.cell}
    entries, slots, stack = list(range(place.size)), place.slots, place.stack
    if ins.op == "DELETE_FAST" and ins.arg in bound:
        at = bound[ins.arg]
        del entries[at]
        slots = slots[:at] + slots[at + 1 :]
    elif ins.op in ("POP_TOP", "STORE_FAST") and stack and stack[-1]:
        del entries[last]
        stack = stack[:-1]
        if ins.op == "STORE_FAST":
            if ins.arg not in bound or ins.arg in place.code.co_cellvars:  # (an inlined comprehension puts its cell back)
                return None
            entries[bound[ins.arg]] = last
    else:
        return None
    return Place(place.code, place.at + 1, slots, stack), tuple(entries)


_Effect = tuple[int, tuple[bool, ...]]  # how many it pops, what it pushes
_ONE = (True,)
_METHOD = (True, False) if VERSION >= (3, 13) else (False, True)
_UNARY, _BINARY, _PUSH, _POP = (1, _ONE), (2, _ONE), (0, _ONE), (1, ())
_FIXED: dict[str, _Effect] = {
    **dict.fromkeys(
        ("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_NOT", "UNARY_INVERT", "TO_BOOL", "LOAD_ATTR", "GET_ITER", "LIST_TO_TUPLE",
         "CONVERT_VALUE", "CALL_INTRINSIC_1"), _UNARY),
    **dict.fromkeys(("BINARY_OP", "COMPARE_OP", "IS_OP", "CONTAINS_OP", "BINARY_SUBSCR", "IMPORT_NAME", "CALL_INTRINSIC_2"),
                    _BINARY),
    **dict.fromkeys(("LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "IMPORT_FROM", "GET_LEN", "MATCH_MAPPING", "MATCH_SEQUENCE",
                     "MATCH_KEYS", "LOAD_ASSERTION_ERROR", "LOAD_BUILD_CLASS"), _PUSH),
    **dict.fromkeys(("STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR", "LIST_APPEND", "LIST_EXTEND", "SET_ADD", "SET_UPDATE",
                     "DICT_UPDATE", "DICT_MERGE"), _POP),
    **dict.fromkeys(("DELETE_FAST", "DELETE_DEREF", "DELETE_GLOBAL"), (0, ())),
    "LOAD_METHOD": (1, _METHOD),
    "STORE_SUBSCR": (3, ()),
    "DELETE_SUBSCR": (2, ()),
    "STORE_ATTR": (2, ()),
    "MAP_ADD": (2, ()),
    "BEFORE_WITH": (1, (True, True)),
    "MATCH_CLASS": (3, _ONE),
}  # fmt: skip
_BY_ARGUMENT: dict[str, Callable[[Any], _Effect]] = {
    **dict.fromkeys(("BUILD_TUPLE", "BUILD_LIST", "BUILD_SET", "BUILD_STRING", "BUILD_SLICE"), lambda n: (n, _ONE)),
    "BUILD_MAP": lambda n: (2 * n, _ONE),
    "BUILD_CONST_KEY_MAP": lambda n: (n + 1, _ONE),
    "UNPACK_SEQUENCE": lambda n: (1, _ONE * n),
    "UNPACK_EX": lambda n: (1, _ONE * (n[0] + 1 + n[1])),
    "FORMAT_VALUE": lambda how: (1 + how[1], _ONE),
    "LOAD_SUPER_ATTR": lambda how: (3, _METHOD if how[1] else _ONE),
    "CALL": lambda n: (n + 2, _ONE),
    "CALL_KW": lambda n: (n + 3, _ONE),
    "CALL_FUNCTION_EX": lambda named: (3 + named, _ONE),
    "RAISE_VARARGS": lambda n: (n, ()),
}
# Branches: what falling through and what jumping does.
_BRANCHES: dict[str, tuple[_Effect, _Effect]] = {
    **{f"POP_JUMP_IF_{what}": (_POP, _POP) for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")},
    "JUMP_IF_TRUE_OR_POP": (_POP, (0, ())),
    "JUMP_IF_FALSE_OR_POP": (_POP, (0, ())),
    "FOR_ITER": (_PUSH, _POP),
}  # fmt: skip


def outcomes(place: Place) -> tuple[Outcome, ...]:
    """How a step at ``place`` can end: by falling through, and for a branch by jumping. Raises NotResumableError."""
    ins = place.instruction
    if ins.op in _BRANCHES:
        assert ins.target is not None
        fall, jump = _BRANCHES[ins.op]
        return _outcome(place, 0, place.at + 1, fall), _outcome(place, 1, ins.target, jump)
    if ins.op in _BY_ARGUMENT:
        effect = _BY_ARGUMENT[ins.op](ins.arg)
    elif ins.op in _FIXED:
        effect = _FIXED[ins.op]
    else:
        raise NotResumableError(ins.op)
    return (_outcome(place, 0, min(place.at + 1, len(decode(place.code)) - 1), effect),)


def _outcome(place: Place, index: int, at: int, effect: _Effect) -> Outcome:
    popped, pushed = effect
    left, ins = place.stack[: len(place.stack) - popped], place.instruction
    slots = tuple(s for s in place.slots if ins.op != "DELETE_FAST" or s.name != ins.arg)
    return Outcome(index, Place(place.code, at, slots, left + pushed), left + tuple(filter(None, pushed)))


# --- the code -----------------------------------------------------------------------------------------------

# CPython 3.13 looks for the handler of an exception that leaves a called Python function one unit before the call: there must
# be one, and under the same handlers.
_AHEAD = encode("NOP") if VERSION >= (3, 13) else b""


@cache
def step(place: Place) -> tuple[CodeType, tuple[Outcome, ...]]:
    """A code object that does the instruction at ``place`` and returns ``(state, Outcome)``."""
    ends = outcomes(place)
    maker = _Maker(place)
    prologue = maker.prologue()
    doing = maker.doing(place.at, len(maker.epilogue(ends[0])) // UNIT)
    doing = _AHEAD + doing
    body = [Chunk(doing, maker.position), Chunk(maker.epilogue(ends[0]))]
    if len(ends) > 1:
        body.append(Chunk(maker.landing() + maker.epilogue(ends[1])))
    return maker.finish([prologue, *body], [(len(prologue.data), len(prologue.data) + len(doing))]), ends


@cache
def rest(place: Place) -> CodeType:
    """A code object that runs from ``place`` to the end of the function."""
    maker = _Maker(place)
    prologue = maker.prologue()
    parts, offset = maker.until_boundary()
    units = (_start(place.code, offset)) // UNIT
    data = _AHEAD * bool(parts) + b"".join(parts)
    chunks = [prologue, Chunk(data, maker.position), Chunk(encode("JUMP_FORWARD", units, extended=2))]
    return maker.finish(chunks, [(len(prologue.data), len(prologue.data) + len(data))] if data else [])


@cache
def throw(place: Place) -> CodeType:
    """A code object that raises, at ``place``, the error behind the state."""
    maker = _Maker(place)
    prologue = maker.prologue(throws=True)
    leaving = b"".join(maker.doing(at, 0) for at in _exit_call(place))
    raising = encode("LOAD_DEREF", maker.state) + encode("DELETE_DEREF", maker.state) + encode("RAISE_VARARGS", 1)
    body = Chunk(_AHEAD + leaving + raising, maker.position)
    return maker.finish([prologue, body], [(len(prologue.data), len(prologue.data) + len(body.data))])


_EXIT = ("LOAD_CONST", "LOAD_CONST", "LOAD_CONST", "CALL")  # __exit__(None, None, None): the first stands for a receiver


def _exit_call(place: Place) -> range:
    """Where a ``with`` block is being left already, so that no handler stands for it: what is left of the call of ``__exit__``
    that comes next. Python lifts the result that is returned out of the block first."""
    instructions = decode(place.code)
    first = place.at + (instructions[place.at].op == "SWAP")
    for start in range(first, max(first - len(_EXIT), -1), -1):
        call = instructions[start : start + len(_EXIT)]
        if tuple(i.op for i in call) == _EXIT and [i.arg for i in call] == [None, None, None, 2]:
            return range(place.at, start + len(_EXIT))
    return range(0)


class _Maker:
    """Builds one code object: collects constants and knows the frame's layout."""

    def __init__(self, place: Place) -> None:
        self.place, self.code = place, place.code
        self.consts = list(place.code.co_consts)
        self.names = {name: i for i, name in enumerate(_variables(place.code))}
        self.state = len(self.names)
        self.instructions = decode(place.code)
        self.raw = _raw(place.code)

    @property
    def position(self) -> Position | None:
        """The source of the instruction."""
        found = self.raw[self.place.instruction.offset].positions
        return None if found is None else (found.lineno, found.end_lineno, found.col_offset, found.end_col_offset)

    def const(self, value: Any) -> bytes:
        """Push an object."""
        self.consts.append(value)
        return encode("LOAD_CONST", len(self.consts) - 1)

    # --- parts ---

    def prologue(self, throws: bool = False) -> Chunk:
        """Load the state into the frame, and forget it. ``throws``: an error stands behind it, and alone stays in the cell."""
        out = [encode("COPY_FREE_VARS", len(self.code.co_freevars) + 1), encode("RESUME", 0)]

        def item(i: int) -> None:
            out.extend((encode("LOAD_DEREF", self.state), self.const(i), encode("BINARY_SUBSCR")))

        bound = {slot.name for slot in self.place.slots}
        if self._arguments() and self.code.co_varnames[0] not in bound:
            out.append(encode("DELETE_FAST", 0))
        for i, slot in enumerate(self.place.slots):
            if slot.cell:  # Python looks into the cell, for ``eval`` and ``f_locals``, where it finds this instruction
                out.append(encode("MAKE_CELL", self.names[slot.name]))
            item(i)
            out.append(encode("STORE_FAST", self.names[slot.name]))
        at = len(self.place.slots)
        for is_value in self.place.stack:
            if is_value:
                item(at)
                at += 1
            else:
                out.append(encode("PUSH_NULL"))
        if throws:
            item(at)
        out.append(encode("STORE_DEREF" if throws else "DELETE_DEREF", self.state))
        return Chunk(b"".join(out))

    def epilogue(self, end: Outcome) -> bytes:
        """Return the state behind the instruction, and how it came out. The stack stays as it is, NULLs and all."""
        out, stack = [encode("LOAD_FAST", self.names[slot.name]) for slot in end.place.slots], end.left
        for at, is_value in enumerate(stack):
            if is_value:
                out.append(encode("COPY", len(stack) + len(out) - at))
        out += [encode("BUILD_TUPLE", end.place.size), self.const(end), encode("BUILD_TUPLE", 2), encode("RETURN_VALUE")]
        return b"".join(out)

    def doing(self, at: int, skip: int) -> bytes:
        """The canonical instruction; a branch jumps over ``skip`` units."""
        ins = self.instructions[at]
        raw = self.raw[ins.offset]
        if ins.op in _BRANCHES:
            return encode(_jump_name(ins.op), skip)
        rule = _RULES.get(ins.op)
        if rule is not None:
            return rule(self, at, raw)
        return encode(raw.opname, raw.arg)

    def landing(self) -> bytes:
        """What must lie where an exhausted FOR_ITER jumps to."""
        if self.place.instruction.op != "FOR_ITER" or VERSION < (3, 12):
            return b""
        return encode("END_FOR") + (encode("POP_TOP") if VERSION >= (3, 13) else b"")

    def until_boundary(self) -> tuple[list[bytes], int]:
        """The rest of a CPython instruction that capture split, and the offset of the next whole one."""
        at, parts = self.place.at, []
        while at > 0 and (self.instructions[at].offset == self.instructions[at - 1].offset or self._names_pending(at)):
            parts.append(self.doing(at, 0))
            if self.instructions[at].op == "RETURN_VALUE":
                break
            at += 1
        return parts, self.instructions[at].offset

    def _names_pending(self, at: int) -> bool:
        """Whether a CALL_KW's names were pushed by capture, but belong to the instruction."""
        return self.instructions[at].op == "CALL_KW" and VERSION < (3, 13)

    # --- the whole ---

    def _arguments(self) -> int:
        """``super()`` wants a first argument where the original has one."""
        return min(self.code.co_argcount, 1)

    def finish(self, chunks: Sequence[Chunk], spans: Sequence[tuple[int, int]]) -> CodeType:
        """The code object. ``spans``: where instructions of the user's lie, which the user's handlers protect."""
        offset = self.place.instruction.offset
        rows = [r for r in exception_table(self.code) if r.start <= offset < r.end]
        protected = [ExceptionEntry(start, end, r.target, r.depth, r.lasti) for start, end in spans for r in rows]
        room = max(self.code.co_stacksize, len(self.place.stack) + 2) + self.place.size + 4
        return prepend(
            self.code,
            chunks,
            protected,
            co_consts=tuple(self.consts),
            co_freevars=(*self.code.co_freevars, STATE),
            co_argcount=self._arguments(),
            co_posonlyargcount=0,
            co_kwonlyargcount=0,
            co_flags=self.code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
            co_stacksize=room,
        )


def _variables(code: CodeType) -> tuple[str, ...]:
    """Names of the frame's slots, by index."""
    own = code.co_varnames
    return (*own, *(c for c in code.co_cellvars if c not in own), *code.co_freevars)


@cache
def _raw(code: CodeType) -> dict[int, dis.Instruction]:
    return {i.offset: i for i in dis.get_instructions(code)}


def _start(code: CodeType, offset: int) -> int:
    """Where an instruction's EXTENDED_ARGs begin."""
    while offset >= UNIT and code.co_code[offset - UNIT] == dis.EXTENDED_ARG:
        offset -= UNIT
    return offset


def _jump_name(op: str) -> str:
    return op.replace("POP_JUMP_IF", "POP_JUMP_FORWARD_IF") if VERSION < (3, 12) else op


# --- instructions that are not done as they stand -----------------------------------------------------------


def _without_method(maker: _Maker, at: int, raw: dis.Instruction) -> bytes:
    """Whether a method came with its receiver can't be seen from outside: take the attribute alone."""
    if raw.opname == "LOAD_METHOD":
        return encode("LOAD_ATTR", raw.arg)
    return encode(raw.opname, (raw.arg or 0) & ~1)


def _call(maker: _Maker, at: int, raw: dis.Instruction) -> bytes:
    return (encode("PRECALL", raw.arg) if VERSION < (3, 12) else b"") + encode("CALL", raw.arg)


def _call_kw(maker: _Maker, at: int, raw: dis.Instruction) -> bytes:
    if VERSION >= (3, 13):
        return encode("CALL_KW", raw.arg)
    names = maker.raw[maker.instructions[at - 1].offset].arg
    return encode("POP_TOP") + encode("KW_NAMES", names) + _call(maker, at, raw)


def _named(name: str, arg: int = 0) -> Callable[[_Maker, int, dis.Instruction], bytes]:
    return lambda maker, at, raw: encode(name, arg)


def _compare(maker: _Maker, at: int, raw: dis.Instruction) -> bytes:
    return encode("COMPARE_OP", (raw.arg or 0) & ~16 if VERSION >= (3, 13) else raw.arg)


def _load_fast(maker: _Maker, at: int, raw: dis.Instruction) -> bytes:
    return encode("LOAD_FAST_CHECK" if VERSION >= (3, 12) else "LOAD_FAST", maker.names[maker.instructions[at].arg])


_RULES: dict[str, Callable[[_Maker, int, dis.Instruction], bytes]] = {
    "LOAD_METHOD": _without_method,
    "LOAD_GLOBAL": lambda maker, at, raw: encode("LOAD_GLOBAL", (raw.arg or 0) & ~1),
    "LOAD_SUPER_ATTR": lambda maker, at, raw: encode("LOAD_SUPER_ATTR", (raw.arg or 0) & ~1),
    "LOAD_FAST": _load_fast,
    "STORE_FAST": lambda maker, at, raw: encode("STORE_FAST", maker.names[maker.instructions[at].arg]),
    "CALL": _call,
    "CALL_KW": _call_kw,
    "COMPARE_OP": _compare,
    "TO_BOOL": _named("TO_BOOL"),
    "BUILD_SLICE": lambda maker, at, raw: encode("BUILD_SLICE", maker.instructions[at].arg),
    "BINARY_SUBSCR": _named("BINARY_SUBSCR"),
    "STORE_SUBSCR": _named("STORE_SUBSCR"),
    "PUSH_NULL": _named("PUSH_NULL"),
    "RETURN_VALUE": _named("RETURN_VALUE"),
}
