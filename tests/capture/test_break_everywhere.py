"""A graph break forced before each instruction in turn: results, effects and errors are eager's.

By default a sample of the instructions, chosen by hash; with ``TINYCOMPILE_TESTS=full`` every one, of more than 600 functions."""

from __future__ import annotations

import os
import zlib
from typing import Any

import pytest
import torch

from tests.capture.breaking import CASES as BREAKING
from tests.capture.constructs.compare import alike
from tests.capture.constructs.compare import observed as observed_case
from tests.capture.corpus import CASES
from tests.capture.test_constructs import CASES as CONSTRUCTS
from tests.capture.test_corpus import same
from tests.capture.test_resumed import observed as everything
from tinycompile.api import CompiledFunction
from tinycompile.capture.bytecode import decode
from tinycompile.options import Options

pytestmark = pytest.mark.pure
FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"


def sampled(name: str, count: int, share: int = 17) -> list[int]:
    """Indices of instructions, one in ``share``."""
    return [i for i in range(count) if FULL or zlib.crc32(f"{name} {i}".encode()) % share == 0]


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


@pytest.mark.filterwarnings("ignore::tinycompile.base.errors.RecompileLimitWarning")  # a loop over a dozen functions
@pytest.mark.parametrize("name", list(CONSTRUCTS))
def test_break_before_each_instruction_of_a_construct(name: str) -> None:
    case = CONSTRUCTS[name]
    code = case.fn.__code__
    want = observed_case(case.fn, case, 2)
    for at in sampled(name, len(decode(code)), 53):
        compiled = CompiledFunction(case.fn, Options(backend="eager", force=lambda c, i, at=at: c is code and i == at))
        alike(observed_case(compiled, case, 2), want, f"{name}, break before {at}: {decode(code)[at].op}")


@pytest.mark.parametrize("name", list(BREAKING))
def test_break_before_each_instruction_of_a_function_that_breaks(name: str) -> None:
    fn, make_args = BREAKING[name]
    code = fn.__code__
    for at in sampled(name, len(decode(code)), 53):
        compiled = CompiledFunction(fn, Options(backend="eager", force=lambda c, i, at=at: c is code and i == at))
        for _ in range(2):
            want = everything(fn, make_args)
            same(everything(compiled, make_args), want, f"{name}, break before {at}: {decode(code)[at].op}")


def test_break_before_every_instruction_of_every_frame() -> None:
    for name in list(CASES)[::12]:
        fn, make_args = CASES[name]
        compiled = CompiledFunction(fn, Options(backend="eager", resume=True, force=lambda c, i: True))
        for _ in range(2):
            same(observed(compiled, make_args()), observed(fn, make_args()), name)
