"""``mode=``: CUDA graphs and autotuning on a real card."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tinycompile.base.config import config
from tinycompile.runtime import autotune, cuda_graphs

pytestmark = pytest.mark.gpu


def x_of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each capture."""
    made: list[int] = []
    real = cuda_graphs.capture

    def capture(*args: Any) -> Any:
        made.append(1)
        return real(*args)

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    return made


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def test_a_model_is_recorded_once_and_stays_right(recordings: list[int]) -> None:
    model = torch.nn.Sequential(*(Block() for _ in range(4))).cuda()
    run = tinycompile.compile(model, mode="reduce-overhead")
    kept = []
    with torch.no_grad():
        for _ in range(6):
            x = x_of(8, 64)
            kept.append((x, run(x)))
        for x, y in kept:
            torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-5)
        model[0].up.weight.mul_(0.5)
        x = x_of(8, 64)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
        model[0].up.weight.data = torch.randn_like(model[0].up.weight)
        for _ in range(3):
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    assert 1 <= len(recordings) <= 3


def test_writes_reach_the_inputs(recordings: list[int]) -> None:
    def step(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return total * 2

    run, total, expected, kept = tinycompile.compile(step, mode="reduce-overhead"), x_of(64), None, []
    expected = total.clone()
    for _ in range(5):
        kept.append(x_of(64))
        y = run(kept[-1], total)
        expected = expected + kept[-1]
        torch.testing.assert_close(total, expected)
        torch.testing.assert_close(y, expected * 2)


def test_dynamic_sizes_have_a_recording_each(recordings: list[int]) -> None:
    run = tinycompile.compile(lambda x: torch.softmax(x, -1) + 1, mode="reduce-overhead", dynamic=True)
    for _ in range(3):
        for n in (17, 64, 100):
            x = x_of(8, n)
            torch.testing.assert_close(run(x), torch.softmax(x, -1) + 1)
    assert len(recordings) >= 3


def test_a_side_stream_has_its_own_recording(recordings: list[int]) -> None:
    run, x = tinycompile.compile(lambda x: torch.relu(x + 1) * 2, mode="reduce-overhead"), x_of(1024)
    for _ in range(3):
        run(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            y = run(x)
    stream.synchronize()
    torch.testing.assert_close(y, torch.relu(x + 1) * 2)
    assert len(recordings) == 2


def test_two_functions_share_the_pool() -> None:
    f = tinycompile.compile(lambda x: (torch.softmax(x, -1) @ x).relu() + 1, mode="reduce-overhead")
    g = tinycompile.compile(lambda x: (torch.sigmoid(x) @ x) * 2, mode="reduce-overhead")
    x = x_of(64, 64)
    for _ in range(5):
        a = f(x)
        b = g(a)
        torch.testing.assert_close(a, (torch.softmax(x, -1) @ x).relu() + 1, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(b, (torch.sigmoid(a) @ a) * 2, rtol=1e-4, atol=1e-4)


def test_random_numbers_differ_between_replays() -> None:
    run = tinycompile.compile(lambda x: F.dropout(x, 0.5, True), mode="reduce-overhead")
    x = torch.ones(4096, device="cuda")
    results = [run(x) for _ in range(5)]
    assert all(not torch.equal(a, b) for a, b in zip(results, results[1:], strict=False))
    assert all(0.4 < (r == 0).float().mean() < 0.6 for r in results)


def trained(model: torch.nn.Module, call: Any, steps: int) -> list[float]:
    """The losses of some steps of SGD; gradients accumulate over two backwards a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(2):
            loss = call(x_of(8, 64)).square().mean()
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses


@pytest.mark.parametrize("kind", ["block", "batch norm"])
def test_both_halves_of_training_are_recorded(recordings: list[int], kind: str) -> None:
    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        inner = Block() if kind == "block" else torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
        return torch.nn.Sequential(inner, torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()

    model, plain = make(), make()
    mine, true = trained(model, tinycompile.compile(model, mode="reduce-overhead"), 6), trained(plain, plain, 6)
    assert mine == pytest.approx(true, rel=1e-3)
    assert len(recordings) >= 2
    for a, b in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_forward_saves_for_its_backward_before_the_next_one_runs() -> None:
    run = tinycompile.compile(lambda x, w: torch.tanh(x @ w).sin(), mode="reduce-overhead")
    w = x_of(64, 64).requires_grad_()
    inputs = [x_of(16, 64) for _ in range(6)]
    outputs = [run(x, w) for x in inputs]
    for x, y in zip(inputs, outputs, strict=True):
        (mine,) = torch.autograd.grad(y.sum(), w)
        (true,) = torch.autograd.grad(torch.tanh(x @ w).sin().sum(), w)
        torch.testing.assert_close(mine, true, rtol=1e-3, atol=1e-3)


def test_gradients_of_torch_alone_are_refused_and_right(capsys: pytest.CaptureFixture[str]) -> None:
    run = tinycompile.compile(lambda x: torch.linalg.qr(x)[1] * 2, mode="reduce-overhead")
    x = x_of(8, 8).requires_grad_()
    with config.patch(log=frozenset({"kernels"})):
        for _ in range(3):
            (mine,) = torch.autograd.grad(run(x).square().sum(), x)
    (true,) = torch.autograd.grad((torch.linalg.qr(x)[1] * 2).square().sum(), x)
    torch.testing.assert_close(mine, true, rtol=1e-3, atol=1e-3)
    assert "can't be replayed" in capsys.readouterr().err


def test_a_function_that_waits_is_refused_and_right(recordings: list[int]) -> None:
    run, x = tinycompile.compile(lambda x: torch.histc(x, 8) + 1, mode="reduce-overhead"), x_of(64)
    for _ in range(3):
        assert torch.equal(run(x), torch.histc(x, 8) + 1)
    assert recordings == []


def test_what_follows_a_function_that_waits_is_recorded(recordings: list[int]) -> None:
    run, x = tinycompile.compile(lambda x: torch.nonzero(x) + 1, mode="reduce-overhead"), x_of(64)
    for n in (0, 0, 0, 5):
        x[:n] = 0
        assert torch.equal(run(x), torch.nonzero(x) + 1)
    assert recordings


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each kernel tuned: how many candidates."""
    made: list[int] = []
    real = autotune.time_on_device

    def timer(candidates: Any, *rest: Any) -> list[float]:
        made.append(len(candidates))
        return real(candidates, *rest)

    monkeypatch.setattr(autotune, "time_on_device", timer)
    return made


def test_max_autotune_tunes_once(timings: list[int], tmp_path: Path) -> None:
    with config.patch(cache_dir=str(tmp_path)):
        run = tinycompile.compile(lambda x, b: F.gelu(x + b) * 0.5 + x, mode="max-autotune")
        x, b = x_of(512, 4096), x_of(4096)
        for _ in range(3):
            torch.testing.assert_close(run(x, b), F.gelu(x + b) * 0.5 + x, rtol=1e-5, atol=1e-5)
        assert len(timings) == 1 and timings[0] > 1
        default = tinycompile.compile(lambda x, b: F.gelu(x + b) * 0.25 + x)
        default(x, b)
        assert len(timings) == 1, "the option is the function's own"


SCRIPT = """
    import torch, tinycompile
    from tinycompile.runtime import autotune
    count, real = [], autotune.time_on_device
    autotune.time_on_device = lambda *a: (count.append(1), real(*a))[1]
    f = tinycompile.compile(lambda x: torch.softmax(x * 2, -1), mode="max-autotune")
    x = torch.randn(300, 4000, device="cuda")
    for _ in range(2):
        torch.testing.assert_close(f(x), torch.softmax(x * 2, -1))
    print("tuned", len(count), "from disk", f.cache_info()["from_disk"])
"""


def test_a_second_process_does_not_tune(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "TINYCOMPILE_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.getcwd()}
    said = []
    for _ in range(2):
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    assert said == [["tuned", "1", "from", "disk", "0"], ["tuned", "0", "from", "disk", "1"]]


def test_what_a_launch_takes_the_host_is_not_timed() -> None:
    """A library's way may be several calls of some 20 us each, between which the device would wait."""

    def several(stream: int, x: torch.Tensor) -> None:
        x.add_(1)
        until = time.perf_counter() + 4e-4
        while time.perf_counter() < until:
            pass
        x.add_(1)

    (seconds,) = autotune.time_on_device([several], torch.cuda.current_stream().cuda_stream, (x_of(1024),))
    assert seconds < 1e-4
