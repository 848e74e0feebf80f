"""The decoder alone. Imports no torch: ``python tests/capture/test_bytecode.py`` runs it on any supported interpreter."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import CodeType

# Loaded by path, so that the package (and torch) stays out.
_PATH = Path(__file__).parents[2] / "tinycompile" / "capture" / "bytecode.py"
_SPEC = importlib.util.spec_from_file_location("tinycompile_bytecode_alone", _PATH)
bytecode = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = bytecode
_SPEC.loader.exec_module(bytecode)
decode = bytecode.decode

try:
    import pytest

    pytestmark = pytest.mark.pure
except ImportError:  # an interpreter without pytest runs main() below
    pass


def ops(fn) -> list[str]:
    return [i.op for i in decode(fn.__code__)]


def arithmetic(a, b):
    c = a + b
    c *= 2
    return c @ a - -b


def branches(a, b):
    if a and b is not None:
        return a < b
    while a > 3:
        a -= 1
    return a if a else b


def loop(xs):
    total = 0
    for i, x in enumerate(xs):
        if i == 2:
            continue
        total += x
    return total


def calls(f, *args, **kwargs):
    f()
    f(1, k=2)
    f.method(3)
    f.method(*args, **kwargs)
    return print(len(args), end="")


def closures(n, k=1, *, j: int = 2):
    def inner(x, y=n):
        return x + n + k

    return inner, lambda: j


def strings(a, spec):
    return f"{a!r:>{spec}} {a} {a:.2f} {a!s}"


def containers(a, b):
    head, *middle, last = a
    x = [a, *b]
    y = {"k": a, **b}
    z = {1, 2, *a}
    a[1:2] = b
    del a[0]
    return x, y, z, a[1:3], a[::2], (*x, last)


def comprehensions(xs, n):
    return [x + n for x in xs], {x: n for x in xs if x}, {x for x in xs}, sum(x for x in xs)


def contexts(cm):
    with cm as v:
        v()
    try:
        v()
    finally:
        cm()
    return v


def comparisons(a, b):
    return 1 < a <= b, a == b, a != b, a is b, a is not b, a in b, a not in b, not a


def test_arithmetic_is_the_same_everywhere():
    got = [(i.op, i.arg) for i in decode(arithmetic.__code__)]
    assert got == [
        ("LOAD_FAST", "a"), ("LOAD_FAST", "b"), ("BINARY_OP", "+"), ("STORE_FAST", "c"),
        ("LOAD_FAST", "c"), ("LOAD_CONST", 2), ("BINARY_OP", "*="), ("STORE_FAST", "c"),
        ("LOAD_FAST", "c"), ("LOAD_FAST", "a"), ("BINARY_OP", "@"), ("LOAD_FAST", "b"), ("UNARY_NEGATIVE", None),
        ("BINARY_OP", "-"), ("RETURN_VALUE", None),
    ]  # fmt: skip


def test_jump_targets_are_indices():
    code = decode(branches.__code__)
    for i in code:
        assert (i.target is None) == ("JUMP" not in i.op), i
        assert i.target is None or 0 <= i.target < len(code)


def test_for_iter_lands_after_the_clean_up():
    code = decode(loop.__code__)
    (jump,) = [i for i in code if i.op == "FOR_ITER"]
    after = code[jump.target]
    assert (after.op, after.arg) == ("LOAD_FAST", "total")


def test_two_slots_below_the_arguments_of_every_call():
    code = decode(calls.__code__)
    assert {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "LOAD_METHOD"} <= set(ops(calls))
    at = next(k for k, i in enumerate(code) if i.op == "CALL_KW")
    assert (code[at - 1].op, code[at - 1].arg) == ("LOAD_CONST", ("k",))
    assert code[at].arg == 2
    first = [i.op for i in code[:3]]
    assert sorted(first) == ["CALL", "LOAD_FAST", "PUSH_NULL"]


def test_closures_load_raw_cells_and_functions_take_attributes():
    got = [(i.op, i.arg) for i in decode(closures.__code__)]
    assert ("MAKE_CELL", "n") in got and ("LOAD_FAST", "n") in got
    flags = [arg for op, arg in got if op == "SET_FUNCTION_ATTRIBUTE"]
    assert flags in ([8, 1, 8], [1, 8, 8])


def test_formatting():
    got = [i.arg for i in decode(strings.__code__) if i.op in ("FORMAT_VALUE", "CONVERT_VALUE")]
    assert ("", False) in got and any(a in (("r", True), "r") for a in got)


def test_slices_are_built():
    assert ops(containers).count("BUILD_SLICE") + sum(isinstance(i.arg, slice) for i in decode(containers.__code__)) >= 3
    assert "BINARY_SLICE" not in ops(containers) and "STORE_SLICE" not in ops(containers)


def test_comparisons():
    got = [i.arg for i in decode(comparisons.__code__) if i.op == "COMPARE_OP"]
    assert got == ["<", "<=", "==", "!="]
    assert [i.arg for i in decode(comparisons.__code__) if i.op in ("IS_OP", "CONTAINS_OP")] == [False, True, False, True]


def test_handlers_and_try_regions():
    code = decode(contexts.__code__)
    where = [k for k, i in enumerate(code) if i.op == "CALL" and i.arg == 0]
    assert not bytecode.guarded_by_try(code, where[0])  # in the with block
    assert bytecode.guarded_by_try(code, where[1])  # in the try block
    inlined = decode(comprehensions.__code__)
    assert not any(bytecode.guarded_by_try(inlined, k) for k, i in enumerate(inlined) if i.op == "BINARY_OP")


def test_lines_are_the_users():
    first = arithmetic.__code__.co_firstlineno
    assert [i.line - first for i in decode(arithmetic.__code__) if i.op == "STORE_FAST"] == [1, 2]


def test_every_function_of_the_standard_library_decodes():
    import argparse
    import collections
    import inspect

    def codes(code: CodeType):
        yield code
        for const in code.co_consts:
            if isinstance(const, CodeType):
                yield from codes(const)

    seen = 0
    for module in (argparse, collections, inspect):
        for code in codes(compile(Path(module.__file__).read_text(), module.__file__, "exec")):
            instructions = decode(code)
            for i in instructions:
                assert i.target is None or 0 <= i.target < len(instructions)
                seen += 1
    assert seen > 5000


def main() -> None:
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            test()
    print("ok", sys.version.split()[0])


if __name__ == "__main__":
    main()
