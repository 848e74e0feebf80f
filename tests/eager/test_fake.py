"""Fake tensors: what is recorded, and the metadata of what isn't known."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tinycompile.base import shapes
from tinycompile.base.device import Device
from tinycompile.base.errors import DataDependentError, InternalError
from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch import local_keys
from tinycompile.dispatch.keys import Key, KeySet
from tinycompile.eager import factories
from tinycompile.eager.fake import FakeTensor, fake_extern_meta, path_of, tracing
from tinycompile.eager.tensor import from_torch
from tinycompile.ops.record import Op

pytestmark = pytest.mark.pure


class Notes:
    """A recorder that keeps lines of text."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def _next(self) -> str:
        return f"v{len(self.lines)}"

    def record(self, op: Op, args: tuple[Any, ...], metas: Any) -> Any:
        ref = self._next()
        self.lines.append(f"{ref} = {op.name}({', '.join(self._show(a) for a in args)})")
        return ref if isinstance(metas, TensorMeta) else tuple(f"{ref}.{i}" for i in range(len(metas)))

    def extern(self, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], metas: Any) -> Any:
        ref = self._next()
        self.lines.append(f"{ref} = {path}({', '.join(self._show(a) for a in args)})")
        return FakeTensor(metas, self, ref) if isinstance(metas, TensorMeta) else tuple(FakeTensor(m, self, ref) for m in metas)

    def _show(self, value: Any) -> str:
        return str(value.ref) if isinstance(value, FakeTensor) else repr(value)

    def input(self, *shape: Any, dtype: torch.dtype = torch.float32, device: str = "cpu", name: str = "x") -> FakeTensor:
        return FakeTensor(TensorMeta.contiguous(shape, dtype, Device.of(device)), self, name)


def test_ops_are_recorded_in_order_with_their_metadata() -> None:
    notes = Notes()
    x = notes.input(2, 3)
    y = (F.gelu(x.t()) + 1).max(0)
    assert notes.lines == ["v0 = t(x)", "v1 = gelu(v0, 'none')", "v2 = add(v1, 1, 1)"] + notes.lines[3:]
    assert len(notes.lines) == 4
    assert type(y) is torch.return_types.max and y.values.meta.shape == (2,) and y.indices.dtype is torch.int64
    assert y.values.ref == "v3.0" and y.indices.ref == "v3.1"
    assert x.keyset == KeySet.of(Key.TRACING, Key.CPU) and repr(x) == "FakeTensor(x: float32[2, 3] cpu)"


def test_a_fake_on_any_device_and_of_any_size() -> None:
    notes = Notes()
    x = notes.input(1 << 40, 4, device="cuda:1", dtype=torch.bfloat16)
    y = x.float() @ x.float().t()
    assert y.device == Device("cuda", 1) and y.shape == (1 << 40, 1 << 40)
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:1 and cpu!"):
        x + notes.input(4)
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:1 and cpu!"):
        x + from_torch(torch.ones(4))


def test_indexing_is_recorded_as_views() -> None:
    notes = Notes()
    x = notes.input(4, 5, 6)
    y = x[1, ..., None, 2:4]
    assert (y.meta.shape, y.meta.strides, y.meta.offset) == ((5, 1, 2), (6, y.meta.strides[1], 1), 32)
    assert [line.split(" = ")[1].split("(")[0] for line in notes.lines] == ["select", "unsqueeze", "slice"]


def test_symbolic_sizes_go_through() -> None:
    env, notes = shapes.ShapeEnv(), Notes()
    n = env.new_size("n", 7)
    with env.active():
        x = notes.input(n, 3)
        y = (x + 1).sum(1).unsqueeze(0).expand(4, n)
    assert y.shape == (4, n) and x.numel() == n * 3
    assert not env.relations


def test_a_function_without_a_record_is_recorded_as_extern() -> None:
    notes = Notes()
    x = notes.input(2, 6)
    assert torch.fft.rfft(x).meta == TensorMeta.contiguous((2, 4), torch.complex64, Device("cpu"))
    values, indices = x.topk(2)
    assert values.shape == indices.shape == (2, 2)
    assert notes.lines == ["v0 = torch.fft.rfft(x)", "v1 = torch.Tensor.topk(x, 2)"]


def test_factories_are_recorded_under_tracing_only() -> None:
    notes = Notes()
    with tracing(notes):
        made = factories.zeros(2, 3, device="cuda:0")
        drawn = factories.rand(2)
        total = made.sum()
    assert isinstance(made, FakeTensor) and made.device == Device("cuda", 0) and total.shape == ()
    assert isinstance(drawn, FakeTensor) and len(notes.lines) == 3
    assert type(factories.zeros(2)) is not FakeTensor and not local_keys.included()


def test_tracing_belongs_to_a_thread() -> None:
    kinds: list[type] = []
    with tracing(Notes()):
        thread = threading.Thread(target=lambda: kinds.append(type(factories.zeros(2))))
        thread.start()
        thread.join()
    assert kinds and kinds[0] is not FakeTensor


def test_real_tensors_can_meet_fakes() -> None:
    notes = Notes()
    y = from_torch(torch.ones(3)) + notes.input(2, 3)
    z = torch.ones(3) * notes.input(2, 3)
    assert isinstance(y, FakeTensor) and isinstance(z, FakeTensor) and y.shape == z.shape == (2, 3)


@pytest.mark.parametrize(
    "read",
    [bool, int, float, lambda t: t.item(), lambda t: t.tolist(), lambda t: t.torch(), lambda t: t.storage],
    ids=["bool", "int", "float", "item", "tolist", "torch", "storage"],
)
def test_a_fake_has_no_value(read: Any) -> None:
    with pytest.raises(DataDependentError):
        read(Notes().input())


def test_a_fake_is_never_written() -> None:
    with pytest.raises(InternalError, match=r"torch.Tensor.add_ writes to the fake tensor"):
        Notes().input(2).add_(1)


def test_errors_of_the_shape_rules_are_torchs() -> None:
    x = Notes().input(2, 3)
    with pytest.raises(
        RuntimeError, match=r"The size of tensor a \(3\) must match the size of tensor b \(4\) at non-singleton dimension 1"
    ):
        x + Notes().input(2, 4)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.t().view(6)


# --- metadata of functions without a record ---


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (torch.sort, (torch.randn(3, 4).t(),)),
        (torch.linalg.qr, (torch.randn(4, 3),)),
        (torch.fft.fft2, (torch.randn(2, 4, 4),)),
        (torch.cdist, (torch.randn(4, 3), torch.randn(5, 3))),
        (torch.Tensor.topk, (torch.randn(8), 3)),
        (torch.nn.functional.conv2d, (torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))),
        (torch.broadcast_tensors, (torch.randn(3, 1), torch.randn(4))),
        (torch.tril_indices, (3, 3)),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_extern_metadata_is_that_of_the_real_result(fn: Any, args: Any) -> None:
    def show(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple(show(v) for v in value)
        if isinstance(value, TensorMeta):
            return value.shape, value.strides, value.dtype, str(value.device)
        return tuple(value.shape), value.stride(), value.dtype, str(value.device)

    if fn is torch.tril_indices:
        assert show(fake_extern_meta(fn, args, {"device": "cpu"})) == show(fn(*args))
        return
    metas = tuple(from_torch(a).meta if isinstance(a, torch.Tensor) else a for a in args)
    assert show(fake_extern_meta(fn, metas, {})) == show(fn(*args))


def test_extern_metadata_keeps_the_device_and_takes_hints() -> None:
    env = shapes.ShapeEnv()
    n = env.new_size("n", 6)
    with env.active():
        x = TensorMeta.contiguous((n, 4), torch.float16, Device("cuda", 1))
        made = fake_extern_meta(torch.Tensor.topk, (x, 2), {})
    assert [m.shape for m in made] == [(6, 2)] * 2 and {str(m.device) for m in made} == {"cuda:1"}


@pytest.mark.parametrize(
    "path", ["torch.fft.rfft", "torch.sort", "torch.nn.functional.interpolate", "torch.linalg.qr", "torch.Tensor.topk"]
)
def test_paths_lead_back_to_the_function(path: str) -> None:
    found: Any = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    assert path_of(found) == path
