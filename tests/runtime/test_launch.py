"""The launching functions, on a stand-in for a compiled kernel: what reaches Triton's C launcher."""

from __future__ import annotations

import contextvars
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tinycompile.base import torch_private
from tinycompile.base.errors import BackendError
from tinycompile.base.expr import ceildiv, sym
from tinycompile.ir.source import Config, KernelArg, KernelSource
from tinycompile.runtime import launch
from tinycompile.runtime.launch import ADAPTERS, make_launcher

pytestmark = pytest.mark.pure

N = sym("n", 2)
ARGS = (KernelArg("x", "pointer", "float32"), KernelArg("n", "size", "int32", N, False))
SOURCE = KernelSource("kernel", "triton", "", ARGS, (ceildiv(N, sym("BLOCK", 1)),), (Config((("BLOCK", 64),)),))


class FakeKernel:
    """Records launches as Triton's CompiledKernel would do them; ``broken`` rejects the direct calls."""

    def __init__(self, broken: bool = False) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.function, self.packed_metadata = 77, ("packed",)
        self.metadata = SimpleNamespace(global_scratch_size=0, profile_scratch_size=0, num_ctas=1)
        self.broken = broken
        self.run = SimpleNamespace(
            launch=self._record("direct"),
            launch_cooperative_grid=False,
            launch_pdl=False,
            arg_annotations=["a"],
            kernel_signature=b"s",
        )

    def _record(self, how: str) -> Any:
        def call(*args: Any) -> None:
            if self.broken and how == "direct":
                raise TypeError("function takes other arguments")
            self.calls.append((how, args))

        return call

    def _init_handles(self) -> None:
        pass

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, stream: self.calls.append(("slow", (grid, stream, *args)))


def launcher(kernel: FakeKernel, version: str, monkeypatch: pytest.MonkeyPatch, source: KernelSource = SOURCE) -> Any:
    """Through Triton's launcher, also where torch has one of its own."""
    monkeypatch.setattr(torch_private, "static_launcher", None)
    monkeypatch.setitem(__import__("sys").modules, "triton", SimpleNamespace(__version__=version))
    return make_launcher(source, source.configs[0], kernel)


def test_direct_launch_of_3_9(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = FakeKernel(), torch.zeros(100)
    launcher(kernel, "3.9.0", monkeypatch)(5, x, 100)
    expected = (2, 1, 1, 5, 77, False, False, ("packed",), None, None, None, None, None, ["a"], b"s", (x.data_ptr(), 100, 64))
    assert kernel.calls == [("direct", expected)]


def test_direct_launch_of_3_6(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = FakeKernel(), torch.zeros(100)
    launcher(kernel, "3.6.0", monkeypatch)(5, x, 100)
    expected = (2, 1, 1, 5, 77, False, False, None, None, ("packed",), None, None, None, x.data_ptr(), 100, 64)
    assert kernel.calls == [("direct", expected)]


def test_launch_through_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = FakeKernel(), torch.zeros(100)
    kernel.metadata = SimpleNamespace(
        name="kernel_0", shared=16, num_warps=4, num_ctas=1, launch_pdl=False, global_scratch_size=0, profile_scratch_size=0
    )
    kernel.metadata_group = {"kernel.ttir": "/k.ttir", "kernel.cubin": "/k.cubin"}
    kernel.asm = {"cubin": b"code"}
    loads: list[tuple[Any, ...]] = []
    torchs = SimpleNamespace(
        _load_kernel=lambda *args: loads.append(args) or (88, 32, 0),
        _launch_kernel=lambda *args: kernel.calls.append(("torch", args)),
    )
    monkeypatch.setattr(torch_private, "static_launcher", torchs)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    make_launcher(SOURCE, SOURCE.configs[0], kernel)(5, x, 100)
    assert loads == [("/k.cubin", "kernel_0", 16, 1)]
    make_launcher(SOURCE, SOURCE.configs[0], kernel)  # a twin's: the function is there
    assert len(loads) == 1
    kernel.asm = {"cubin": b"other code"}
    make_launcher(SOURCE, SOURCE.configs[0], kernel)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    make_launcher(SOURCE, SOURCE.configs[0], kernel)
    assert [device for *_, device in loads] == [1, 1, 2]
    assert kernel.calls == [("torch", (88, 2, 1, 1, 4, 16, "OiOO", (x.data_ptr(), 100, None, None), 5))]


def test_memory_of_its_own_through_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with tensor descriptors: so many bytes a program."""
    kernel, x = FakeKernel(), torch.zeros(100)
    kernel.metadata = SimpleNamespace(
        name="kernel_0", shared=16, num_warps=4, num_ctas=1, launch_pdl=False, global_scratch_size=256, profile_scratch_size=0
    )
    kernel.metadata_group, kernel.asm = {"kernel.cubin": "/k.cubin"}, {"cubin": b"code"}
    torchs = SimpleNamespace(
        _load_kernel=lambda *args: (88, 32, 0), _launch_kernel=lambda *args: kernel.calls.append(("t", args))
    )
    made: list[torch.Tensor] = []

    def empty(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        made.append(torch.empty_strided(size, stride, dtype=dtype))
        return made[-1]

    monkeypatch.setattr(torch_private, "static_launcher", torchs)
    monkeypatch.setattr(torch_private, "empty_strided_cuda", empty)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    make_launcher(SOURCE, SOURCE.configs[0], kernel)(5, x, 100)
    assert [(m.numel(), m.dtype) for m in made] == [(512, torch.uint8)]
    given = (x.data_ptr(), 100, made[0].data_ptr(), None)
    assert kernel.calls == [("t", (88, 2, 1, 1, 4, 16, "OiOO", given, 5))]


def test_memory_of_its_own_through_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton asks the allocator of the context; the caller's own stays."""
    current: contextvars.ContextVar[Any] = contextvars.ContextVar("allocator", default="the caller's")
    kernel, x = FakeKernel(), torch.zeros(100)
    kernel.metadata.global_scratch_size = 256
    asked: list[Any] = []

    def run(*args: Any) -> None:
        asked.append(current.get()(512, 128, 5))
        kernel.calls.append(("run", args))

    kernel.run = run  # type: ignore[assignment]
    monkeypatch.setattr(torch_private, "static_launcher", None)
    monkeypatch.setattr(torch_private, "empty_strided_cuda", lambda n, stride, dtype: (*n, dtype))
    triton = SimpleNamespace(__version__="3.9.0", set_allocator=current.set)
    monkeypatch.setitem(__import__("sys").modules, "triton", triton)
    launched = make_launcher(SOURCE, SOURCE.configs[0], kernel)
    launched(5, x, 100)
    assert asked == [(512, torch.uint8)] and current.get() == "the caller's"
    assert kernel.calls == [("run", (2, 1, 1, 5, 77, ("packed",), None, None, None, x.data_ptr(), 100, 64))]
    assert launched.kernel is kernel  # type: ignore[attr-defined]  # the disk cache finds its binary


def test_an_empty_grid_is_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel()
    launcher(kernel, "3.9.0", monkeypatch)(5, torch.zeros(0), 0)
    assert kernel.calls == []


def test_unknown_versions_go_through_run(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = FakeKernel(), torch.zeros(100)
    kernel.run = kernel._record("run")  # type: ignore[assignment]
    launcher(kernel, "4.0.0", monkeypatch)(5, x, 100)
    assert kernel.calls == [("run", (2, 1, 1, 5, 77, ("packed",), None, None, None, x.data_ptr(), 100, 64))]


def test_a_wrong_calling_convention_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = FakeKernel(broken=True), torch.zeros(100)
    logged: list[str] = []
    monkeypatch.setattr(launch, "log", lambda channel, message: logged.append(message))
    run = launcher(kernel, "3.9.0", monkeypatch)
    run(5, x, 100)
    run(6, x, 100)
    assert [c[0] for c in kernel.calls] == ["slow", "slow"]
    assert kernel.calls[1][1] == ((2, 1, 1), 6, x, 100, 64)
    assert len(logged) == 1 and "direct launch failed" in logged[0]


def test_a_static_grid_has_no_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    source = KernelSource("kernel", "triton", "", ARGS[:1], (7, 3), (Config((("BLOCK", 64),)),))
    kernel, x = FakeKernel(), torch.zeros(100)
    launcher(kernel, "3.9.0", monkeypatch, source)(5, x)
    assert kernel.calls[0][1][:3] == (7, 3, 1)


def test_a_grid_over_unknown_sizes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    source = KernelSource("kernel", "triton", "", ARGS[:1], (N,), (Config(),))
    with pytest.raises(BackendError, match="grid needs"):
        launcher(FakeKernel(), "3.9.0", monkeypatch, source)


def test_known_adapters() -> None:
    assert {(3, 6), (3, 9)} <= set(ADAPTERS)
