"""A graph break forced before each instruction in turn: results, effects and errors are eager's.

By default a sample of the instructions, chosen by hash; ``TINYCOMPILE_SWEEP=all`` takes every one."""

from __future__ import annotations

import os
import zlib
from typing import Any

import pytest
import torch

from tests.capture.corpus import CASES
from tests.capture.test_corpus import same
from tinycompile.api import CompiledFunction
from tinycompile.capture.bytecode import decode
from tinycompile.pieces import Options

pytestmark = pytest.mark.pure
SHARE = 1 if os.environ.get("TINYCOMPILE_SWEEP") == "all" else 17


def sampled(name: str, count: int) -> list[int]:
    return [i for i in range(count) if zlib.crc32(f"{name} {i}".encode()) % SHARE == 0]


def observed(run: Any, args: tuple[Any, ...]) -> Any:
    try:
        return run(*args)
    except Exception as error:  # noqa: BLE001
        return type(error), str(error)


def check(name: str, at: int) -> None:
    fn, make_args = CASES[name]
    code = fn.__code__
    compiled = CompiledFunction(fn, Options(backend="eager", resume=True, force=lambda c, i: c is code and i == at))
    for _ in range(2):
        given, wanted = make_args(), make_args()
        same(observed(compiled, given), observed(fn, wanted), f"{name}, break before {at}: {decode(code)[at].op}")
        for got, want in zip(given, wanted, strict=True):
            if isinstance(want, (torch.Tensor, list, dict)):
                same(got, want, f"{name}, break before {at}: an argument afterwards")


@pytest.mark.parametrize("name", list(CASES))
def test_break_before_each_instruction(name: str) -> None:
    fn, _ = CASES[name]
    for at in sampled(name, len(decode(fn.__code__))):
        check(name, at)


def test_break_before_every_instruction_of_every_frame() -> None:
    for name in list(CASES)[::12]:
        fn, make_args = CASES[name]
        compiled = CompiledFunction(fn, Options(backend="eager", resume=True, force=lambda c, i: True))
        for _ in range(2):
            same(observed(compiled, make_args()), observed(fn, make_args()), name)
