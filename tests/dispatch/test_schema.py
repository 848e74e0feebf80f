"""The schema parser and argument binding, against torch's own schemas and error texts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tinycompile.dispatch.schema import MISSING, parse

pytestmark = pytest.mark.pure

ROUND_TRIPS = [
    "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
    "view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
    "add_(Tensor(a!) self, Tensor other) -> Tensor(a!)",
    "max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    "split(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
    "sum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    "index(Tensor self, Tensor?[] indices) -> Tensor",
    "gelu(Tensor self, *, str approximate='none') -> Tensor",
    "arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None) -> Tensor",
    "f(float[2] scale=[0, 1e-05], float eps=1e-05, int k=-1, MemoryFormat m=contiguous_format) -> ()",
    "nothing() -> Tensor",
]


@pytest.mark.parametrize("text", ROUND_TRIPS)
def test_text_round_trips(text: str) -> None:
    schema = parse(text)
    assert str(schema) == text
    assert parse(str(schema)) == schema and hash(parse(text)) == hash(schema)


def torch_schemas() -> list[str]:
    names = ("add", "gelu", "view", "sum", "mean", "var", "split", "cat", "index_put_", "native_layer_norm", "arange", "full",
             "clamp", "embedding", "convolution", "scaled_dot_product_attention", "to", "max", "norm", "einsum", "pad")  # fmt: skip
    found = []
    for name in names:
        packet = getattr(torch.ops.aten, name)
        found += [str(getattr(packet, overload)._schema) for overload in packet.overloads()]
    torchscript_only = ("complex", "...", "prim_", "Storage", "t[]", "(t ", "Dimname[")
    return [text for text in found if "Tensor" in text and not any(part in text for part in torchscript_only)]


@pytest.mark.parametrize("text", torch_schemas())
def test_reads_what_torch_writes(text: str) -> None:
    schema = parse(text)
    reference = torch._C.parse_schema(text)
    assert [a.name for a in schema.args] == [a.name for a in reference.arguments]
    assert [a.kw_only for a in schema.args] == [a.kwarg_only for a in reference.arguments]
    assert [a.default is not MISSING for a in schema.args] == [a.has_default_value() for a in reference.arguments]
    assert [bool(a.alias) for a in schema.args] == [a.alias_info is not None for a in reference.arguments]
    assert len(schema.returns) == len(reference.returns)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("add", "not a schema"),
        ("add(Tensor self)", "not a schema"),
        ("add(Tenser self) -> Tensor", "unknown type 'Tenser'"),
        ("add(Tensor self, Tensor 2) -> Tensor", "can't read the argument"),
        ("add(Tensor a, Tensor a) -> Tensor", "named twice"),
        ("add(Tensor a, int b=what) -> Tensor", "can't read the default 'what'"),
    ],
)
def test_a_bad_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_parts() -> None:
    schema = parse("sum(Tensor(a!) self, int[1]? dim=None, *, ScalarType? dtype=None) -> Tensor")
    self, dim, dtype = schema.args
    assert (self.alias, dim.optional, dim.is_list, dim.base, dtype.kw_only) == ("a!", True, True, "int", True)
    assert schema.mutates and schema.positional == 2 and schema.device_arg is None


# --- binding ---

RELU = parse("relu(Tensor input) -> Tensor")
UNSQUEEZE = parse("unsqueeze(Tensor input, int dim) -> Tensor")
ADD = parse("add(Tensor input, Tensor other, *, Scalar alpha=1) -> Tensor")
X = torch.ones(2)


def test_bind_fills_defaults_and_reads_keywords() -> None:
    assert ADD.bind((1, 2), {}) == (1, 2, 1)
    assert ADD.bind((1,), {"alpha": 3, "other": 2}) == (1, 2, 3)
    assert parse("f(int a, int? b=None) -> Tensor").bind((1, None), {}) == (1, None)


@pytest.mark.parametrize(
    ("schema", "fn", "args", "kwargs"),
    [
        (RELU, torch.relu, (), {}),
        (RELU, torch.relu, (X, X), {}),
        (RELU, torch.relu, (X,), {"input": X}),
        (RELU, torch.relu, (X,), {"foo": 1}),
        (RELU, torch.relu, ("x",), {}),
        (UNSQUEEZE, torch.unsqueeze, (X,), {}),
        (UNSQUEEZE, torch.unsqueeze, (X, "x"), {}),
        (UNSQUEEZE, torch.unsqueeze, (X, 1.5), {}),
        (ADD, torch.add, (X, X, X, X), {}),
        (ADD, torch.add, (X, X), {"foo": 1}),
        (ADD, torch.add, (X, "x"), {}),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_errors_are_worded_as_torch_words_them(schema: Any, fn: Any, args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError) as theirs:
        fn(*args, **kwargs)
    with pytest.raises(TypeError) as ours:
        schema.bind(args, kwargs)
    assert str(ours.value) == str(theirs.value).splitlines()[0]
