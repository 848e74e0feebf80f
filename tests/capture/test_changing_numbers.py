"""Numbers that are not the same in every call: ints as sizes, floats and other ints as inputs. No recompile for each value."""

from __future__ import annotations

import math

import pytest
import torch

import tinycompile
from tests.capture.corpus import r

pytestmark = pytest.mark.pure


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.temperature, self.history = 0, 1.0, []
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        self.calls += 1
        self.temperature *= 0.9
        return self.linear(x) * self.calls / self.temperature


def test_a_module_that_counts_its_calls():
    module, plain = Counting(), Counting()
    plain.load_state_dict(module.state_dict())
    compiled = tinycompile.compile(module, backend="eager")
    for _ in range(12):
        x = r(2, 4)
        torch.testing.assert_close(compiled(x), plain(x))
    assert (module.calls, module.temperature) == (plain.calls, plain.temperature)
    assert compiled.compiled.cache_info()["entries"] <= 3


STEP, RATE = 0, 0.5


def global_counter(x):
    global STEP, RATE
    STEP -= 3
    RATE /= 2
    return x + STEP * RATE


def test_globals_that_change():
    global STEP, RATE
    compiled = tinycompile.compile(global_counter, backend="eager")
    x = r(4)
    for i in range(1, 12):
        torch.testing.assert_close(compiled(x), x - 3 * i * 0.5 / 2**i)
    assert STEP == -33
    assert compiled.cache_info()["entries"] <= 3


def test_cells_that_change():
    count, rate = 10, 0.5

    def f(x):
        nonlocal count, rate
        count += 1
        rate = rate * 0.5
        return x * count + rate

    compiled = tinycompile.compile(f, backend="eager")
    x = r(4)
    for i in range(1, 9):
        torch.testing.assert_close(compiled(x), x * (10 + i) + 0.5 ** (i + 1))
    assert compiled.cache_info()["entries"] <= 2


def served(fn, calls, entries=2):
    """All calls equal eager, with so many specialisations."""
    compiled = tinycompile.compile(fn, backend="eager")
    for args in calls:
        got, want = compiled(*args), fn(*args)
        assert type(got) is type(want)
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-6)
    assert compiled.cache_info()["entries"] <= entries, compiled.recompiles
    return compiled


RATES = (0.1, 0.25, -1.5, 3e-8, 7.0, 0.3)
OPS = {
    "mul": lambda x, s: x * s, "rmul": lambda x, s: s * x, "add": lambda x, s: x + s, "rsub": lambda x, s: s - x,
    "div": lambda x, s: x / s, "rdiv": lambda x, s: s / (x.abs() + 1), "floordiv": lambda x, s: x // s, "mod": lambda x, s: x % s,
    "pow": lambda x, s: (x.abs() + 1) ** s, "rpow": lambda x, s: abs(s) ** x, "gt": lambda x, s: x > s, "le": lambda x, s: s <= x,
    "alpha": lambda x, s: torch.add(x, x * 2, alpha=s), "sub_alpha": lambda x, s: x.sub(x * 3, alpha=s),
    "lerp": lambda x, s: torch.lerp(x, -x, s), "addcmul": lambda x, s: torch.addcmul(x, x, x, value=s),
    "addcdiv": lambda x, s: x.addcdiv(x, x.abs() + 1, value=s), "clamp": lambda x, s: x.clamp(s, s + 1),
    "clamp_max": lambda x, s: x.clamp(-1, max=s), "where": lambda x, s: torch.where(x > 0, s, x), "masked_fill": lambda x, s: x.masked_fill(x > 0, s),
    "inplace": lambda x, s: x.clone().mul_(s).add_(x, alpha=s), "augmented": lambda x, s: _augmented(x.clone(), s),
    "full": lambda x, s: x + torch.full((4,), s), "full_like": lambda x, s: torch.full_like(x, s), "fill": lambda x, s: x.clone().fill_(s),
    "tensor": lambda x, s: x * torch.tensor(s), "expression": lambda x, s: x * math.exp(-abs(s)) * round(s * 0.5 + 1, 2) ** 2,
    "returned": lambda x, s: (x, s * 2, -s), "mixed": lambda x, s: x * (s / x.shape[0]), "minmax": lambda x, s: x * max(min(s, 1e9), -1e9),
}  # fmt: skip


def _augmented(x, s):
    x *= s
    x += s
    return x


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_operations_on_a_float(name, dtype):
    if dtype == torch.int64 and name in (
        "alpha",
        "sub_alpha",
        "lerp",
        "addcmul",
        "addcdiv",
        "inplace",
        "augmented",
        "full_like",
        "fill",
    ):
        pytest.skip("torch takes no float here")
    served(OPS[name], [(r(4, dtype=dtype), s) for s in RATES])


@pytest.mark.parametrize("name", ["mul", "rsub", "div", "lerp", "augmented"])
def test_half_types_are_computed_in_float32(name):
    x = r(8).bfloat16()
    compiled = tinycompile.compile(OPS[name], backend="eager")
    for s in (0.1, 0.2, 0.3):
        exact = OPS[name](x.double(), s)
        torch.testing.assert_close(compiled(x, s), exact.bfloat16(), rtol=2**-7, atol=1e-3)
        assert compiled(x, s).dtype == torch.bfloat16


def test_the_result_of_no_dims_keeps_its_dtype():
    served(lambda x, s: x.sum() * s, [(r(4), s) for s in RATES])
    served(lambda x, s: x.sum() + s, [(r(4).half(), 0.5), (r(4).half(), 0.25), (r(4).half(), 2.0)])


def test_comparisons_are_guards():
    compiled = served(lambda x, s: x * 2 if s > 0.2 else x - s, [(r(4), s) for s in RATES], entries=3)
    assert any("0.2" in g for g in compiled.guards)


def test_a_float_that_is_needed_as_such_is_specialised():
    compiled = tinycompile.compile(lambda x, s: torch.nn.functional.leaky_relu(x, s), backend="eager")
    x = r(4)
    for s in (0.1, 0.2, 0.3, 0.1, 0.2, 0.3):
        torch.testing.assert_close(compiled(x, s), torch.nn.functional.leaky_relu(x, s))
    assert compiled.cache_info()["entries"] == 3


def test_special_floats_and_types():
    f = lambda x, s: x * s
    compiled = tinycompile.compile(f, backend="eager")
    for s in (0.5, math.inf, math.nan, -0.0, 0.0, 2, True, 3, False, -7, -9, 2**40, 1e300):
        got, want = compiled(r(4), s), f(r(4), s)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, equal_nan=True)
        assert torch.equal(torch.signbit(got), torch.signbit(want)) or math.isnan(s)


def test_errors_of_arithmetic_are_the_programs():
    f = lambda x, a, b: x * (a / b)
    compiled = tinycompile.compile(f, backend="eager")
    for a, b in ((1.0, 2.0), (2.0, 3.0), (3.0, 4.0)):
        compiled(r(4), a, b)
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        compiled(r(4), 1.5, 0.0)


def test_a_loop_over_a_changing_number_is_specialised():
    f = lambda x, n: sum((x * i for i in range(n)), x)
    compiled = tinycompile.compile(f, backend="eager")
    for n in (3, 4, 5, 3, 4, 5):
        torch.testing.assert_close(compiled(r(4), n), f(r(4), n))


def test_a_position_in_a_cache():
    def step(cache, x, position):
        cache[position : position + x.shape[0]] = x
        return cache[: position + x.shape[0]].sum(0), cache[position]

    compiled = tinycompile.compile(step, backend="eager")
    ours, theirs = torch.zeros(40, 4), torch.zeros(40, 4)
    for position in range(2, 30, 2):
        x = r(2, 4) + position
        for got, want in zip(compiled(ours, x, position), step(theirs, x, position)):
            torch.testing.assert_close(got, want)
    torch.testing.assert_close(ours, theirs)
    assert compiled.cache_info()["entries"] <= 3, compiled.recompiles


def test_gradients_flow_past_a_changing_number():
    f = lambda x, s: (x * s).sum() * s
    compiled = tinycompile.compile(f, backend="aot_eager")
    for s in (0.5, 0.25, 3.0):
        x, y = r(4).requires_grad_(), r(4).requires_grad_()
        compiled(x, s).backward()
        f(y, s).backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert compiled.cache_info()["entries"] == 2


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["mul", "lerp", "clamp", "expression", "full_like"])
def test_generated_code_takes_it_as_an_input(name):
    compiled = tinycompile.compile(OPS[name], backend="cpp")
    for s in RATES:
        torch.testing.assert_close(compiled(r(64), s), OPS[name](r(64), s))
    assert compiled.cache_info()["entries"] == 2


@pytest.mark.cpu
@pytest.mark.parametrize("backend", [None, "cpp", "eager", "aot_eager"])
def test_functions_without_tensors(backend):
    served_by = tinycompile.compile(lambda a, b: (a + b, a * 2.0), backend=backend)
    for a in range(6):
        assert served_by(a, a * 0.5) == (a + a * 0.5, a * 2.0)
    assert tinycompile.compile(lambda: 5, backend=backend)() == 5


class Averaging(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.steps, self.rate = 0, 1.0

    def forward(self, x):
        self.mean = self.mean * 0.9 + x * 0.1
        self.rate = self.rate * 0.5 if self.steps % 2 else self.rate
        self.steps += 1
        return x + self.mean * self.rate


def test_a_buffer_that_is_another_tensor_after_each_call():
    module, plain = Averaging(), Averaging()
    compiled = tinycompile.compile(module, backend="eager")
    for i in range(10):
        torch.testing.assert_close(compiled(r(4) + i), plain(r(4) + i))
    torch.testing.assert_close(module.mean, plain.mean)
    assert (module.steps, module.rate) == (plain.steps, plain.rate)
    assert compiled.compiled.cache_info()["entries"] <= 4, compiled.compiled.recompiles


def test_an_optimizer_step_written_by_hand():
    def step(p, g, state):
        state["step"] += 1
        correction = 1 - 0.9 ** state["step"]
        p.sub_(g * (state["rate"] / correction))
        state["rate"] *= 0.99
        return p.sum()

    compiled = tinycompile.compile(step, backend="eager")
    ours, theirs = torch.ones(3), torch.ones(3)
    state, other = {"step": 0, "rate": 0.1}, {"step": 0, "rate": 0.1}
    for _ in range(10):
        torch.testing.assert_close(compiled(ours, r(3), state), step(theirs, r(3), other))
    torch.testing.assert_close(ours, theirs)
    assert state == other and compiled.cache_info()["entries"] <= 3, compiled.recompiles


WRITES = {
    "add": lambda x, y, s: x.add_(s),
    "mul": lambda x, y, s: x.mul_(s),
    "fill": lambda x, y, s: x.fill_(s),
    "setitem": lambda x, y, s: x.__setitem__(slice(1, 3), s),
    "ema": lambda x, y, s: x.mul_(s).add_(y, alpha=1 - s),
    "size": lambda x, y, s: x.add_(y.new_ones(int(s) + 2).sum()),
    "size_of_input": lambda x, y, s: x.add_(y[: int(s) + 1].sum()),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_graphs_that_only_write(write):
    def only_write(x, y, s):
        write(x, y, s)

    compiled = tinycompile.compile(only_write, backend="eager")
    ours, theirs, y = torch.ones(4), torch.ones(4), torch.arange(40.0)[:4]
    for i in range(6):
        compiled(ours, y, i * 1.5)
        only_write(theirs, y, i * 1.5)
        torch.testing.assert_close(ours, theirs)


def test_graphs_that_only_write_tensors_of_changing_sizes():
    def only_write(x):
        x.mul_(x.shape[0])

    compiled = tinycompile.compile(only_write, backend="eager")
    for n in range(2, 8):
        x = torch.ones(n)
        compiled(x)
        assert x.tolist() == [float(n)] * n
    assert compiled.cache_info()["entries"] <= 3


def test_graphs_that_only_run_a_backward():
    def backward(m, x, s):
        (m(x).sum() * s).backward()

    compiled = tinycompile.compile(backward, backend="eager")
    ours, theirs = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    theirs.load_state_dict(ours.state_dict())
    for i in range(6):
        compiled(ours, r(3, 4), i * 1.5)
        backward(theirs, r(3, 4), i * 1.5)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)


BIG = {
    "add": lambda x, n: x + n,
    "from the right": lambda x, n: n - x,
    "ints": lambda x, n: x.long() + n,
    "compared": lambda x, n: (x < n, x == n),
    "clamp": lambda x, n: x.clamp(max=n),
    "where": lambda x, n: torch.where(x > 0, x, n),
    "full": lambda x, n: torch.full((2,), n),
    "fill": lambda x, n: x.clone().fill_(n),
    "tensor": lambda x, n: torch.tensor(n),
    "lerp": lambda x, n: torch.lerp(x, x, n),
    "alpha": lambda x, n: x.add(x, alpha=n),
    "of a sum": lambda x, n: x + (n + n),
    "pow": lambda x, n: x**n,
    "index": lambda x, n: x[n],
}


@pytest.mark.parametrize("numbers", [(2**40, 2**41, 2**63, 2**64, -(2**65), 2**62), (2**63, 2**64, -(2**65), 2**40, 2**63 - 1)])
@pytest.mark.parametrize("fn", BIG.values(), ids=list(BIG))
def test_numbers_that_are_no_c_integers(fn, numbers, monkeypatch):
    def told(run, n):
        try:
            return repr(run(torch.ones(2), n))
        except (OverflowError, RuntimeError, IndexError, ValueError) as error:
            return str(error)

    monkeypatch.setattr(tinycompile.config, "on_error", "eager")  # which would warn, and that fails the test
    compiled = tinycompile.compile(fn, backend="eager")
    for n in numbers:
        assert told(compiled, n) == told(fn, n), n
