"""When graphs are warmed up, recorded, replayed, recorded again and refused. The device is a stand-in that replays on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tinycompile.base.device import Device
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.runtime import cuda_graphs
from tinycompile.runtime.cuda_graphs import GraphedCall, copies, graphed, memory, spread, why_not, written_inputs

pytestmark = pytest.mark.pure

CUDA = Device("cuda", 0)


class Device0:
    """Captures by remembering the call, replays by running it and writing into the captured results."""

    def __init__(self) -> None:
        self.captures = self.replays = self.warm_ups = 0
        self.stream, self.capturing = 1, False

    def capture(self, call: Any, arguments: Sequence[Any], index: int) -> tuple[Any, tuple[Any, ...]]:
        self.captures += 1
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        outputs = call(*before)  # a capture changes nothing

        class Recorded:
            @staticmethod
            def replay() -> None:
                self.replays += 1
                for held, now in zip(outputs, call(*arguments), strict=True):
                    if isinstance(held, torch.Tensor):
                        memory(held).copy_(memory(now))

        return Recorded, outputs

    def warm_up(self, call: Any, inputs: Sequence[Any], index: int) -> tuple[Any, ...]:
        self.warm_ups += 1
        return call(*inputs)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device0:
    made = Device0()
    monkeypatch.setattr(cuda_graphs, "capture", made.capture)
    monkeypatch.setattr(cuda_graphs, "on_side_stream", made.warm_up)
    monkeypatch.setattr(cuda_graphs, "is_capturing", lambda: made.capturing)
    monkeypatch.setattr(cuda_graphs.torch_private, "raw_stream", lambda index: made.stream)
    return made


def double(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x * 2,)


def call_of(fn: Any, inputs: int = 1, writes: Sequence[bool] = (), dynamic: bool = False) -> GraphedCall:
    return GraphedCall(fn, "f", 0, writes or [False] * inputs, dynamic)


def test_warm_up_then_record_then_replay(device: Device0) -> None:
    run, x = call_of(double), torch.randn(4)
    for _ in range(4):
        torch.testing.assert_close(run(x), (x * 2,))
    assert (device.warm_ups, device.captures, device.replays) == (1, 1, 3)


def test_results_are_not_overwritten_by_later_calls(device: Device0) -> None:
    run, x = call_of(double), torch.randn(4)
    results = []
    for i in range(4):
        x.fill_(i)
        results.append(run(x)[0])
    assert [r[0].item() for r in results] == [0, 2, 4, 6]


def test_an_input_that_moves_is_copied(device: Device0) -> None:
    run = call_of(lambda x, w: (x * w,), 2)
    weight, kept = torch.randn(4), []
    for _ in range(6):
        x = torch.randn(4)
        kept.append(x)  # so that each lies elsewhere
        torch.testing.assert_close(run(x, weight), (x * weight,))
    assert device.captures == 1
    (recording,) = run.recordings.values()
    assert list(recording.buffers) == [0] and [i for i, _ in recording.addresses] == [1]


def test_a_parameter_that_gets_new_memory_is_recorded_again(device: Device0) -> None:
    run, x, weight = call_of(lambda x, w: (x * w,), 2), torch.randn(4), torch.randn(4)
    for _ in range(3):
        run(x, weight)
    other = torch.randn(4)
    torch.testing.assert_close(run(x, other), (x * other,))
    torch.testing.assert_close(run(x, weight), (x * weight,))
    assert device.captures == 2


def test_inputs_given_up_come_in_a_list_and_are_written_over(device: Device0) -> None:
    """A backward takes its saved tensors in a list that it empties, and may leave results in their memory: each replay sees the
    tensors of its own call, and they are let go."""

    def backward(given: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        saved, tangent = given
        given.clear()
        return saved.mul_(tangent), tangent + 1

    calls = Node("m", "call", "mul", (Ref("s"), Ref("t"))), Node("out", "output", "", ((Ref("m"),),))
    run = graphed(backward, graph(tensor("s"), tensor("t"), *calls), CUDA, donated=[0])
    tangent = torch.full((4,), 3.0)
    results = []
    for i in range(6):
        given = [torch.full((4,), float(i)), tangent]
        results.append(run(given))
        assert given == []
    for i, (product, other) in enumerate(results):
        assert product.tolist() == [3.0 * i] * 4 and other.tolist() == [4.0] * 4
    assert (device.warm_ups, device.captures, device.replays) == (1, 1, 5)


def test_writes_in_place_and_through_a_buffer(device: Device0) -> None:
    def step(x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor]:
        total.add_(x)
        return (total * 2,)

    run, total, other, kept = call_of(step, 2, writes=[False, True]), torch.zeros(3), torch.zeros(3), []
    for i in range(4):
        kept.append(torch.ones(3))
        assert run(kept[-1], total)[0].tolist() == [2.0 * (i + 1)] * 3
    run(torch.ones(3), other)
    run(torch.ones(3), other)
    assert total.tolist() == [4.0] * 3 and other.tolist() == [2.0] * 3


def test_one_recording_a_signature(device: Device0) -> None:
    run, inputs = call_of(double, dynamic=True), [torch.randn(n) for n in (3, 5)]
    for _ in range(3):
        for x in inputs:
            torch.testing.assert_close(run(x), (x * 2,))
    assert (device.captures, len(run.recordings)) == (2, 2)


def test_numbers_are_part_of_the_signature(device: Device0) -> None:
    run, x = call_of(lambda x, n: (x * n,), 2, dynamic=True), torch.randn(3)
    for n in (2, 2, 3, 3, 2):
        torch.testing.assert_close(run(x, n), (x * n,))
    assert device.captures == 2


def test_streams_have_their_own_recordings(device: Device0) -> None:
    run, x = call_of(double), torch.randn(3)
    for stream in (1, 1, 2, 2, 1):
        device.stream = stream
        run(x)
    assert device.captures == 2


def test_too_many_signatures_run_without(device: Device0) -> None:
    run = call_of(double, dynamic=True)
    for n in range(2, 60):
        x = torch.randn(n)
        torch.testing.assert_close(run(x), (x * 2,))
    assert run.refused is not None and "combinations" in run.refused


def test_a_user_capture_is_left_alone(device: Device0) -> None:
    run, x = call_of(double), torch.randn(3)
    device.capturing = True
    for _ in range(3):
        run(x)
    assert (device.warm_ups, device.captures) == (0, 0)


@pytest.mark.parametrize(
    "fn", [lambda x: (x,), lambda x: (x[1:],), lambda x: (x + 1, x.view(2, 2))], ids=["it", "slice", "two"]
)
def test_results_that_are_inputs_are_refused(device: Device0, fn: Any) -> None:
    run, x = call_of(fn), torch.randn(4)
    for _ in range(3):
        result = run(x)
    assert result[-1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert run.refused is not None and "shares memory" in run.refused and device.captures == 0


def test_a_failed_recording_is_refused(device: Device0, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(cuda_graphs, "capture", fail)
    run, x = call_of(double), torch.randn(4)
    for _ in range(3):
        torch.testing.assert_close(run(x), (x * 2,))
    assert run.refused == "recording failed: operation not permitted when stream is capturing"


def test_writing_to_memory_that_inputs_share_is_refused(device: Device0) -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        x.add_(1)
        return (y * 1,)

    run, kept = call_of(step, 2, writes=[True, False]), []
    for _ in range(4):
        x = torch.zeros(4)
        kept.append(x)
        assert run(x, x[:2])[0].tolist() == [1, 1]
    assert run.refused is not None and "another input" in run.refused


def graph(*nodes: Node) -> Graph:
    return Graph("g", nodes)


def tensor(name: str, device: Device = CUDA) -> Node:
    return Node(name, "placeholder", "", meta=TensorMeta.contiguous((4,), torch.float32, device))


def test_reasons() -> None:
    x, out = tensor("x"), Node("out", "output", "", ((Ref("y"),),))
    relu = Node("y", "call", "relu", (Ref("x"),))
    assert why_not(graph(x, relu, out), CUDA) is None
    assert "on cpu" in str(why_not(graph(x, relu, out), Device("cpu")))
    assert "several devices" in str(why_not(graph(x, relu, out), None))
    assert "nothing" in str(why_not(graph(x, out), CUDA))
    nonzero = Node("y", "extern", "torch.nonzero", (Ref("x"),))
    assert why_not(graph(x, nonzero, out), CUDA) == "torch.nonzero waits for the device"
    assert graphed(double, graph(x, nonzero, out), CUDA) is double


def test_written_inputs_are_seen_through_views() -> None:
    nodes = [tensor("x"), tensor("y"), tensor("z")]
    nodes += [Node("v", "call", "view", (Ref("x"), (2, 2))), Node("w", "extern", "torch.Tensor.copy_", (Ref("v"), Ref("y")))]
    nodes += [Node("c", "call", "relu", (Ref("z"),)), Node("d", "extern", "torch.Tensor.add_", (Ref("c"), Ref("y")))]
    assert written_inputs(graph(*nodes, Node("out", "output", "", ((),)))) == (True, False, False)


LAYOUTS = {
    "contiguous": torch.arange(12.0).view(3, 4),
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "sliced": torch.arange(12.0).view(3, 4)[:, 1:3],
    "expanded": torch.arange(3.0)[:, None].expand(3, 4),
    "windows": torch.arange(12.0).as_strided((3, 3), (2, 2)),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(3.0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_keep_the_layout(layout: str) -> None:
    x = LAYOUTS[layout]
    made = spread(x)
    assert made.stride() == x.stride() and torch.equal(made, x)
    assert x.numel() == 0 or made.data_ptr() != x.data_ptr()


def test_copies_that_shared_memory_still_do() -> None:
    base = torch.arange(6.0)
    a, b, c = copies([base.view(2, 3), base[1:3], torch.ones(2)])
    assert torch.equal(a, base.view(2, 3)) and torch.equal(b, base[1:3]) and torch.equal(c, torch.ones(2))
    b.fill_(9)
    assert a[0].tolist() == [0, 9, 9] and base[1] == 1


def test_calls_that_torch_differentiates_are_refused() -> None:
    meta = TensorMeta.contiguous((4,), torch.float32, CUDA)
    x = Node("x", "placeholder", "", meta=meta)
    call = Node(
        "y", "extern", "tinycompile.aot.opaque.forward", ("extern", "torch.f", (True,), (Ref("x"),), ()), meta=(meta, meta)
    )
    graph = Graph("f", (x, call, Node("output", "output", "", ((),))))
    assert "can't be replayed" in (why_not(graph, CUDA) or "")
