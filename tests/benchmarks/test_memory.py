"""The suite ``memory``: its counting against tensors of known size, its table, and what a thousand steps leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import memory_suite
from benchmarks.__main__ import main
from benchmarks.contenders import EAGER, INDUCTOR, OURS
from benchmarks.growth import TAPE, Held
from benchmarks.memory_peaks import use_of
from benchmarks.memory_suite import MemoryResults, MemoryRow
from benchmarks.memory_workloads import MEMORY

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_bytes_are_counted_exactly(device: str) -> None:
    """The forward makes 4096 and 8192 bytes and lets the first go; the backward has 8192 + 16384 at once."""
    empty = torch.empty(0, device=device)

    def forward() -> torch.Tensor:
        short = empty.new_empty(1024)
        made = empty.new_empty(2048)
        del short
        return made

    def backward(made: torch.Tensor) -> None:
        empty.new_empty(4096)
        del made
        empty.new_empty(512)

    used = use_of(forward, backward, device)
    assert (used.saved, used.peak) == (8192, 8192 + 16384)


def test_what_eager_holds_is_as_known() -> None:
    """exp saves its result and sin its argument: one tensor for both, and the result; then a gradient takes a third place."""
    x = torch.randn(64, 64, requires_grad=True)
    seed = torch.randn(64, 64)
    used = use_of(lambda: x.exp().sin(), lambda y: y.backward(seed), "cpu")
    assert used.saved == 2 * x.nbytes and used.peak == 4 * x.nbytes


def test_every_function_of_the_suite_runs_and_names_are_unique() -> None:
    assert len({w.name for w in MEMORY}) == len(MEMORY) and sum(w.quick for w in MEMORY) >= 2
    assert all(w.suites == ("memory",) for w in MEMORY)


def test_the_table_compares_peaks() -> None:
    row = MemoryRow("f", "8x8 fp32", held=100_000)
    row.peak, row.saved = {EAGER: 400_000, OURS: 100_000, INDUCTOR: 200_000}, {OURS: 50_000}
    shown = MemoryResults("memory", "cpu", {"device": "a CPU"}, [row])
    head, cells = shown.table()
    told = dict(zip(head, cells, strict=True))
    assert told["held MB"] == told["ours peak MB"] == "0.10" and told["ours saved MB"] == "0.05"
    assert (told["peak ours/eager"], told["peak ours/torch"], told["with held, ours/torch"]) == ("0.25", "0.50", "0.67")
    assert "eager, geometric mean 0.25" in shown.text() and "torch.compile, geometric mean 0.50" in shown.markdown()


@pytest.mark.cpu
def test_the_suite_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_suite, "measure_growth", lambda *given: {"steps": "none"})
    given = ["--suite", "memory", "--device", "cpu", "--quick", "--only", "gelu(x+b)|train gpt2"]
    status = main([*given, "--contenders", EAGER, OURS, "--out", str(tmp_path)])
    assert status == 0, capsys.readouterr().out
    rows = json.loads((tmp_path / "memory_cpu.json").read_text())["rows"]
    assert [r["workload"] for r in rows] == ["gelu(x+b)*0.5+x", "train gpt2_124m"]
    for row in rows:
        assert not row["failed"] and 0 < row["peak"][OURS] < row["peak"][EAGER] and row["held"]
    assert "peak ours/eager" in (tmp_path / "memory_cpu.md").read_text()


@pytest.mark.cpu
@pytest.mark.parametrize("who", [OURS, TAPE])
def test_a_thousand_steps_leave_nothing_behind(who: str) -> None:
    """In a process of its own, after 100 steps: the same tensors, nodes, variants and bytes, and the same resident memory
    within what an allocator may round (a tensor of these steps kept each time would be 4 MB and more)."""
    command = [sys.executable, "-m", "benchmarks.growth", who, "cpu", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown = Held(**json.loads(done.stdout.splitlines()[-1]))
    assert (grown.tensors, grown.nodes, grown.entries, grown.allocated) == (0, 0, 0, 0)
    assert grown.resident < 1 << 20
