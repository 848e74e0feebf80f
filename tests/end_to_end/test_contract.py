"""Same answer, same errors, same aliasing, same gradients; recompiles and guards; caches."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tests.end_to_end.judge import assert_as_good_as_eager

pytestmark = pytest.mark.cpu


def test_the_module_is_the_decorator() -> None:
    @tinycompile
    def f(x):
        return x * 2 + 1

    @tinycompile.tinycompile(backend="eager")
    def g(x):
        return x * 2 + 1

    x = torch.randn(8)
    assert torch.equal(f(x), x * 2 + 1)
    assert torch.equal(g(x), x * 2 + 1)
    assert f.__name__ == "f"


def test_recompiles_on_shape_dtype_and_value() -> None:
    @tinycompile
    def f(x, n):
        return x * n

    for x in (torch.randn(4), torch.randn(4).double(), torch.randn(4, 4).t(), torch.arange(4)):
        for n in (2, 3):
            assert torch.equal(f(x, n), x * n)
    assert f.cache_info()["entries"] <= 8


def test_sizes_become_symbolic_once_they_change() -> None:
    @tinycompile
    def f(x):
        return torch.softmax(x * 2, -1).sum(0)

    for n in (5, 7, 9, 33, 128, 200):
        x = torch.randn(n, 16)
        torch.testing.assert_close(f(x), torch.softmax(x * 2, -1).sum(0))
    assert f.cache_info()["entries"] == 2


def test_globals_and_closures_are_guarded() -> None:
    scale = 2.0

    @tinycompile
    def f(x):
        return x * scale

    x = torch.randn(4)
    assert torch.equal(f(x), x * 2)
    scale = 3.0
    assert torch.equal(f(x), x * 3)


def test_outputs_alias_as_in_eager() -> None:
    @tinycompile
    def f(x):
        return x, x.view(-1), x + 0, x.t()

    x = torch.randn(3, 4)
    a, b, c, d = f(x)
    assert a is x
    assert b.data_ptr() == x.data_ptr()
    assert b._base is x or b._base is x._base
    assert c.data_ptr() != x.data_ptr()
    assert d.stride() == (1, 4)
    base = torch.randn(10, 4)
    view = base[2:5]
    assert f(view)[1].data_ptr() == view.data_ptr()


def test_user_errors_are_torchs_own_at_the_users_line() -> None:
    @tinycompile
    def f(x, y):
        z = x * 2
        return z @ y

    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as caught:
        f(torch.randn(3, 4), torch.randn(3, 4))
    assert any(entry.name == "f" and "z @ y" in str(entry.statement) for entry in caught.traceback)

    with pytest.raises(TypeError, match=r"f\(\) missing 1 required positional argument: 'y'"):
        f(torch.randn(3))


def test_an_exception_of_the_user() -> None:
    @tinycompile
    def f(x, n):
        if n > 3:
            raise KeyError("n is too large")
        return x + n

    x = torch.randn(3)
    assert torch.equal(f(x, 1), x + 1)
    with pytest.raises(KeyError, match="n is too large"):
        f(x, 4)


@pytest.mark.parametrize("backend", ["cpp", "triton"])
def test_index_out_of_range_is_torchs_error(backend: str) -> None:
    @tinycompile(backend=backend)
    def f(w, i):
        return F.embedding(i, w) * 2

    w = torch.randn(10, 4)
    i = torch.tensor([1, 9])
    assert torch.equal(f(w, i), F.embedding(i, w) * 2)
    with pytest.raises(IndexError, match="index out of range in self"):
        f(w, torch.tensor([1, 10]))


def test_gradients_are_eagers() -> None:
    def fn(x, w):
        h = F.gelu(x @ w)
        return (h * h).sum(), h.argmax(-1), h.detach()

    f = tinycompile.compile(fn)
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    loss, index, cut = f(x, w)
    assert loss.requires_grad and not index.requires_grad and not cut.requires_grad
    got = torch.autograd.grad(loss, (x, w))
    want = torch.autograd.grad(fn(x, w)[0], (x, w))
    for g, e in zip(got, want, strict=True):
        torch.testing.assert_close(g, e)


def test_second_derivatives() -> None:
    def fn(x):
        return (torch.tanh(x) * x).sum()

    f = tinycompile.compile(fn)
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    (gg,) = torch.autograd.grad(g.sum(), x)
    (e,) = torch.autograd.grad(fn(x), x, create_graph=True)
    (ee,) = torch.autograd.grad(e.sum(), x)
    torch.testing.assert_close(gg, ee)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
        self.scale = 0.5

    def forward(self, x):
        return x + self.layers(self.norm(x)) * self.scale


def test_modules() -> None:
    block = Block()
    compiled = tinycompile.compile(block)
    x = torch.randn(4, 16)
    assert_as_good_as_eager(lambda x: compiled(x), block, (x,)) if False else torch.testing.assert_close(compiled(x), block(x))
    assert isinstance(compiled, Block)
    assert list(compiled.state_dict()) == list(block.state_dict())
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in block.parameters()]
    compiled.eval()
    assert not block.training
    block.scale = 2.0
    torch.testing.assert_close(compiled(x), block(x))
    twin = copy.deepcopy(compiled)
    assert twin.layers[0].weight is not block.layers[0].weight
    torch.testing.assert_close(twin(x), block(x))
    again = pickle.loads(pickle.dumps(compiled))
    torch.testing.assert_close(again(x), block(x))


def test_parameters_that_change_under_us() -> None:
    layer = torch.nn.Linear(4, 4)
    f = tinycompile.compile(layer)
    x = torch.randn(2, 4)
    torch.testing.assert_close(f(x), layer(x))
    layer.weight.data = torch.randn(4, 4)
    torch.testing.assert_close(f(x), layer(x))
    layer.double()
    torch.testing.assert_close(f(x.double()), layer(x.double()))
    layer.weight = torch.nn.Parameter(torch.randn(6, 4, dtype=torch.float64))
    layer.bias = torch.nn.Parameter(torch.randn(6, dtype=torch.float64))
    torch.testing.assert_close(f(x.double()), layer(x.double()))


def test_recompile_limit_warns_and_runs_eagerly() -> None:
    @tinycompile
    def f(x, n):
        return x + n

    x = torch.randn(3)
    with tinycompile.config.patch(recompile_limit=2):
        f(x, "a" == "b"), f(x, 1)
        with pytest.warns(tinycompile.RecompileLimitWarning, match="recompile_limit"):
            assert torch.equal(f(x, 2), x + 2)
        assert torch.equal(f(x, 3), x + 3)


def test_two_threads_compile_and_call() -> None:
    @tinycompile
    def f(x):
        return torch.relu(x) + 1

    failures = []

    def work(n: int) -> None:
        for _ in range(20):
            x = torch.randn(n)
            if not torch.equal(f(x), torch.relu(x) + 1):
                failures.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 5, 7, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


SCRIPT = """
import torch, tinycompile
@tinycompile
def f(x):
    return torch.softmax(x, -1) * 2
x = torch.arange(12.0).reshape(3, 4)
assert torch.allclose(f(x), torch.softmax(x, -1) * 2)
print(f.cache_info())
"""


def _run(script: str, cache: Path, **env: str) -> subprocess.CompletedProcess:
    settings = {**os.environ, "TINYCOMPILE_CACHE_DIR": str(cache), "PYTHONPATH": str(Path(__file__).parents[2]), **env}
    path = cache.parent / "script.py"
    path.write_text(script)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=settings, timeout=300)


TRAINING = """
import sys, torch, tinycompile
import torch.nn.functional as F
before = set(sys.modules)
@tinycompile
def f(x, w):
    h = F.gelu(F.layer_norm(x @ w, (4,)))
    return h, F.cross_entropy(h, torch.tensor([1, 2, 3])) + torch.linalg.vector_norm(w)
x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
f(x, w)[1].backward()
print(w.grad.shape, sorted(m for m in sys.modules if m not in before and m.split(".")[:2] in (["torch", "_dynamo"],
    ["torch", "_inductor"], ["torch", "_functorch"], ["torch", "fx"], ["torch", "_decomp"])))
"""


def test_training_imports_nothing_of_torchs_compiler(tmp_path: Path) -> None:
    """Not by way of torch either: a first call of a meta kernel costs a second of imports."""
    done = _run(TRAINING, tmp_path / "cache")
    assert done.stdout == "torch.Size([4, 4]) []\n", done.stdout + done.stderr


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert "'from_disk': 0" in _run(SCRIPT, cache).stdout
    second = _run(SCRIPT, cache)
    assert "'from_disk': 1" in second.stdout, second.stderr
    for file in cache.rglob("*.so"):
        file.write_bytes(file.read_bytes()[:100])
    third = _run(SCRIPT, cache)
    assert "'from_disk': 0" in third.stdout, third.stderr


def test_a_read_only_cache_folder_works_with_one_warning(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_text("a file, where a folder should be")
    done = _run(SCRIPT, cache)
    assert "entries" in done.stdout, done.stderr
    assert done.stderr.count("Warning") == 1


def test_no_compiler_is_worked_around(tmp_path: Path) -> None:
    done = _run(SCRIPT, tmp_path / "cache", PATH="/nonexistent", CXX="")
    assert "entries" in done.stdout, done.stderr
    assert done.stderr.count("Warning") == 1


def test_dump_and_log(tmp_path: Path) -> None:
    done = _run(
        SCRIPT, tmp_path / "cache", TINYCOMPILE_DUMP=str(tmp_path / "dump"), TINYCOMPILE_LOG="graph,guards,fusion,kernels,cache"
    )
    assert "[graph]" in done.stderr and "[kernels]" in done.stderr and "[cache]" in done.stderr
    names = {p.name for p in (tmp_path / "dump").rglob("*") if p.is_file()}
    assert {
        "0_bytecode.txt",
        "1_graph.py",
        "1_guards.py",
        "1_python.py",
        "4_loops.py",
        "5_plan.py",
        "6_cpp.cpp",
        "6_wrapper.py",
    } <= names


def test_bad_arguments_of_the_decorator() -> None:
    with pytest.raises(ValueError, match="mode must be one of"):
        tinycompile.compile(lambda x: x, mode="fast")
    with pytest.raises(tinycompile.BackendError, match="unknown backend"):
        tinycompile.compile(lambda x: x, backend="nope")
    with pytest.raises(TypeError, match="takes a Python function"):
        tinycompile.compile(3)
    with pytest.raises(TypeError, match="fullgraph must be"):
        tinycompile.compile(lambda x: x, fullgraph="yes")
    with pytest.raises(TypeError, match="dynamic must be"):
        tinycompile.compile(lambda x: x, dynamic="no")
    with pytest.raises(TypeError, match="options must be a dict"):
        tinycompile.compile(lambda x: x, options=3)


def test_an_unknown_python_runs_eagerly_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinycompile.api, "VERSION", (3, 99))
    with pytest.warns(tinycompile.FallbackWarning, match=r"not 3\.99"):
        f = tinycompile.compile(lambda x: x + 1, mode=None)
    assert torch.equal(f(torch.ones(2)), torch.ones(2) + 1)


def test_an_unwritable_dump_folder_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = _run(SCRIPT, tmp_path / "cache", TINYCOMPILE_DUMP=str(tmp_path / "file" / "dump"))
    assert "entries" in done.stdout, done.stderr
    assert done.stderr.count("Warning") == 1


def test_graph_break_under_fullgraph() -> None:
    @tinycompile(fullgraph=True)
    def f(x):
        print("hello")
        return x + 1

    with pytest.raises(tinycompile.GraphBreakError, match="print") as caught:
        f(torch.randn(3))
    assert "test_contract.py" in str(caught.value)


def test_breaks_run_the_frame_eagerly_and_are_recorded() -> None:
    @tinycompile
    def f(x):
        if x.sum() > 0:
            return x * 2
        return x - 1

    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(f(x), f.original(x))
    assert f.breaks and f.breaks[0].line > 0


def test_a_backend_of_the_user() -> None:
    seen = []

    def backend(graph_module, example_inputs):
        seen.append((graph_module.code, len(example_inputs)))
        return graph_module

    f = tinycompile.compile(lambda x, y: torch.add(x, y).relu(), backend=backend)
    x, y = torch.randn(3), torch.randn(3)
    assert torch.equal(f(x, y), (x + y).relu())
    assert len(seen) == 1 and "relu" in seen[0][0]


def test_internal_errors_give_eagers_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph, example_inputs, artifacts):
        raise AssertionError("a fault of ours")

    monkeypatch.setitem(tinycompile.backends._REGISTERED, "eager", broken)
    f = tinycompile.compile(lambda x: x + 1, backend="eager")
    x = torch.randn(3)
    with tinycompile.config.patch(on_error="eager"):
        with pytest.warns(tinycompile.FallbackWarning, match="a fault of ours"):
            assert torch.equal(f(x), x + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(f(x), x + 1)
