"""``python -m tinycompile``: each command, in this process and as a person would start it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tinycompile
from tinycompile import doctor, terminal
from tinycompile.__main__ import main
from tinycompile.base.config import config
from tinycompile.base.target import H100
from tinycompile.runtime import cpp_build
from tinycompile.runtime.cache import DiskCache

pytestmark = pytest.mark.pure

PARTS = {"graph": "from x import y\n\n\ndef model(\n    x,\n):\n    return x\n", "target": repr(H100)}
KEY = DiskCache.key(PARTS)


@pytest.fixture
def folder(tmp_path: Path):
    with config.patch(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def test_doctor_says_what_runs_where(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for part in (
        "Python",
        "torch",
        "Triton",
        "CUDA device",
        "C++ compiler",
        "Python.h",
        "cache folder",
        "CPU tensors:",
        "CUDA tensors:",
    ):
        assert part in out
    assert str(folder) in out


def test_doctor_without_a_cpp_compiler(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpp_build, "compiler", lambda: None)
    assert main(["doctor"]) == 0
    assert "CPU tensors:  op by op, for want of a C++ compiler" in capsys.readouterr().out


def test_doctor_on_an_unknown_python(capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SUPPORTED", ((2, 7),))
    assert main(["doctor"]) == 1
    assert "Functions run eagerly" in capsys.readouterr().out


@pytest.mark.parametrize("version", [(3, 8), (3, 10)])
def test_an_older_python_is_refused_before_anything_is_imported(
    version: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(tinycompile.__path__[0], "__init__.py").read_text()
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(ImportError, match="tinycompile needs Python 3.11, 3.12 or 3.13; this is "):
        exec(compile(text, "__init__.py", "exec"), {})


def test_doctor_when_the_cache_can_not_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    with config.patch(cache_dir="/proc/tinycompile"):
        assert main(["doctor"]) == 0
    assert "every process compiles anew" in capsys.readouterr().out


def test_cache_ls_show_clear(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert main(["cache", "ls"]) == 0
    assert "0 entries" in capsys.readouterr().out
    DiskCache(folder).put(KEY, {"6_triton.py": "x = 1\n"}, PARTS)
    assert main(["cache", "ls"]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith(KEY[:12]) and "triton sm_90" in row and row.endswith("model") and "Target(" not in row
    assert main(["cache", "show", KEY[:6]]) == 0
    assert "6_triton.py" in (out := capsys.readouterr().out) and "return x" in out
    assert main(["cache", "show", "nothing"]) == 1
    assert "0 entries start with 'nothing'" in capsys.readouterr().err
    assert main(["cache", "clear", KEY[:6]]) == 2 and "takes no key" in capsys.readouterr().err
    assert len(DiskCache(folder).ls()) == 1
    assert main(["cache", "clear"]) == 0
    assert "removed 1 entries" in capsys.readouterr().out
    assert DiskCache(folder).ls() == []


def test_ops_lists_every_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    out = capsys.readouterr().out
    assert "softmax" in out and "gelu(Tensor self" in out


def test_ops_shows_the_dispatch_table_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "gelu"]) == 0
    out = capsys.readouterr().out
    assert "torch.nn.functional.gelu" in out and "TRACING" in out and "a call on cpu tensors runs CPU" in out


@pytest.mark.parametrize("name", ["torch.nn.functional.gelu", "aten::gelu", "aten.gelu.default", "torch.ops.aten.gelu", "GELU"])
def test_ops_takes_the_names_that_torch_has(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", name]) == 0
    assert "reached by torch.nn.functional.gelu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "record", "function"),
    [
        ("mse_loss", "mse_loss", "torch.nn.functional.mse_loss"),
        ("max_pool2d", "max_pool2d", "torch.max_pool2d"),
        ("dropout", "dropout", "torch.nn.functional.dropout"),
        ("einsum", "einsum", "torch.einsum"),
        ("add_", "add", "torch.Tensor.add_"),
        ("torch.Tensor.add_", "add", "torch.Tensor.add_"),
        ("torch.zeros", "full", "torch.Tensor.new_ones"),
        ("torch.ops.aten.t", "t", "torch.ops.aten.t"),
        ("slice_backward", "slice_backward", "other records"),
    ],
)
def test_ops_tells_which_functions_come_to_it(
    name: str, record: str, function: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == record and function in next(line for line in lines if line.startswith("reached by"))


def test_options_go_to_the_benchmarks(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--suite", "none-such"]) == 2
    assert "invalid choice: 'none-such'" in capfd.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_demo_on_a_card_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_ops_of_an_unknown_name_suggests(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "gel"]) == 1
    assert "gelu" in capsys.readouterr().err


def test_a_wrong_command_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["no-such-command"])
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (25_200_000, "25.2 MB"), (3_000_000_000, "3.0 GB")]
)
def test_sizes_as_text(value: int, text: str) -> None:
    assert terminal.size(value) == text


@pytest.mark.parametrize(("value", "text"), [(8.5e-4, "850 us"), (3.21e-3, "3.21 ms"), (1.2, "1.20 s")])
def test_durations_as_text(value: float, text: str) -> None:
    assert terminal.duration(value) == text


def test_columns_align() -> None:
    assert terminal.columns([("a", "1"), ("bcd", "22")], ("x", "n"), " r") == "x     n\n---  --\na     1\nbcd  22"
    assert terminal.columns([]) == ""


def test_a_reader_that_stops_early_gets_no_traceback() -> None:
    command = f"{sys.executable} -m tinycompile ops | head -1"
    listing = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert not listing.stderr


@pytest.mark.cpu
def test_demo_from_an_empty_cache() -> None:
    demo = subprocess.run(
        [sys.executable, "-m", "tinycompile", "demo", "--device", "cpu"], capture_output=True, text=True, timeout=300
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert not demo.stderr, demo.stderr
    for part in (
        "@triton.jit",
        "All results are as near to float64 as eager's",
        "took at most 2 s a function",
        "seconds by stage",
    ):
        assert part in demo.stdout
