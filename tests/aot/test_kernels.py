"""How many kernels backward graphs cost, what they move and what they save: on plans for an H100 and for a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.aot.test_partition import leaf, saved_names
from tinycompile.aot.joint import differentiate
from tinycompile.aot.partition import Split, partition
from tinycompile.base import expr as ex
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.target import H100, Target
from tinycompile.capture.frame import capture
from tinycompile.compiler import generate
from tinycompile.ir.requires_grad import outputs_require_grad
from tinycompile.passes.draw import draw_in_kernels
from tinycompile.passes.pipeline import optimize
from tinycompile.report import library_calls

pytestmark = pytest.mark.pure
CPU = Target("cpp", "x86-64-v3", 8, 1 << 20, vector=32)


@dataclass(frozen=True)
class Backward:
    """``kernels``, ``externs``: the most that the backward may cost. ``bytes``: what its kernels may move, over what they read
    and write once. A column sum over many rows is two kernels; a norm reads its rows and its columns."""

    name: str
    fn: Any
    inputs: Any
    kernels: int
    externs: int = 0
    bytes: float = 1.02


ROWS, INDEX = (2048, 512), torch.randint(0, 512, (2048,), generator=torch.Generator().manual_seed(0))
IMAGE = (16, 64, 16, 16)
CASES = (
    Backward("gelu", lambda x: F.gelu(x), lambda: (leaf(*ROWS),), 1),
    Backward("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), lambda: (leaf(*ROWS),), 1),
    Backward("swiglu", lambda a, b: F.silu(a) * b, lambda: (leaf(*ROWS), leaf(*ROWS)), 1),
    Backward("softmax", lambda x: torch.softmax(x, -1), lambda: (leaf(*ROWS),), 1),
    Backward("softmax_of_columns", lambda x: torch.softmax(x, 0), lambda: (leaf(*ROWS),), 3, 0, 2.1),
    Backward("log_softmax", lambda x: torch.log_softmax(x, -1), lambda: (leaf(*ROWS),), 1),
    Backward("cross_entropy", lambda x: F.cross_entropy(x, INDEX), lambda: (leaf(*ROWS),), 1),
    Backward(
        "cross_entropy_smooth",
        lambda x: F.cross_entropy(x, INDEX, label_smoothing=0.1, ignore_index=3),
        lambda: (leaf(*ROWS),),
        1,
    ),
    Backward("cross_entropy_weight", lambda x, w: F.cross_entropy(x, INDEX, w), lambda: (leaf(*ROWS), leaf(512).detach()), 1),
    Backward("nll_loss", lambda x: F.nll_loss(F.log_softmax(x, -1), INDEX), lambda: (leaf(*ROWS),), 1),
    Backward("mse_loss", lambda x, y: F.mse_loss(x, y), lambda: (leaf(*ROWS), leaf(*ROWS).detach()), 1),
    Backward(
        "layer_norm", lambda x, w, b: F.layer_norm(x, (512,), w, b), lambda: (leaf(*ROWS), leaf(512), leaf(512)), 3, 0, 1.75
    ),
    Backward("layer_norm_plain", lambda x: F.layer_norm(x, (512,)), lambda: (leaf(*ROWS),), 1),
    Backward("rms_norm", lambda x, w: F.rms_norm(x, (512,), w), lambda: (leaf(*ROWS), leaf(512)), 3, 0, 1.75),
    Backward(
        "batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, True), lambda: (leaf(*IMAGE), leaf(64), leaf(64)), 3, 0,
        1.75,
    ),
    Backward("group_norm", lambda x, w, b: F.group_norm(x, 8, w, b), lambda: (leaf(*IMAGE), leaf(64), leaf(64)), 4, 0, 1.75),
    Backward("bias", lambda x, b: x * 2 + b, lambda: (leaf(*ROWS), leaf(512)), 2, 0, 1.06),
    Backward("bias_gelu", lambda x, b: F.gelu(x + b), lambda: (leaf(*ROWS), leaf(512)), 2, 0, 1.06),
    Backward("scale_and_bias", lambda x, w, b: x * w + b, lambda: (leaf(*ROWS), leaf(512), leaf(512)), 2, 0, 1.1),
    Backward("dropout", lambda x: F.dropout(F.gelu(x), 0.1), lambda: (leaf(*ROWS),), 1),
    Backward("embedding", lambda w: F.embedding(INDEX, w), lambda: (leaf(512, 64),), 2, 0, 1.2),  # zeros, then sums
    Backward("index", lambda w: w[INDEX] * 2, lambda: (leaf(512, 64),), 2, 1),
    Backward(
        "mlp",
        lambda x, w, b, v, c: F.linear(F.gelu(F.linear(x, w, b)), v, c),
        lambda: (leaf(1024, 128), leaf(512, 128), leaf(512), leaf(128, 512), leaf(128)),
        4,
        4,
    ),
)  # fmt: skip


def split_of(case: Backward) -> Split:
    """As the pipeline splits it: random numbers are drawn in kernels before it is differentiated."""
    captured = capture(case.fn, case.inputs(), {})
    assert captured.graph is not None, captured.breaks
    graph, wanted = draw_in_kernels(captured.graph), captured.inputs_require_grad
    joint = differentiate(graph, wanted, outputs_require_grad(graph, wanted))
    return partition(replace(joint, graph=optimize(joint.graph, joint=True)))


@pytest.mark.parametrize("target", [H100, CPU], ids=lambda t: t.language)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_backward_kernels(case: Backward, target: Target) -> None:
    split = split_of(case)
    plan, source = generate(split.backward, target, Artifacts(), {})
    names = [k.nest.name for k in plan.kernels]
    lone = target is CPU and "div_kernel" in names  # a call of one division costs a CPU less than dividing at each element
    assert len(names) <= case.kernels + lone, names
    assert len(library_calls(source)) <= case.externs, library_calls(source)
    nodes = {n.name: n for n in split.backward.nodes}
    metas = [p.meta for p in split.backward.placeholders] + [nodes[r.name].meta for r in split.backward.output.args[0]]
    least = sum(m.numel * m.dtype.itemsize for m in metas if m is not None)
    moved = sum(ex.evaluate(k.bytes_moved, {}) for k in source.kernels)
    assert case.externs or moved <= case.bytes * least, (moved, least)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.dropout(F.gelu(x), 0.1),
        lambda x: F.dropout(x, 0.5) + x,
        lambda x: F.layer_norm(x + F.dropout(x, 0.1), (512,)),
        lambda x: F.dropout(torch.softmax(x, -1), 0.1),
    ],
    ids=["gelu", "residual", "norm", "softmax"],
)
def test_a_dropout_mask_is_drawn_again_from_its_seed(fn: Any) -> None:
    """What is saved for it is a seed of a few bytes."""
    split = split_of(Backward("dropout", fn, lambda: (leaf(*ROWS),), 1))
    nodes = {n.name: n for n in split.forward.nodes}
    saved = [nodes[name].meta for name in saved_names(split)]
    assert not any(m.dtype == torch.bool for m in saved), saved
    assert any(m.dtype == torch.int64 and m.numel <= 4 for m in saved), saved
    assert not any(n.target == "native_dropout" for n in (*split.forward.nodes, *split.backward.nodes))


def test_zeros_are_made_when_they_are_needed() -> None:
    """The backward of an index adds into zeros, which the forward neither makes nor holds."""
    split = split_of(next(c for c in CASES if c.name == "index"))
    assert not any(n.target == "full" for n in split.forward.nodes) and len(saved_names(split)) <= 1
