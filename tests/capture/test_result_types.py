"""Arithmetic of numbers that change whose result is of another type, or an error, for other values: each call is as in Python."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F

import tinycompile

pytestmark = pytest.mark.cpu


def outcome(fn, args):
    try:
        return fn(*args)
    except Exception as error:
        return type(error), str(error)


def as_in_python(fn, calls, entries=8):
    compiled = tinycompile.compile(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for args in calls:
            got, want = outcome(compiled, args), outcome(fn, args)
            assert type(got) is type(want), (args, got, want)
            if isinstance(want, torch.Tensor):
                torch.testing.assert_close(got, want, equal_nan=True)
            else:
                assert got == want, args
    assert compiled.cache_info()["entries"] <= entries, compiled.recompiles


SIGNS = ((2,), (3,), (5,), (-1,), (-3,), (4,), (0,))
PAIRS = ((2, 2), (3, 3), (5, -1), (2, 0), (7, -2), (7, 2), (0, -1), (0, 2))
FLOATS = ((2.5,), (3.5,), (-1.5,), (4.5,), (-0.25,), (float("inf"),), (float("-inf"),), (float("nan"),))
MIXED = ((-2.0, 3.0), (-2.0, 2.0), (-2.0, 0.5), (2.0, 0.5), (-3.0, 4.0), (0.0, -1.0), (2.0, -1.0), (-8.0, float("inf")))
DIVISIONS = ((5, 3), (7, 2), (9, 4), (9, 0), (-9, 4), (9, -4), (9.5, 2), (9.5, 0.0))
CASES = {
    "2 ** k": (lambda x, k: x * 2**k, SIGNS),
    "(-2) ** k": (lambda x, k: x * (-2) ** k, SIGNS),
    "pow(3, k)": (lambda x, k: x * pow(3, k), SIGNS),
    "True ** k": (lambda x, k: x * True**k, SIGNS),
    "returned": (lambda x, k: 2**k, SIGNS),
    "k ** j": (lambda x, k, j: x * k**j, PAIRS),
    "k ** 0.5": (lambda x, k: x * k**0.5, FLOATS),
    "(-1.5) ** k": (lambda x, k: x * (-1.5) ** k, SIGNS),
    "(-1.5) ** k, mostly complex": (lambda x, k: x * (-1.5) ** k, FLOATS),
    "float ** float": (lambda x, k, j: x * k**j, MIXED),
    "round": (lambda x, k, n: x * round(k, n), ((2.56, 1), (3.5, 2), (5.25, None), (2.75, 1), (7, 1), (7, None), (2.5, 0))),
    "divmod": (lambda x, k, j: x * divmod(k, j)[0] + divmod(k, j)[1], DIVISIONS),
    "//": (lambda x, k, j: x * (k // j), DIVISIONS),
    "/": (lambda x, k, j: x * (k / j), DIVISIONS),
    "1 << k": (lambda x, k: x * (1 << k), SIGNS),
    "int": (lambda x, k: x * int(k), FLOATS),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers(name):
    fn, calls = CASES[name]
    as_in_python(fn, [(torch.ones(2), *args) for args in calls])


def test_an_error_of_arithmetic_is_met_by_the_programs_handlers():
    def guarded(x, k, j):
        try:
            return x * (k / j)
        except ZeroDivisionError:
            return x - 1

    as_in_python(guarded, [(torch.ones(2), *args) for args in DIVISIONS])


def test_a_changing_exponent_is_no_reason_to_compile_anew():
    as_in_python(lambda x, k: x * 2**k, [(torch.ones(2), k) for k in range(2, 40)], entries=2)
    as_in_python(lambda x, k: x**k, [(torch.ones(2), k) for k in range(2, 40)], entries=2)


@pytest.mark.parametrize("call", [lambda x, k: x**k, lambda x, k: torch.pow(x, exponent=k), lambda x, k: x.clone().pow_(k)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_tensors_to_a_changing_power(call, dtype):
    x = torch.tensor([-1.5, 0.0, 2.0, 3.0]).to(dtype)
    as_in_python(call, [(x, *args) for args in SIGNS])


def test_gradients_of_a_changing_power():
    compiled = tinycompile.compile(lambda x, k: (x**k).sum())
    for k in (2, 3, 1, 0, 5):
        x, y = (torch.tensor([-1.5, 0.0, 2.0]).requires_grad_() for _ in range(2))
        compiled(x, k).backward()
        (y**k).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


NUMBERS = {
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "softplus": lambda x, k: F.softplus(x, beta=k),
    "vector_norm": torch.linalg.vector_norm,
    "pad": lambda x, k: F.pad(x, (1, 1), value=k),
    "linspace": lambda x, k: x + torch.linspace(0, k, 3),
    "threshold": lambda x, k: F.threshold(x, k, k),
    "alpha": lambda x, k: torch.add(x, x, alpha=k),
    "full": lambda x, k: x + torch.full((3,), k),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_size_as_a_number_of_an_op(name):
    as_in_python(NUMBERS[name], [(torch.tensor([-1.5, 0.3, 2.0]), k) for k in (2, 3, 5, 7)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_ints_too_big_for_torch(dtype):
    x = torch.ones(2, dtype=dtype)
    as_in_python(lambda x: x * 2**64, [(x,)])
    as_in_python(lambda x: x - 2**70, [(x,)])
    as_in_python(lambda x: x + (-(2**64)), [(x,)])
    as_in_python(lambda x, k: x * 2**k, [(x, k) for k in (2, 3, 5, 62, 64, 100)])


OUT_OF_RANGE = {
    "hardtanh": (lambda x, k: F.hardtanh(x, k, -k), (-1.0, 0.0, 1.0)),
    "softshrink": (F.softshrink, (0.5, 0.0, -1.0, math.nan, 1e40)),
    "celu": (F.celu, (1.0, 0.0, -1.0)),
    "smooth_l1_loss": (lambda x, k: F.smooth_l1_loss(x, x * 3, beta=k), (0.5, 0.0, -1.0, math.nan)),
    "huber_loss": (lambda x, k: F.huber_loss(x, x * 3, delta=k), (0.5, 0.0, -1.0, math.nan)),
    "cross_entropy": (lambda x, k: F.cross_entropy(x[None], torch.tensor([1]), label_smoothing=k), (0.5, -1.0, 1.5)),
    "cross_entropy of shares": (lambda x, k: F.cross_entropy(x, x.softmax(0), label_smoothing=k), (0.5, -1.0, 1.5)),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_numbers_that_an_op_refuses(name):
    fn, numbers = OUT_OF_RANGE[name]
    as_in_python(fn, [(torch.tensor([-1.5, 0.3, 2.0]), k) for k in numbers])
