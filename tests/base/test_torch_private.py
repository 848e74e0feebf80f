"""Each private call of torch's gives what its public fallback gives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tinycompile.base import torch_private as private

pytestmark = pytest.mark.pure


def test_this_torch_has_the_private_ways() -> None:
    ways = private.in_use()
    cuda_only = {"_cuda_getCurrentRawStream", "_StaticCudaLauncher", "_tensors_data_ptrs_at_indices_equal"}
    assert all(found or name in cuda_only and not torch.cuda.is_available() for name, found in ways.items()), ways


@pytest.mark.parametrize("keys", [private.raw_keys, private.raw_keys_public], ids=["private", "public"])
def test_raw_keys_tell_apart_what_torch_dispatches_apart(keys: Callable[[torch.Tensor], int]) -> None:
    plain = torch.ones(2, dtype=torch.complex64)
    with torch.inference_mode():
        inference = torch.ones(2)
    different = [
        torch.ones(2),
        torch.ones(2, device="meta"),
        plain.conj(),
        plain.conj().imag,
        torch.ones(2).to_sparse(),
        inference,
    ]
    assert len({keys(t) for t in different}) == len(different)
    assert keys(torch.ones(3)) == keys(torch.zeros(2, 2).t())


@pytest.mark.parametrize("refuses", [private.refuses_writes, private.refuses_writes_public], ids=["private", "public"])
def test_what_torch_lets_nobody_write_to(refuses: Callable[[torch.Tensor], bool]) -> None:
    leaf = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        unfollowed, of_leaf = (leaf * 1)[:2], leaf[:2]
    own = torch.ones(4)[:2].requires_grad_()  # a leaf, and a view
    for t in (leaf, leaf[:2], leaf.view(2, 2).t(), *(leaf * 1).split(2), (leaf * 1).unbind()[0], unfollowed, of_leaf, own):
        assert refuses(t)
        with pytest.raises(RuntimeError):
            t.mul_(torch.ones((), requires_grad=True))
    for t in (leaf * 1, torch.ones(4), leaf.detach().clone()):
        assert not refuses(t)
    assert not private.refuses_writes((leaf * 1)[:2])  # the public way can't tell


def test_raw_keys_see_vmap() -> None:
    seen: list[int] = []
    torch.vmap(lambda t: seen.append(private.raw_keys(t)) or t)(torch.ones(2, 2))
    assert seen[0] != private.raw_keys(torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
@pytest.mark.parametrize(("shape", "strides"), [((2, 3), (3, 1)), ((2, 3), (1, 2)), ((), ()), ((0, 4), (4, 1))])
def test_empty_strided(shape: Any, strides: Any, dtype: torch.dtype) -> None:
    made = private.empty_strided_cpu(shape, strides, dtype)
    same = private.empty_strided_public(shape, strides, dtype, torch.device("cpu"))
    for t in (made, same):
        assert (tuple(t.shape), t.stride(), t.dtype, t.device.type) == (shape, strides, dtype, "cpu")
    assert made.untyped_storage().nbytes() == same.untyped_storage().nbytes()


@pytest.mark.gpu
def test_empty_strided_and_streams_on_cuda() -> None:
    made = private.empty_strided_cuda((2, 3), (1, 2), torch.float16)
    assert (tuple(made.shape), made.stride(), made.dtype, made.device.type) == ((2, 3), (1, 2), torch.float16, "cuda")
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        current = torch.cuda.current_stream()
        assert private.raw_stream(current.device_index) == current.cuda_stream


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "size": lambda t: t[:1],
    "stride": lambda t: t.t().contiguous().t(),
    "dtype": lambda t: t.double(),
    "device": lambda t: t.to("meta"),
    "requires_grad": lambda t: t.detach().requires_grad_(),
    "class": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "rank": lambda t: t[0],
    "not a tensor": lambda t: 3,
}


@pytest.mark.parametrize("use_private", [True, False], ids=["private", "public"])
def test_bulk_check_accepts_equals(use_private: bool) -> None:
    tensors = [torch.ones(2, 3), torch.ones(4, dtype=torch.int64)]
    bulk = private.BulkCheck(tensors, private=use_private)
    assert bulk.private is use_private
    assert bulk.check(*tensors) and bulk.check(torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize("use_private", [True, False], ids=["private", "public"])
@pytest.mark.parametrize("change", CHANGES)
def test_bulk_check_sees_each_change(change: str, use_private: bool) -> None:
    tensors = [torch.ones(2, 3), torch.ones(2, 3)]
    bulk = private.BulkCheck(tensors, private=use_private)
    assert bulk.check(*tensors)
    assert not bulk.check(tensors[0], CHANGES[change](tensors[1]))


@pytest.mark.parametrize("use_private", [True, False], ids=["private", "public"])
def test_bulk_check_sees_changed_data_of_a_parameter(use_private: bool) -> None:
    """Identity is not enough: ``.data = other`` keeps the object."""
    p = torch.nn.Parameter(torch.ones(2, 3))
    bulk = private.BulkCheck([p], private=use_private)
    p.data = torch.ones(2, 3, dtype=torch.float64)
    assert not bulk.check(p)


def test_storage_id() -> None:
    t = torch.ones(2, 3)
    assert private.storage_id(t.untyped_storage()) == private.storage_id(t.t()[1:].untyped_storage())
    assert private.storage_id(t.untyped_storage()) != private.storage_id(torch.ones(2, 3).untyped_storage())


def test_function_apply_is_apply() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    x = torch.ones(3, requires_grad=True)
    private.function_apply(Double)(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_hooks_of_results_that_nobody_asks_for() -> None:
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            return 2 * g if h is None else 3 * h

    private.hooks_of_defined(Both)
    x, seen = torch.ones(3, requires_grad=True), list[Any]()
    first, second = Both.apply(x)
    for result in (first, second):
        result.register_hook(lambda g: (seen.append(g.tolist()), g * 5)[1])
    removed = first.register_hook(seen.append)
    removed.remove()
    first.sum().backward()
    assert seen == [[1.0, 1.0, 1.0]]
    assert x.grad.tolist() == [10.0, 10.0, 10.0]


def test_a_running_profiler_is_seen() -> None:
    assert not private.profiler_runs()
    with torch.autograd.profiler.profile(use_kineto=False):
        assert private.profiler_runs()
    assert not private.profiler_runs()


def _addresses_equal(tensors, addresses, places):
    """What torch's function of builds with CUDA does."""
    return all(tensors[i].data_ptr() == addresses[i] for i in places)


def _of_another_signature(tensors):
    raise AssertionError("is never reached: it takes one argument")


@pytest.mark.parametrize("equal", [None, _addresses_equal, _of_another_signature], ids=["public", "private", "other"])
def test_alignment_in_bulk(equal) -> None:
    tensors = [torch.zeros(8) for _ in range(3)]
    check = private.BulkAlignment(tensors, equal).check
    assert check()
    tensors[1].data = torch.zeros(8)
    assert check() and check()
    tensors[2].data = torch.zeros(9)[1:]
    assert not check() and not check()
    tensors[2].data = torch.zeros(8)
    assert check()


@pytest.mark.parametrize("equal", [None, _addresses_equal, _of_another_signature], ids=["public", "private", "other"])
def test_addresses_in_bulk(equal) -> None:
    tensors = [torch.zeros(8) for _ in range(3)]
    addresses = private.Addresses(equal)
    assert addresses.aligned(tensors) is None and addresses.aligned(tensors) is None
    tensors[2].data = torch.zeros(9)[1:]
    assert addresses.aligned(tensors) == (True, True, False) == addresses.aligned(tensors)
    assert addresses.aligned(tensors[:2]) is None
    tensors[2] = torch.zeros(8)
    assert addresses.aligned(tensors) is None


@pytest.mark.parametrize("change", ["set", "new", "delete", "update", "clear", "pop", "same key again"])
def test_a_dict_has_another_version_after_each_change(change: str) -> None:
    assert private.dict_version is not None
    held = {"a": 1, "b": 2}
    before = private.dict_version(held)
    assert private.dict_version(held) == before and private.dict_version({"a": 1, "b": 2}) != before
    if change == "set":
        held["a"] = 3
    elif change == "new":
        held["c"] = 3
    elif change == "delete":
        del held["a"]
    elif change == "update":
        held.update(b=3)
    elif change == "clear":
        held.clear()
    elif change == "pop":
        held.popitem()
    else:
        held["a"], held["b"] = 1.5, 2
    assert private.dict_version(held) != before


@pytest.mark.parametrize("use_gelu", [True, False])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("rows", [1, 3, 512])
def test_activated_products(use_gelu: bool, device: str, rows: int) -> None:
    bias, a, b = (torch.randn(s, device=device, dtype=torch.bfloat16) for s in ((64,), (rows, 32), (32, 64)))
    got = private.addmm_activation(bias, a, b, use_gelu)
    true = torch.addmm(*(x.double() for x in (bias, a, b)))
    true = torch.nn.functional.gelu(true, approximate="tanh") if use_gelu else true.relu()
    torch.testing.assert_close(got.double(), true, atol=0.05, rtol=0.01)


def test_kernels_of_torchs_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert private.has_kernel("mm", "AutocastCPU") and not private.has_kernel("relu", "AutocastCPU")
    monkeypatch.setattr(private, "_has_kernel", None)
    assert private.has_kernel("mm", "AutocastCPU") is None


def test_batches_that_no_kernel_can_read() -> None:
    seen: list[tuple[bool, bool]] = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            seen.append((private.is_wrapped(g), private.is_wrapped_public(g)))
            return g * 2

    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(Looks.apply(x), x, torch.eye(3), is_grads_batched=True)
    torch.autograd.grad(Looks.apply(x), x, torch.ones(3))
    assert seen == [(True, True), (False, False)]


def test_some_of_what_a_context_saved() -> None:
    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, y)
            ctx.then = [x._version, y._version]
            return x * y

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            (x,) = private.some_saved(ctx, (0,), ctx.then)
            return g * x, None

    for hooks in (contextlib.nullcontext(), torch.autograd.graph.saved_tensors_hooks(lambda t: t * 3, lambda t: t)):
        x, y = torch.full((2,), 2.0, requires_grad=True), torch.ones(2)
        with hooks:
            made = Saves.apply(x, y)
        y.add_(1)
        (g,) = torch.autograd.grad(made.sum(), x)
        assert g.tolist() == ([2.0, 2.0] if isinstance(hooks, contextlib.nullcontext) else [6.0, 6.0])
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(made.sum(), x)
    x, y = torch.ones(2, requires_grad=True), torch.ones(2)
    made = Saves.apply(x, y)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()


def test_the_default_device_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert private.named_default_device() is None
    with torch.device("meta"):
        assert private.named_default_device() == torch.device("meta")
        with torch.device("cuda"):
            assert private.named_default_device() == torch.device("cuda")
    monkeypatch.setattr(private, "_function_mode_at", None)
    with torch.device("meta"):
        assert private.named_default_device() is None  # the public way can't tell
