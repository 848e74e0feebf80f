"""Who holds which storage, where it was made, and what is said when memory runs out."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

import tinycompile
from tinycompile.base import holdings
from tinycompile.ir.builder import GraphBuilder

pytestmark = pytest.mark.pure
SIZE = 4 * 12345


def of_size(nbytes: int) -> list[tinycompile.StorageInfo]:
    return [info for info in tinycompile.storages("cpu") if info.nbytes == nbytes]


def test_a_view_keeps_its_storage_alive_and_both_are_told() -> None:
    x = tinycompile.zeros(12345)
    view = x[5:]
    (info,) = of_size(SIZE)
    assert info.tensors == ("tinycompile.Tensor float32[12340]", "tinycompile.Tensor float32[12345]")
    assert info.address == x.data_ptr() and str(info.device) == "cpu" and info.made == ""
    del x
    gc.collect()
    (info,) = of_size(SIZE)
    assert "tinycompile.Tensor float32[12340]" in info.tensors  # and its base, which a view knows
    del view
    gc.collect()
    assert not of_size(SIZE)


def test_torchs_tensors_on_the_same_memory_are_told_beside_ours() -> None:
    theirs = torch.zeros(45678)
    ours, other = tinycompile.from_torch(theirs), theirs[3:]
    (info,) = of_size(4 * 45678)
    assert info.tensors == ("tinycompile.Tensor float32[45678]", "torch.Tensor float32[45675]") and other.numel()
    del ours
    (info,) = of_size(4 * 45678)
    assert info.tensors == ("torch.Tensor float32[45675]", "torch.Tensor float32[45678]")


def test_where_storages_are_made_is_known_while_traced_and_forgotten_with_them() -> None:
    before = tinycompile.zeros(56789)
    with tinycompile.trace_storages():
        x = tinycompile.ones(56789)
        y = x[1:]
    (old, new) = sorted(of_size(4 * 56789), key=lambda i: i.made)
    assert old.made == "" and new.made.startswith(("full at ", "ones at "))
    assert "test_memory.py" in new.made
    del x
    assert [i.made for i in of_size(4 * 56789) if i.made] == [new.made], "a view still holds it"
    del y
    gc.collect()
    assert not [i for i in of_size(4 * 56789) if i.made] and before.numel()
    again = torch.zeros(56789)  # may get the same address
    assert not [i for i in of_size(4 * 56789) if i.made] and again.numel()


@pytest.mark.cpu
def test_buffers_of_compiled_code_are_traced() -> None:
    @tinycompile
    def f(x):
        return torch.sin(x) * 2

    x = torch.randn(23456)
    f(x)
    with tinycompile.trace_storages():
        y = f(x)
    (info,) = [i for i in of_size(4 * 23456) if i.made]
    assert info.made.startswith("compiled f at ") and "test_memory.py" in info.made and y.numel()


def test_memory_of_a_cpu() -> None:
    before = tinycompile.cuda.memory("cpu").allocated
    with tinycompile.trace_storages():
        x = tinycompile.zeros(1 << 20)
        y = x + 1
        del y
    use = tinycompile.cuda.memory("cpu")
    assert use.allocated >= before + (4 << 20) > 0 and use.peak >= 8 << 20 and use.reserved == use.allocated
    assert "allocated" in str(use) and "MiB" in str(use) and x.numel()


def test_without_cuda_its_numbers_are_zero() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is CUDA")
    cuda = tinycompile.cuda
    assert (cuda.memory_allocated(), cuda.memory_reserved(), cuda.max_memory_allocated()) == (0, 0, 0)
    cuda.reset_peak_memory_stats(), cuda.empty_cache()


def test_numbers_of_a_cpu_under_torchs_names_are_those_of_memory() -> None:
    cuda = tinycompile.cuda
    with tinycompile.trace_storages():
        x = tinycompile.zeros(1 << 20)
        x + 1
    use = cuda.memory("cpu")
    told = cuda.memory_allocated("cpu"), cuda.memory_reserved("cpu"), cuda.max_memory_allocated(torch.device("cpu"))
    assert told == (use.allocated, use.reserved, use.peak) and use.peak >= 8 << 20
    del x
    cuda.reset_peak_memory_stats("cpu")
    assert cuda.max_memory_allocated("cpu") < use.peak


@pytest.mark.parametrize("name", ["index", "sort", "linalg_inv", "cumsum_out", "__getitem__ of a mask"])
def test_what_ops_without_a_record_make_is_traced(name: str) -> None:
    x = tinycompile.ones(33, 33)
    calls = {
        "index": lambda: x[tinycompile.tensor([0, 2])],
        "sort": lambda: x.sort(),
        "linalg_inv": lambda: torch.linalg.inv(tinycompile.eye(33)),
        "cumsum_out": lambda: torch.cumsum(x, 0, out=tinycompile.empty(33, 33)),
        "__getitem__ of a mask": lambda: x[x > 0],
    }
    with tinycompile.trace_storages():
        made = calls[name]()
    found = [i for i in tinycompile.storages("cpu") if i.made and "test_memory.py" in i.made and "float32[" in str(i.tensors)]
    by = {"cumsum_out": "empty", "__getitem__ of a mask": "index"}.get(name, name)
    assert by in {i.made.split()[0] for i in found}, "an out= was made by what made it"
    assert made is not None


def test_fake_tensors_have_no_storage_to_tell() -> None:
    builder = GraphBuilder()
    kept = [builder.placeholder("x", tinycompile.zeros(45677).meta)]
    assert not of_size(4 * 45677) and kept


def test_meta_and_sparse_tensors_have_no_storage_to_tell() -> None:
    kept = [torch.zeros(34567, device="meta"), tinycompile.zeros(34567, device="meta"), torch.zeros(3, 3).to_sparse()]
    assert not of_size(4 * 34567) and kept


TOO_MUCH = 1 << 52


FAILING = {
    "factory": lambda: tinycompile.empty(TOO_MUCH),
    "op": lambda: tinycompile.zeros(1).expand(TOO_MUCH) + 1,
    "copy": lambda: tinycompile.zeros(1).expand(TOO_MUCH).clone(),
    "dtype": lambda: tinycompile.zeros(1).expand(TOO_MUCH).double(),
    "on the tape": lambda: tinycompile.ones(1, requires_grad=True).expand(TOO_MUCH) * 2,
    "vmap": lambda: tinycompile.vmap(lambda a: a.expand(TOO_MUCH >> 1) + 1)(tinycompile.ones(2)),
    "no record": lambda: tinycompile.zeros(1).resize_(TOO_MUCH),
    "storage": lambda: tinycompile.Storage(TOO_MUCH),
}


@pytest.mark.parametrize("make", FAILING.values(), ids=FAILING)
def test_a_failed_allocation_is_torchs_with_what_we_hold(make) -> None:
    held = tinycompile.zeros(12345)
    with pytest.raises(RuntimeError, match="allocate memory") as caught:
        make()
    (note,) = caught.value.__notes__
    assert note.startswith("tinycompile holds: tensors: ") and "storages of" in note and held.numel()


@pytest.mark.cpu
def test_so_is_one_in_compiled_code() -> None:
    @tinycompile
    def f(x):
        return x.expand(TOO_MUCH) + 1

    with pytest.raises(RuntimeError, match="allocate memory") as caught:
        f(torch.zeros(1))
    assert len(caught.value.__notes__) == 1


def test_other_errors_get_no_note() -> None:
    with pytest.raises(RuntimeError) as caught:
        tinycompile.zeros(3) + tinycompile.zeros(4)
    assert not getattr(caught.value, "__notes__", [])
    assert not holdings.is_allocation_failure(ValueError("DefaultCPUAllocator"))


@pytest.mark.parametrize("name", ["tensor", "as_tensor", "from_numpy", "zeros", "arange", "randn"])
def test_every_factory_is_told_as_the_maker_of_a_storage(name: str) -> None:
    data = {"tensor": [0.5] * 12345, "as_tensor": [0.5] * 12345, "from_numpy": np.zeros(12345, np.float32)}.get(name, 12345)
    with tinycompile.trace_storages():
        x = getattr(tinycompile, name)(data)
    (info,) = [i for i in tinycompile.storages("cpu") if i.address == x.data_ptr()]
    assert "test_memory.py" in info.made and (name == "zeros" or info.made.startswith(name)), info.made
