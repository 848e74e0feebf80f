"""The benchmarks themselves: the table of workloads, the verdicts, the protocol, and what is printed and saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.accuracy import judge
from benchmarks.contenders import EAGER, INDUCTOR, OURS
from benchmarks.results import Progress, Results, Row
from benchmarks.shapes import SHAPES
from benchmarks.timing import copy_call, interleaved
from benchmarks.workloads import WORKLOADS, Arg, Workload, count_bytes, geometric_mean, select, short, tensors

pytestmark = pytest.mark.pure
LAYOUTS = ("", "transposed", "every second", "expanded", "channels_last")


def shrunk(workload: Workload) -> list[torch.Tensor]:
    """The workload's arguments with every dim over 64 cut to 64."""
    small = [Arg(tuple(min(d, 64) for d in a.shape("cpu")), None, a.dtype, a.cpu_dtype, a.below) for a in workload.args]
    return [a.make("cpu", small[0]) for a in small]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_every_workload_runs_and_agrees_with_its_float64_reference(workload: Workload) -> None:
    inputs = shrunk(workload)
    got, expected = tensors(workload.fn(*inputs)), workload.expected(inputs)
    assert all(t.dtype == torch.float64 for t in expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=3e-2, atol=3e-2)


def test_names_are_unique_and_every_suite_has_rows() -> None:
    assert len({w.name for w in WORKLOADS}) == len(WORKLOADS)
    for suite in ("kernels", "overhead", "compile"):
        assert select(suite, "", quick=False) and select(suite, "", quick=True)
    assert len({w.name for w in (*WORKLOADS, *SHAPES)}) == len(WORKLOADS) + len(SHAPES) >= len(WORKLOADS) + 40
    assert len(select("shapes", "", False, SHAPES)) == len(SHAPES)


@pytest.mark.parametrize("workload", SHAPES, ids=lambda w: w.name)
def test_every_shape_row_runs_on_small_arguments(workload: Workload) -> None:
    small = [Arg(tuple(min(d, 34) for d in a.gpu), None, a.dtype, None, a.below, a.layout) for a in workload.args]
    inputs = [a.make("cpu", small[0]) for a in small]
    for got, true in zip(tensors(workload.fn(*inputs)), workload.expected(inputs), strict=True):
        assert got.shape == true.shape and not got.isnan().any()


def test_layouts() -> None:
    made = {lay: Arg((4, 6, 2, 3), dtype=torch.float16, layout=lay).make("cpu", Arg((1,))) for lay in LAYOUTS}
    assert all(x.shape == (4, 6, 2, 3) and x.dtype == torch.float16 for x in made.values())
    strides = [made[lay].stride() for lay in LAYOUTS]
    assert strides == [(36, 6, 3, 1), (36, 6, 1, 2), (72, 12, 6, 2), (0, 6, 3, 1), (36, 1, 18, 6)]
    assert count_bytes([made["expanded"]], []) == 36 * 2


def test_a_row_below_the_copy_is_explained() -> None:
    shown = results()
    assert "under 90% of the copy's bandwidth, not explained: softmax 80%" in shown.text()
    shown.rows[0].note = "exponentials"
    assert "bandwidth: exponentials" in shown.text()


def test_bytes_are_arguments_and_results_once() -> None:
    x, b = torch.zeros(8, 4), torch.zeros(4, dtype=torch.bfloat16)
    assert count_bytes([x, b], [x + b]) == 128 + 8 + 128


def test_verdict_takes_twice_eager_and_an_ulp() -> None:
    true = torch.ones(100, dtype=torch.float64)
    eager = (true * (1 + 1e-6)).float()
    assert judge([eager], [eager], [true]).ok
    assert judge([(true * (1 + 1.9e-6)).float()], [eager], [true]).ok
    assert not judge([(true * (1 + 3e-6)).float()], [eager], [true]).ok


@pytest.mark.parametrize("wrong", ["nan", "inf", "one element"])
def test_verdict_sees_one_bad_element(wrong: str) -> None:
    true = torch.randn(1000, dtype=torch.float64)
    got = true.float()
    got[7] = {"nan": float("nan"), "inf": float("inf"), "one element": true[7].item() + 1e-3}[wrong]
    assert not judge([got], [true.float()], [true]).ok


def test_verdict_names_what_differs_in_kind() -> None:
    x = torch.randn(4, 4)
    assert "shape" in judge([x[:2]], [x], [x.double()]).problem
    assert "dtype" in judge([x.half()], [x], [x.double()]).problem
    assert "2 results" in judge([x, x], [x], [x.double()]).problem


def test_verdict_of_an_expected_zero() -> None:
    zero = torch.zeros(4)
    assert judge([zero], [zero], [zero.double()]).ok
    assert not judge([zero + 1], [zero], [zero.double()]).ok


def test_interleaved_takes_the_median_of_each() -> None:
    seen: list[str] = []
    times = interleaved({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, "cpu", 0.0, least=9)
    rounds = [tuple(seen[i : i + 2]) for i in range(0, len(seen), 2)]
    assert len(rounds) == 10, "one warm-up round, then nine"
    assert set(rounds) == {("a", "b"), ("b", "a")}, "each has both, in an order that is drawn"
    assert set(times) == {"a", "b"} and all(t > 0 for t in times.values())
    copy_call(1024, "cpu")()


def test_geometric_mean_and_dtype_names() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert [short(d) for d in (torch.bfloat16, torch.float32, torch.int64)] == ["bf16", "fp32", "i64"]


def results() -> Results:
    row = Row("softmax", "8x8 fp32", 2 << 20, 1, copy=0.8e-3)
    row.run = {EAGER: 3e-3, OURS: 1e-3, INDUCTOR: 2e-3}
    row.correct, row.error = {EAGER: True, OURS: True, INDUCTOR: False}, {INDUCTOR: 1e-3}
    broken = Row("other", "4 fp32", failed={OURS: "RuntimeError: no"})
    return Results("kernels", "cpu", {"device": "a CPU"}, [row, broken])


def test_the_table_has_ratios_and_says_what_failed() -> None:
    text = results().text()
    for part in (
        "0.33",
        "0.50",
        "80%",
        "over the error bound: torch.compile",
        "FAILED: tinycompile on other",
        "geometric mean 0.50",
    ):
        assert part in text
    assert not results().right


def test_what_is_saved(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = results().save(tmp_path)
    assert [p.name for p in written] == ["kernels_cpu.json", "kernels_cpu.md", "kernels_cpu.png"]
    assert json.loads(written[0].read_text())["rows"][0]["run"][OURS] == 1e-3
    assert "| softmax | 8x8 fp32 |" in written[1].read_text()


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Progress(2)
    bar.step("one")
    bar.step("two")
    bar.close()
    out, err = capsys.readouterr()
    assert not out and "0/2 one" in err and "1/2 two" in err and "2/2 done" in err


def test_cuda_without_a_device_is_said_not_raised(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.cpu
def test_the_suite_of_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--suite", "streams", "--device", "cpu", "--quick", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "streams_cpu.json").read_text())
    assert found["right"] and all(ms >= 0 for _, ms, _ in found["rows"]) and len(found["rows"]) == 10
    assert "at once" in capsys.readouterr().out and "| compute alone |" in (tmp_path / "streams_cpu.md").read_text()


@pytest.mark.parametrize("suite", ["kernels", "overhead", "compile"])
def test_a_suite_end_to_end(suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = "tiny"
    status = main(
        ["--suite", suite, "--device", "cpu", "--quick", "--only", only, "--contenders", EAGER, OURS, "--out", str(tmp_path)]
    )
    out = capsys.readouterr().out
    assert status == 0, out
    row = json.loads((tmp_path / f"{suite}_cpu.json").read_text())["rows"][0]
    assert not row["failed"]
    assert row[{"kernels": "run", "overhead": "host", "compile": "cold"}[suite]][OURS] > 0
