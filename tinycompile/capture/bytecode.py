"""Decode CPython 3.11, 3.12 and 3.13 bytecode into one small instruction set. All differences between versions end here.

Needs nothing but the standard library. Canonical instructions (``arg`` in brackets):

    stack        POP_TOP  COPY[n]  SWAP[n]  PUSH_NULL  NOP
    variables    LOAD_CONST[value]  LOAD_FAST STORE_FAST DELETE_FAST LOAD_FAST_AND_CLEAR[name]
                 LOAD_GLOBAL STORE_GLOBAL DELETE_GLOBAL[name]  MAKE_CELL LOAD_DEREF STORE_DEREF DELETE_DEREF[name]
    attributes   LOAD_ATTR STORE_ATTR DELETE_ATTR[name]  LOAD_METHOD[name]  LOAD_SUPER_ATTR[(name, method, two_args)]
    items        BINARY_SUBSCR STORE_SUBSCR DELETE_SUBSCR
    operators    BINARY_OP["+", "+=" ...]  COMPARE_OP["<" ...]  IS_OP CONTAINS_OP[invert]
                 UNARY_NEGATIVE UNARY_POSITIVE UNARY_NOT UNARY_INVERT TO_BOOL
    building     BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP BUILD_STRING BUILD_SLICE BUILD_CONST_KEY_MAP[n]
                 LIST_APPEND LIST_EXTEND SET_ADD SET_UPDATE MAP_ADD DICT_UPDATE DICT_MERGE[depth]  LIST_TO_TUPLE
                 UNPACK_SEQUENCE[n]  UNPACK_EX[(before, after)]  FORMAT_VALUE[(conversion, has_spec)]  CONVERT_VALUE[conversion]
    jumps        JUMP  POP_JUMP_IF_TRUE _FALSE _NONE _NOT_NONE  JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP  FOR_ITER
    calls        CALL[n]  CALL_KW[n] (names on top)  CALL_FUNCTION_EX[has_kwargs]  MAKE_FUNCTION  SET_FUNCTION_ATTRIBUTE[flag]
                 RETURN_VALUE  RETURN_GENERATOR  YIELD_VALUE
    iteration    GET_ITER  GET_YIELD_FROM_ITER  GET_LEN  SEND  END_SEND
    with         BEFORE_WITH
    imports      IMPORT_NAME IMPORT_FROM[name]

    exceptions   STOPITERATION_ERROR PREP_RERAISE_STAR (3.12 on: intrinsics); the rest under CPython's names

Whatever else there is (async, classes, match) keeps CPython's name. Below a call's arguments lie two slots; one may be
NULL: ``(NULL, callable)`` or ``(callable, NULL)`` for a plain call (the order is the version's), ``(callable, self)`` for a
method.
FOR_ITER's target lies behind the clean-up that CPython skips: an exhausted iterator is popped, and that is all.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

VERSION = sys.version_info[:2]
SUPPORTED = ((3, 11), (3, 12), (3, 13))


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """``target``: index of the instruction jumped to. ``handler``: index of the innermost exception handler, or None.

    ``offset`` is CPython's, of the instruction this was made from; ``line`` the user's."""

    op: str
    arg: Any = None
    offset: int = 0
    line: int = 0
    target: int | None = None
    handler: int | None = None


@dataclass(frozen=True, slots=True)
class ExceptionEntry:
    """One row of a code object's exception table. Offsets in bytes; ``end`` is exclusive."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def exception_table(code: CodeType) -> tuple[ExceptionEntry, ...]:
    """The rows of ``co_exceptiontable``: big-endian groups of six bits, the first of a row marked with bit 7."""
    data = iter(code.co_exceptiontable)
    rows: list[ExceptionEntry] = []
    for first in data:
        start = _varint(data, first) * 2
        length = _varint(data) * 2
        target = _varint(data) * 2
        depth_lasti = _varint(data)
        rows.append(ExceptionEntry(start, start + length, target, depth_lasti >> 1, bool(depth_lasti & 1)))
    return tuple(rows)


@cache
def exception_rows(code: CodeType) -> dict[int, tuple[int, bool]]:
    """Instruction offset -> what a handler finds on the stack: how many entries stay, and whether the offset comes on top."""
    return {at: (row.depth, row.lasti) for row in exception_table(code) for at in range(row.start, row.end, 2)}


def _varint(data: Iterator[int], byte: int | None = None) -> int:
    if byte is None:
        byte = next(data)
    value = byte & 63
    while byte & 64:
        byte = next(data)
        value = value << 6 | byte & 63
    return value


@cache
def decode(code: CodeType) -> tuple[Instruction, ...]:
    """The canonical instructions of a code object. Cached: equal code objects share them."""
    if VERSION not in SUPPORTED:
        raise NotImplementedError(f"Python {VERSION[0]}.{VERSION[1]} bytecode; supported: 3.11 to 3.13")
    raw = [i for i in dis.get_instructions(code) if i.opname not in _DROPPED]
    draft = list(_expand(code, raw))
    index_of: dict[int, int] = {}
    for index, (offset, _, _, _, _) in enumerate(draft):
        index_of.setdefault(offset, index)
    _point_dropped_forward(code, index_of, len(draft))
    handlers = _handlers(code)
    return tuple(
        Instruction(
            op,
            arg,
            offset,
            line,
            None if jump is None else index_of[jump],
            index_of[handlers[offset]] if offset in handlers else None,
        )
        for offset, op, arg, jump, line in draft
    )


def _point_dropped_forward(code: CodeType, index_of: dict[int, int], count: int) -> None:
    """Offsets of dropped instructions (NOP, CACHE, ...) mean the next one that was kept."""
    following = count
    for offset in range(len(code.co_code) - 2, -2, -2):
        following = index_of.setdefault(offset, following)


def _handlers(code: CodeType) -> dict[int, int]:
    """Instruction offset -> offset of its handler."""
    return {at: row.target for row in exception_table(code) for at in range(row.start, row.end, 2)}


# --- one CPython instruction to canonical ones --------------------------------------------------------------

_DROPPED = frozenset(
    {"CACHE", "EXTENDED_ARG", "RESUME", "PRECALL", "NOP", "COPY_FREE_VARS", "END_FOR", "GEN_START", "EXIT_INIT_CHECK"}
)
# A decoded instruction before jump offsets become indices: (offset, op, arg, jump offset, line).
_Draft = tuple[int, str, Any, int | None, int]
_Part = tuple[str, Any]


def _expand(code: CodeType, raw: list[dis.Instruction]) -> Iterator[_Draft]:
    names_pending = False  # KW_NAMES (3.11, 3.12) belongs to the next CALL
    line = 0
    for ins in raw:
        line = _line(ins) or line
        if ins.opname == "KW_NAMES":
            names_pending = True
            yield ins.offset, "LOAD_CONST", code.co_consts[ins.arg or 0], None, line
        elif ins.opname == "CALL" and names_pending:
            names_pending = False
            yield ins.offset, "CALL_KW", ins.arg, None, line
        else:
            jump = _jump_offset(ins)
            for op, arg in _parts(ins):
                yield ins.offset, op, arg, jump, line


def _line(ins: dis.Instruction) -> int | None:
    return ins.positions.lineno if ins.positions is not None else None


_JUMPS = {
    "JUMP_FORWARD": "JUMP", "JUMP_BACKWARD": "JUMP", "JUMP_BACKWARD_NO_INTERRUPT": "JUMP",
    **{f"POP_JUMP_{way}IF_{what}": f"POP_JUMP_IF_{what}"
       for way in ("", "FORWARD_", "BACKWARD_") for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")},
    "JUMP_IF_TRUE_OR_POP": "JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP": "JUMP_IF_FALSE_OR_POP",
    "FOR_ITER": "FOR_ITER", "SEND": "SEND",
}  # fmt: skip


def _jump_offset(ins: dis.Instruction) -> int | None:
    if ins.opname not in _JUMPS:
        return None
    target: int = ins.argval
    if ins.opname == "FOR_ITER" and VERSION >= (3, 12):
        target += 2 if VERSION == (3, 12) else 4  # past END_FOR, and POP_TOP from 3.13
    return target


def _parts(ins: dis.Instruction) -> list[_Part]:
    name = ins.opname
    if name in _JUMPS:
        return [(_JUMPS[name], None)]
    rule = _RULES.get(name)
    if rule is not None:
        return rule(ins)
    return [(name, ins.argval)]


def _pair(first: str, second: str) -> Callable[[dis.Instruction], list[_Part]]:
    return lambda ins: [(first, ins.argval[0]), (second, ins.argval[1])]


def _fixed(*parts: _Part) -> Callable[[dis.Instruction], list[_Part]]:
    return lambda ins: list(parts)


def _as(op: str) -> Callable[[dis.Instruction], list[_Part]]:
    return lambda ins: [(op, ins.argval)]


def _load_global(ins: dis.Instruction) -> list[_Part]:
    assert ins.arg is not None
    parts: list[_Part] = [("LOAD_GLOBAL", ins.argval)]
    if ins.arg & 1:
        parts.insert(1 if VERSION >= (3, 13) else 0, ("PUSH_NULL", None))
    return parts


def _load_attr(ins: dis.Instruction) -> list[_Part]:
    assert ins.arg is not None
    method = VERSION >= (3, 12) and ins.arg & 1
    return [("LOAD_METHOD" if method else "LOAD_ATTR", ins.argval)]


def _load_super_attr(ins: dis.Instruction) -> list[_Part]:
    assert ins.arg is not None
    return [("LOAD_SUPER_ATTR", (ins.argval, bool(ins.arg & 1), bool(ins.arg & 2)))]


# CPython's NB_* numbers, the same from 3.11 to 3.13; the in-place forms follow 13 later.
_BINARY = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")


def _binary_op(ins: dis.Instruction) -> list[_Part]:
    assert ins.arg is not None
    symbol = _BINARY[ins.arg % 13]
    return [("BINARY_OP", symbol if ins.arg < 13 else symbol + "=")]


def _compare_op(ins: dis.Instruction) -> list[_Part]:
    assert ins.arg is not None
    shift = {(3, 11): 0, (3, 12): 4, (3, 13): 5}[VERSION]
    parts: list[_Part] = [("COMPARE_OP", dis.cmp_op[ins.arg >> shift])]
    if VERSION >= (3, 13) and ins.arg & 16:
        parts.append(("TO_BOOL", None))
    return parts


def _make_function(ins: dis.Instruction) -> list[_Part]:
    """Before 3.13 the flags say what lies under the code, uppermost first: closure, annotations, keyword defaults, defaults."""
    flags = (ins.arg or 0) if VERSION < (3, 13) else 0
    return [("MAKE_FUNCTION", None), *(("SET_FUNCTION_ATTRIBUTE", f) for f in (8, 4, 2, 1) if flags & f)]


_CONVERSIONS = ("", "s", "r", "a")


def _format_value(ins: dis.Instruction) -> list[_Part]:
    assert ins.arg is not None
    return [("FORMAT_VALUE", (_CONVERSIONS[ins.arg & 3], bool(ins.arg & 4)))]


def _intrinsic_1(ins: dis.Instruction) -> list[_Part]:
    known = {3: "STOPITERATION_ERROR", 5: "UNARY_POSITIVE", 6: "LIST_TO_TUPLE"}
    return [(known.get(ins.arg or 0, "CALL_INTRINSIC_1"), ins.arg)]


def _intrinsic_2(ins: dis.Instruction) -> list[_Part]:
    return [("PREP_RERAISE_STAR" if ins.arg == 1 else "CALL_INTRINSIC_2", ins.arg)]


_RULES: dict[str, Callable[[dis.Instruction], list[_Part]]] = {
    "LOAD_FAST_CHECK": _as("LOAD_FAST"),
    "LOAD_CLOSURE": _as("LOAD_FAST"),  # a variable's slot holds its cell: loading it raw loads the cell
    "LOAD_CLASSDEREF": _as("LOAD_CLASSDEREF"),
    "LOAD_FAST_LOAD_FAST": _pair("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": _pair("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": _pair("STORE_FAST", "STORE_FAST"),
    "LOAD_GLOBAL": _load_global,
    "LOAD_ATTR": _load_attr,
    "LOAD_SUPER_ATTR": _load_super_attr,
    "BINARY_OP": _binary_op,
    "COMPARE_OP": _compare_op,
    "IS_OP": lambda ins: [("IS_OP", bool(ins.arg))],
    "CONTAINS_OP": lambda ins: [("CONTAINS_OP", bool(ins.arg))],
    "BINARY_SLICE": _fixed(("BUILD_SLICE", 2), ("BINARY_SUBSCR", None)),
    "STORE_SLICE": _fixed(("BUILD_SLICE", 2), ("STORE_SUBSCR", None)),
    "UNPACK_EX": lambda ins: [("UNPACK_EX", ((ins.arg or 0) & 255, (ins.arg or 0) >> 8))],
    "FORMAT_VALUE": _format_value,
    "FORMAT_SIMPLE": _fixed(("FORMAT_VALUE", ("", False))),
    "FORMAT_WITH_SPEC": _fixed(("FORMAT_VALUE", ("", True))),
    "CONVERT_VALUE": lambda ins: [("CONVERT_VALUE", _CONVERSIONS[ins.arg or 0])],
    "MAKE_FUNCTION": _make_function,
    "SET_FUNCTION_ATTRIBUTE": lambda ins: [("SET_FUNCTION_ATTRIBUTE", ins.arg)],
    "CALL_FUNCTION_EX": lambda ins: [("CALL_FUNCTION_EX", bool((ins.arg or 0) & 1))],
    "CALL_INTRINSIC_1": _intrinsic_1,
    "CALL_INTRINSIC_2": _intrinsic_2,
    "RETURN_CONST": lambda ins: [("LOAD_CONST", ins.argval), ("RETURN_VALUE", None)],
}


# --- what handlers are --------------------------------------------------------------------------------------


def guarded_by_try(instructions: tuple[Instruction, ...], at: int) -> bool:
    """Whether an exception at ``at`` would reach an ``except`` or ``finally`` of the user's.

    The clean-up of ``with`` blocks and of inlined comprehensions doesn't count; what encloses it does."""
    handler = instructions[at].handler
    seen: set[int] = set()
    while handler is not None and handler not in seen:
        seen.add(handler)
        ops = [i.op for i in instructions[handler : handler + 2]]
        if ops and ops[0] == "PUSH_EXC_INFO" and ops[1:] != ["WITH_EXCEPT_START"]:
            return True
        if ops and ops[0] == "STOPITERATION_ERROR":  # a generator's own StopIteration guard
            return False
        handler = instructions[handler + 1 if ops[:1] == ["PUSH_EXC_INFO"] else handler].handler
    return False


# What a handler does that the compiler made: for inlined comprehensions, names of exceptions, generators.
_CLEANS_UP = frozenset(
    {"COPY", "POP_EXCEPT", "SWAP", "POP_TOP", "LOAD_CONST", "STORE_FAST", "DELETE_FAST", "STOPITERATION_ERROR"}
)


def passes_handlers(
    instructions: tuple[Instruction, ...], at: int, error: type[BaseException], names: Mapping[str, Any]
) -> bool:
    """Whether an exception of a class at ``at`` leaves the code and runs nothing of it but what ``except`` clauses for other
    classes ask. ``names``: what names of classes mean there."""
    handler = instructions[at].handler
    while handler is not None:
        if instructions[handler].op == "PUSH_EXC_INFO":
            end = _past_clauses(instructions, handler + 1, error, names)
        elif instructions[handler].op == "CLEANUP_THROW":
            end = handler  # it raises again
        else:
            end = next(i for i in range(handler, len(instructions)) if instructions[i].op not in _CLEANS_UP)
            end = end if instructions[end].op == "RERAISE" else None
        if end is None:
            return False
        handler = instructions[end].handler
    return True


def _past_clauses(
    instructions: tuple[Instruction, ...], at: int, error: type[BaseException], names: Mapping[str, Any]
) -> int | None:
    """The RERAISE behind ``except`` clauses that begin at ``at``; None if one may take the exception, or there are none."""
    classes: list[Any] = []
    while (instruction := instructions[at]).op != "RERAISE":
        if instruction.op == "LOAD_GLOBAL":
            classes.append(names.get(instruction.arg))
        elif instruction.op == "POP_JUMP_IF_FALSE" and instructions[at - 1].op == "CHECK_EXC_MATCH":
            if not classes or any(not isinstance(c, type) or issubclass(error, c) for c in classes):
                return None
            assert instruction.target is not None
            at, classes = instruction.target, []
            continue
        elif instruction.op not in ("BUILD_TUPLE", "CHECK_EXC_MATCH"):
            return None
        at += 1
    return at
