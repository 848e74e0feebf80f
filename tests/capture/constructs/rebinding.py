"""Builtins and modules that the function itself puts others in the place of, and reads again."""

from __future__ import annotations

import builtins
import sys
import types
from unittest import mock

from tests.capture.constructs.registry import breaks, case, log

LENGTH = len


def measured(v):
    return len(v)


def imported():
    import colorsys

    return colorsys


@case
def builtin_patched(x):
    before = len([1, 2])
    with mock.patch("builtins.len", lambda v: 99):
        inside, called = len([1, 2]), measured([1])
    return before, inside, called, len([1, 2]), x + inside


@case
def builtin_patched_as_an_attribute(x):
    with mock.patch.object(builtins, "sum", lambda v: 3):
        inside = sum([1, 5])
    return inside, sum([1, 5]), x


@case
def builtin_assigned(x):
    y = x * abs(-2)
    builtins.abs, kept = (lambda v: 10), builtins.abs
    try:
        z = y * abs(-2)
    finally:
        builtins.abs = kept
    return z * abs(-2), abs is kept


@case
def builtin_set_by_name(x):
    setattr(builtins, "len", lambda v: 77)
    try:
        found = len([1]), builtins.len([1]), measured([1])
    finally:
        setattr(builtins, "len", LENGTH)
    return found, len([1]), x


@case
def builtin_set_in_the_dict(x):
    vars(builtins)["len"] = lambda v: 55
    found = len([1])
    builtins.__dict__["len"] = LENGTH
    return found, len([1]), x


@breaks
def builtin_deleted(x):
    kept = builtins.len
    del builtins.len
    try:
        len([])
    except NameError as error:
        message = str(error)
    finally:
        builtins.len = kept
    return message, len([]), x


@breaks
def builtin_replaced_over_a_break(x):
    builtins.len = lambda v: 55
    try:
        print("break")
        found = len([1])
    finally:
        builtins.len = LENGTH
    print("break")
    return found, len([1]), x + found


@case
def builtins_replaced_in_turn(x):
    found = []
    for i in range(3):
        with mock.patch("builtins.abs", lambda v: i), mock.patch("builtins.len", lambda v: i + 1):
            with mock.patch("builtins.abs", lambda v: -i):
                found.append(abs(-10))
            found.append((abs(-10), len([]), measured([])))
        found.append(abs(-10))
    return found, x


@breaks
def builtins_replaced_around_callees_that_break(x):
    def talks(v):
        print("talk")
        return len(v)

    with mock.patch("builtins.len", lambda v: 42):
        found = talks([1]), len([])
    return found, talks([1]), len([]), x + 1


CUSTOM = types.FunctionType(measured.__code__, {"__builtins__": {"len": lambda v: 9}})


@breaks
def builtins_of_its_own(x):
    return CUSTOM([1]), measured([1]), x


@breaks
def import_replaced(x):
    kept = builtins.__import__

    def logged(name, *args):
        log(name)
        return kept(name, *args)

    builtins.__import__ = logged
    try:
        import colorsys
    finally:
        builtins.__import__ = kept
    import textwrap

    return colorsys.__name__, textwrap.__name__, x


@breaks
def module_forgotten(x):
    first = imported()
    del sys.modules["colorsys"]
    second = imported()
    sys.modules["colorsys"] = first
    return first is second, imported() is first, x + 1


@breaks
def module_taken_out(x):
    first = sys.modules.pop("colorsys")
    from colorsys import rgb_to_hsv

    sys.modules["colorsys"] = first
    return rgb_to_hsv is first.rgb_to_hsv, x + 1


@breaks
def module_replaced(x):
    first = imported()
    sys.modules["colorsys"] = "another"
    second = imported()
    sys.modules["colorsys"] = None
    try:
        imported()
    except ImportError as error:
        message = str(error)
    sys.modules["colorsys"] = first
    return second, message, imported() is first, x + 1
