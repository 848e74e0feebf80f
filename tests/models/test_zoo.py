"""Models of transformers and timm, where these are installed: one graph, no break, eager's numbers."""

from __future__ import annotations

import copy

import pytest
import torch

import tinycompile
from benchmarks.accuracy import judge
from benchmarks.model_suite import Subject, flat
from benchmarks.zoo import ZOO

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("subject", ZOO, ids=lambda s: s.name)
@pytest.mark.filterwarnings("ignore")
def test_a_forward_is_one_graph(subject: Subject) -> None:
    pytest.importorskip("transformers" if subject.name.startswith("hf ") else "timm")
    torch.manual_seed(0)
    module, inputs = subject.make("cpu")
    module.eval()
    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    compiled = tinycompile.compile(module, backend="eager")
    with torch.no_grad():
        got, eager, exact = flat(compiled(**inputs)), flat(module(**inputs)), flat(copy.deepcopy(module).double()(**wide))
    assert not compiled.compiled.breaks
    assert len(compiled.compiled.graphs) == 1
    assert judge(got, eager, exact).ok
