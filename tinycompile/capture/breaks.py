"""Graph breaks: where capture can't go on. Each kind has a stable id, what happened, why that ends a graph, and a hint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinycompile.ir.graph import Location


@dataclass(frozen=True, slots=True)
class BreakKind:
    """One entry of the registry."""

    id: str
    what: str
    why: str
    hint: str


_UNSUPPORTED = "Write that part in another way, or move it out of the compiled function."
_ALL = (
    BreakKind(
        "data-dependent",
        "A Python value was asked of a tensor's data",
        "the data is only known when the kernels have run",
        "Keep the value in a tensor (torch.where instead of if), or compute it outside the compiled function.",
    ),
    BreakKind(
        "input-mutation",
        "A tensor was written in place in a way that can't be captured",
        "a graph writes to what it made, to plain inputs, and through views; not to what overlaps, nor where torch refuses",
        "Write `x = x + y` instead of `x += y`, or clone first.",
    ),
    BreakKind(
        "side-effect",
        "Something outside the function was changed (an attribute, a global, a container, a closure's variable)",
        "the change would have to be replayed on each call",
        "Return the new value and store it in the caller.",
    ),
    BreakKind(
        "optimizer",
        "A step of an optimizer",
        "formulas are known for torch's SGD, Adam and AdamW, without closures, hooks and settings that move it to the device",
        "Nothing is lost: what can be compiled of the step is compiled apart, and so is what comes before and after it.",
    ),
    BreakKind(
        "backward",
        "A backward that can't be a part of the graph",
        "torch's engine runs it: it creates a graph, or leaves one that is used outside, or goes on outside the graph",
        "Call backward() once, on what this function computed, and return tensors that are detached or whose backward was run.",
    ),
    BreakKind(
        "inner-gradient",
        "A gradient of a value on the way, by a backward that can't be a part of the graph",
        "torch's engine runs it, and what is compiled is one node to it: what leads there runs op by op on torch's own tape",
        "Compute the value outside the compiled function, or return tensors that are detached or whose backward was run.",
    ),
    BreakKind(
        "print",
        "Output was printed or logged",
        "it must come out once per call, in order",
        "Print outside the compiled function.",
    ),
    BreakKind(
        "unknown-function",
        "A function was called that capture can't look into",
        "it is written in C or it is not known to be free of side effects",
        "Use a torch function, or call it outside the compiled function.",
    ),
    BreakKind(
        "unsupported-instruction",
        "A Python construct that capture does not follow yet",
        "its meaning is not modelled",
        _UNSUPPORTED,
    ),
    BreakKind("unsupported-value", "A Python object that capture can't model", "operations on it are unknown", _UNSUPPORTED),
    BreakKind(
        "unsupported-argument",
        "A torch function got an argument that can't be put in a graph",
        "graph arguments are tensors, numbers, strings, dtypes, devices and sequences of these",
        _UNSUPPORTED,
    ),
    BreakKind(
        "unsupported-op",
        "A torch function without a record that can't be an opaque call either",
        "its result's shape can't be told without running it, or it mutates its inputs",
        _UNSUPPORTED,
    ),
    BreakKind(
        "random",
        "Random numbers were drawn",
        "the generator's state is outside the graph",
        "Draw them outside the compiled function, or call model.eval() if this is dropout.",
    ),
    BreakKind(
        "tensor-kind",
        "A tensor that is no plain strided torch.Tensor or Parameter",
        "subclasses, sparse and quantised layouts, functorch wrappers, and conjugate or negative views have other semantics",
        "Convert to a plain tensor (for example .resolve_conj(), .to_dense()) before the call.",
    ),
    BreakKind(
        "mode",
        "A torch mode is active (inference mode, a torch function or dispatch mode), or autocast around what torch composes",
        "it changes what every op means",
        "Leave the mode around the compiled call, or move it.",
    ),
    BreakKind(
        "grad-mode",
        "The gradient mode was changed in a way that can't be captured",
        "it changes what every op means",
        _UNSUPPORTED,
    ),
    BreakKind(
        "hooks",
        "A module has hooks",
        "hooks are arbitrary code around forward",
        "Remove the hooks, or compile the modules inside separately.",
    ),
    BreakKind(
        "try-block",
        "A tensor op inside try/except or try/finally",
        "an error that only shows at run time would miss the handler",
        "Move the tensor ops out of the try block.",
    ),
    BreakKind(
        "user-exception",
        "The function raised",
        "the frame runs in eager Python so that the error is Python's own",
        "If the exception is expected, raise it outside the compiled function.",
    ),
    BreakKind(
        "warns",
        "Python or a library warns of what the function does",
        "the warning is to come in each call, from the program's line, or to be raised there, as filters say",
        "Change what the warning is about.",
    ),
    BreakKind(
        "internal-error",
        "Capture itself failed",
        "this is a fault of tinycompile's; what it can't follow runs in eager Python",
        "Report it, with the folder that the warning names. TINYCOMPILE_ON_ERROR=raise shows where it failed.",
    ),
    BreakKind(
        "class-body",
        "A class was made",
        "each time it is another class, and its body and its metaclass may do anything",
        "Move the class out of the compiled function.",
    ),
    BreakKind(
        "frame",
        "A frame object was asked for",
        "compiled code has other frames than the program, so all of the function runs in plain Python",
        "Ask for it outside the compiled function.",
    ),
    BreakKind(
        "generator",
        "The frame of a generator or a coroutine outlives the call",
        "a graph begins and ends in one call",
        "Compile the functions that it calls, or return a list.",
    ),
    BreakKind(
        "finalizer",
        "The frame let go of an object whose end is noticed: a generator asleep in a try or with, an object with __del__",
        "what it does then comes before what follows, and compiled code holds its arguments until it returns",
        "Close it (a with block, generator.close()), or keep it until the end of the function.",
    ),
    BreakKind(
        "iterator",
        "A loop over an iterator that exists outside the graph",
        "what it yields is only known when it is asked, and asking moves it on",
        "Loop over a list, a tuple or a range, and keep what breaks the graph out of the loop.",
    ),
    BreakKind(
        "builtins",
        "Builtins were replaced (builtins.len = ..., unittest.mock.patch)",
        "capture itself is written in Python and calls them: until they are back, what begins here runs in plain Python",
        "Put a function of your own under the name into the module that uses it, or replace it around code without breaks.",
    ),
    BreakKind(
        "tensor-attributes",
        "Attributes of torch.Tensor that say what a tensor is were replaced (torch.Tensor.shape = ...)",
        "capture and compiled code ask tensors for them: until they are torch's again, what begins here runs in plain Python",
        "Put an attribute of another name there, or replace it around code that is not compiled.",
    ),
    BreakKind("forced", "A test forced a break here", "CaptureOptions.force asked for it", "None is needed."),
    BreakKind("disabled", "A function that tinycompile.disable excludes", "it was asked for", "Don't disable it."),
    BreakKind("user-break", "tinycompile.graph_break() was called", "it was asked for", "Remove the call."),
    BreakKind(
        "reconstruct",
        "The function returns something that can't be rebuilt outside the graph",
        "only containers, constants, tensors and things that came from outside can be",
        "Return tensors and plain containers.",
    ),
    BreakKind(
        "recursion",
        "Calls are nested too deeply",
        "capture takes several frames of Python's stack for each: this one runs in plain Python, with all that it calls",
        "Write a loop, or compile the functions that are called at the end.",
    ),
    BreakKind(
        "memory",
        "Memory ran out",
        "capture makes what the program makes of numbers and containers; plain Python tells it what is too large",
        "Make smaller containers, or make them outside.",
    ),
)  # fmt: skip
KINDS: dict[str, BreakKind] = {kind.id: kind for kind in _ALL}


@dataclass(frozen=True, slots=True)
class Break:
    """One break that happened: its kind, the particulars, and the user's line."""

    id: str
    reason: str
    location: Location

    @property
    def kind(self) -> BreakKind:
        """The registry's entry."""
        return KINDS[self.id]

    @property
    def file(self) -> str:
        """The user's file."""
        return self.location.file

    @property
    def line(self) -> int:
        """The user's line."""
        return self.location.line

    @property
    def hint(self) -> str:
        """What to do about it."""
        return self.kind.hint

    def __str__(self) -> str:
        where = f"{self.location.file}:{self.location.line}" + (
            f" in {self.location.function}" if self.location.function else ""
        )
        return f"[{self.id}] {self.kind.what}: {self.reason}\n  at {where}\n  why: {self.kind.why}\n  hint: {self.hint}"


class GraphBreak(Exception):  # noqa: N818 (control flow, no fault)
    """Raised where capture can't go on; never leaves it. ``kind``: an id of the registry."""

    def __init__(self, kind: str, reason: str) -> None:
        assert kind in KINDS, kind
        super().__init__(f"[{kind}] {reason}")
        self.kind, self.reason = kind, reason


class KnownBehind(GraphBreak):
    """What is asked depends on a change that is only done when the graph ends. Behind the break it is known: the instruction
    is followed there, not done in plain Python."""


class FrameAsked(GraphBreak):
    """A frame object was asked for: that of the caller ``levels`` calls up; 0 where it is not known, or the asker's own."""

    def __init__(self, what: str, levels: int = 0) -> None:
        super().__init__("frame", what)
        self.levels = levels


class NotRebuildable(GraphBreak):
    """A value that capture made can't be made again outside the graph."""

    def __init__(self, value: Any, what: str, kind: str = "reconstruct") -> None:
        super().__init__(kind, what)
        self.holders = [value]  # it, and what holds it, from the inside out
