"""Graphs over several devices: what lies on one device is compiled, what crosses runs by torch, and answers are eager's.

A machine without a GPU has the meta device beside the CPU; the cuts are looked at on graphs for a GPU, too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tinycompile
from tests.capture.corpus import CASES
from tests.capture.test_corpus import same as equal
from tinycompile import backends
from tinycompile import regions as cut
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.device import Device
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Graph, Node
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.regions import Region, regions

pytestmark = pytest.mark.cpu
CARD = Device("cuda", 0)


def across(x, scale):
    y = torch.relu(x) * 2 + 1
    there = y.detach().to("meta")
    top, at = torch.max(y, 1)
    return (top + at) * scale, y, (there + 1).relu(), y.t()


def same(got, want) -> None:
    for a, b in zip(got, want, strict=True):
        assert (a.device, a.dtype, a.shape, a.stride()) == (b.device, b.dtype, b.shape, b.stride())
        assert a.is_meta or torch.equal(a, b)


def devices(graph: Graph) -> list[str]:
    """The regions' devices and the targets of what lies between."""
    return [s.device.type if isinstance(s, Region) else s.target for s in regions(graph)]


def moved(graph: Graph) -> Graph:
    """The same graph with a GPU for the meta device."""

    def place(value):
        if isinstance(value, tuple):
            return tuple(map(place, value))
        if isinstance(value, Device):
            return CARD if value.type == "meta" else value
        if isinstance(value, TensorMeta) and value.device.type == "meta":
            return TensorMeta(value.shape, value.strides, value.dtype, CARD, value.offset)
        return value

    return replace(graph, nodes=tuple(replace(n, args=place(n.args), meta=place(n.meta)) for n in graph.nodes))


def test_regions_are_compiled_and_answers_are_eagers() -> None:
    f = tinycompile.compile(across, fullgraph=True)
    x = torch.randn(4, 6)
    same(f(x, 3.0), across(x, 3.0))
    report = f.explain(x, 3.0)
    assert report.backend.startswith("cpp for ") and report.backend.endswith(", by device")
    assert len(f.kernels) == 2 == f.source("wrapper").count("def call") and report.bytes_moved
    assert "_part" in f.source("plan") and "on cpu" in f.source("plan") and str(report)
    got = f(x, 3.0)
    assert got[3].data_ptr() == got[1].data_ptr(), "the view is one of the result"


def test_sizes_that_change() -> None:
    f = tinycompile.compile(across)
    for rows in (4, 5, 7):
        x = torch.randn(rows, 6)
        same(f(x, 3.0), across(x, 3.0))
    assert len(f.recompiles) == 1


def test_a_size_that_no_tensor_of_a_region_has() -> None:
    def f(x):
        n = x.shape[0]
        there = torch.ones(n, device="meta") + 1
        return torch.full((3,), 1.0) * n + 1, there

    compiled = tinycompile.compile(f)
    for rows in (4, 5, 7):
        x = torch.empty(rows, device="meta")
        same(compiled(x), f(x))


def test_gradients() -> None:
    f = tinycompile.compile(across)
    x = torch.randn(4, 6, requires_grad=True)
    mine, theirs = (torch.autograd.grad(sum(t.sum() for t in (r[0], r[1])), x)[0] for r in (f(x, 3.0), across(x, 3.0)))
    torch.testing.assert_close(mine, theirs)
    assert len(f.kernels) >= 3


def test_writes_to_inputs_come_last_and_errors_are_torchs() -> None:
    def f(x, table, index):
        there = torch.ones(2, device="meta") + 1
        picked = table[index] * 2 + 1
        x.add_(picked.sum())
        return picked, there

    compiled, table = tinycompile.compile(f), torch.randn(5, 3)
    x, y = torch.zeros(3), torch.zeros(3)
    same(compiled(x, table, torch.tensor([1, 4])), f(y, table, torch.tensor([1, 4])))
    torch.testing.assert_close(x, y)
    before = x.clone()
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        compiled(x, table, torch.tensor([1, 9]))
    assert torch.equal(x, before)


def test_tensors_of_ours() -> None:
    x = torch.randn(4, 6)
    got, want = tinycompile.compile(across)(tinycompile.from_torch(x), 3.0), across(x, 3.0)
    assert all(isinstance(t, tinycompile.Tensor) for t in got)
    torch.testing.assert_close(got[0].torch(), want[0])


def test_cuts() -> None:
    def f(x):
        y = torch.relu(x) * 2
        there = torch.sin(y.to("meta")) + 1
        mean, top = there.mean(), torch.max(there, 0)
        here = torch.cos(y) + 1
        return here, mean, top[0] + 1

    graph = moved(tinycompile.trace(f, torch.randn(4, 6)).graph)
    assert devices(graph) == ["cpu", "to_device", "cuda", "cpu", "add"]
    made = [s.graph for s in regions(graph) if isinstance(s, Region)]
    for part in made:
        verify_graph(part)
        assert len({n.meta.device for n in part.nodes if isinstance(n.meta, TensorMeta)}) == 1
    names = [n.name for part in made for n in part.nodes if n.kind in ("call", "extern", "item")]
    assert len(names) == len(set(names))


def test_a_graph_on_one_device_is_one_region_and_a_single_op_none() -> None:
    graph = tinycompile.trace(lambda x: torch.relu(x) * 2, torch.randn(3)).graph
    assert devices(graph) == ["cpu"]
    (step,) = regions(tinycompile.trace(lambda x: torch.relu(x), torch.randn(3)).graph)
    assert isinstance(step, Node)


CUT = (
    "reductions",
    "shapes_and_views",
    "split_and_join",
    "indexing",
    "functions_without_record",
    "dicts",
)


@pytest.mark.parametrize("name", CUT)
def test_cuts_anywhere_change_no_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of capture's corpus, cut at every fourth node as if it were on another device."""
    whole = cut._only_device
    monkeypatch.setattr(
        cut, "_only_device", lambda node, known: None if list(known).index(node.name) % 4 == 0 else whole(node, known)
    )
    made = []

    def by_regions(graph_module, inputs):
        made.append(cut.compile_regions(graph_module.graph, backends._default, Artifacts()))
        return made[-1].call if made[-1] else graph_module

    fn, args = CASES[name]
    compiled = tinycompile.compile(fn, backend=by_regions)
    for _ in range(2):
        equal(compiled(*args()), fn(*args()))
    assert any(m.parts for m in made if m)
