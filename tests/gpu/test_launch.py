"""Generated kernels on a real device: answers against the reference, the direct launcher, and what a launch costs."""

from __future__ import annotations

import statistics
import time

import pytest
import torch

from tests.codegen.triton.harness import compare, emitted
from tests.codegen.triton.nests import Case
from tests.codegen.triton.test_pointwise import LAYOUTS, add, embedding
from tests.codegen.triton.test_reductions import KINDS, data, reduced
from tests.codegen.triton.test_scalars import ULPS, op_case, ops_of
from tinycompile.base import expr as ex
from tinycompile.ir.loops_reference import run_loops
from tinycompile.runtime import launch
from tinycompile.runtime.triton_build import compile_kernel, compile_kernels

pytestmark = pytest.mark.gpu


def on_device(case: Case, config: int = 0) -> list[torch.Tensor]:
    """Outputs of the generated kernel on the GPU, as CPU tensors."""
    loops, source = case.loops, emitted(case)
    memory = {name: move(value) for name, value in zip(loops.inputs, case.inputs, strict=True)}
    sizes = {b.symbol: memory[b.input].shape[b.dim] for b in loops.sizes}
    for b in loops.buffers:
        if b.role != "input":
            shape, strides = ([ex.evaluate(d, sizes) for d in dims] for dims in (b.meta.shape, b.meta.strides))
            memory[b.name] = torch.empty_strided(shape, strides, dtype=b.meta.dtype, device="cuda")
    run = compile_kernel(source, 0)
    run(
        torch.cuda.current_stream().cuda_stream,
        *(memory[a.name] if a.kind == "pointer" else ex.evaluate(a.value, sizes) for a in source.args),
    )
    torch.cuda.synchronize()
    return [memory[o.buffer].cpu() for o in loops.outputs]


def move(value: torch.Tensor) -> torch.Tensor:
    """A CPU tensor on the device with the same strides, also where elements share memory."""
    span = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
    return value.as_strided((span,), (1,)).cuda().as_strided(value.shape, value.stride())


def check_on_device(case: Case, rtol: float | None = None, atol: float = 0.0) -> None:
    want = run_loops(case.loops, [x.clone() for x in case.inputs])
    for view, g, w in zip(case.loops.outputs, on_device(case), want, strict=True):
        compare(f"{case.name}.{view.buffer}", g, w, rtol, atol, emitted(case).text)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    check_on_device(add(layout, *LAYOUTS[layout]()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape,dims", [((33, 100), (1,)), ((5, 8192), (1,)), ((3, 50021), (1,)), ((600, 40), (0,)), ((40, 3, 500), (0, 2))], ids=str
)
def test_reductions(kind: str, shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    x = data(shape).sign() if kind == "prod" else data(shape)
    check_on_device(reduced(kind, x, dims), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op", ops_of("f"))
def test_scalar_ops(op: str) -> None:
    eps = torch.finfo(torch.float32).eps
    check_on_device(op_case(op, torch.float32), rtol=2 * ULPS.get(op, 4) * eps, atol=4 * eps)


def test_indirect() -> None:
    check_on_device(embedding(torch.randint(0, 19, (45,)), torch.randn(19, 64)))


def test_direct_launcher_is_used_and_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(launch, "log", lambda channel, message: logged.append(message))
    case = add("tiny", torch.randn(32, 32), torch.randn(32, 32))
    run = compile_kernel(emitted(case), 0)
    args = [x.cuda() for x in case.inputs] + [torch.empty(32, 32, device="cuda")]
    stream = torch.cuda.current_stream().cuda_stream
    run(stream, *args)
    assert logged == [], f"not the direct launcher: {logged}"
    torch.cuda.synchronize()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            run(stream, *args)
        times.append((time.perf_counter() - start) / 100)
        torch.cuda.synchronize()
    print(f"\nlaunch: {statistics.median(times) * 1e6:.2f} us of host time")
    assert statistics.median(times) < 15e-6


def test_compiles_on_threads() -> None:
    cases = [add(f"thread_{k}", torch.randn(64 + k, 100), torch.randn(100)) for k in range(8)]
    start = time.perf_counter()
    runs = compile_kernels([emitted(c) for c in cases], 0)
    print(f"\n8 kernels: {time.perf_counter() - start:.2f} s")
    for case, run in zip(cases, runs, strict=True):
        args = [x.cuda() for x in case.inputs] + [torch.empty(case.inputs[0].shape, device="cuda")]
        run(torch.cuda.current_stream().cuda_stream, *args)
        torch.testing.assert_close(args[2].cpu(), case.inputs[0] + case.inputs[1])
