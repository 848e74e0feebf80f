"""vmap: every record's samples against one call an example and against ``torch.vmap``; nesting, gradients, writes, randomness."""

from __future__ import annotations

import functools
import itertools
import math
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tests.lower.support import bind_sample, leaves
from tinycompile.base.device import Device
from tinycompile.base.errors import FallbackWarning
from tinycompile.dispatch import dispatcher
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops.record import OPS, Op

pytestmark = [
    pytest.mark.pure,
    pytest.mark.filterwarnings("ignore:vmap calls", "ignore:.*degrees of freedom", "ignore:reduction", "ignore:There is a"),
]

FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"
EXAMPLES = 3
# No values to compare, or ops of generated code that the public ones are made of.
LEFT_OUT = {
    "empty", "empty_like", "rand_like", "randn_like", "dropout", "native_dropout", "bernoulli", "rand", "randn",
    "random_seeds",
}  # fmt: skip
TOLERANCE = {
    torch.float16: {"rtol": 5e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 2e-2, "atol": 3e-2},
    torch.float32: {"rtol": 1e-5, "atol": 3e-5},
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
}


def examples(value: Any) -> Any:
    """Several of a sample's tensor along a new dim 0."""
    if isinstance(value, torch.Tensor):
        other = value.flip(0) if value.ndim and value.is_floating_point() else value.clone()
        return torch.stack([value, other, value.clone()])
    return tuple(examples(v) for v in value) if isinstance(value, tuple) else value


def in_dims_of(value: Any) -> Any:
    """0 for each tensor, nested as they are; nothing is mapped over what is no tensor."""
    if type(value) in (tuple, list):
        return type(value)(map(in_dims_of, value))
    return 0 if isinstance(value, torch.Tensor) else None


def mapped(value: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return fn(value)
    return tuple(mapped(v, fn) for v in value) if isinstance(value, tuple) else value


def has_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, tuple) and any(map(has_tensors, value)))


def outcome(fn: Callable[[], Any]) -> Any:
    try:
        return list(leaves(fn()))
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
        return error


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return False
    return torch.allclose(got, want, equal_nan=True, **TOLERANCE.get(want.dtype, {"rtol": 0, "atol": 0}))


def check(
    op: Op, args: tuple[Any, ...], batched: tuple[int, ...], fn: Callable[..., Any] | None = None, **options: Any
) -> None:
    """``vmap`` of a record (or of ``fn``, which calls it) against one call an example."""
    fn = fn or (lambda *a: dispatcher.call_bound(op.name, a))
    given = [examples(a) if i in batched else a for i, a in enumerate(args)]
    theirs = [a.torch() if isinstance(a, Device) else a for a in given]

    def one(i: int) -> Any:
        return op.eager(*(mapped(a, lambda t: t[i]) if k in batched else a for k, a in enumerate(theirs)))

    def at_once() -> Any:
        return torch.vmap(
            lambda *some: op.eager(*(some[batched.index(k)] if k in batched else a for k, a in enumerate(theirs)))
        )(*(theirs[k] for k in batched))

    dims = tuple(in_dims_of(a) if k in batched else None for k, a in enumerate(given))
    got = outcome(lambda: tc.vmap(fn, dims, **options)(*(mapped(a, from_torch) for a in given)))
    each = [outcome(lambda i=i: one(i)) for i in range(EXAMPLES)]  # type: ignore[misc]
    if isinstance(each[0], Exception):  # torch's own vmap may word it by all examples' dims
        assert type(got) in (type(each[0]), type(outcome(at_once))) and isinstance(got, Exception), got
        return
    assert not isinstance(got, Exception), got
    want = [torch.stack(column) for column in zip(*each, strict=True)]
    mine = [g.torch() for g in got]
    if not all(map(close, mine, want)):  # SIMD kernels can differ between sizes: torch's own vmap says so too
        want = outcome(at_once)
        assert not isinstance(want, Exception) and all(map(close, mine, want)), f"{mine}\n{want}"


@pytest.mark.parametrize("name", sorted(OPS.keys() - LEFT_OUT))
def test_every_record(name: str) -> None:
    op = OPS[name]
    samples = list(op.samples())
    for i, sample in enumerate(samples):
        if not FULL and i not in (0, 1, len(samples) - 1):
            continue
        torch.manual_seed(0)
        args = bind_sample(op, sample)
        at = tuple(k for k, a in enumerate(args) if has_tensors(a))
        for batched in [at, *((k,) for k in at if len(at) > 1)]:
            if batched:
                check(op, args, batched)


def test_nothing_common_is_called_once_an_example() -> None:
    x, w = tc.randn(3, 2, 4, 4), tc.randn(3, 4, 4)
    with pytest.warns(FallbackWarning, match="vmap calls cdist once for each example"):
        got = tc.vmap(lambda x: torch.cdist(x, x + 1))(x)
    torch.testing.assert_close(got.torch(), torch.cdist(x.torch(), x.torch() + 1))

    def block(x: Any, w: Any) -> Any:
        h = F.gelu(F.layer_norm(x @ w, (4,))).softmax(-1)
        return F.scaled_dot_product_attention(h[None], h[None], h[None])[0].sum(0), h.argmax(-1), h.split(2, -1)[0].max(0)[0]

    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for g, t in zip(tc.vmap(block)(x, w), torch.vmap(block)(x.torch(), w.torch()), strict=True):
            torch.testing.assert_close(g.torch(), t)


# --- factories of a tensor ---------------------------------------------------------------------------------------------------

FACTORIES: dict[str, Callable[[Any], Any]] = {
    "new_zeros": lambda x: x.new_zeros(2, 4),
    "new_zeros of a list": lambda x: x.new_zeros([2, 4], dtype=torch.float64),
    "new_ones": lambda x: x.new_ones((2, 4)),
    "new_full": lambda x: x.new_full((2, 4), 3.0),
    "new_full by name": lambda x: x.new_full(size=(2, 4), fill_value=3),
    "new_empty": lambda x: x.new_empty(2, 4),
    "new_empty_strided": lambda x: x.new_empty_strided((2, 4), (1, 2)),
    "new_empty_strided with gaps": lambda x: x.new_empty_strided((2, 4), (2, 8), dtype=torch.float64),
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 2, dtype=torch.float64),
    "empty_like": torch.empty_like,
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 5),
}
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "copy_": lambda made, x: made.copy_(x),
    "fill_ and add_": lambda made, x: made.zero_().add_(x),
    "item": lambda made, x: setitem(made.fill_(1), (slice(None), slice(1, 3)), x[:, 1:3]),
    "view": lambda made, x: setitem(made.fill_(1).select(1, 0), slice(None), x[:, 0]),
}


def setitem(target: Any, index: Any, value: Any) -> Any:
    target[index] = value
    return target


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", FACTORIES)
def test_what_a_factory_makes_of_an_example_can_be_written_to(name: str, write: str) -> None:
    """A new tensor of a batched one has memory for each example, as torch's."""
    x, xs = torch.randn(3, 2, 4), torch.randn(2, 3, 2, 4)

    def one(x: Any) -> Any:
        return WRITES[write](FACTORIES[name](x), x)

    both(one, x, randomness="different")
    got = tc.vmap(tc.vmap(one, 1, randomness="different"), 1, randomness="different")(xs)
    torch.testing.assert_close(got, torch.vmap(torch.vmap(one, 1, randomness="different"), 1, randomness="different")(xs))


@pytest.mark.parametrize("name", [n for n in FACTORIES if "rand" not in n and "empty" not in n])
def test_what_a_factory_makes_of_an_example_is_as_torchs(name: str) -> None:
    x = torch.randn(3, 2, 4)
    both(FACTORIES[name], x)
    both(lambda x, y: FACTORIES[name](y).mul_(2) + x, x, torch.randn(2, 4), in_dims=(0, None))


def test_a_factory_of_no_example_cannot_be_written_to_by_each() -> None:
    x = torch.randn(3, 2, 4)
    for of in (tc.vmap, torch.vmap):
        with pytest.raises(RuntimeError, match="is not possible because"):
            of(lambda x: torch.zeros(2, 4).copy_(x))(x)


# --- in_dims, out_dims, structures -------------------------------------------------------------------------------------------


def both(fn: Callable[..., Any], *args: torch.Tensor, **options: Any) -> None:
    got, want = tc.vmap(fn, **options)(*(mapped(a, from_torch) for a in args)), torch.vmap(fn, **options)(*args)
    for g, w in zip(leaves(got), leaves(want), strict=True):
        torch.testing.assert_close(g.torch(), w)


@pytest.mark.parametrize("in_dim", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("out_dim", [0, 1, -1, -2])
def test_dims(in_dim: int, out_dim: int) -> None:
    both(lambda x: x.cumsum(0) * x.sum(1, keepdim=True), torch.randn(3, 4, 5), in_dims=in_dim, out_dims=out_dim)


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 20])
def test_chunks(chunk_size: int) -> None:
    a, b = torch.randn(7, 4), torch.randn(4, 7)
    both(lambda x, y: (x * y, (x.sum(), [y])), a, b, in_dims=(0, 1), out_dims=(1, 0), chunk_size=chunk_size)
    x = from_torch(torch.ones(7, 50))
    same = tc.vmap(lambda x: F.dropout(x, 0.5, True), randomness="same", chunk_size=chunk_size)(x).torch()
    assert all(torch.equal(row, same[0]) for row in same)
    different = tc.vmap(lambda x: F.dropout(x, 0.5, True), randomness="different", chunk_size=chunk_size)(x).torch()
    assert not torch.equal(different[0], different[1])


def test_chunks_of_nothing() -> None:
    for vmap in (torch.vmap, tc.vmap):
        with pytest.raises(ValueError, match="chunk_size should be None or greater than 0"):
            vmap(lambda x: x, chunk_size=0)


@pytest.mark.parametrize("name", sorted(OPS.keys() - LEFT_OUT))
def test_every_record_nested(name: str) -> None:
    """Inside another vmap, over whose examples the arguments are the same, and in chunks."""
    op = OPS[name]
    sample = next(iter(op.samples()))
    torch.manual_seed(0)
    args = bind_sample(op, sample)
    at = tuple(k for k, a in enumerate(args) if has_tensors(a))
    if at:
        nested = tc.vmap(lambda *a: dispatcher.call_bound(op.name, a), tuple(0 if k in at else None for k in range(len(args))))
        inner = [mapped(examples(a), lambda t: from_torch(torch.stack([t, t]))) if k in at else a for k, a in enumerate(args)]
        plain = [mapped(examples(a), from_torch) if k in at else a for k, a in enumerate(args)]
        want, got = (
            outcome(lambda: nested(*plain)),
            outcome(lambda: tc.vmap(nested, tuple(0 if k in at else None for k in range(len(args))))(*inner)),
        )
        if isinstance(want, Exception):
            assert isinstance(got, type(want)), got
            return
        assert not isinstance(got, Exception), got
        for g, w in zip(got, want, strict=True):
            assert close(g.torch()[0], w.torch()) and close(g.torch()[1], w.torch())
        check(op, args, at, chunk_size=2)


def test_structures() -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 3), torch.randn(4)
    both(lambda p, x: (p[0] * p[1] + x, p[0].sum()), (a, b), c, in_dims=((0, 1), None), out_dims=(1, 0))
    got = tc.vmap(lambda d: {"out": d["x"] * d["y"]})({"x": from_torch(a), "y": from_torch(a)})
    assert torch.equal(got["out"].torch(), a * a)


@pytest.mark.parametrize("wrap", [from_torch, lambda x: x], ids=["ours", "torchs"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_keyword_arguments_are_whole(wrap: Callable[[Any], Any], compiled: bool) -> None:
    """As torch: nothing is mapped over them, however they are nested, and numbers stay numbers."""

    def one(a: Any, k: Any, pair: Any = (), scale: float = 1.0) -> Any:
        return (a + k) * scale + (pair[0] if pair else 0.0)

    def mapped(vmap: Any, x: Any, y: Any) -> Any:
        return vmap(one)(x, k=x), vmap(one, in_dims=(1,))(y, k=y, pair=[y], scale=2.0), vmap(one)(x, k=3)

    x, y = torch.arange(3.0), torch.randn(2, 2)
    fn = tc.compile(functools.partial(mapped, tc.vmap)) if compiled else functools.partial(mapped, tc.vmap)
    for got, want in zip(fn(wrap(x), wrap(y)), mapped(torch.vmap, x, y), strict=True):
        assert isinstance(got, torch.Tensor) is (wrap(x) is x)
        torch.testing.assert_close(got if wrap(x) is x else got.torch(), want)


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "complex": lambda x: complex(x[0]),
    "float of several": float,
    "index": lambda x: x[0].long().__index__(),
    "index of a float": lambda x: x[0].__index__(),
    "a place in a range": lambda x: range(3)[x[0].long()],
    "math": lambda x: math.sin(x[0]),
    "capsule": lambda x: x.__dlpack__(),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_examples_are_no_numbers_in_torchs_words(name: str) -> None:
    said = []
    for vmap, x in ((torch.vmap, torch.ones(3, 2)), (tc.vmap, from_torch(torch.ones(3, 2)))):
        with pytest.raises((RuntimeError, TypeError, ValueError)) as error:
            vmap(NUMBERS[name])(x)
        said.append((error.type, str(error.value).strip()))
    assert said[0] == said[1]
    with pytest.raises(RuntimeError):
        tc.vmap(torch.from_dlpack)(from_torch(torch.ones(3, 2)))


def test_results_that_do_not_depend_on_the_example_are_repeated() -> None:
    x = torch.randn(3, 2)
    both(lambda x: (x, torch.ones(2) * 2), x)
    assert tc.vmap(lambda x: tc.ones(2), out_dims=None)(from_torch(x)).shape == (2,)


def test_torchs_tensors_go_in_and_out() -> None:
    x = torch.randn(3, 4)
    got = tc.vmap(lambda x: (x * 2).sum())(x)
    assert type(got) is torch.Tensor
    torch.testing.assert_close(got, (x * 2).sum(1))


def mine(value: Any) -> Any:
    """Our tensors for torch's, in structures too."""
    if isinstance(value, (tuple, list)):
        return type(value)(*map(mine, value)) if isinstance(value, Two) else type(value)(map(mine, value))
    if isinstance(value, dict):
        return {k: mine(v) for k, v in value.items()}
    return from_torch(value) if isinstance(value, torch.Tensor) else value


class Two(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize("batched", [(0,), (0, 1), (0, 2), (0, 1, 2), (1,), (2,)])
@pytest.mark.parametrize(
    "at", [(1, None, 2), (None, 1, 2), (1, 2), (2, 1), (2, None, 1), (None, 1, None, 2), (1, None, None, 2), (1,)]
)
def test_indices_of_one_number_among_others(at: tuple[int | None, ...], batched: tuple[int, ...]) -> None:
    """The record, as ``x[i, :, j]``: ``at`` says which argument stands where."""
    given = torch.randn(3, 4, 5, 6, 4), torch.tensor([1, 0, 2]), torch.tensor([[0, 2], [1, 1], [3, 0]])
    if not any(k in at for k in batched) and 0 not in batched:
        return

    def one(x: Any, i: Any, j: Any) -> Any:
        return OPS["index"].eager(x, tuple(None if p is None else (x, i, j)[p] for p in at))

    args = [g if k in batched else g[0] for k, g in enumerate(given)]
    want = torch.stack([one(*(a[n] if k in batched else a for k, a in enumerate(args))) for n in range(3)])
    dims = tuple(0 if k in batched else None for k in range(3))

    def ours(x: Any, i: Any, j: Any) -> Any:
        return dispatcher.call_bound("index", (x, tuple(None if p is None else (x, i, j)[p] for p in at)))

    assert torch.equal(tc.vmap(ours, dims)(*map(from_torch, args)).torch(), want)


def test_dims_of_a_dict_are_those_of_its_values_in_order() -> None:
    """As torch reads them, whatever the keys are."""
    x = torch.randn(3, 4)
    for fn, given, options in (
        (lambda d: d["a"] + d["b"], {"a": x, "b": x.T}, {"in_dims": ({"b": 0, "a": 1},)}),
        (lambda x: {"a": x, "b": torch.cat([x, x])}, x, {"out_dims": {"b": 0, "a": 1}}),
    ):
        want = torch.vmap(fn, **options)(given)
        for got in (tc.vmap(fn, **options)(mine(given)), tc.compile(lambda x: torch.vmap(fn, **options)(x))(given)):  # noqa: B023
            pairs = zip(got.values(), want.values(), strict=True) if isinstance(want, dict) else [(got, want)]
            assert all(torch.allclose(g.torch() if isinstance(g, Tensor) else g, w) for g, w in pairs)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda v: v(lambda: 1)(), ValueError),
        (lambda v: v(lambda x, y: x, in_dims=(0,))(torch.ones(2), torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x, in_dims=3)(torch.ones(2)), ValueError),
        (lambda v: v(lambda k: k)(k=torch.ones(2)), ValueError),
        (lambda v: v(lambda x, y: x, in_dims=[0, None])(torch.ones(2), torch.ones(2)), ValueError),
        (lambda v: v(lambda x, y: x, in_dims=(0, 0, 0))(torch.ones(2), torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x[0], in_dims=((0,),))((torch.ones(2), torch.ones(2))), ValueError),
        (lambda v: v(lambda x: x[0], in_dims=((0, 0),))([torch.ones(2), torch.ones(2)]), ValueError),
        (lambda v: v(lambda x: x["a"], in_dims=({"b": 0},))({"a": torch.ones(2)}), ValueError),
        (lambda v: v(lambda x: x, in_dims=((0, 0),))(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x, in_dims=(0.5,))(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x, in_dims="x")(torch.ones(2)), ValueError),
        (lambda v: v(lambda x, y: x)(torch.ones(2), 2), ValueError),
        (lambda v: v(lambda x, y: x)(torch.ones(2), None), ValueError),
        (lambda v: v(lambda x, y: x, in_dims=(None, None))(torch.ones(2), 2), ValueError),
        (lambda v: v(lambda x, y: x)(torch.ones(2), torch.ones(3)), ValueError),
        (lambda v: v(lambda x: x, in_dims=None)(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: 1)(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: (x, x), out_dims=(0, 0, 0))(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x, out_dims=(0, 0))(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x, out_dims=())(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x, out_dims=[0])(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: [x], out_dims=(0,))(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: {"a": x}, out_dims=(0,))(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: {"a": x}, out_dims={"b": 0})(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: (x, (x, x)), out_dims=(0, (0,)))(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x, randomness="maybe")(torch.ones(2)), RuntimeError),
        (lambda v: v(lambda x: x.sum().item())(torch.ones(2)), RuntimeError),
        (lambda v: v(lambda x: x if x.sum() > 0 else -x)(torch.ones(2)), RuntimeError),
        (lambda v: v(lambda x: x[3])(torch.ones(2, 2)), IndexError),
        (lambda v: v(lambda x: x, in_dims=True)(torch.ones(2, 2)), TypeError),
        (lambda v: v(lambda x: x, in_dims=(False,))(torch.ones(2)), TypeError),
        (lambda v: v(lambda x: x, in_dims=())(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x.a, in_dims=((0, None),))(Two(torch.ones(2), torch.ones(2))), ValueError),
        (lambda v: v(lambda x: x, out_dims=None)(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x, out_dims=(None,))(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x, out_dims=1.5)(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x, out_dims="x")(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: x, out_dims=3)(torch.ones(2)), IndexError),
        (lambda v: v(lambda x: (x, None))(torch.ones(2)), ValueError),
        (lambda v: v(lambda x: (x, 3), out_dims=(0, None), chunk_size=1)(torch.ones(2)), TypeError),
        (lambda v: v(lambda x: x.shape)(torch.ones(2, 2)), ValueError),
        (lambda v: v(lambda x: x * x.data_ptr())(torch.ones(2)), RuntimeError),
    ],
)
def test_wrong_calls(make: Callable[[Any], Any], error: type[Exception]) -> None:
    said = []
    for vmap in (torch.vmap, lambda fn, *a, **k: lambda *args, **kw: tc.vmap(fn, *a, **k)(*mine(args), **kw)):
        with pytest.raises(error) as eager:
            make(vmap)
        said.append(str(eager.value))
    assert said[0] == said[1]
    for vmap in (torch.vmap, tc.vmap):
        with pytest.raises(error) as eager:
            make(vmap)
        with pytest.raises(error) as compiled:
            tc.compile(make)(vmap)
        assert str(compiled.value).splitlines()[0] == str(eager.value).splitlines()[0]


ANYTHING: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "a number": (lambda a: (a, 3), (0, None)),
    "None": (lambda a: (a, None), (0, None)),
    "sizes": (lambda a: (a, a.shape), (0, None)),
    "sizes alone": (lambda a: a.shape, None),
    "a word": (lambda a: "x", None),
    "a list": (lambda a: [a, True], [0, None]),
    "a dict": (lambda a: {"a": a, "b": 3}, {"a": 0, "b": None}),
    "what is nested": (lambda a: (a, (3, a)), (0, (None, 0))),
    "all that is nested": (lambda a: (a, (3, "x")), (0, None)),
}


@pytest.mark.parametrize("name", ANYTHING)
def test_results_without_a_dim_may_be_anything(name: str) -> None:
    """In eager calls and inside compiled functions."""
    fn, out_dims = ANYTHING[name]
    x = torch.randn(3, 4)
    want = torch.vmap(fn, out_dims=out_dims)(x)
    compiled = tc.compile(lambda x: torch.vmap(fn, out_dims=out_dims)(x), backend="aot_eager")
    for got in (tc.vmap(fn, out_dims=out_dims)(x), compiled(x)):
        assert type(got) is type(want) and repr(got) == repr(want)


@pytest.mark.parametrize("out_dims", [(0, 0), (), [0], (0,), {"a": 0}, {"b": 0}, (0, (0,)), 1, (1, 0), (1, (0, 1))], ids=str)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * 2,
        lambda x: (x * 2,),
        lambda x: [x * 2],
        lambda x: {"a": x * 2},
        lambda x: (x, x + 1),
        lambda x: (x, (x, x + 1)),
    ],
    ids=["tensor", "tuple", "list", "dict", "two", "nested"],
)
def test_out_dims_are_nested_as_results(fn: Callable[[torch.Tensor], Any], out_dims: Any) -> None:
    """In eager calls and inside compiled functions."""
    x = torch.randn(3, 4)
    compiled = tc.compile(lambda x: torch.vmap(fn, out_dims=out_dims)(x), backend="aot_eager")
    try:
        want = torch.vmap(fn, out_dims=out_dims)(x)
    except ValueError:
        for call in (tc.vmap(fn, out_dims=out_dims), compiled):
            with pytest.raises(ValueError, match="out_dims is not compatible with the structure of `outputs`"):
                call(x)
        return
    for got in (tc.vmap(fn, out_dims=out_dims)(x), compiled(x)):
        torch.testing.assert_close(got, want)


def test_nesting() -> None:
    a, b = torch.randn(3, 4), torch.randn(5, 4)
    got = tc.vmap(tc.vmap(torch.dot, (None, 0)), (0, None))(from_torch(a), from_torch(b))
    torch.testing.assert_close(got.torch(), a @ b.T)
    for p, q in itertools.product((0, 1), repeat=2):
        got = tc.vmap(tc.vmap(lambda x, y: x * y.sum() + 1, (p, None)), (None, q))(from_torch(a), from_torch(b))
        want = torch.vmap(torch.vmap(lambda x, y: x * y.sum() + 1, (p, None)), (None, q))(a, b)
        torch.testing.assert_close(got.torch(), want)


# --- indices -----------------------------------------------------------------------------------------------------------------


def assigned(y: Any, index: Any, value: Any) -> Any:
    y = y * 1
    y[index] = value
    return y


INDEXED: dict[str, Callable[[Any, Any], Any]] = {
    "x[i]": lambda x, i: x[i],
    "x[:, i]": lambda x, i: x[:, i % 4],
    "x[..., i]": lambda x, i: x[..., i % 4],
    "x[i, 1:3]": lambda x, i: x[i, 1:3],
    "x[i, None]": lambda x, i: x[i, None],
    "x[i, 1]": lambda x, i: x[i, 1],
    "x[1, i]": lambda x, i: x[1, i % 4],
    "x[i, j]": lambda x, i: x[i, i % 4],
    "x[i, :]": lambda x, i: x[i, :],
    "x[list]": lambda x, i: x[[0, -1]],
    "x[i] = n": lambda x, i: assigned(x, i, 3.0),
    "x[i] = y": lambda x, i: assigned(x, i, x[:2] * 2),
    "x[i, 1] = y": lambda x, i: assigned(x, (i, 1), x[0, :2]),
    "x[list, 1:] = n": lambda x, i: assigned(x, ([0, 2], slice(1, None)), 7),
    "x[list] = x[list]": lambda x, i: assigned(x, [0, 1], x[[2, 3]]),
    "x[1:3] = y": lambda x, i: assigned(x, slice(1, 3), x[:2]),
}


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0)], ids=str)
def test_indexing_by_tensors(name: str, dims: tuple[int | None, int | None]) -> None:
    x, i = torch.randn(3, 5, 4), torch.tensor([[0, 2], [1, -1], [4, 0]])
    args = tuple(t if d == 0 else t[0] for t, d in zip((x, i), dims, strict=True))
    if dims[0] is None and name in ("x[i] = n", "x[i] = y", "x[i, 1] = y"):
        for vmap in (torch.vmap, tc.vmap):
            with pytest.raises(RuntimeError, match="vmap: .* is not possible because there exists a Tensor `other`"):
                vmap(INDEXED[name], dims)(*args)
        return
    both(INDEXED[name], *args, in_dims=dims)


def test_indexing_by_masks() -> None:
    x, m = torch.randn(3, 5, 4), torch.rand(3, 5) < 0.5
    both(lambda x, m: x[m], x, m[0], in_dims=(0, None))
    for vmap in (torch.vmap, tc.vmap):
        with pytest.raises(RuntimeError, match="dynamic shape"):
            vmap(lambda x, m: x[m])(x, m)
    got = tc.vmap(lambda x, m: assigned(x, m, 1.0))(x, m)  # torch refuses, though no size depends on the mask
    assert torch.equal(got, torch.where(m[..., None], 1.0, x))


def test_gradients_through_indices() -> None:
    x, i = torch.randn(3, 5), torch.tensor([[0, 2], [1, 1], [4, 0]])
    got = tc.vmap(tc.func.grad(lambda x, i: (assigned(x, i, x[:2] ** 2)[i] * x[i]).sum()))(x, i)
    want = torch.vmap(torch.func.grad(lambda x, i: (assigned(x, i, x[:2] ** 2)[i] * x[i]).sum()))(x, i)
    torch.testing.assert_close(got, want)


# --- writes ------------------------------------------------------------------------------------------------------------------


def writes(x: Any) -> Any:
    y = x * 1
    y.add_(1)
    y[0] = 5
    y[1:3] *= x[0]
    y[..., -1].zero_()
    return y


def test_writes_in_place() -> None:
    both(writes, torch.randn(3, 4))
    x = from_torch(torch.zeros(3, 2))
    tc.vmap(lambda x, y: x.add_(y))(x, from_torch(torch.ones(3, 2)))
    assert torch.equal(x.torch(), torch.ones(3, 2))
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        tc.vmap(lambda y: tc.zeros(2).add_(y))(x)
    with pytest.raises(RuntimeError, match="result type Float can't be cast"):
        tc.vmap(lambda i, y: i.add_(y))(from_torch(torch.zeros(3, dtype=torch.int64)), from_torch(torch.ones(3)))


# --- gradients ---------------------------------------------------------------------------------------------------------------


def loss(p: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(torch.tanh(x @ p[0] + p[1])[None], y[None])


def test_gradients_of_each_example() -> None:
    p, xs, ys = (torch.randn(4, 3), torch.randn(3)), torch.randn(5, 4), torch.arange(5) % 3
    got = tc.vmap(tc.func.grad(loss), (None, 0, 0))(mapped(p, from_torch), from_torch(xs), from_torch(ys))
    want = torch.vmap(torch.func.grad(loss), (None, 0, 0))(p, xs, ys)
    for g, w in zip(got, want, strict=True):
        assert not g.requires_grad
        torch.testing.assert_close(g.torch(), w)


def test_the_tape_follows_through_vmap() -> None:
    xs = torch.randn(5, 3, dtype=torch.float64)
    w = torch.randn(3, dtype=torch.float64)
    mine, theirs = from_torch(w.clone()).requires_grad_(), w.clone().requires_grad_()
    x, tx = from_torch(xs.clone()).requires_grad_(), xs.clone().requires_grad_()

    def f(w: Any) -> Callable[[Any], Any]:
        return lambda x: (writes(x) * w).tanh().sum()

    tc.vmap(f(mine))(x).sum().backward()
    sum(f(theirs)(row) for row in tx).backward()
    torch.testing.assert_close(mine.grad.torch(), theirs.grad)
    torch.testing.assert_close(x.grad.torch(), tx.grad)


def test_writes_are_differentiated_inside() -> None:
    xs = torch.randn(5, 4, dtype=torch.float64)
    got = tc.vmap(tc.func.grad(lambda x: (writes(x) ** 2).sum()))(from_torch(xs))
    want = torch.vmap(torch.func.grad(lambda x: (writes(x) ** 2).sum()))(xs)
    torch.testing.assert_close(got.torch(), want)


def test_backward_inside() -> None:
    def gradient(x: Any) -> Any:
        leaf = x.detach().requires_grad_()
        (leaf**2).sum().backward()
        (leaf * 3).sum().backward()
        return leaf.grad

    xs = torch.randn(5, 4)
    torch.testing.assert_close(tc.vmap(gradient)(from_torch(xs)).torch(), 2 * xs + 3)


def test_gradients_of_vmaps_of_gradients() -> None:
    xs, w = torch.randn(5, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)

    def f(vmap: Any, grad: Any, xs: Any) -> Callable[[Any], Any]:
        return lambda w: vmap(lambda x: grad(lambda z: (z * w).sin().sum())(x).sum())(xs).sum()

    got = tc.func.grad(f(tc.vmap, tc.func.grad, from_torch(xs)))(from_torch(w))
    torch.testing.assert_close(got.torch(), torch.func.grad(f(torch.vmap, torch.func.grad, xs))(w))


def f_vector(x: Any) -> Any:
    return (x.sin() * x.sum()).cumsum(0)[1:]


def f_scalar(x: Any) -> Any:
    return (x**3).sum() * x.prod() + x.exp().sum()


def test_jacobians() -> None:
    x = torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(tc.func.jacrev(f_vector)(from_torch(x)).torch(), torch.func.jacrev(f_vector)(x))
    torch.testing.assert_close(tc.func.hessian(f_scalar)(from_torch(x)).torch(), torch.func.hessian(f_scalar)(x))
    xs = torch.randn(3, 4, dtype=torch.float64)
    got = tc.vmap(tc.func.jacrev(f_vector))(from_torch(xs))
    torch.testing.assert_close(got.torch(), torch.vmap(torch.func.jacrev(f_vector))(xs))
    out, pull_back = tc.func.vjp(f_vector, from_torch(x))
    want, theirs = torch.func.vjp(f_vector, x)
    torch.testing.assert_close(out.torch(), want)
    torch.testing.assert_close(pull_back(from_torch(torch.ones(3).double()))[0].torch(), theirs(torch.ones(3).double())[0])
    assert not out.requires_grad


def test_grad_of_structures_and_aux() -> None:
    p = {"w": tc.randn(3), "b": [tc.randn(3), tc.randn(3)]}
    found, aux = tc.func.grad(lambda p: ((p["w"] * p["b"][0]).sum(), p["b"][1]), has_aux=True)(p)
    assert torch.equal(found["w"].torch(), p["b"][0].torch()) and not bool(found["b"][1].torch().any())
    assert aux.shape == (3,)
    with pytest.raises(RuntimeError, match="to return a scalar"):
        tc.func.grad(lambda x: x)(tc.ones(3))


def test_gradients_keep_what_else_they_depend_on() -> None:
    w = tc.randn(3).requires_grad_()
    found = tc.func.grad(lambda x: (x * w).sin().sum())(tc.ones(3))
    assert found.requires_grad
    found.sum().backward()
    t = w.detach().torch().clone().requires_grad_()
    torch.func.grad(lambda x: (x * t).sin().sum())(torch.ones(3)).sum().backward()
    torch.testing.assert_close(w.grad.torch(), t.grad)


# --- with other transforms ---------------------------------------------------------------------------------------------------


def test_under_autocast() -> None:
    p, xs, ys = (torch.randn(4, 3), torch.randn(3)), torch.randn(5, 4), torch.arange(5) % 3
    with torch.autocast("cpu"):
        assert tc.vmap(lambda x: x @ p[0])(from_torch(xs)).dtype is torch.bfloat16
        got = tc.vmap(tc.func.grad(loss), (None, 0, 0))(mapped(p, from_torch), from_torch(xs), from_torch(ys))
        want = torch.vmap(torch.func.grad(loss), (None, 0, 0))(p, xs, ys)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.torch(), w, rtol=1e-2, atol=1e-2)


def test_modules() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    both(lambda x: model(x).detach(), torch.randn(5, 4))


# --- random numbers ----------------------------------------------------------------------------------------------------------

LSTM_STATE = [torch.zeros(2, 1, 2), torch.zeros(2, 1, 2)]
LSTM_WEIGHTS = [w for n in (4, 2) for w in (torch.ones(8, n) / 9, torch.ones(8, 2) / 9, torch.zeros(8), torch.zeros(8))]


def heads(x: Any) -> Any:
    return F.multi_head_attention_forward(
        x, x, x, 4, 2, torch.ones(12, 4) / 7, torch.zeros(12), None, None, False, 0.5, torch.eye(4), torch.zeros(4)
    )[0]


RANDOM: dict[str, Callable[[Any], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5, True),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "bernoulli": lambda x: torch.bernoulli(x * 0 + 0.5),
    "randn": lambda x: x + tc.randn(8),
    "torch.rand": lambda x: x + torch.rand(8),
    "torch.rand on the tape": lambda x: x + torch.rand(8, requires_grad=True).detach(),
    "torch.randint": lambda x: x + torch.randint(0, 99, (8,)),
    "torch.randperm": lambda x: x + torch.randperm(8),
    "torch.normal": lambda x: x + torch.normal(0.0, 1.0, (8,)),
    "normal of an example": lambda x: torch.normal(x, 1.0),
    "gumbel_softmax": F.gumbel_softmax,
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "dropout2d": lambda x: F.dropout2d(x[:, None], 0.5, True),
    "attention": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], dropout_p=0.5),
    "of what is the same for all": lambda x: x + F.dropout(torch.ones(8), 0.5, True) + tc.ones(8).bernoulli(),
    "of ours that is the same for all": lambda x: x * F.dropout(tc.ones(8), 0.5, True),
    "in place": lambda x: x.clone().normal_(),
    "in place, by its own probability": lambda x: x.clone().bernoulli_(),
    "in place, by a probability": lambda x: (x * 0).bernoulli_(0.5),
    "in place, by probabilities": lambda x: x.clone().bernoulli_(torch.full((8,), 0.5)),
    "torch.nn.init": lambda x: torch.nn.init.normal_(x.clone()),
    "torch.nn.init, by sizes": lambda x: torch.nn.init.kaiming_uniform_(x.view(2, 4).clone()),
    "recurrent": lambda x: torch.lstm(x.view(2, 1, 4), LSTM_STATE, LSTM_WEIGHTS, True, 2, 0.5, True, False, False)[0],
    "multi-head attention": lambda x: heads(x[:, None, None].expand(8, 1, 4)),
    "multi-head attention of what is the same for all": lambda x: x.sum() + heads(torch.ones(8, 1, 4)),
}


@pytest.mark.parametrize("name", RANDOM)
def test_randomness(name: str) -> None:
    fn, x = RANDOM[name], from_torch(torch.ones(3, 8))
    with pytest.raises(RuntimeError, match="randomness error mode"):
        tc.vmap(fn)(x)
    different = tc.vmap(fn, randomness="different")(x).torch()
    assert not torch.equal(different[0], different[1]) or not torch.equal(different[0], different[2])
    same = tc.vmap(fn, randomness="same")(x).torch()
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], same[2]) and isinstance(x, Tensor)
    nested = tc.vmap(tc.vmap(fn, randomness="same"), randomness="different")(from_torch(torch.ones(3, 2, 8))).torch()
    assert torch.equal(nested[:, 0], nested[:, 1]) and not torch.equal(nested[0], nested[1])


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
def test_random_functions_that_need_not_draw(randomness: str) -> None:
    """Dropout in evaluation, and a fill of what is the same for all, which has no numbers for each."""

    def calm(x: Any) -> Any:
        return F.dropout2d(x[:, None], 0.5, False)[:, 0] + F.rrelu(x) + F.dropout(torch.ones(8), 0.5, False)

    x = torch.randn(3, 8)
    torch.testing.assert_close(tc.vmap(calm, randomness=randomness)(x), torch.stack([calm(row) for row in x]))
    fill = tc.vmap(lambda x: x + torch.zeros(8).uniform_(), randomness=randomness)
    if randomness == "same":
        assert torch.equal(*(fill(x) - x)[:2].round(decimals=5))
    else:
        with pytest.raises(RuntimeError, match="randomness"):
            fill(x)


def test_what_only_one_example_has() -> None:
    """Arrays, truths and sizes that differ from example to example are no tensors."""
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    for fn in (lambda x: torch.as_tensor(x.numpy()), lambda x: x * torch.equal(x, torch.tensor([0.0, 1.0])), torch.nonzero):
        with pytest.raises(RuntimeError, match="vmap|data pointer"):
            tc.vmap(fn)(x)
    assert torch.equal(tc.vmap(lambda x: torch.as_tensor(x) + torch.asarray(x))(x), 2 * x)


@pytest.mark.parametrize("fn", [torch.nonzero, lambda x: x.nonzero(), torch.unique, torch.unique_consecutive])
def test_sizes_that_depend_on_values_are_refused(fn: Any) -> None:
    """Also where all examples happen to agree, in torch's words."""
    with pytest.raises(RuntimeError) as expected:
        torch.vmap(fn)(torch.ones(2, 3))
    with pytest.raises(RuntimeError) as got:
        tc.vmap(fn)(torch.ones(2, 3))
    assert str(got.value) == str(expected.value)
