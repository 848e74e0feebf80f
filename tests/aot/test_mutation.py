"""Graphs that write to inputs and buffers: one graph, with a compiled backward, equal to eager in all that is written."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tinycompile

pytestmark = pytest.mark.cpu
BACKENDS = (None, "triton", "aot_eager", "eager")


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.around = around if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.around(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(Residual(8, 8), Residual(8, 16, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def test_a_resnet_trains_in_one_graph() -> None:
    torch.manual_seed(0)
    eager = ResNet()
    model = copy.deepcopy(eager)
    compiled = tinycompile.compile(model, fullgraph=True)
    x, target = torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))
    for _ in range(3):
        losses = [F.cross_entropy(m(x), target) for m in (compiled, eager)]
        torch.testing.assert_close(*losses)
        for loss in losses:
            loss.backward()
    assert len(compiled.compiled.graphs) == 1 and not compiled.compiled.breaks
    assert compiled.compiled.source("backward")
    for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    for p, q in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(p, q)
    model.eval(), eager.eval()
    torch.testing.assert_close(compiled(x), eager(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_running_statistics_and_an_average(backend: str | None) -> None:
    def f(w, x, average, count):
        z = (x * w).exp()
        with torch.no_grad():
            average.mul_(0.9).add_(z.mean(0) * 0.1)
            count.add_(1)
        return (z * 2).sum(0)

    compiled = tinycompile.compile(f, fullgraph=True, backend=backend)
    x, found = torch.randn(50, 10), []
    start = torch.randn(10)
    for g in (compiled, f):
        w, average, count = start.clone().requires_grad_(), torch.zeros(10), torch.tensor(0)
        for _ in range(3):
            g(w, x, average, count).sum().backward()
        found.append((w.grad, average, count))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5), (4, 6, 5, 3), (2, 6, 3, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    cls = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    eager = cls(6, momentum=0.3)
    model = copy.deepcopy(eager)
    x, g = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    found = []
    for m, call in ((model, tinycompile.compile(model, fullgraph=True)), (eager, eager)):
        given = x.clone().requires_grad_()
        y = call(given)
        y.backward(g)
        found.append((y, given.grad, m.weight.grad, m.bias.grad, m.running_mean, m.running_var, m.num_batches_tracked))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(
            a, b, atol=2e-2 if a.dtype == torch.bfloat16 else 1e-5, rtol=2e-2 if dtype != torch.float32 else 1e-4
        )


def test_batch_norm_without_buffers_and_with_symbolic_batches() -> None:
    f = tinycompile.compile(lambda x, m, v: F.batch_norm(x, m, v, training=True, momentum=0.2), fullgraph=True, dynamic=True)
    for size in (3, 7):
        x, found = torch.randn(size, 5, 4), []
        for g in (f, lambda x, m, v: F.batch_norm(x, m, v, training=True, momentum=0.2)):
            mean, var = torch.zeros(5), torch.ones(5)
            found.append((g(x, mean, var), mean, var))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)
    assert f.cache_info()["entries"] == 1
    plain = tinycompile.compile(lambda x: F.batch_norm(x, None, None, training=True), fullgraph=True)
    torch.testing.assert_close(plain(x), F.batch_norm(x, None, None, training=True))


def test_one_value_a_channel_is_refused_as_by_torch() -> None:
    model = nn.BatchNorm1d(4)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        tinycompile.compile(model)(torch.randn(1, 4))


def test_what_is_saved_and_then_written_is_an_error_as_in_eager() -> None:
    def f(w, x):
        y = (w * x).sum()
        x.add_(1)
        return y

    for g in (f, tinycompile.compile(f, fullgraph=True)):
        loss = g(torch.randn(5, requires_grad=True), torch.randn(5))
        with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
            loss.backward()


def test_swapped_inputs() -> None:
    def swap(a, b):
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)

    a, b = torch.randn(5), torch.randn(5)
    first, second, versions = a.clone(), b.clone(), (a._version, b._version)
    tinycompile.compile(swap, fullgraph=True)(a, b)
    assert torch.equal(a, second) and torch.equal(b, first)
    assert a._version > versions[0] and b._version > versions[1]


def test_an_update_is_one_kernel_in_place() -> None:
    def update(p, g, m):
        m.mul_(0.9).add_(g)
        p.sub_(m * 0.1)

    f = tinycompile.compile(update, fullgraph=True)
    p, g, m = (torch.randn(1000) for _ in range(3))
    expected_m = m * 0.9 + g
    expected_p = p - expected_m * 0.1
    f(p, g, m)
    torch.testing.assert_close(m, expected_m)
    torch.testing.assert_close(p, expected_p)
    assert len(f.kernels) == 1 and f.kernels[0].bytes_moved == 5 * 4000


def test_an_index_out_of_range_leaves_inputs_as_they_were() -> None:
    def f(table, at, seen):
        seen.add_(1)
        return table[at] * 2

    g = tinycompile.compile(f, fullgraph=True)
    table, seen = torch.randn(4, 3), torch.zeros(7)
    g(table, torch.tensor([1, 2]), seen)
    assert seen.eq(1).all()
    with pytest.raises(IndexError):
        g(table, torch.tensor([1, 9]), seen)
    assert seen.eq(2).all()  # once: by the call that torch did again
