"""A script that shows a difference again without the program: the captured graph, its inputs, and the comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tinycompile.backends import lookup_backend
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.meta import TensorMeta, meta_of_torch
from tinycompile.compiler import CompiledGraph
from tinycompile.eager.fake import tracing
from tinycompile.ir.builder import GraphBuilder
from tinycompile.ir.graph import Graph
from tinycompile.ir.graph_text import print_graph
from tinycompile.selfcheck.trial import Trial, compare
from tinycompile.training import compile_training

_SCRIPT = '''"""Written by tinycompile: {why}"""

from pathlib import Path

from tinycompile.selfcheck.repro import run_again

{graph}

if __name__ == "__main__":
    run_again({name}, Path(__file__).with_name("inputs.pt"), backend={backend!r})
'''


def write_repro(folder: Path, graph: Graph, trial: Trial, compiled: CompiledGraph, why: str) -> Path:
    """Write ``repro.py`` and ``inputs.pt`` (the inputs, and which require grad); returns the folder."""
    backend = None if compiled.target is None else {"cpp": "cpp", "triton": "triton"}[compiled.target.language]
    text = print_graph(graph)
    header, _, body = text.partition("\n\n\n")
    name = body.partition("(")[0].removeprefix("def ")
    script = _SCRIPT.format(why=why.replace('"', "'"), graph=f"{header}\n\n\n{body}", name=name, backend=backend)
    (folder / "repro.py").write_text(script)
    torch.save([(x.tensor, x.needs) for x in trial.inputs], folder / "inputs.pt")
    return folder


def run_again(fn: Callable[..., Any], inputs: Path, backend: str | None) -> bool:
    """Build the graph that ``fn`` states, run it compiled and by torch on the saved inputs, print the difference; whether there
    is one."""
    saved = torch.load(inputs)
    given = [t.requires_grad_(needs) if isinstance(t, torch.Tensor) else t for t, needs in saved]
    graph = graph_of(fn, given)
    needs = [n for _, n in saved]
    compile_one = lookup_backend(backend)
    if any(needs):
        compiled = compile_training(graph, given, needs, compile_one, Artifacts())
    else:
        compiled = compile_one(graph, given, Artifacts())
    found, _ = compare(Trial(given, any(needs)), graph, compiled.call)
    print(found or "compiled and eager agree")
    return found is not None


def graph_of(fn: Callable[..., Any], inputs: Sequence[Any]) -> Graph:
    """The graph that a printed graph function records on fake tensors like ``inputs``; sizes are constants in it."""
    builder = GraphBuilder()
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    fakes: list[Any] = []
    for name, x in zip(names, inputs, strict=True):
        meta: TensorMeta | None = meta_of_torch(x) if isinstance(x, torch.Tensor) else None
        fake = builder.placeholder(name, meta, "" if meta is not None else "size")
        fakes.append(fake if meta is not None else x)
    with tracing(builder):
        outputs = fn(*fakes)
    return builder.finish(fn.__name__, outputs)
