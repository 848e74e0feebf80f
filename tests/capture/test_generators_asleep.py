"""Generators that the compiled function leaves asleep: which of them Python itself has to drop."""

from __future__ import annotations

import collections.abc

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure


def _except_other(log):
    try:
        yield 1
        yield 2
    except IndexError:
        log.append("index")
    except (KeyError, ValueError) as error:
        log.append(error)


def _except_any(log):
    try:
        yield 1
    except BaseException:
        log.append("any")
        raise


def _except_exit(log):
    try:
        yield 1
    except (IndexError, GeneratorExit):
        log.append("exit")


def _within_with(log):
    with _Logs(log):
        try:
            yield 1
        except IndexError:
            pass


def _within_finally(log):
    try:
        for _ in [x for x in (1, 2)]:
            try:
                yield 1
            except IndexError:
                pass
    finally:
        log.append("finally")


def _delegates(log):
    try:
        yield from _except_other(log)
    except StopAsyncIteration:
        log.append("stop")


class _Logs:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")

    def __exit__(self, *_):
        self.log.append("out")


@pytest.mark.parametrize(
    ("make", "whole"),
    [
        (_except_other, True),
        (_delegates, True),
        (_except_any, False),
        (_except_exit, False),
        (_within_with, False),
        (_within_finally, False),
    ],
)
def test_one_that_is_dropped_asleep(make, whole):
    """Only where its own code runs then does Python have to drop it."""

    def f(x, log):
        for value in make(log):
            return x * value

    want_log, log = [], []
    want = f(torch.ones(2), want_log)
    fn = tinycompile.compile(f, backend="eager")
    assert torch.equal(fn(torch.ones(2), log), want)
    assert log == want_log
    assert (not fn.breaks) == whole


def test_looking_for_something_in_a_sequence_of_the_program():
    """``Sequence.__iter__`` sleeps in a ``try`` when what was looked for is found."""

    class Three(collections.abc.Sequence):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return [1, 2, 3][i]

    fn = tinycompile.compile(lambda x: x * (2 in Three()) + Three().index(3), fullgraph=True, backend="eager")
    assert torch.equal(fn(torch.ones(2)), torch.full((2,), 3.0))
