"""CUDA graphs for ``mode="reduce-overhead"``: all launches of a compiled graph replayed with one call.

The first call runs as it is, on a side stream: it warms up library handles and does the tuning. The second is recorded, and
from then on replayed. A recording reads each input at a fixed address. An input found at the same address in both calls, as
parameters are, is read where it lies; others are copied into a buffer of ours before each replay. Should an input that was
read in place turn up elsewhere, the graph is recorded again with a buffer for it.

Results are copied out of the recording's memory, so a later replay never changes what an earlier call returned. What a
function writes to its inputs is written to them: in place, or copied back from the buffer.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from tinycompile.base import torch_private
from tinycompile.base.device import Device
from tinycompile.base.holdings import register_holder
from tinycompile.base.logs import log
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import reach
from tinycompile.ir.effects import written
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import OPS
from tinycompile.runtime.recording import recorded

Call = Callable[..., tuple[Any, ...]]
Key = tuple[Any, ...]
MOST_RECORDINGS = 16  # of one compiled graph, over signatures and streams; beyond it runs without

# Functions that wait for the device, or whose result's shape depends on data: neither can be recorded.
SYNCING = frozenset((
    "item", "tolist", "nonzero", "masked_select", "unique", "unique_consecutive", "unique_dim", "bincount", "histc", "equal",
    "allclose", "is_nonzero", "argwhere", "combinations", "repeat_interleave", "cpu", "numpy", "eig", "eigvals", "lstsq",
))  # fmt: skip

OPAQUE = "tinycompile.aot.opaque"  # halves of a call whose gradient is torch's own

SOMETIMES_VIEWS = frozenset(("reshape", "flatten", "contiguous", "to", "expand_as", "view_as", "ravel", "reshape_as"))


def why_not(graph: Graph, device: Device | None) -> str | None:
    """Why a graph can't be recorded, in words; None when it can be tried."""
    if device is None:
        return "its tensors are on several devices or none"
    if device.type != "cuda":
        return f"CUDA graphs need a CUDA device, and its tensors are on {device}"
    calls = [n for n in graph.nodes if n.kind in ("call", "extern")]
    if not calls:
        return "it launches nothing"
    for node in calls:
        module, _, name = node.target.rpartition(".")
        if name in SYNCING:
            return f"{node.target} waits for the device"
        if node.kind == "extern" and module == OPAQUE:
            return f"{node.name} is differentiated by torch, whose tape is made anew by each call and can't be replayed"
    return None


def written_inputs(graph: Graph) -> tuple[bool, ...]:
    """Which inputs the graph writes to. A write through a view counts for the tensor below it."""
    base: dict[str, str] = {}
    changed: set[str] = set()
    for node in graph.nodes:
        first = next((a for a in node.args if isinstance(a, Ref)), None)
        if first is not None and _may_be_a_view(node):
            base[node.name] = base.get(first.name, first.name)
        changed.update(base.get(r.name, r.name) for r in written(node))
    return tuple(p.name in changed for p in graph.placeholders)


def _may_be_a_view(node: Node) -> bool:
    if node.kind != "call":
        return node.kind in ("extern", "item")
    return node.target in SOMETIMES_VIEWS or any(r.alias for r in OPS[node.target].schema.returns)


@dataclass
class Recording:
    """A captured CUDA graph. ``buffers``: position -> our copy of an input. ``addresses``: position -> where an input is read
    in place. ``copied_back``: positions whose buffers the graph writes. ``outputs``: its results, in its own memory."""

    graph: Any
    buffers: dict[int, torch.Tensor]
    addresses: tuple[tuple[int, int], ...]
    copied_back: tuple[int, ...]
    outputs: tuple[Any, ...]

    def replay(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Copy in, replay, copy out: all on the current stream."""
        for i, buffer in self.buffers.items():
            memory(buffer).copy_(memory(inputs[i]))
        self.graph.replay()
        for i in self.copied_back:
            inputs[i].copy_(self.buffers[i])
        return copies(self.outputs)


class GraphedCall:
    """Stands for ``call``. ``writes``: which inputs it writes to. ``dynamic``: input sizes may differ from call to call, and
    each combination has its own recording. ``donated``: inputs that the caller gives up; they are never read in place, and
    results may lie in their memory."""

    def __init__(
        self, call: Call, name: str, device_index: int, writes: Sequence[bool], dynamic: bool, donated: Sequence[int] = ()
    ) -> None:
        self.call, self.name, self.index = call, name, device_index
        self.writes, self.dynamic, self.donated = tuple(writes), dynamic, frozenset(donated)
        self.recordings: dict[Key, Recording] = {}
        self.refused: str | None = None
        self._warm: dict[Key, dict[int, int]] = {}  # addresses of the inputs at the call before the recording
        self._moving: set[int] = set(donated)
        self._made = 0
        self._lock = threading.Lock()
        _live.add(self)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if self.refused is not None or is_capturing():
            return self.call(*inputs)
        key: Key = (torch_private.raw_stream(self.index), *(signature(inputs) if self.dynamic else ()))
        recording = self.recordings.get(key)
        with self._lock:
            if recording is not None:
                moved = [i for i, address in recording.addresses if inputs[i].data_ptr() != address]
                if not moved:
                    return recording.replay(inputs)
                self._moving.update(moved)
                del self.recordings[key]
            return self._first_calls(key, inputs)

    def _first_calls(self, key: Key, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Warm up, or record and replay."""
        if max(self._made, len(self._warm) - 1) >= MOST_RECORDINGS:
            return self._refuse(f"it has met {MOST_RECORDINGS} combinations of sizes, streams and addresses", inputs)
        if key not in self._warm:
            self._warm[key] = addresses_of(inputs)
            return self._warm_up(inputs)
        self._made += 1
        now, before = addresses_of(inputs), self._warm[key]
        self._moving.update(i for i, address in now.items() if before.get(i) != address)
        try:
            recording = self._record(inputs, [i for i in now if i not in self._moving])
        except RuntimeError as error:  # nothing has run: a capture only notes what is launched
            return self._refuse(f"recording failed: {str(error).partition(chr(10))[0]}", inputs)
        problem = shared_memory(recording.outputs, self._kept(inputs, recording.buffers)) or self._torn(inputs, recording)
        if problem is not None:
            return self._refuse(problem, inputs)
        self.recordings[key] = recording
        self._warm[key] = now
        return recording.replay(inputs)

    def _warm_up(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The call itself on the stream that will record: library handles and workspaces belong to a stream."""
        results = on_side_stream(self.call, inputs, self.index)
        problem = shared_memory(results, self._kept(inputs))
        if problem is None:
            return copies(results)  # these belong to the current stream
        self.refused = problem
        log("kernels", f"{self.name}: no CUDA graph: {problem}")
        return results

    def _record(self, inputs: Sequence[Any], in_place: Sequence[int]) -> Recording:
        fixed = set(in_place)
        buffers = {i: spread(x.detach()) for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and i not in fixed}
        graph, outputs = capture(self.call, [buffers.get(i, x) for i, x in enumerate(inputs)], self.index)
        log("kernels", f"{self.name}: recorded a CUDA graph; {len(buffers)} inputs are copied, {len(in_place)} read in place")
        back = tuple(i for i in buffers if self.writes[i])
        return Recording(graph, buffers, tuple((i, inputs[i].data_ptr()) for i in in_place), back, outputs)

    def _kept(self, inputs: Sequence[Any], buffers: Mapping[int, Any] = MappingProxyType({})) -> list[Any]:
        """Inputs, and our buffers for them, in whose memory no result may lie."""
        return [x for i, x in (*enumerate(inputs), *buffers.items()) if i not in self.donated]

    def _torn(self, inputs: Sequence[Any], recording: Recording) -> str | None:
        """An input that is written in a buffer of ours must not share memory with another: the other would not see it."""
        for i in recording.copied_back:
            others = [x for j, x in enumerate(inputs) if j != i]
            if shared_memory([inputs[i]], others) is not None:
                return f"input {i} is written to, changes its place, and shares memory with another input"
        return None

    def _refuse(self, reason: str, inputs: Sequence[Any]) -> tuple[Any, ...]:
        self.refused = reason
        self.recordings.clear()
        log("kernels", f"{self.name}: no CUDA graph any more: {reason}")
        return self.call(*inputs)


_live: weakref.WeakSet[GraphedCall] = weakref.WeakSet()


def _told_holdings() -> str:
    """Recordings, and the bytes of the buffers and results that they keep."""
    recordings = [r for graphed in list(_live) for r in list(graphed.recordings.values())]
    kept = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for r in recordings for t in _tensors_of(r)}
    return f"{len(recordings)} recorded graphs with {sum(kept.values()) / 2**20:.1f} MiB" if recordings else ""


def _tensors_of(recording: Recording) -> list[torch.Tensor]:
    return [t for t in (*recording.buffers.values(), *recording.outputs) if isinstance(t, torch.Tensor)]


register_holder("CUDA graphs", _told_holdings)


def graphed(call: Call, graph: Graph, device: Device | None, donated: Sequence[int] = ()) -> Call:
    """``call`` through CUDA graphs, or ``call`` itself with a logged reason. ``donated``: inputs that the caller gives up; with
    any, ``call`` takes all in one list, which it empties."""
    reason = why_not(graph, device)
    if reason is not None or device is None:
        log("kernels", f"{graph.name}: no CUDA graph: {reason}")
        return call
    numbers = any(not isinstance(p.meta, TensorMeta) for p in graph.placeholders)
    dynamic = numbers or bool(graph.hints)
    if not donated:
        return GraphedCall(call, graph.name, max(device.index, 0), written_inputs(graph), dynamic)
    apart = functools.partial(_in_a_list, call)
    made = GraphedCall(apart, graph.name, max(device.index, 0), written_inputs(graph), dynamic, donated)
    return functools.partial(_from_a_list, made)


def _in_a_list(call: Call, *inputs: Any) -> tuple[Any, ...]:
    return call(list(inputs))


def _from_a_list(call: Call, given: list[Any]) -> tuple[Any, ...]:
    inputs = tuple(given)
    given.clear()
    return call(*inputs)


# -- the device -------------------------------------------------------------------------------------------------------------


def is_capturing() -> bool:
    """Whether the user is recording the current stream: our launches then belong to their graph."""
    return torch.cuda.is_current_stream_capturing()


def on_side_stream(call: Call, inputs: Sequence[Any], index: int) -> tuple[Any, ...]:
    """Run on the stream that records; the current stream waits for it."""
    current, side = torch.cuda.current_stream(index), side_stream(index)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        results = call(*inputs)
    current.wait_stream(side)
    for r in results:
        if isinstance(r, torch.Tensor):
            r.record_stream(current)
    return results


def capture(call: Call, arguments: Sequence[Any], index: int) -> tuple[Any, tuple[Any, ...]]:
    """The CUDA graph of a call and its results, which hold nothing yet. Raises RuntimeError for what can't be recorded."""
    graph, stream = torch.cuda.CUDAGraph(), torch_private.raw_stream(index)
    recorder = torch.cuda.graph(graph, pool=pool(index, stream), stream=side_stream(index), capture_error_mode="thread_local")
    with recorder, recorded():
        outputs = call(*arguments)
    return graph, outputs


# -- memory -----------------------------------------------------------------------------------------------------------------

_pools: dict[tuple[int, int], Any] = {}
_sides: dict[int, torch.cuda.Stream] = {}


def pool(index: int, stream: int) -> Any:
    """The memory that the recordings of one stream share. They never run at once, and results leave by copy."""
    if (index, stream) not in _pools:
        _pools[index, stream] = torch.cuda.graph_pool_handle()
    return _pools[index, stream]


def side_stream(index: int) -> torch.cuda.Stream:
    """The stream on which graphs of a device are warmed up and recorded."""
    if index not in _sides:
        _sides[index] = torch.cuda.Stream(index)
    return _sides[index]


def signature(inputs: Sequence[Any]) -> Key:
    """Sizes and strides of tensors, and the other values themselves."""
    return tuple((x.shape, x.stride()) if isinstance(x, torch.Tensor) else (type(x), x) for x in inputs)


def addresses_of(inputs: Sequence[Any]) -> dict[int, int]:
    """Where each tensor lies, by position."""
    return {i: x.data_ptr() for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}


def memory(x: torch.Tensor) -> torch.Tensor:
    """All elements that a tensor reaches, each once: itself, or the stretch from its first to its last where they lie apart or
    share memory."""
    if x.numel() == 0:
        return x
    dense, expected = True, 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            dense, expected = dense and stride == expected, expected * size
    if dense:
        return x
    return x.as_strided((reach(x.shape, x.stride()),), (1,), x.storage_offset())


def spread(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same sizes and strides."""
    whole = memory(x)
    if whole is x:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
    return whole.clone().as_strided(x.shape, x.stride())


def copies(outputs: Sequence[Any]) -> tuple[Any, ...]:
    """Outputs with memory of their own. Those that share theirs go on sharing it."""
    if len(outputs) == 1:
        return (spread(outputs[0]),) if isinstance(outputs[0], torch.Tensor) else tuple(outputs)
    storages: dict[int, list[int]] = {}
    for i, x in enumerate(outputs):
        if isinstance(x, torch.Tensor):
            storages.setdefault(x.untyped_storage().data_ptr(), []).append(i)
    results = list(outputs)
    for members in storages.values():
        if len(members) == 1:
            results[members[0]] = spread(outputs[members[0]])
            continue
        storage = outputs[members[0]].untyped_storage().clone()
        for i in members:
            x = outputs[i]
            whole = torch.empty(0, dtype=x.dtype, device=x.device).set_(storage)
            results[i] = whole.as_strided(x.shape, x.stride(), x.storage_offset())
    return tuple(results)


def shared_memory(outputs: Sequence[Any], kept: Sequence[Any]) -> str | None:
    """Why results can't be copied: one is (a view of) an input, which the caller must get back as such."""
    given = [x for x in kept if isinstance(x, torch.Tensor) and x.numel()]
    lying = {x.untyped_storage().data_ptr() for x in given}
    for i, x in enumerate(outputs):
        if isinstance(x, torch.Tensor) and x.numel() and x.untyped_storage().data_ptr() in lying:
            return f"result {i} shares memory with an input"
    return None
