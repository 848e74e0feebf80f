"""``Tensor`` against torch: metadata, shared storage, indexing, values and printing."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from tinycompile.base.device import Device
from tinycompile.base.meta import TensorMeta
from tinycompile.eager import factories
from tinycompile.eager.storage import Storage
from tinycompile.eager.tensor import Tensor, from_torch

pytestmark = pytest.mark.pure


def pair(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, torch.Tensor]:
    """Ours and torch's, on separate memory, with equal values."""
    theirs = torch.arange(float(np.prod(shape, dtype=int))).reshape(shape).to(dtype)
    return from_torch(theirs.clone()), theirs


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal in every respect that a caller can see."""
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
        return
    if not isinstance(theirs, torch.Tensor):
        assert type(ours) is type(theirs) and ours == theirs
        return
    assert isinstance(ours, Tensor)
    assert tuple(ours.shape) == tuple(theirs.shape) and tuple(ours.strides) == theirs.stride()
    assert ours.dtype is theirs.dtype and ours.device == Device.of(theirs.device)
    assert ours.offset == theirs.storage_offset()
    if theirs.device.type != "meta":
        torch.testing.assert_close(ours.torch(), theirs, rtol=0, atol=0, equal_nan=True)


VIEWS: dict[str, Any] = {
    "view": lambda t: t.view(6, 4),
    "view with -1": lambda t: t.view(-1, 2),
    "reshape": lambda t: t.reshape(4, 6),
    "transpose": lambda t: t.transpose(0, 2),
    "permute": lambda t: t.permute(2, 0, 1),
    "T of 2-d": lambda t: t[0].T,
    "mT": lambda t: t.mT,
    "select": lambda t: t.select(1, 2),
    "select from the end": lambda t: t.select(-1, -1),
    "narrow": lambda t: t.narrow(2, 1, 2),
    "slice": lambda t: t[:, 1:3],
    "slice with step": lambda t: t[..., ::2],
    "expand": lambda t: t[:, :1].expand(2, 5, 4),
    "expand to more dims": lambda t: t.expand(3, -1, -1, -1),
    "squeeze": lambda t: t[:, :1].squeeze(1),
    "squeeze all": lambda t: t[:1, :1].squeeze(),
    "unsqueeze": lambda t: t.unsqueeze(-1),
    "diagonal": lambda t: t.diagonal(dim1=1, dim2=2),
    "chain": lambda t: t.permute(1, 2, 0)[1:, ::2].transpose(0, 1)[1],
    "flatten": lambda t: t.flatten(1),
    "unflatten": lambda t: t.unflatten(2, (2, 2)),
    "alias": lambda t: t[...],
    "detach": lambda t: t.detach(),
    "split": lambda t: t.split(2, 1),
    "chunk": lambda t: t.chunk(2, -1),
    "unbind": lambda t: t.unbind(0),
    "unfold": lambda t: t.unfold(2, 2, 1),
    "view as another dtype": lambda t: t.view(torch.int32),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_torchs_metadata_and_shares_storage(name: str) -> None:
    ours, theirs = pair(2, 3, 4)
    made, expected = VIEWS[name](ours), VIEWS[name](theirs)
    assert_same(made, expected)
    for view in made if isinstance(made, (tuple, list)) else (made,):
        assert view.storage is ours.storage


@pytest.mark.parametrize("name", VIEWS)
def test_writes_are_seen_through_a_view_both_ways_and_counted(name: str) -> None:
    ours, _ = pair(2, 3, 4)
    views = VIEWS[name](ours)
    view = views[0] if isinstance(views, (tuple, list)) else views
    before = ours.torch()._version
    ours.fill_(7)
    assert view.torch()._version == ours.torch()._version == before + 1, "one version counter a storage"
    assert bool((view == view.torch().flatten()[0].item()).all())
    view.zero_()
    assert ours.torch()._version == before + 2
    assert int((ours == 0).sum()) == len({int(p) for p in _addresses(view)})


def _addresses(view: Tensor) -> list[int]:
    sizes, strides = view.meta.shape, view.meta.strides
    return [sum(i * s for i, s in zip(at, strides, strict=True)) for at in itertools.product(*map(range, sizes))]


def test_a_view_makes_no_torch_handle_until_it_is_needed() -> None:
    ours, _ = pair(2, 3, 4)
    view = ours.transpose(0, 1)[1:].unsqueeze(0)
    assert view._handle is None and tuple(view.shape) == (1, 2, 2, 4)
    assert view.torch() is view.torch()


def test_view_fails_as_torchs_does() -> None:
    ours, theirs = pair(2, 3)
    with pytest.raises(RuntimeError) as expected:
        theirs.t().view(6)
    with pytest.raises(RuntimeError) as error:
        ours.t().view(6)
    assert str(error.value) == str(expected.value)
    assert_same(ours.t().reshape(6), theirs.t().reshape(6))
    with pytest.raises(RuntimeError, match=r"shape '\[4, -1\]' is invalid for input of size 6"):
        ours.view(4, -1)


def test_contiguous_and_to_return_the_tensor_itself_where_nothing_changes() -> None:
    ours, theirs = pair(2, 3)
    assert ours.contiguous() is ours and ours.to(torch.float32) is ours and ours.cpu() is ours and ours.to("cpu") is ours
    assert_same(ours.t().contiguous(), theirs.t().contiguous())
    assert_same(ours.t().to(torch.float64), theirs.t().to(torch.float64))
    assert_same(ours.to("meta"), theirs.to("meta"))
    assert_same(ours.half(), theirs.half())
    assert_same(ours.to(ours.bool()), theirs.to(theirs.bool()))


# --- indexing ---

INDICES: dict[str, Any] = {
    "int": 1, "negative": -1, "two ints": (1, 2), "all": (1, 2, 3), "slice": slice(1, None), "full": slice(None),
    "empty slice": slice(2, 1), "beyond": slice(0, 99), "negative slice": slice(-2, None), "step": (0, slice(None, None, 3)),
    "ellipsis": ..., "ellipsis first": (..., 1), "ellipsis last": (1, ...), "ellipsis between": (1, ..., slice(0, 2)),
    "none": None, "nones": (None, 0, None, slice(1, 2), None), "nothing": (), "none after ellipsis": (..., None),
    "list": [0, 1, 1], "mask": torch.tensor([True, False]), "tensor": torch.tensor([1, 0]), "mixed": (slice(None), [0, 2]),
    "bool": True, "two lists": ([0, 1], [1, 2]), "list then none": ([0], None), "numpy": np.array([1, 0]), "numpy int": np.int64(1),
    "0-d tensor": torch.tensor(1),
}  # fmt: skip


@pytest.mark.parametrize("name", INDICES)
def test_getitem(name: str) -> None:
    ours, theirs = pair(2, 3, 4)
    made, expected = ours[INDICES[name]], theirs[INDICES[name]]
    assert_same(made, expected)
    assert made is not ours
    shares = expected.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr()
    assert (made.storage is ours.storage) == shares


@pytest.mark.parametrize("name", INDICES)
def test_setitem(name: str) -> None:
    ours, theirs = pair(2, 3, 4)
    ours[INDICES[name]], theirs[INDICES[name]] = 9, 9
    assert_same(ours, theirs)


def test_an_index_of_ours() -> None:
    ours, theirs = pair(2, 3)
    assert_same(ours[ours > 2], theirs[theirs > 2])
    assert_same(ours[:, from_torch(torch.tensor([2, 0]))], theirs[:, torch.tensor([2, 0])])


@pytest.mark.parametrize(
    "index",
    [5, -3, (0, 3), (0, 0, 0), (..., 7), (None, ..., 7), (0, ..., 7), slice(None, None, -1), slice(None, None, 0), 1.5, "a"],
    ids=repr,
)
def test_bad_indices_fail_as_torchs_do(index: Any) -> None:
    ours, theirs = pair(2, 3, 4) if isinstance(index, tuple) and ... in index else pair(2, 3)
    with pytest.raises(Exception) as expected:
        theirs[index]
    with pytest.raises(type(expected.value)) as error:
        ours[index]
    assert str(error.value) == str(expected.value)


@pytest.mark.parametrize("index", [0, slice(None), (0, 0)], ids=repr)
def test_bad_indices_of_a_scalar_fail_as_torchs_do(index: Any) -> None:
    with pytest.raises(IndexError) as expected:
        torch.tensor(1.0)[index]
    with pytest.raises(IndexError) as error:
        factories.tensor(1.0)[index]
    assert str(error.value) == str(expected.value)


# --- metadata, values ---


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.size(), lambda t: t.size(-1), lambda t: t.stride(0), lambda t: t.dim(), lambda t: t.ndim, lambda t: t.numel(),
        lambda t: t.element_size(), lambda t: t.itemsize, lambda t: t.nbytes, lambda t: t.is_contiguous(), lambda t: t.is_cuda,
        lambda t: t.storage_offset(), lambda t: t.is_floating_point(), lambda t: t.is_complex(), lambda t: t.requires_grad,
        lambda t: t.layout, lambda t: t.is_meta, lambda t: len(t), lambda t: t.tolist(), lambda t: t.shape, lambda t: t.stride(),
        lambda t: t.is_contiguous(memory_format=torch.channels_last), lambda t: [r.tolist() for r in t], lambda t: 3.0 in t,
        lambda t: repr(t), lambda t: str(t), lambda t: f"{t[0, 0]:.2f}", lambda t: t.nelement(), lambda t: t[0, 0].item(),
        lambda t: float(t[1, 1]), lambda t: int(t[1, 1]), lambda t: bool(t[0, 0]), lambda t: complex(t[1, 1]), lambda t: t is None,
        lambda t: list(range(50))[t.long()[0, 1]], lambda t: t.numpy().tolist(), lambda t: np.asarray(t).tolist(),
    ],
)  # fmt: skip
def test_reads_as_torch(read: Any) -> None:
    ours, theirs = pair(3, 4)
    for change in (lambda t: t, lambda t: t.t()[1:]):
        got, expected = read(change(ours)), read(change(theirs))
        assert got == expected and type(got) is type(expected)


@pytest.mark.parametrize(
    "fn", [bool, int, float, len, iter, lambda t: t.item(), lambda t: t.size(3), lambda t: t + "x", lambda t: t + None]
)
@pytest.mark.parametrize("shape", [(), (2,), (2, 2)], ids=str)
def test_misuse_fails_as_torchs_does(fn: Any, shape: tuple[int, ...]) -> None:
    ours, theirs = pair(*shape)
    try:
        expected = fn(theirs)
    except Exception as e:
        with pytest.raises(type(e)) as error:
            fn(ours)
        assert str(error.value) == str(e)
    else:
        got = fn(ours)
        assert got == expected or hasattr(got, "__next__")


def test_tensors_hash_by_identity() -> None:
    ours, _ = pair(2)
    assert {ours: 1}[ours] == 1 and ours[:] not in {ours: 1}


# --- storage ---


def test_a_tensor_on_a_storage() -> None:
    storage = Storage(24)
    meta = TensorMeta((2, 3), (1, 2), torch.float32, Device("cpu"))
    t = Tensor(storage, meta)
    t.fill_(3)
    row = Tensor(storage, TensorMeta((6,), (1,), torch.float32, Device("cpu")))
    assert row.tolist() == [3.0] * 6 and row.storage is t.storage is storage
    assert t.data_ptr() == storage.data_ptr() == t.torch().data_ptr() and len(storage) == 24
    with pytest.raises(RuntimeError, match="needs 28 bytes"):
        Tensor(storage, TensorMeta((2, 3), (3, 1), torch.float32, Device("cpu"), 1))


def test_a_meta_storage_has_a_size_and_no_data() -> None:
    storage = Storage(1 << 50, "meta")
    assert (storage.nbytes, storage.data_ptr(), storage.device.type) == (1 << 50, 0, "meta")
    with pytest.raises(NotImplementedError, match="no data"):
        _ = storage.untyped


def test_storages_are_one_object_as_long_as_somebody_holds_them() -> None:
    base = torch.ones(4)
    first = from_torch(base).storage
    assert from_torch(base[1:]).storage is first
    del first
    gc.collect()
    assert from_torch(base).storage.nbytes == 16
    base.untyped_storage().resize_(32)
    assert from_torch(base).storage.nbytes == 32
    with pytest.raises(RuntimeError, match="can't have -1 bytes"):
        Storage(-1)


# --- other libraries ---


def test_from_torch_and_back_is_the_same_object_on_the_same_memory() -> None:
    theirs = torch.ones(2, 3)
    ours = from_torch(theirs)
    assert ours.torch() is theirs
    ours.add_(1)
    assert theirs.tolist() == [[2.0] * 3] * 2
    with pytest.raises(TypeError, match="takes a torch.Tensor, not list"):
        from_torch([1])  # type: ignore[arg-type]


OF_SCALARS = (
    0, 1, -1, np.int64(0), np.int64(1), torch.tensor(0), torch.tensor(1), (0,), (1,), (torch.tensor(0),), slice(None), slice(1),
    (slice(None),), (None, 0), (..., 0), [0], ([0],), True, None, ..., (None, ...),
)  # fmt: skip


@pytest.mark.parametrize("index", OF_SCALARS, ids=str)
def test_indices_of_scalars(index: Any) -> None:
    """Mostly errors, in torch's words."""
    theirs, ours = torch.tensor(1.0), from_torch(torch.tensor(1.0))
    try:
        want = theirs[index]
    except IndexError as error:
        for use in (lambda t: t[index], lambda t: t.__setitem__(index, 2.0)):
            with pytest.raises(IndexError) as caught:
                use(ours)
            assert str(caught.value) == str(error)
    else:
        assert torch.equal(ours[index].torch(), want)


def test_numpy_and_back_without_copy() -> None:
    array = np.arange(6.0).reshape(2, 3)
    ours = factories.from_numpy(array)
    ours[0, 0] = 9
    assert array[0, 0] == 9
    back = ours.t().numpy()
    back[0, 0] = 4
    assert array[0, 0] == 4 and np.shares_memory(np.asarray(ours), array)
    assert np.asarray(ours, dtype=np.float32).dtype == np.float32
    assert not np.shares_memory(np.array(ours, copy=True), array)
    assert np.array(ours.reshape(2, -1).T).strides == np.array(ours.torch().reshape(2, -1).T).strides


ARRAYS = {
    "asarray": np.asarray, "array": np.array, "a dtype": lambda t: np.asarray(t, np.float64), "ufunc": np.sin,
    "stack": lambda t: np.stack([t, t]), "numpy": lambda t: t.numpy(), "dlpack": torch.from_dlpack,
}  # fmt: skip
KINDS = {
    "requires grad": lambda t: t.requires_grad_(), "on the tape": lambda t: t.requires_grad_() * 2, "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(), "bfloat16": lambda t: t.bfloat16(),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ARRAYS)
def test_arrays_of_what_torch_makes_none_of_are_refused_in_torchs_words(way: str, kind: str) -> None:
    """Gradients would be lost without a word."""
    theirs, ours = (KINDS[kind](t) for t in (torch.ones(3), factories.ones(3)))
    try:
        ARRAYS[way](theirs)
    except Exception as error:
        with pytest.raises(type(error)) as caught:
            ARRAYS[way](ours)
        assert str(caught.value) == str(error)
    else:
        ARRAYS[way](ours)


def test_dlpack_both_ways_without_copy() -> None:
    ours, _ = pair(2, 3)
    theirs = torch.from_dlpack(ours)
    theirs[0, 0] = 9
    assert ours[0, 0].item() == 9
    assert np.shares_memory(np.from_dlpack(ours), theirs.numpy())
    again = factories.from_dlpack(theirs)
    assert again.data_ptr() == ours.data_ptr()


def test_small_calls_run_once() -> None:
    """The short way runs a function only where it will give its result: what draws numbers, or takes time, runs once."""
    x = from_torch(torch.ones(64))
    for _ in range(3):
        torch.manual_seed(0)
        mine = torch.native_dropout(x, 0.5, True)
        torch.manual_seed(0)
        theirs = torch.native_dropout(x.torch(), 0.5, True)
        assert all(torch.equal(m.torch(), t) for m, t in zip(mine, theirs, strict=True))
