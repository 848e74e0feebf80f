"""The table of torch callables: what each call means."""

import operator

import pytest
import torch
from torch.nn import functional as F

import tinycompile
import tinycompile.eager.backends  # noqa: F401
from tinycompile.ops import table
from tinycompile.ops.evaluate import meta_of
from tinycompile.ops.record import OPS

pytestmark = pytest.mark.pure

X = torch.randn(4, 6)
Y = torch.randn(4, 6)
I = torch.randint(1, 5, (4, 6))
B = X > 0
IMG = torch.randn(2, 3, 8, 8)
EYE = torch.tensor([0, 2, 1])
M = torch.Tensor

# (callable, args, kwargs, record)
CALLS = [
    (torch.add, (X, Y), {}, "add"), (torch.add, (X, 2), {"alpha": 3}, "add"), (torch.add, (), {"input": X, "other": Y}, "add"),
    (operator.add, (X, 1), {}, "add"), (operator.add, (1, X), {}, "add"), (M.__radd__, (X, 1), {}, "add"), (M.__rsub__, (X, 1), {}, "sub"),
    (torch.rsub, (X, 1), {}, "sub"), (torch.rsub, (X, Y), {"alpha": 2}, "sub"), (M.__rtruediv__, (X, 1), {}, "div"), (M.__rmatmul__, (X, X.T), {}, "matmul"),
    (M.__rfloordiv__, (X, 2), {}, "floor_divide"), (M.__rmod__, (X, 2.0), {}, "remainder"), (M.__rpow__, (X, 2), {}, "pow"), (M.__rand__, (I, 3), {}, "bitwise_and"),
    (M.__rlshift__, (I, 1), {}, "bitwise_left_shift"), (torch.div, (X, Y), {}, "div"), (torch.div, (X, Y), {"rounding_mode": "floor"}, "div_floor"),
    (M.div, (X, 2.0), {"rounding_mode": "trunc"}, "div_trunc"), (torch.pow, (X, 2), {}, "pow_scalar"), (torch.pow, (X, Y), {}, "pow"), (torch.pow, (I, I), {}, "pow_integers"),
    (operator.pow, (X, 0.5), {}, "pow_scalar"), (torch.pow, (2, I), {}, "pow_integers"), (torch.pow, (2.0, X), {}, "pow"), (M.__pow__, (X, 3), {}, "pow_scalar"),
    (torch.max, (X,), {}, "max_all"), (torch.max, (X, 1), {}, "max_dim"), (torch.max, (X, Y), {}, "maximum"), (M.min, (X,), {"dim": 0, "keepdim": True}, "min_dim"),
    (torch.max, (X,), {"axis": 1}, "max_dim"), (torch.sum, (X,), {}, "sum"), (torch.sum, (X, 1), {}, "sum"), (M.sum, (X, (0, 1)), {"keepdim": True}, "sum"),
    (torch.sum, (X,), {"axis": 1, "keepdims": True}, "sum"), (torch.mean, (X, -1, True), {}, "mean"), (torch.var, (X, False), {}, "var"), (torch.var, (X, 1, False), {}, "var"),
    (torch.std, (X, [0], False, True), {}, "std"), (M.std, (X,), {"dim": 1, "unbiased": False}, "std"), (torch.var_mean, (X, 1), {"correction": 0}, "var_mean"),
    (torch.norm, (X,), {}, "linalg_vector_norm"), (torch.norm, (X, 1, 1), {}, "linalg_vector_norm"), (M.norm, (X, 2), {"dim": -1, "keepdim": True}, "linalg_vector_norm"),
    (torch.linalg.norm, (X,), {"dim": 1}, "linalg_vector_norm"), (torch.linalg.vector_norm, (X, 3), {"dim": 1}, "linalg_vector_norm"),
    (torch.argmax, (X,), {}, "argmax"), (M.argmin, (X, 1), {"keepdim": True}, "argmin"), (torch.any, (B,), {}, "any"), (torch.all, (B, 1), {}, "all"), (M.any, (B, (0, 1)), {}, "any"),
    (torch.cumsum, (X, 1), {}, "cumsum"), (torch.logsumexp, (X, 1), {}, "logsumexp"), (torch.prod, (X, 1), {}, "prod"), (M.prod, (X,), {}, "prod"), (torch.amax, (X,), {}, "amax"),
    (F.softmax, (X,), {"dim": -1}, "softmax"), (F.softmax, (X,), {}, "softmax"), (F.softmax, (X, 1, 3, torch.float64), {}, "softmax"), (M.softmax, (X, 1), {}, "softmax"),
    (torch.softmax, (X, 1, torch.float64), {}, "softmax"), (F.log_softmax, (X, 1), {}, "log_softmax"), (M.log_softmax, (X, -1), {}, "log_softmax"),
    (F.layer_norm, (X, (6,)), {"eps": 1e-3}, "layer_norm"), (F.layer_norm, (X, [6], X[0], X[1], 1e-3), {}, "layer_norm"), (torch.layer_norm, (X, (6,), X[0], None, 1e-5, False), {}, "layer_norm"),
    (F.rms_norm, (X, (6,), X[0]), {}, "rms_norm"), (F.group_norm, (IMG, 3), {}, "group_norm"), (F.batch_norm, (IMG, torch.zeros(3), torch.ones(3)), {}, "batch_norm"),
    (F.relu, (X,), {}, "relu"), (F.relu, (X, False), {}, "relu"), (torch.relu, (X,), {}, "relu"), (F.gelu, (X,), {"approximate": "tanh"}, "gelu"), (F.leaky_relu, (X, 0.2), {}, "leaky_relu"),
    (F.elu, (X, 0.5), {}, "elu"), (F.hardtanh, (X, -2.0, 2.0), {}, "hardtanh"), (F.silu, (X,), {"inplace": False}, "silu"), (F.logsigmoid, (X,), {}, "log_sigmoid"),
    (F.softplus, (X, 2, 10), {}, "softplus"), (F.glu, (X, 1), {}, "glu"), (F.prelu, (X, torch.ones(1)), {}, "prelu"), (torch.sigmoid, (X,), {}, "sigmoid"), (F.tanh, (X,), {}, "tanh"),
    (F.dropout, (X, 0.5, False), {}, "identity"), (F.dropout, (X,), {"p": 0.0}, "identity"), (F.dropout, (X, 0.5), {}, "dropout"), (torch.dropout, (X, 0.5, False), {}, "identity"),
    (M.to, (X, torch.float16), {}, "to"), (M.to, (X, torch.float32), {}, "identity"), (M.to, (X, "cpu"), {}, "identity"), (M.to, (X,), {"dtype": torch.float64}, "to"),
    (M.to, (X, I), {}, "to"), (M.to, (X, torch.device("cpu"), torch.int32), {}, "to"), (M.to, (X, "meta"), {}, "to_device"), (M.to, (X, torch.float32, False, True), {}, "to"),
    (M.to, (IMG,), {"memory_format": torch.channels_last}, "to"), (M.float, (X,), {}, "identity"), (M.half, (X,), {}, "to"), (M.long, (X,), {}, "to"), (M.type, (X, torch.float16), {}, "to"),
    (M.type_as, (X, I), {}, "to"), (M.cpu, (X,), {}, "identity"), (M.contiguous, (X,), {}, "identity"), (M.contiguous, (X.t(),), {}, "contiguous"), (M.clone, (X,), {}, "clone"),
    (M.view, (X, 24), {}, "view"), (M.view, (X, 2, -1), {}, "view"), (M.view, (X, (3, 8)), {}, "view"), (M.reshape, (X, -1), {}, "view"), (M.reshape, (X.t(), -1), {}, "reshape"),
    (torch.reshape, (X, (24,)), {}, "view"), (M.flatten, (IMG, 1), {}, "view"), (torch.flatten, (IMG.transpose(1, 3),), {}, "reshape"), (M.flatten, (X[0],), {}, "identity"),
    (M.permute, (X, 1, 0), {}, "permute"), (M.permute, (X, (1, 0)), {}, "permute"), (torch.permute, (X, (1, 0)), {}, "permute"), (M.transpose, (X, 0, 1), {}, "transpose"), (M.t, (X,), {}, "t"),
    (M.expand, (X, 2, 4, 6), {}, "expand"), (M.expand_as, (X, X), {}, "expand"), (M.view_as, (X, X), {}, "view"), (M.unsqueeze, (X, -1), {}, "unsqueeze"), (M.squeeze, (X,), {}, "squeeze"),
    (M.squeeze, (X, 1), {}, "squeeze"), (torch.movedim, (IMG, 1, -1), {}, "movedim"), (M.unflatten, (X, 1, (2, 3)), {}, "unflatten"), (M.narrow, (X, 0, 1, 2), {}, "narrow"), (torch.select, (X, 0, 1), {}, "select"),
    (torch.split, (X, 2), {}, "split"), (M.split, (X, [1, 3]), {}, "split_with_sizes"), (M.split, (X, 2), {"dim": 1}, "split"), (torch.chunk, (X, 2, 1), {}, "chunk"), (M.chunk, (X, 2), {"dim": -1}, "chunk"),
    (torch.unbind, (X,), {}, "unbind"), (torch.cat, ([X, Y],), {"dim": 1}, "cat"), (torch.cat, ((X, Y), -1), {}, "cat"), (torch.stack, ([X, Y],), {}, "stack"), (torch.concat, ([X, Y],), {"axis": 0}, "cat"),
    (F.pad, (X, (1, 1)), {}, "pad"), (F.pad, (X, [1, 1], "constant", 2.0), {}, "pad"), (torch.flip, (X, [0]), {}, "flip"), (M.flip, (X, 0, 1), {}, "flip"), (torch.roll, (X, 1), {"dims": 0}, "roll"),
    (M.repeat, (X, 2, 1), {}, "repeat"), (M.repeat_interleave, (X, 2), {"dim": 0}, "repeat_interleave"), (torch.tril, (X,), {"diagonal": 1}, "tril"), (M.triu, (X, 1), {}, "triu"),
    (torch.where, (B, X, Y), {}, "where"), (torch.where, (B, X, 0.0), {}, "where"), (M.where, (X, B, Y), {}, "where"), (M.masked_fill, (X, B, 0.0), {}, "masked_fill"), (torch.clamp, (X, 0, 1), {}, "clamp"),
    (M.clamp, (X,), {"min": 0.0}, "clamp"), (torch.clamp_min, (X, 0), {}, "clamp_min"), (torch.nan_to_num, (X,), {}, "nan_to_num"), (torch.lerp, (X, Y, 0.5), {}, "lerp"),
    (torch.addcmul, (X, X, Y), {"value": 2}, "addcmul"), (torch.eq, (X, Y), {}, "eq"), (operator.lt, (X, 0), {}, "lt"), (M.__ge__, (X, Y), {}, "ge"), (operator.invert, (B,), {}, "bitwise_not"),
    (operator.and_, (B, B), {}, "bitwise_and"), (abs, (X,), {}, "abs"), (operator.neg, (X,), {}, "neg"), (torch.round, (X,), {}, "round"), (torch.round, (X,), {"decimals": 2}, "round_decimals"),
    (operator.matmul, (X, Y.t()), {}, "matmul"), (torch.mm, (X, Y.t()), {}, "mm"), (F.linear, (X, Y), {}, "linear"), (torch.einsum, ("ij,kj->ik", X, Y), {}, "einsum"), (F.embedding, (EYE, X), {}, "embedding"),
    (F.conv2d, (IMG, torch.randn(4, 3, 3, 3)), {"padding": 1}, "conv2d"), (torch.gather, (X, 1, I), {}, "gather"), (torch.index_select, (X, 0, EYE), {}, "index_select"),
    (F.cross_entropy, (X, EYE.repeat(2)[:4]), {}, "cross_entropy"), (F.cross_entropy, (X, EYE.repeat(2)[:4]), {"reduction": "sum", "ignore_index": 1}, "cross_entropy"), (F.mse_loss, (X, Y), {}, "mse_loss"),
    (F.nll_loss, (X, EYE.repeat(2)[:4]), {"reduction": "none"}, "nll_loss"), (F.binary_cross_entropy_with_logits, (X, Y), {}, "binary_cross_entropy_with_logits"),
    (F.scaled_dot_product_attention, (IMG, IMG, IMG), {"is_causal": True}, "scaled_dot_product_attention"), (torch.zeros, (2, 3), {}, "full"), (torch.zeros, ((2, 3),), {"dtype": torch.int32}, "full"),
    (torch.ones, (2,), {"device": "cpu"}, "full"), (torch.full, ((2,), 1.5), {}, "full"), (torch.arange, (5,), {}, "arange"), (torch.arange, (1, 5), {"dtype": torch.float32}, "arange"),
    (torch.arange, (0, 5, 2), {"device": "cpu"}, "arange"), (torch.zeros_like, (X,), {}, "full_like"), (M.new_zeros, (X, 2, 3), {}, "full"), (M.new_full, (X, (2, 3), 4.0), {}, "full"),
    (torch.eye, (3,), {}, "eye"), (torch.linspace, (0, 1, 5), {}, "linspace"), (torch.empty, (2, 3), {}, "empty"),
]  # fmt: skip


@pytest.mark.parametrize(
    "fn, args, kwargs, record", CALLS, ids=lambda v: getattr(v, "__name__", None) or (v if isinstance(v, str) else "")
)
def test_binds_to_the_record_and_computes_the_same(fn, args, kwargs, record):
    bound = table.bind(fn, args, dict(kwargs))
    assert bound is not None and bound.op.name == record
    expected = fn(*args, **kwargs)
    found = bound.op.eager(*bound.args)
    if record not in ("dropout", "empty", "to_device"):
        several = isinstance(expected, (tuple, list))
        for a, b in zip(found if several else [found], expected if several else [expected], strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num()) and a.dtype == b.dtype and a.stride() == b.stride()
    if record == "identity":
        assert expected is args[0]
    metas = bound.op.meta(*(meta_of(a) for a in bound.args))
    shown = metas if isinstance(metas, tuple) else (metas,)
    assert [m.shape for m in shown] == [
        tuple(e.shape) for e in (expected if isinstance(expected, (tuple, list)) else [expected])
    ]


NONE = [
    (torch.add, (1, 2), {}), (operator.add, (1, 2), {}), (operator.add, ([1], [2]), {}), (torch.where, (B,), {}), (torch.add, (X + 0j, 1), {}), (torch.add, (X, 1j), {}),
    (F.embedding, (EYE, X), {"max_norm": 1.0}), (F.batch_norm, (IMG, torch.zeros(3), torch.ones(3)), {"training": True}), (M.view, (X, torch.int32), {}),
    (F.mse_loss, (X, Y), {"size_average": False}), (torch.norm, (X, "nuc"), {}), (torch.linalg.norm, (X, "fro"), {}), (torch.zeros, (2,), {"requires_grad": True}), (torch.sort, (X,), {}),
    (torch.add, (X, Y, Y, Y), {}), (len, (X,), {}), (torch.arange, (), {}),
]  # fmt: skip


@pytest.mark.parametrize("fn, args, kwargs", NONE, ids=lambda v: getattr(v, "__name__", ""))
def test_stays_with_torch(fn, args, kwargs):
    assert table.bind(fn, args, kwargs) is None


INPLACE = [
    (M.add_, (X, Y), "add"), (M.__iadd__, (X, 1), "add"), (operator.iadd, (X, 1), "add"), (operator.imul, (X, Y), "mul"), (M.relu_, (X,), "relu"), (F.relu_, (X,), "relu"),
    (torch.relu_, (X,), "relu"), (M.clamp_, (X, 0, 1), "clamp"), (M.masked_fill_, (X, B, 0.0), "masked_fill"), (M.zero_, (X,), "fill"), (M.fill_, (X, 2.0), "fill"),
    (M.copy_, (X, Y), "copy"), (M.pow_, (X, 2), "pow_scalar"), (operator.ipow, (X, 2), "pow_scalar"), (M.div_, (X, 2.0), "div"), (M.sigmoid_, (X,), "sigmoid"), (M.tril_, (X,), "tril"),
]  # fmt: skip


@pytest.mark.parametrize(
    "fn, args, record", INPLACE, ids=lambda v: getattr(v, "__name__", None) or (v if isinstance(v, str) else "")
)
def test_in_place(fn, args, record):
    bound = table.bind(fn, args)
    assert bound is not None and bound.inplace and bound.op.name == record and bound.args[0] is args[0]


def test_inplace_argument():
    assert table.bind(F.relu, (X,), {"inplace": True}).inplace
    assert table.bind(F.silu, (X, True)).inplace
    assert not table.bind(operator.iadd, (1, X)).inplace


def test_out():
    out = torch.empty(4, 6)
    bound = table.bind(torch.add, (X, Y), {"out": out})
    assert bound.out is out and not bound.inplace


def test_methods_and_attributes():
    assert table.bind_method("add", (X, 1)).op.name == "add"
    assert table.bind_method("no_such_method", (X,)) is None
    assert table.bind_attribute("T", X).args == (X, (1, 0))
    assert table.bind_attribute("mT", X).op.name == "transpose"
    assert table.bind_attribute("shape", X) is None


@pytest.mark.parametrize("op", [o for o in OPS.values() if o.functions], ids=lambda o: o.name)
def test_every_spelling_exists_in_torch(op):
    missing = [name for name in op.functions if table.resolve(name) is None]
    assert not missing


def test_no_two_records_claim_one_spelling():
    seen = {}
    for op in OPS.values():
        for name in op.functions:
            assert seen.setdefault(name, op.name) == op.name


@pytest.mark.parametrize("name", ["t_", "transpose_", "unsqueeze_", "squeeze_", "detach_", "swapaxes_"])
def test_views_in_place_stay_with_torch(name):
    """They change the tensor itself, not its data."""
    assert not table.known(getattr(M, name))


LEFT_TO_TORCH = {  # calls that a decomposition of their record declines
    "scatter_reduce": lambda x, i: torch.scatter_reduce(x, 0, i, x + 1, "amax"),
    "trapezoid of integers": lambda x, i: torch.trapezoid(i),
    "mvlgamma of integers": lambda x, i: torch.mvlgamma(i + 5, 1),
    "pixel_unshuffle of nothing": lambda x, i: torch.nn.functional.pixel_unshuffle(x[None, :, None, :0].expand(1, 4, 2, 0), 2),
}


@pytest.mark.parametrize("name", LEFT_TO_TORCH)
def test_what_a_decomposition_declines_is_a_call_of_torch(name):
    fn, x, i = LEFT_TO_TORCH[name], torch.randn(4, 3), torch.tensor([[0, 1, 2], [2, 0, 1], [1, 1, 0], [0, 0, 2]])
    compiled = tinycompile.compile(fn, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, i), fn(x, i))
