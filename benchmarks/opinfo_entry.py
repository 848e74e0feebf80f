"""One entry and dtype of torch's op database: all its samples compiled, built at once, run, and compared with eager."""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import tinycompile
from benchmarks.opinfo_backends import BACKENDS, EagerBackend, standing_in
from benchmarks.opinfo_backward import compare_gradients, gradients, same_leaves
from benchmarks.opinfo_judge import Call, DifferenceError, Judge, compare, run
from tinycompile.base.config import config
from tinycompile.base.errors import GraphBreakError

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int8", "uint8", "bool")
CHECKS = ("forward", "backward", "errors")
SECONDS = 60  # for one sample
_UNWRITTEN = ("empty", "new_empty")  # results are memory as it was found
# ... and some results: the seed and offset of a dropout that drops nothing.
_UNWRITTEN_RESULTS = {
    "torch.ops.aten._efficient_attention_forward": (2, 3),
    "torch.ops.aten._flash_attention_forward": (2, 3),
}


@dataclass
class Outcome:
    """All samples of an entry and dtype. ``fused``: no library call was left; ``extern``: some; ``broken``: right, but with
    graph breaks, by kind; ``failed``: wrong, by kind. ``messages``: the first of each kind. ``externs``: which library calls.
    ``status``: ``done``, or what ended it early. ``lucky``: right by what eager's error usually is, not by what it is here."""

    entry: str
    dtype: str
    samples: int = 0
    fused: int = 0
    extern: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    externs: list[str] = field(default_factory=list)
    seconds: float = 0.0
    status: str = "done"
    lucky: int = 0

    def fail(self, kind: str, message: str) -> None:
        """Count one failed sample."""
        self._count(self.failed, kind, message)

    def broke(self, error: GraphBreakError) -> None:
        """Count one sample that has graph breaks. Of the story only its first line: the rest names files of this machine."""
        what = str(error).partition("\n")[0]
        found = re.search(r"\[([\w-]+)\]", what)
        self._count(self.broken, f"break {found[1] if found else ''}".strip(), what)

    def _count(self, where: dict[str, int], kind: str, message: str) -> None:
        where[kind] = where.get(kind, 0) + 1
        self.messages.setdefault(kind, message[:600])


def entries(pattern: str = "") -> list[Any]:
    """The database's entries whose full name matches."""
    from torch.testing._internal import common_methods_invocations as database

    database.wrapper_set_seed = _call  # ``run`` sets the seed
    return [e for e in database.op_db if re.search(pattern, e.formatted_name)]


def _call(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def wanted(entry: Any, name: str, device: str, check: str) -> bool:
    """Whether there is something to check in this dtype."""
    dtype = getattr(torch, name)
    if check == "errors":
        return entry.error_inputs_func is not None and name == "float32"
    if check == "backward":
        return entry.supports_autograd and dtype in entry.supported_backward_dtypes(device) and dtype.is_floating_point
    return dtype in entry.supported_dtypes(device)


def calls(entry: Any, device: str, dtype: torch.dtype, limit: int | None, check: str = "forward") -> list[Call]:
    """The entry's samples, or the inputs that it must refuse."""
    torch.manual_seed(0)
    if check == "errors":
        samples: Iterator[Any] = (e.sample_input for e in entry.error_inputs(device))
    else:
        samples = iter(entry.sample_inputs(device, dtype, requires_grad=False))
    return [Call((s.input, *s.args), dict(s.kwargs)) for s in itertools.islice(samples, limit)]


@dataclass
class _Prepared:
    """A sample that waits for its code. ``fn``: what is compared, with eager's result and arguments."""

    index: int
    call: Call
    want: Any
    theirs: Call
    compiled: Callable[..., Any]
    extern: bool


def check_entry(
    entry: Any, device: str, dtype: torch.dtype, backend: str, limit: int | None, check: str = "forward"
) -> Outcome:
    """Compile and compare every sample: first all are captured, then built at once, then run."""
    outcome = Outcome(entry.formatted_name, str(dtype).removeprefix("torch."))
    start = time.perf_counter()
    the_backend = BACKENDS[backend]()
    prepared: list[_Prepared] = []
    with standing_in(the_backend), config.patch(fallback_random=True):
        for i, call in enumerate(calls(entry, device, dtype, limit, check)):
            outcome.samples += 1
            with _guarded(outcome, i):
                prepared += _prepare(entry, call, i, the_backend, outcome, check)
        try:
            the_backend.finish()
        except Exception as error:  # noqa: BLE001  # reported as a failure of the entry
            outcome.fail("build", str(error))
            prepared = []
        for p in prepared:
            with _guarded(outcome, p.index):
                outcome.lucky += _judge(entry, p, check)
                outcome.extern += p.extern
                outcome.fused += not p.extern
    outcome.externs = sorted(set(the_backend.externs))
    outcome.seconds = round(time.perf_counter() - start, 2)
    return outcome


def _prepare(entry: Any, call: Call, i: int, backend: EagerBackend, outcome: Outcome, check: str) -> list[_Prepared]:
    """Eager's result, and a compiled function whose code waits to be built; nothing where there is no gradient to compare, or
    where a graph break is judged already."""
    op, backward = entry.get_op(), check == "backward"
    want = run(gradients(op) if backward else op, theirs := call.copy(), i)
    if backward and (isinstance(want, Exception) or not want):
        outcome.fused += 1
        return []
    before = len(backend.externs)
    compiled = _compiled(op, backend.place)
    example = same_leaves(call.copy())[0] if backward else call
    try:
        torch.manual_seed(i)
        compiled.explain(*example.args, **example.kwargs)
    except GraphBreakError as error:
        compiled = _compiled(op, "eager", fullgraph=False)
        outcome.lucky += _judge(entry, _Prepared(i, call, want, theirs, compiled, True), check)
        outcome.broke(error)
        return []
    except Exception as error:
        if type(error) is not type(want):
            raise
    return [_Prepared(i, call, want, theirs, compiled, len(backend.externs) > before)]


def _judge(entry: Any, p: _Prepared, check: str) -> bool:
    """Raise DifferenceError unless the compiled function is as good as eager. Returns whether eager was lucky."""
    op, values = entry.get_op(), not entry.name.startswith(_UNWRITTEN)
    judge = Judge(gradients(op) if check == "backward" else op, p.call, p.index)
    if check == "backward":
        compare_gradients(run(gradients(p.compiled), p.call.copy(), p.index), p.want, judge)
        return judge.lucky
    got = run(p.compiled, mine := p.call.copy(), p.index)
    unwritten = _UNWRITTEN_RESULTS.get(entry.name, ())
    compare(got, p.want, mine, p.theirs, judge, values, unwritten)
    if check == "errors" and isinstance(p.want, Exception) and str(got) != str(p.want):
        raise DifferenceError("message", f"{str(got)[:250]!r}, eager {str(p.want)[:250]!r}")
    return judge.lucky


def _compiled(op: Callable[..., Any], backend: Any, fullgraph: bool = True) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    return tinycompile.compile(call, backend=backend, fullgraph=fullgraph, dynamic=False)


@contextlib.contextmanager
def _guarded(outcome: Outcome, sample: int) -> Iterator[None]:
    """Whatever a sample raises is counted; one that takes too long is stopped."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    except DifferenceError as difference:
        outcome.fail(difference.kind, f"sample {sample}: {difference.message}")
    except Exception as error:  # noqa: BLE001  # the point of the exercise
        outcome.fail(f"internal {type(error).__name__}", f"sample {sample}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(signal_number: int, frame: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s")
