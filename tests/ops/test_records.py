"""Every record on every one of its samples, against torch: metadata and errors, and the value of its lowering."""

import warnings

import pytest
import torch

import tinycompile.eager.backends  # noqa: F401  fills the dispatcher, through which decompositions run
from tests.ops.materialize import arguments
from tinycompile.base.meta import TensorMeta
from tinycompile.eager.fake import FakeTensor, tracing
from tinycompile.ops.evaluate import evaluate, meta_of
from tinycompile.ops.record import OPS, Decompose, Extern

pytestmark = pytest.mark.pure
warnings.filterwarnings("ignore")

_UNDEFINED = {"empty", "empty_like", "rand_like", "randn_like", "dropout"}  # values that nobody may rely on


def _cases():
    for op in OPS.values():
        for i, sample in enumerate(op.samples()):
            yield pytest.param(op, sample, id=f"{op.name}-{i}")


def _bound(op, sample):
    values = op.schema.bind(arguments(tuple(sample.args)), arguments(dict(sample.kwargs)))
    fixed = []
    for a, v in zip(op.schema.args, values, strict=True):
        if a.is_list and a.base in ("int", "SymInt") and v is not None and not isinstance(v, (tuple, list)):
            v = (v,)
        fixed.append(tuple(v) if isinstance(v, list) else v)
    return tuple(fixed)


def _run(fn, *args):
    try:
        return fn(*args), None
    except Exception as error:
        return None, error


def _flat(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


CASES = list(_cases())


@pytest.mark.parametrize("op, sample", CASES)
def test_meta(op, sample):
    args = _bound(op, sample)
    expected, error = _run(op.eager, *args)
    found, our_error = _run(op.meta, *(meta_of(a) for a in args))
    if error is not None:
        if op.lowering.__class__ is Extern and our_error is None:
            return  # torch itself raises at run time
        assert type(our_error) is type(error), f"torch: {type(error).__name__}: {error}\nours: {our_error!r}"
        assert str(our_error).split("\n")[0] == str(error).split("\n")[0]
        return
    if our_error is not None:
        raise our_error
    assert len(_flat(found)) == len(_flat(expected))
    for meta, tensor in zip(_flat(found), _flat(expected), strict=True):
        assert (meta.shape, meta.dtype) == (tuple(tensor.shape), tensor.dtype)
        assert meta.strides == tensor.stride()
        assert meta.offset == tensor.storage_offset()


def _double(value):
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    return tuple(_double(v) for v in value) if isinstance(value, tuple) else value


def _agree(op, ours, eager, judge):
    if not eager.is_floating_point():
        return torch.equal(ours, eager), (ours, eager)
    a, b = ours.double(), eager.double()
    same = (a == b) | (a.isnan() & b.isnan())
    if judge is not None and judge.shape == eager.shape:
        ref = judge.double()
        same |= b.isnan() & (a == ref)  # a number that torch lost, as AVX-512's gelu does infinities
        finite = ref.isfinite() & a.isfinite() & b.isfinite()
        info = torch.finfo(eager.dtype)
        unit = torch.maximum(ref.abs() * info.eps, torch.tensor(info.smallest_normal * info.eps, dtype=torch.float64))
        theirs = torch.where(finite, (b - ref).abs(), 0.0)
        bound = 2 * theirs.max() if theirs.numel() else 0.0
        scale = ref[finite].abs().max() * info.eps if finite.any() else 0.0
        same |= finite & ((a - ref).abs() <= op.ulp * torch.maximum(unit, torch.as_tensor(scale)) + bound)
    return bool(same.all()), (ours[~same], eager[~same])


@pytest.mark.parametrize(
    "op, sample", [c for c in CASES if not isinstance(c.values[0].lowering, Extern) and c.values[0].name not in _UNDEFINED]
)
def test_value(op, sample):
    args = _bound(op, sample)
    expected, error = _run(op.eager, *args)
    if error is not None:
        return
    found = evaluate(op, args)
    if found is NotImplemented:
        return
    judged, _ = _run(op.eager, *(_double(a) for a in args))
    judges = _flat(judged) if judged is not None else [None] * len(_flat(expected))
    for ours, eager, judge in zip(_flat(found), _flat(expected), judges, strict=True):
        assert (ours.shape, ours.dtype) == (eager.shape, eager.dtype)
        good, shown = _agree(op, ours, eager, judge)
        assert good, f"ours {shown[0]}\ntorch {shown[1]}\nfloat64 {judge}"


class _Silent:
    def __init__(self):
        self.count = 0

    def record(self, op, args, metas):
        self.count += 1
        return tuple(range(len(metas))) if isinstance(metas, tuple) else self.count


def _fakes(value, recorder):
    if isinstance(value, torch.Tensor):
        return FakeTensor(meta_of(value), recorder, 0)
    return tuple(_fakes(v, recorder) for v in value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("op, sample", [c for c in CASES if isinstance(c.values[0].lowering, Decompose)])
def test_decomposition_meta(op, sample):
    """A decomposition traced on fakes has exactly the metadata of the op's rule, or the op would stay a torch call."""
    args = _bound(op, sample)
    metas, error = _run(op.meta, *(meta_of(a) for a in args))
    if error is not None:
        return
    recorder = _Silent()
    with tracing(recorder):
        found = op.lowering.fn(*(_fakes(a, recorder) for a in args))
    if found is NotImplemented:
        return
    assert [f.meta for f in _flat(found)] == _flat(metas)


def test_metas_are_tensor_metas():
    assert all(isinstance(m, TensorMeta) for m in _flat(OPS["add"].meta(meta_of(torch.ones(2)), 1)))
