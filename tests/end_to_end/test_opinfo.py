"""A slice of torch's op database: two samples of every eighth entry; ``python -m benchmarks.opinfo`` runs it all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest")

from benchmarks.opinfo import main
from benchmarks.opinfo_entry import check_entry, entries, wanted
from benchmarks.opinfo_judge import Call, DifferenceError, Judge, compare
from benchmarks.opinfo_table import read
from benchmarks.opinfo_workers import Task, check_all

pytestmark = pytest.mark.cpu

EVERY = [e for e in entries() if torch.float32 in e.supported_dtypes("cpu")]


@pytest.mark.parametrize("entry", EVERY[::8], ids=lambda e: e.formatted_name)
def test_loops_equal_eager(entry: Any) -> None:
    outcome = check_entry(entry, "cpu", torch.float32, "loops", 2)
    assert outcome.samples and not outcome.failed, outcome.messages


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16], ids=str)
@pytest.mark.parametrize("entry", EVERY[::32], ids=lambda e: e.formatted_name)
def test_other_dtypes_equal_eager(entry: Any, dtype: torch.dtype) -> None:
    if dtype not in entry.supported_dtypes("cpu"):
        pytest.skip(f"torch has no {dtype} kernel")
    outcome = check_entry(entry, "cpu", dtype, "loops", 2)
    assert not outcome.failed, outcome.messages


WITH_GRADIENTS = [e for e in EVERY if e.supports_autograd]


@pytest.mark.parametrize("entry", WITH_GRADIENTS[5::24], ids=lambda e: e.formatted_name)
def test_gradients_equal_eager(entry: Any) -> None:
    outcome = check_entry(entry, "cpu", torch.float64, "loops", 2, "backward")
    assert outcome.samples and not outcome.failed, outcome.messages


# Each was wrong once: list indices, negative indices with a dim, padding that crops, named results, packets and overloads of
# torch.ops, a sequence of one result, random functions, functions that write to a tensor, functions without a meta kernel.
ONCE = (
    "__getitem__", "take_along_dim", "nn_functional_pad_circular", "linalg_svd", "lu", "max_pool2d_with_indices_backward",
    "_softmax_backward_data", "unsafe_split", "bernoulli", "native_batch_norm", "sort", "geqrf", "histogram", "fft_rfftn",
    "nn_functional_max_unpool2d", "linspace_tensor_overload", "masked_softmax", "svd_lowrank", "sparse_mm_reduce", "nn_functional_rms_norm",
)  # fmt: skip


@pytest.mark.parametrize("name", ONCE)
def test_entries_that_were_wrong_once(name: str) -> None:
    (entry,) = entries(f"^{name}$")
    outcome = check_entry(entry, "cpu", torch.float32, "loops", 16)
    assert outcome.samples and not outcome.failed, outcome.messages


def test_cpp_builds_all_samples_at_once() -> None:
    (entry,) = entries("^softmax$")
    outcome = check_entry(entry, "cpu", torch.float32, "cpp", 4)
    assert (outcome.fused, outcome.failed) == (4, {})


WITH_ERRORS = [e for e in EVERY if wanted(e, "float32", "cpu", "errors")]


@pytest.mark.parametrize("entry", WITH_ERRORS[1::8], ids=lambda e: e.formatted_name)
def test_bad_arguments_raise_what_eager_raises(entry: Any) -> None:
    outcome = check_entry(entry, "cpu", torch.float32, "eager", None, "errors")
    assert outcome.samples and not outcome.failed, outcome.messages


@pytest.mark.parametrize("backend", ["eager", "loops", "cpp", "triton", "offline"])
def test_every_backend_stands_in_for_the_compilers(backend: str) -> None:
    """It is what compiles: library calls are seen, and a graph without any is fused."""
    found = [check_entry(e, "cpu", torch.float32, backend, 1) for e in entries("^(mv|abs)$")]
    assert [(o.samples, o.fused, o.extern, o.failed) for o in found] == [(1, 1, 0, {}), (1, 0, 1, {})]
    assert found[1].externs


def test_eager_that_loses_a_value_is_judged_by_float64() -> None:
    """ATen's vectorised remainders are NaN where the quotient is huge."""
    lost, right = torch.tensor([float("nan"), 1.0]), torch.tensor([-0.0, 1.0])
    call = Call((right.clone(),), {})
    compare(right, lost, call, call, Judge(lambda x: x, call, 0))
    with pytest.raises(DifferenceError):
        compare(right + 1, lost, call, call, Judge(lambda x: x, call, 0))


def test_a_run_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.jsonl"
    arguments = ["--entries", "^(neg|abs)$", "--dtypes", "float32", "--samples", "1", "--backend", "eager", "--out", str(out)]
    assert main(arguments) == 0
    lines = out.read_text().splitlines()
    assert {o.entry for o in read(out)} == {"neg", "abs"}
    assert main(arguments) == 0 and out.read_text().splitlines() == lines
    assert main([*arguments, "--table-only"]) == 0
    assert "float32" in capsys.readouterr().out
    with pytest.raises(ValueError, match="another run"):
        main([*arguments, "--check", "backward"])
    page = tmp_path / "page.md"
    assert main(["--markdown", str(page), "--with", str(out)]) == 0
    assert "| `neg` | 1f |" in page.read_text() and json.loads(page.with_suffix(".json").read_text())[0]["outcomes"]


def test_an_entry_that_kills_its_process_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.opinfo_workers.SECONDS", 0.2)  # less than a process needs to start
    out = tmp_path / "results.jsonl"
    out.write_text("{}\n")
    check_all([Task("neg", "float32", "cpu", "eager", "forward", 1)], out, 1, None)
    assert [o.status for o in read(out)] == ["crashed: exit status -9"]
