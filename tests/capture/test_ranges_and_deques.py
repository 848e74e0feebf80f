"""Ranges and deques given to torch: it takes them for no tuples, but where it reads any sequence."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure
I = torch.arange(3)  # noqa: E741
CASES: dict[str, Callable[[Any], Any]] = {
    # an index
    "range": lambda x: x[range(2)],
    "long range": lambda x: x[range(1, -1, -1)],
    "range in a tuple": lambda x: (x[:, range(2)], x[(range(2),)], x[0, range(2)], x[..., range(2)], x[None, range(2)]),
    "two ranges": lambda x: x[range(2), range(2)],
    "ranges in a list": lambda x: (x[[range(2)]], x[[range(2), range(2)]], x[[0, range(2)]]),
    "no range": lambda x: x[range(0)],
    "range out of bounds": lambda x: x[range(5)],
    "deque": lambda x: (x[deque([0, 1])], x[deque([0, 1]), deque([0, 1])], x[[deque([0, 1])]]),
    # data
    "tensor": lambda x: (torch.tensor(range(3)), torch.tensor(deque([1, 2])), torch.tensor([range(2), deque([1, 2.0])])),
    "as_tensor": lambda x: (torch.as_tensor(range(3)), x.new_tensor(range(2)), torch.as_tensor(deque([1.0]))),
    "size": lambda x: (torch.zeros(torch.Size(range(3))), torch.broadcast_shapes(range(1, 3), (1,)), x.view(*range(2, 4))),
    # sizes and dims
    "factory": lambda x: torch.zeros(range(3)),
    "factory by name": lambda x: torch.zeros(size=deque([1, 2])),
    "drawn": lambda x: torch.rand(range(1, 3)),
    "new": lambda x: x.new_full(range(3), 1),
    "view": lambda x: x.view(range(2, 4)),
    "reshape": lambda x: x.reshape(deque([3, 2])),
    "permute": lambda x: x.permute(range(2)),
    "sum": lambda x: x.sum(range(2)),
    "sum of a deque": lambda x: x.sum(deque([0])),
    "tensordot": lambda x: torch.tensordot(x, x, dims=(range(2), range(2))),
    "split": lambda x: x.split(range(1, 3), 1),
    "tensor_split": lambda x: x.tensor_split(range(1, 3), 1),
    "pad": lambda x: F.pad(x, range(2)),
    "layer_norm": lambda x: F.layer_norm(x, deque([3])),
    "pool": lambda x: F.max_pool2d(x[None], range(1, 3)),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(x[None], range(1, 3)),
    "extern": lambda x: torch.fft.fftn(x, dim=range(2)),
    # tensors
    "stack": lambda x: torch.stack(deque([x, x])),
    "hstack": lambda x: torch.hstack(deque([x, x])),
    "einsum": lambda x: torch.einsum("ij,ij->i", deque([x, x])),
    "index_put": lambda x: x.index_put(deque([torch.tensor([0])]), torch.tensor(1.0)),
    "foreach": lambda x: torch._foreach_add(deque([x, x]), 1),
    "meshgrid": lambda x: (torch.meshgrid([I, I], indexing="ij"), torch.meshgrid((I, I), indexing="xy")),
    "meshgrid of a deque": lambda x: torch.meshgrid(deque([I, I]), indexing="ij"),
    "result_type": lambda x: torch.result_type(x, range(1)),
    # functions that take their tensors one by one, and no list
    "broadcast_tensors": lambda x: (torch.broadcast_tensors(x, I), torch.block_diag(x, x), torch.cartesian_prod(I, I)),
    "broadcast_tensors of a list": lambda x: torch.broadcast_tensors([x, x]),
    "block_diag of a list": lambda x: torch.block_diag([x]),
    "cartesian_prod of a tuple": lambda x: torch.cartesian_prod((I,)),
}


def assigned(key: Any) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        y = x.clone()
        y[key] = 5
        return y

    return fn


for shown, key in {
    "range": range(1, 2),
    "part": (slice(None), range(2)),
    "two": (range(2), range(2)),
    "list": [range(2)],
}.items():
    CASES[f"{shown} assigned"] = assigned(key)


def answer(fn: Callable[[Any], Any]) -> Any:
    def told(value: Any) -> Any:
        return [type(value), *map(told, value)] if isinstance(value, (tuple, list)) else repr(value)

    torch.manual_seed(0)
    try:
        return told(fn(torch.arange(6.0).reshape(2, 3)))
    except (TypeError, IndexError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    fn = CASES[name]
    compiled = CompiledFunction(fn, Options(backend="eager"))
    expected = answer(fn)
    for _ in range(2):
        assert answer(compiled) == expected


@pytest.mark.parametrize("name", ("range", "range in a tuple", "two ranges", "tensor", "range assigned"))
def test_what_torch_takes_is_one_graph(name: str) -> None:
    compiled = CompiledFunction(CASES[name], Options(backend="eager", fullgraph=True))
    compiled(torch.arange(6.0).reshape(2, 3))
    assert len(compiled.graphs) == 1
