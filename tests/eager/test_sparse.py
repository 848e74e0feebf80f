"""Sparse tensors of ours: made, used through torch's functions, differentiated, refused by what is strided."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tinycompile.eager.sparse import SparseTensor
from tinycompile.eager.tensor import Tensor, from_torch

pytestmark = pytest.mark.cpu

DENSE = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 1.0]])
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "coo": lambda d: d.to_sparse(),
    "csr": lambda d: d.to_sparse_csr(),
    "csc": lambda d: d.to_sparse_csc(),
    "bsr": lambda d: d.to_sparse_bsr((1, 3)),
    "bsc": lambda d: d.to_sparse_bsc((2, 1)),
}


def same(ours: Any, theirs: Any) -> None:
    if not isinstance(theirs, torch.Tensor):
        assert ours == theirs
        return
    assert isinstance(ours, SparseTensor) == (theirs.layout is not torch.strided)
    assert (ours.layout, ours.dtype, tuple(ours.shape)) == (theirs.layout, theirs.dtype, tuple(theirs.shape))
    assert torch.equal(ours.detach().to_dense().torch(), theirs.detach().to_dense())


def gap(s: Any) -> Any:
    """What else is there of s's class: 0 and 1 as indices."""
    return tc.tensor([0, 1]) if isinstance(s, Tensor) else torch.tensor([0, 1])


USES: dict[str, Callable[[Any, Any], Any]] = {
    "sum of two": lambda s, d: s + s,
    "times a number": lambda s, d: s * 2,
    "matrix product": lambda s, d: s @ d,
    "torch.mm": lambda s, d: torch.mm(s, d),
    "torch.sparse.mm": lambda s, d: torch.sparse.mm(s, d),
    "dense": lambda s, d: s.to_dense() + 1,
    "nnz": lambda s, d: s._nnz(),
    "sum": lambda s, d: s.sum(),
    "dtype": lambda s, d: s.to(torch.float64),
    "transpose": lambda s, d: s.t(),
    "relu": lambda s, d: torch.relu(s),
    "neg": lambda s, d: -s,
    "clone": lambda s, d: s.clone(),
    "device": lambda s, d: s.device == torch.device("cpu"),
    "item": lambda s, d: s[0],
    "slice": lambda s, d: s[:, 1:],
    "new dim": lambda s, d: s[None],
    "indices": lambda s, d: s[gap(s)],
    "rows": lambda s, d: list(s)[0],
    "row into dense": lambda s, d: d.clone().__setitem__(0, s[:, 0].to_dense()),
    "split": lambda s, d: s.split(1)[0],
    "narrow": lambda s, d: s.narrow(0, 0, 1),
    "index_select": lambda s, d: s.index_select(0, gap(s)),
    "unsqueeze": lambda s, d: s.unsqueeze(0),
    "view": lambda s, d: s.view(-1),
    "reshape": lambda s, d: s.reshape(-1),
    "permute": lambda s, d: s.permute(1, 0),
    "expand": lambda s, d: s.expand(2, 3),
    "contiguous": lambda s, d: s.contiguous(),
    "detach": lambda s, d: s.detach(),
    "dense product": lambda s, d: d.t() @ s.t(),
    "times dense": lambda s, d: s * (d.t() * 1),
    "dense times": lambda s, d: (d.t() * 1) * s,
    "plus dense": lambda s, d: d.t() + s,
    "mask": lambda s, d: d.t().sparse_mask(s),
    "addmm": lambda s, d: torch.addmm(d[:2], s, d),
    "linear": lambda s, d: F.linear(d.t(), s),
    "cat": lambda s, d: torch.cat([s, s]),
    "softmax": lambda s, d: torch.sparse.softmax(s, 1),
    "sum of a dim": lambda s, d: torch.sparse.sum(s, 0),
    "values": lambda s, d: s.coalesce().values() * 2,
    "zeros_like": lambda s, d: torch.zeros_like(s),
    "gelu": lambda s, d: F.gelu(s),
    "where": lambda s, d: torch.where(d.t() > 0, s, d.t()),
    "in place": lambda s, d: s.clone().mul_(2),
    "into dense": lambda s, d: d.t().clone().add_(s),
    "copied": lambda s, d: torch.zeros_like(d.t()).copy_(s),
    "compared": lambda s, d: s > 1,
    "norm": lambda s, d: s.norm(),
    "truth": lambda s, d: bool(s.sum()),
    "other layout": lambda s, d: s.to_sparse_csr(),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("use", USES)
def test_as_torch(use: str, layout: str) -> None:
    sparse, dense = LAYOUTS[layout](DENSE), torch.ones(3, 2)
    ours, right = from_torch(sparse), from_torch(dense)
    try:
        want = USES[use](sparse, dense)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)):
            USES[use](ours, right)
        return
    same(USES[use](ours, right), want)


def told(found: Any) -> Any:
    """A result in plain words; tensors of both classes alike."""
    if not isinstance(found, (Tensor, torch.Tensor)):
        return found
    plain = found.detach()
    plain = plain.torch() if isinstance(plain, Tensor) else plain
    return plain.layout, plain.dtype, tuple(plain.shape), plain.to_dense().tolist(), found.requires_grad


def differentiated(call: Callable[[], list[Any]], *leaves: Any) -> list[Any]:
    """What a call gives, and the gradients that its last result gives to the leaves; or how it was refused."""
    try:
        made = call()
        outcome, found = list(map(told, made)), made[-1]
        if isinstance(found, (Tensor, torch.Tensor)) and found.requires_grad:
            flat = found if found.layout is torch.strided else found.to_dense()
            (flat * flat).sum().backward()
            outcome += [told(t.grad) for t in leaves]
    except (RuntimeError, NotImplementedError, TypeError, IndexError) as error:
        return [type(error), str(error).splitlines()[0][:60]]
    return outcome


def done(use: Callable[..., Any], sparse: torch.Tensor, grad: str, ours: bool) -> list[Any]:
    """The result, and gradients of its squares; of an error its class and its first line."""
    wrap = from_torch if ours else lambda t: t
    s, d = wrap(sparse.clone()), wrap(torch.arange(1.0, 7.0).reshape(3, 2))
    s, d = s.requires_grad_("s" in grad), d.requires_grad_("d" in grad)
    return differentiated(lambda: [use(s, d)], s, d)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("use", USES)
def test_on_a_tape_and_compiled(use: str, layout: str) -> None:
    """Values, layouts, gradients and errors are torch's: no kernel of ours, and no stride arithmetic, has met them."""
    sparse, compiled = LAYOUTS[layout](DENSE), tc.compile(USES[use])
    for grad in ("", "s", "d", "sd"):
        want = done(USES[use], sparse, grad, ours=False)
        assert done(USES[use], sparse, grad, ours=True) == want, grad
        for ours in (False, True):
            assert done(compiled, sparse, grad, ours) == want, f"compiled, {grad}"


def built(layout: str, values: Any) -> Any:
    """The tensor, by the constructor of ``values``'s library."""
    m, wrap = (tc, from_torch) if isinstance(values, Tensor) else (torch, lambda t: t)
    like = LAYOUTS[layout](DENSE)
    if layout == "coo":
        return m.sparse_coo_tensor(wrap(like.coalesce().indices()), values, (2, 3))
    rows = layout in ("csr", "bsr")
    parts = (like.crow_indices(), like.col_indices()) if rows else (like.ccol_indices(), like.row_indices())
    return getattr(m, f"sparse_{layout}_tensor")(*map(wrap, parts), values, (2, 3))


BUILT: dict[str, Callable[[str, Any, Any], Any]] = {
    "of values": lambda layout, values, dense: built(layout, values),
    "of values that are computed": lambda layout, values, dense: built(layout, values * 2),
    "of a dense tensor": lambda layout, values, dense: LAYOUTS[layout](dense),
    "of a computed dense tensor": lambda layout, values, dense: LAYOUTS[layout](dense * 2),
}


def done_with_made(layout: str, how: str, use: str, grad: str, ours: bool) -> list[Any]:
    """As :func:`done`, of a sparse tensor that was made of dense ones, with their gradients."""
    like = LAYOUTS[layout](DENSE)
    held = like.coalesce().values() if layout == "coo" else like.values()
    given = [t.clone() for t in (held, DENSE, torch.arange(1.0, 7.0).reshape(3, 2))]
    values, dense, d = map(from_torch, given) if ours else given
    for t, name in ((values, "s"), (dense, "s"), (d, "d")):
        t.requires_grad_(name in grad)

    def made() -> list[Any]:
        s = BUILT[how](layout, values, dense)
        return [s, USES[use](s, d)]

    return differentiated(made, values, dense, d)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", BUILT)
@pytest.mark.parametrize("use", USES)
def test_gradients_through_what_makes_them(use: str, how: str, layout: str) -> None:
    for grad in ("s", "d", "sd"):
        want = done_with_made(layout, how, use, grad, ours=False)
        assert done_with_made(layout, how, use, grad, ours=True) == want, grad


AT, ENDS = torch.tensor([0, 2, 2]), torch.tensor([0, 1])
GIVE_SPARSE: dict[str, Callable[[Any], Any]] = {
    "embedding": lambda w: F.embedding(AT, w, sparse=True) * 2,
    "by position": lambda w: F.embedding(AT, w, None, None, 2.0, False, True) + 1,
    "beside dense": lambda w: F.embedding(AT, w, sparse=True) * 2 + F.embedding(AT, w),
    "of a result": lambda w: F.embedding(AT, w * 2, sparse=True) + 1,
    "torch.embedding": lambda w: torch.embedding(w, AT, -1, False, True) + 1,
    "bag": lambda w: F.embedding_bag(AT, w, ENDS, sparse=True, mode="sum") + 1,
    "torch.embedding_bag": lambda w: torch.embedding_bag(w, AT, ENDS, False, 0, True)[0],
    "gather": lambda w: torch.gather(w, 0, AT[:, None], sparse_grad=True) * 2,
    "method": lambda w: w.gather(0, AT[:, None], sparse_grad=True) * 2,
    "there and back": lambda w: (w * 2).to_sparse().to_dense() * 3,
    "to CSR": lambda w: (w * 2 + 1).to_sparse_csr().to_dense() * w,
    "masked": lambda w: (w.sigmoid() * w).sparse_mask(torch.eye(4, 2).to_sparse()).to_dense() + 1,
    "times sparse": lambda w: (torch.eye(4, 2).to_sparse() * (w.exp() + w)).to_dense() + 1,
}


@pytest.mark.parametrize("ours", [False, True], ids=["torch", "ours"])
@pytest.mark.parametrize("name", GIVE_SPARSE)
def test_compiled_functions_with_sparse_gradients(name: str, ours: bool) -> None:
    """They had been taken for dense in the compiled backward."""
    found = []
    for fn in (GIVE_SPARSE[name], tc.compile(GIVE_SPARSE[name])):
        weight = torch.arange(8.0).reshape(4, 2)
        weight = (from_torch(weight) if ours else weight).requires_grad_()
        for _ in range(2):
            out = fn(weight)
            out.sum().backward()
        found.append((told(out), told(weight.grad)))
    (out, grad), (compiled_out, compiled_grad) = found
    assert grad[0] is compiled_grad[0], "the layout"
    for want, got in ((out, compiled_out), (grad, compiled_grad)):
        torch.testing.assert_close(torch.tensor(got[3]), torch.tensor(want[3]))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad])
def test_steps_with_sparse_gradients(kind: Any) -> None:
    weights = []
    for compiled in (False, True):
        torch.manual_seed(0)
        layer = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = kind(layer.parameters(), lr=0.1)

        def step() -> Any:
            optimizer.zero_grad()
            loss = (layer(AT) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = tc.compile(step) if compiled else step
        for _ in range(3):
            run()
        weights.append(layer.weight.detach().clone())
        assert layer.weight.grad.layout is torch.sparse_coo
    torch.testing.assert_close(*weights)


def test_made_by_hand() -> None:
    coo = tc.sparse_coo_tensor([[0, 1, 1], [1, 0, 2]], [2.0, 3.0, 1.0], (2, 3))
    csr = tc.sparse_csr_tensor([0, 1, 3], [1, 0, 2], [2.0, 3.0, 1.0], (2, 3))
    for made in (coo, csr, from_torch(DENSE).to_sparse()):
        assert isinstance(made, SparseTensor) and made.shape == (2, 3) and made.ndim == made.dim() == 2
        assert torch.equal(made.to_dense().torch(), DENSE) and made.size(1) == 3 and made.numel() == 6
        assert repr(made).startswith("tensor(") and "sparse" in repr(made)
    assert torch.equal(pickle.loads(pickle.dumps(coo)).to_dense().torch(), DENSE)
    assert coo.is_sparse and csr.is_sparse_csr and torch.equal(coo.coalesce().values().torch(), torch.tensor([2.0, 3.0, 1.0]))


def test_there_are_no_strides_and_no_storage() -> None:
    coo, csr = from_torch(DENSE.to_sparse()), from_torch(DENSE.to_sparse_csr())
    for ask in (lambda: csr.strides, lambda: csr.stride(), lambda: coo.storage, lambda: coo.view(6)):
        with pytest.raises((RuntimeError, NotImplementedError)):
            ask()


def test_gradients_of_dense_and_sparse_operands() -> None:
    found = []
    for wrap in (lambda t: t, from_torch):
        s, d = wrap(DENSE.to_sparse()).requires_grad_(), wrap(torch.ones(3, 2)).requires_grad_()
        (torch.sparse.mm(s, d) ** 2).sum().backward()
        found.append((s.grad, d.grad))
    for theirs, ours in zip(*found, strict=True):
        same(ours, theirs)


def test_sparse_gradients_of_dense_leaves_add_up() -> None:
    found = []
    for wrap in (lambda t: t, from_torch):
        weight, at = wrap(torch.ones(4, 2)).requires_grad_(), wrap(torch.tensor([0, 2, 2]))
        F.embedding(at, weight, sparse=True).sum().backward()
        first = weight.grad
        F.embedding(at, weight, sparse=True).sum().backward()
        both = weight.grad
        (weight * 2).sum().backward()
        found.append((first, both, weight.grad))
    for theirs, ours in zip(*found, strict=True):
        same(ours, theirs)


def test_dense_to_sparse_and_back_on_the_tape() -> None:
    x = from_torch(DENSE.clone()).requires_grad_()
    ((x * 2).to_sparse().to_dense() * 3).sum().backward()
    t = DENSE.clone().requires_grad_()
    ((t * 2).to_sparse().to_dense() * 3).sum().backward()
    assert isinstance(x.grad, Tensor) and torch.equal(x.grad.torch(), t.grad)


@pytest.mark.parametrize("ours", [False, True], ids=["torch", "ours"])
def test_compiled_functions_leave_them_to_torch(ours: bool) -> None:
    def fn(s: Any, d: Any) -> Any:
        return torch.sparse.mm(s, d) * 2

    s, d = DENSE.to_sparse(), torch.ones(3, 2)
    args = (from_torch(s), from_torch(d)) if ours else (s, d)
    got = tc.compile(fn)(*args)
    assert torch.equal(got.torch() if ours else got, fn(s, d))


# --- what else there is of torch's -------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "matrix product": lambda s: (s @ (tc if isinstance(s, Tensor) else torch).ones(3, 2)).sum(),
    "of a multiple": lambda s: (s * 2).to_dense().sum(),
    "squared": lambda s: (s * s).to_dense().sum(),
    "to dense": lambda s: (s.to_dense() ** 3).sum(),
    "constant": lambda s: (tc if isinstance(s, Tensor) else torch).ones(2).sum(),
}


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_transforms_differentiate_for_them(name: str, layout: str) -> None:
    fn, theirs = FUNCTIONS[name], LAYOUTS[layout](DENSE)
    leaf = theirs.clone().requires_grad_()
    found = fn(leaf)  # (torch.func has no rules for some)
    expected = torch.autograd.grad(found, leaf)[0] if found.requires_grad else torch.zeros_like(theirs)
    ours = from_torch(theirs)
    grad, value = tc.func.grad_and_value(fn)(ours)
    assert torch.equal(_dense(grad), expected.to_dense()) and not grad.requires_grad
    assert torch.equal(value.torch(), fn(theirs)) and not value.requires_grad and not ours.requires_grad
    if name == "constant":
        return
    result, pull_back = tc.func.vjp(fn, ours)
    assert not result.requires_grad and torch.equal(_dense(pull_back(tc.tensor(1.0))[0]), expected.to_dense())


def _dense(grad: Any) -> torch.Tensor:
    return grad.detach().to_dense().torch()


def test_a_derivative_for_one_of_several() -> None:
    def f(s, d):
        return ((s @ d) ** 2).sum()

    s, d = DENSE.to_sparse(), torch.arange(6.0).reshape(3, 2)
    leaf, other = s.clone().requires_grad_(), d.clone().requires_grad_()
    expected = torch.autograd.grad(f(leaf, other), (leaf, other))
    for argnums in (0, 1, (0, 1)):
        found = tc.func.grad(f, argnums)(from_torch(s), from_torch(d))
        for grad, at in zip(found if isinstance(found, tuple) else (found,), (argnums,) if argnums in (0, 1) else argnums):
            assert torch.equal(_dense(grad), expected[at].to_dense())


MADE: dict[str, Callable[[Any], Any]] = {
    "size alone": lambda m: m.sparse_coo_tensor((2, 3)),
    "size by keyword": lambda m: m.sparse_coo_tensor(size=(2, 3), dtype=torch.float64),
    "all by keyword": lambda m: m.sparse_coo_tensor(indices=m.tensor([[0], [1]]), values=m.tensor([2.0]), size=(2, 3)),
    "csr": lambda m: m.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 4)),
    "csc": lambda m: m.sparse_csc_tensor([0, 1, 2], [0, 1], [1.0, 2.0]),
    "bsr": lambda m: m.sparse_bsr_tensor([0, 1, 2], [0, 1], [[[1.0]], [[2.0]]]),
    "bsc": lambda m: m.sparse_bsc_tensor([0, 1, 2], [0, 1], [[[1.0]], [[2.0]]], requires_grad=True),
    "by layout": lambda m: m.sparse_compressed_tensor([0, 1, 2], [0, 1], [1.0, 2.0], layout=torch.sparse_csr),
}


@pytest.mark.parametrize("name", MADE)
def test_constructors(name: str) -> None:
    ours, theirs = MADE[name](tc), MADE[name](torch)
    same(ours, theirs)
    assert ours.requires_grad == theirs.requires_grad


def test_a_call_without_arguments_is_refused_as_torch_refuses_it() -> None:
    with pytest.raises(TypeError, match="invalid combination of arguments"):
        tc.sparse_coo_tensor()


@pytest.mark.parametrize("kind", ["coo", "csr", "dense"])
@pytest.mark.parametrize("name", ["_indices", "_values", "_nnz", "nbytes", "data_ptr"])
def test_what_torch_answers_of_its_parts(name: str, kind: str) -> None:
    def ask(t: Any) -> Any:
        found = getattr(t, name)
        found = found() if callable(found) else found
        return found.tolist() if hasattr(found, "tolist") else found

    theirs = LAYOUTS[kind](DENSE) if kind != "dense" else DENSE
    ours = from_torch(theirs)
    try:
        expected = ask(theirs)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)) as raised:
            ask(ours)
        assert str(raised.value).split("\n")[0] == str(error).split("\n")[0]
    else:
        assert ask(ours) == expected


def test_torchs_constructors_say_what_keeps_gradients() -> None:
    at, values = tc.tensor([[0, 1], [1, 0]]), tc.ones(2, requires_grad=True)
    for made in (
        lambda: torch.sparse_coo_tensor(at, values, (2, 2)),
        lambda: torch.sparse_csr_tensor(tc.tensor([0, 1, 2]), tc.tensor([1, 0]), values, (2, 2)),
        lambda: torch.from_dlpack(values),
    ):
        with pytest.raises(BufferError, match="use tensor.detach") as raised:
            made()
        assert "tinycompile.sparse_coo_tensor" in raised.value.__notes__[0]
    tc.sparse_coo_tensor(at, values, (2, 2)).to_dense().sum().backward()
    assert values.grad.tolist() == [1, 1]
