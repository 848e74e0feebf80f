"""The self-check: silent where compiled code is right, and where it is not: one warning, the stage at fault, eager's answer."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tinycompile.base.logs import FallbackWarning
from tinycompile.codegen.cpp import scalars
from tinycompile.fuse import planner
from tinycompile.ir.graph import Graph
from tinycompile.ir.loops import Const, Nest
from tinycompile.ir.plan import Kernel, Plan
from tinycompile.ops.record import OPS
from tinycompile.passes import pipeline
from tinycompile.selfcheck import blame
from tinycompile.selfcheck.judge import difference
from tinycompile.selfcheck.repro import run_again

pytestmark = pytest.mark.cpu

Fn = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinycompile.config, "disk_cache", False)


def compiled(fn: Fn, verify: Any = "first", **options: Any) -> Any:
    return tinycompile.compile(fn, fullgraph=True, options={"verify": verify}, **options)


def checked(f: Any) -> Any:
    return f._entries[0].compiled.call


# ------------------------------------------------------------------------------------------------------------ all is well


FINE: dict[str, tuple[Fn, Callable[[], tuple[Any, ...]]]] = {
    "softmax": (lambda x: torch.softmax(x * 3, -1), lambda: (torch.randn(20, 30),)),
    "half": (lambda x: F.layer_norm(x, (30,)) * 2, lambda: (torch.randn(20, 30).bfloat16(),)),
    "integers": (lambda x: (x // 3, x.argmax(1), x > 4), lambda: (torch.randint(-9, 9, (5, 6)),)),
    "special": (lambda x: x / x.abs().amax(1, keepdim=True), lambda: (torch.tensor([[0.0, 0.0], [math.inf, 1.0]]),)),
    "random": (lambda x: F.dropout(x, 0.5) + torch.randn_like(x), lambda: (torch.randn(8, 9),)),
    "library": (lambda x, w: F.gelu(x @ w), lambda: (torch.randn(8, 9), torch.randn(9, 7, requires_grad=True))),
    "training": (lambda x: (F.dropout(x.sin(), 0.2), x.exp()), lambda: (torch.randn(8, 9, requires_grad=True),)),
    "writes": (lambda x: x.mul_(2).sum(), lambda: (torch.randn(8, 9),)),
    "empty": (lambda x: x.exp() + 1, lambda: (torch.randn(0, 3),)),
}


@pytest.mark.parametrize("name", FINE)
def test_silent_where_right(name: str) -> None:
    """No warning; results, gradients, writes and random numbers are those of the unchecked code."""
    fn, make = FINE[name]
    torch.manual_seed(0)
    inputs = make()
    found = []
    for verify in (None, "always"):
        f = compiled(fn, verify)
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.manual_seed(1)
            result = [f(*given), torch.rand(2)]
            leaves = [x for x in given if x.requires_grad]
            if leaves:
                total = sum(r.float().sum() for r in (result[0] if isinstance(result[0], tuple) else (result[0],)))
                result.append(torch.autograd.grad(total, leaves))
        found.append([result, given])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0, equal_nan=True)
    assert checked(f).checks == 1 and not checked(f).refuted


@pytest.mark.parametrize("seed", [1, 16, 25])
def test_eagers_luck_is_no_fault(seed: int) -> None:
    """Terms that cancel, and happen to in eager's order: nobody is as exact who adds up the very same terms."""
    x = torch.randn(40, generator=torch.Generator().manual_seed(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(lambda x: (x * 700.3).sum())(x - x.mean())


@pytest.mark.parametrize(("policy", "calls"), [("first", 1), ("always", 5), (0.0, 1), (1.0, 5)])
def test_how_often(policy: Any, calls: int) -> None:
    f = compiled(lambda x: x * 2 + 1, policy)
    for _ in range(5):
        f(torch.ones(3))
    assert checked(f).checks == calls


@pytest.mark.parametrize("policy", ["never", 2, -0.5, True, [1]])
def test_wrong_policies_are_refused(policy: Any) -> None:
    with pytest.raises(ValueError, match="verify must be"):
        compiled(lambda x: x, policy)


def test_the_programs_function_is_run_by_nobody() -> None:
    calls = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2

    f = tinycompile.compile(fn, options={"verify": "always"})
    f(torch.ones(3))
    f(torch.ones(3))
    assert len(calls) == 2  # the side effect, replayed once a call


# -------------------------------------------------------------------------------------------------- a fault in each stage


def subject(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x).sum(1) * 2 + 1


def in_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(graph: Graph) -> Graph:
        return replace(graph, nodes=tuple(replace(n, target="cos") if n.target == "exp" else n for n in graph.nodes))

    passes = (*pipeline.PASSES[:2], ("forgets", forgets), *pipeline.PASSES[2:])
    monkeypatch.setattr(pipeline, "PASSES", passes)
    monkeypatch.setattr(blame, "PASSES", passes)


def in_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    op = OPS["exp"]
    monkeypatch.setitem(OPS, "exp", replace(op, lowering=OPS["expm1"].lowering))


def in_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planner.plan

    def worse(nest: Nest) -> Nest:
        return replace(nest, body=tuple(replace(s, value=s.value + 1) if isinstance(s, Const) else s for s in nest.body))

    def wrong(*args: Any) -> Plan:
        made = plan(*args)
        steps = tuple(replace(s, nest=worse(s.nest)) if isinstance(s, Kernel) else s for s in made.steps)
        return replace(made, steps=steps)

    monkeypatch.setattr("tinycompile.compiler.make_plan", wrong)
    monkeypatch.setattr(blame, "make_plan", wrong)


def in_codegen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalars._FLOAT, "exp", "tc::exp({0}) + 0.01f")


FAULTS = {
    "the pass 'forgets'": in_a_pass,
    "lowering": in_lowering,
    "fusion": in_fusion,
    "codegen: the kernel fused_": in_codegen,
}


@pytest.mark.parametrize("stage", FAULTS)
def test_a_fault_is_found_named_and_kept_out(stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    FAULTS[stage](monkeypatch)
    f = compiled(subject)
    x = torch.randn(7, 9)
    with pytest.warns(FallbackWarning, match=f"at fault: {stage}") as caught:
        assert torch.equal(f(x), subject(x))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(f(x + 1), subject(x + 1))


def test_a_wrong_derivative(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setitem(OPS, "sin", replace(OPS["sin"], vjp=OPS["cos"].vjp))
    f = compiled(lambda x: torch.sin(x) * 2)
    x = torch.randn(5, requires_grad=True)
    with pytest.warns(FallbackWarning, match="at fault: aot: the backward graph"):
        y = f(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(x))


def test_the_script_shows_it_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    in_codegen(monkeypatch)
    f = compiled(lambda x, w: F.linear(torch.exp(x), w).sum(0) * 2)
    with pytest.warns(FallbackWarning):
        f(torch.randn(4, 6), torch.randn(3, 6, requires_grad=True))
    (script,) = tmp_path.glob("*/repro.py")
    spec = importlib.util.spec_from_file_location("repro", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    name = next(n for n in vars(module) if n.startswith("lambda"))
    assert run_again(getattr(module, name), script.with_name("inputs.pt"), "cpp")
    monkeypatch.undo()
    monkeypatch.setattr(tinycompile.config, "disk_cache", False)
    assert not run_again(getattr(module, name), script.with_name("inputs.pt"), "cpp")
    assert "agree" in capsys.readouterr().out


def test_triton_kernels_are_told_apart_too() -> None:
    f = compiled(subject, backend="triton")
    f(torch.randn(4, 5))
    assert checked(f).checks == 1 and not checked(f).refuted


# ---------------------------------------------------------------------------------------------------------------- judging


def test_the_judge() -> None:
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    good = exact.float()
    assert difference([good], [good], [exact]) is None
    assert difference([good * (1 + 1e-4)], [good], [exact]) is not None
    assert difference([good], [good * (1 + 1e-4)], [exact]) is None, "nearer to float64 than eager"
    nan = torch.tensor([math.nan, 2.0])
    assert difference([nan], [nan], [nan.double()]) is None
    assert difference([good], [nan], [nan.double()]) is not None, "float64 has NaN there too"
    assert difference([good], [nan], [exact]) is None, "eager's own fault"
    assert difference([nan], [good], [exact]) is not None
    assert difference([torch.tensor([1, 2])], [torch.tensor([1, 3])], None) is not None
    assert difference([torch.tensor([1, 3])], [torch.tensor([1, 2])], [torch.tensor([1, 3])]) is None, "float64's index"
    assert difference([good[:1]], [good], [exact]) is not None
    assert difference([good.half()], [good], [exact]) is not None
    assert difference([None], [good], None) is not None
    near = lambda: [([good + 3e-6 * i], [exact]) for i in range(8)]  # noqa: E731  # eager's usual error is 1.2e-5
    assert difference([good + 2e-5], [good], [exact]) is not None
    assert difference([good + 2e-5], [good], [exact], near=near) is None
    assert difference([good + 4e-5], [good], [exact], near=near) is not None
