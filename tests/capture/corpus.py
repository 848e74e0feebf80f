"""Functions that capture must follow without a break. Each case: a function, and a function that makes its arguments."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

Args = Callable[[], tuple[Any, ...]]
CASES: dict[str, tuple[Callable[..., Any], Args]] = {}
SCALE = 3
LABELS = ("a", "b")
TABLE = {"one": 1, "two": 2.5}
WEIGHT = torch.linspace(0, 1, 8)


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    x = torch.randn(*shape, generator=generator)
    return x.to(dtype) if dtype.is_floating_point else (x * 5).to(dtype)


def case(*shapes: Any, args: Args | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function; ``shapes`` are tensors' shapes, ``args`` makes the arguments instead."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        assert fn.__name__ not in CASES
        CASES[fn.__name__] = fn, args or (lambda: tuple(r(*s) for s in shapes))
        return fn

    return register


# --- straight lines and operators ---


@case((4, 8), (4, 8))
def arithmetic(x, y):
    return x + y, x - y, x * y, x / (y.abs() + 1), x**2, -x, +x, 2 - x, 1 / (x.abs() + 1), 2 * x, 3 + y


@case(args=lambda: (r(4, 8, dtype=torch.int64), r(8, dtype=torch.int64)))
def integer_operators(x, y):
    return x // 3, x % 3, x & y, x | y, x ^ y, ~x, x << 1, x >> 1, x.float() / 2


@case((4, 8), (8,))
def comparisons(x, y):
    return x < y, x <= y, x > 0, x >= 0.5, x == y, x != y, (x > 0) & (y > 0), ~(x > 0)


@case((4, 8), (8, 3))
def matmuls(x, w):
    return x @ w, torch.matmul(x, w), x.mm(w), torch.mm(x, w)


@case((4, 8))
def unary_functions(x):
    return torch.exp(x), x.sin(), torch.tanh(x), x.sigmoid(), F.gelu(x), F.relu(x), x.abs().sqrt(), torch.erf(x), F.silu(x)


@case((4, 8))
def reductions(x):
    return x.sum(), x.mean(dim=1), x.amax(-1, keepdim=True), x.var(0), x.max(dim=1).values, x.argmax(1), torch.logsumexp(x, 1)


@case((4, 8))
def max_unpacked(x):
    values, indices = x.max(dim=1)
    m = x.min(0)
    return values, indices, m.indices, m[0]


@case((4, 8))
def whole_result_object(x):
    return torch.max(x, 1), x.sort(dim=1)


@case((2, 3, 4))
def shapes_and_views(x):
    return (
        x.view(6, 4),
        x.reshape(-1),
        x.permute(2, 0, 1),
        x.transpose(0, 1),
        x.flatten(1),
        x.unsqueeze(0),
        x[None].squeeze(0),
        x.mT,
    )


@case((2, 3, 4))
def indexing(x):
    return x[0], x[:, 1], x[..., -1], x[:, None], x[0, 1:3], x[::2], x[1, ..., 2], x[-1, :, ::2], x[:]


@case((4, 6))
def split_and_join(x):
    a, b = x.chunk(2, dim=1)
    c, d, e = torch.split(x, 2, dim=1)
    return torch.cat([a, b], 0), torch.stack([c, d, e]), torch.cat((b, a), dim=-1), x.unbind(0)[1]


@case(args=lambda: (r(5, 4), torch.tensor([0, 2, 2, 4])))
def index_tensors(x, i):
    return x[i], x[i, 0], x.index_select(0, i), F.embedding(i, x), x[:, i[:2]], x[[0, 2]]


@case((4, 8))
def dtypes(x):
    return (
        x.half(),
        x.to(torch.float64),
        x.double().float(),
        x.to(torch.bfloat16),
        x.long(),
        x.to(x.dtype),
        x.type_as(x.double()),
        x.bool(),
    )


@case((4, 8))
def attributes(x):
    if x.ndim == 2 and x.dtype is torch.float32 and x.device.type == "cpu" and not x.is_cuda:
        return x * x.shape[0] + x.size(1) + x.numel() + x.dim() + x.element_size() + len(x)
    return x


@case((4, 8))
def transposed_layout(x):
    y = x.t()
    return y + 1 if not y.is_contiguous() and y.stride() == (1, 8) else y - 1, y.contiguous() * 2, x.T, y.stride(0)


@case((4, 8))
def creation(x):
    return (
        torch.zeros(3),
        torch.ones_like(x),
        torch.arange(5),
        x.new_zeros(2, 3),
        torch.full((2,), 7.0),
        torch.eye(3),
        torch.tensor([1.0, 2.0]),
    )


@case((4, 8))
def where_and_masks(x):
    return torch.where(x > 0, x, -x), x.masked_fill(x < 0, 0.0), x.clamp(-1, 1), torch.tril(x), x.triu(1), torch.maximum(x, -x)


@case((2, 8))
def softmaxes(x):
    return F.softmax(x, dim=-1), x.softmax(0), F.log_softmax(x, -1), torch.softmax(x, 1, dtype=torch.float64)


@case((2, 4, 8), (8,), (8,))
def norms(x, w, b):
    return F.layer_norm(x, (8,), w, b), F.rms_norm(x, (8,), w), F.group_norm(x, 2)


@case((2, 4, 8, 16), (2, 4, 8, 16), (2, 4, 8, 16))
def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True)


@case(args=lambda: (r(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])))
def losses(x, t):
    return F.cross_entropy(x, t), F.mse_loss(x, x * 2), F.nll_loss(F.log_softmax(x, 1), t)


@case((2, 3, 8, 8), (4, 3, 3, 3))
def convolution(x, w):
    return F.conv2d(x, w, padding=1), F.max_pool2d(x, 2), F.avg_pool2d(x, 2)


@case((4, 8))
def functions_without_record(x):
    return torch.fft.rfft(x).abs(), torch.cumprod(x, 1), x.flip(0), torch.roll(x, 1, 0), torch.linalg.vector_norm(x)


@case((3, 4), (4, 5))
def einsum(x, y):
    return torch.einsum("ij,jk->ik", x, y)


@case((4, 8))
def padded(x):
    return F.pad(x, (1, 2)), F.pad(x, (1, 1), value=2.0)


# --- Python values ---


@case(args=lambda: (r(4), 3, 0.5, True, "relu", None))
def plain_arguments(x, n, f, flag, name, nothing):
    y = x * n + f
    if flag and name == "relu" and nothing is None:
        y = y.relu()
    return y, n + 1, f / 2, name.upper(), nothing


@case((4,))
def numbers(x):
    a = 7 // 2 + 7 % 3 - 2**3 + (1 << 4) - (5 & 3) + (5 | 2) + (6 ^ 3)
    b = abs(-3) + round(2.6) + int(3.9) + max(1, 2, 3) + min([4, 5]) + sum([1, 2]) + divmod(7, 2)[1] + pow(2, 3)
    return x * a + b + float("1.5") + bool(0) + math.sqrt(4.0) + math.pi


@case((4,))
def strings(x):
    name = f"{SCALE:>5}|{1.5!r}|{x.shape[0]}"
    parts = "-".join(["a", "b"]).split("-")
    return x * len(name) + len(parts), name.strip(), "%d%s" % (3, "x"), "{}-{}".format(1, 2), name[1:3], "a" in name


@case((4,))
def tuples(x):
    t = (x, x + 1, 3)
    a, b, c = t
    first, *rest = (a, b, c)
    t2 = t + (4,)
    return t2[-1] * a, rest[0], len(t2), t2[1:], t[0] is x, (1, 2) < (1, 3), (5, 3).index(3), (0,) * 2


@case((4,))
def lists(x):
    out = [x]
    out.append(x + 1)
    out.extend([x * 2, x * 3])
    out.insert(0, x - 1)
    out[1] = x / 2
    last = out.pop()
    out.reverse()
    out += [last]
    del out[0]
    return out, len(out), out[-1], out[1:3], [1, 2] + [3], [0] * 3, sorted([3, 1, 2]), 2 in [1, 2]


@case((4,))
def dicts(x):
    d = {"a": x, "b": x + 1}
    d["c"] = d["a"] * 2
    d.update(e=x * 3)
    popped = d.pop("b")
    total = x * 0
    for k, v in d.items():
        if k != "e":
            total = total + v
    e = {**d, "z": popped}
    return (
        total,
        list(d),
        e,
        d.get("missing"),
        "a" in d,
        {k: v + 1 for k, v in d.items()},
        d.setdefault("n", x),
        len(d),
        dict(q=1),
    )


@case((4,))
def sets(x):
    s = {1, 2, 3}
    s.add(4)
    return x * len(s), 3 in s, sorted(s), s | {7} == {1, 2, 3, 4, 7}, frozenset([1, 2])


@case((6,))
def slices(x):
    s = slice(1, 4)
    return x[s], x[s.start :], s.indices(6), [1, 2, 3, 4][s]


@case((4,))
def walrus_and_chains(x):
    if (n := x.shape[0]) > 3 and 1 < n <= 4:
        return x + n
    return x


@case((4,))
def conditional_expressions(x):
    y = x if x.shape[0] > 100 else x * 2
    z = None or y
    w = z if not [] else x
    return w + (1 and 2)


# --- control flow ---


@case((4,))
def range_loops(x):
    for i in range(4):
        x = x + i
    for j in range(10, 0, -3):
        x = x * j
    return x


@case((4,))
def loop_helpers(x):
    for i, (a, b) in enumerate(zip([1, 2, 3], (4, 5, 6))):
        x = x + i * a * b
    for v in reversed([1, 2]):
        x = x * v
    for v in map(lambda q: q + 1, [1, 2]):
        x = x - v
    for v in filter(None, [0, 5, None]):
        x = x + v
    return x


@case((4,))
def while_loops(x):
    n = 0
    while True:
        n += 1
        if n == 2:
            continue
        if n > 4:
            break
        x = x + n
    else:
        x = x * 100
    return x, n


@case((3, 4))
def loop_over_tensor(x):
    total = 0
    for row in x:
        total = total + row
    return total, [row.sum() for row in x], len(x)


@case((4,))
def for_else(x):
    for i in range(3):
        if i == 5:
            break
    else:
        x = x + 10
    return x


@case((4,))
def comprehensions(x):
    a = [x * i for i in range(3) if i != 1]
    b = {i: x + i for i in (1, 2)}
    c = [[i * j for j in range(2)] for i in range(2)]
    d = sum(v for v in a)
    e = {i % 2 for i in range(5)}
    return a, b, c, d, sorted(e), any(i > 2 for i in range(4)), all(i >= 0 for i in range(3)), tuple(v + 1 for v in a)


@case((4,))
def itertools_use(x):
    for a, b in itertools.product([1, 2], [3, 4]):
        x = x + a * b
    for v in itertools.chain([1], (2, 3)):
        x = x - v
    total = functools.reduce(operator.add, [x, x, x])
    return (
        total,
        list(itertools.accumulate([1, 2, 3])),
        list(itertools.islice(itertools.count(5), 2)),
        list(itertools.pairwise([1, 2, 3])),
    )


@case((4,))
def matching(x):
    kind = "double"
    if kind == "half":
        return x / 2
    elif kind == "double":
        return x * 2
    return x


# --- calls ---


def helper(x, k=2, *rest, scale=1.0, **more):
    return x * k * scale + len(rest) + sum(more.values())


@case((4,))
def user_calls(x):
    return (
        helper(x),
        helper(x, 3),
        helper(x, 3, 4, 5),
        helper(x, scale=2.0),
        helper(x, k=1, a=1, b=2),
        helper(*(x, 5), **{"scale": 0.5}),
    )


@case((4,))
def lambdas(x):
    double = lambda v: v * 2
    compose = lambda f, g: lambda v: f(g(v))
    return double(x), compose(double, torch.relu)(x), (lambda a, b=3: a + b)(x)


def make_adder(n):
    def add(x):
        return x + n

    return add


@case((4,))
def closures(x):
    n = 3

    def inner(y):
        return y * n

    add = make_adder(5)
    return inner(x), add(x)


@case((4,))
def nonlocal_variables(x):
    count = 0

    def bump(y):
        nonlocal count
        count += 1
        return y + count

    x = bump(bump(x))
    return x, count


captured_scale = 1.5


def outer_closure():
    factor = 4
    bias = torch.ones(4)

    def closed_over(x):
        return x * factor + bias * captured_scale

    return closed_over


CASES["closed_over"] = outer_closure(), lambda: (r(4),)


@case((4,))
def recursion(x):
    def power(v, n):
        return v if n == 0 else power(v * 2, n - 1)

    return power(x, 3)


@case((4,))
def partials(x):
    p = functools.partial(helper, k=5)
    return p(x), functools.partial(torch.add, x)(x, alpha=2)


@case((4,))
def generators(x):
    def steps(v):
        for i in range(3):
            yield v + i

    def outer(v):
        yield v
        yield from steps(v)

    return sum(steps(x)), list(outer(x)), max(len(s) for s in ["a", "bcd"])


@case((4, 4))
def keyword_calls(x):
    return (
        torch.sum(input=x, dim=0),
        torch.nn.functional.softmax(x, dim=-1),
        torch.add(x, other=x, alpha=3),
        x.sum(dim=1, keepdim=True),
    )


@case((4,), (4,))
def operators_as_functions(x, y):
    return operator.add(x, y), operator.mul(2, 3), operator.getitem([1, 2], 1), max([x.shape[0], 2]), operator.neg(x)


@case((8,))
def globals_used(x):
    return x * SCALE + TABLE["two"] + len(LABELS), x * WEIGHT


@case((4,))
def builtin_queries(x):
    return (
        x * isinstance(x, torch.Tensor) + callable(helper),
        hasattr(x, "shape"),
        getattr(x, "nothing", 5),
        isinstance(3, (int, float)),
        type(x) is torch.Tensor,
        issubclass(bool, int),
        isinstance(x, nn.Parameter),
    )


@case((4,))
def no_grad_block(x):
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        y = y + 1
    return y


@torch.no_grad()
def decorated(x):
    return x * 3


@case((4,))
def no_grad_decorator(x):
    return decorated(x) + torch.is_grad_enabled()


@case((4,))
def assertions(x):
    assert x.shape[0] == 4, "never"
    assert x.dtype == torch.float32
    return x + 1


@case((4,))
def torch_constants(x):
    info = torch.finfo(torch.float32)
    return (
        x.clamp(min=info.min, max=info.max) + torch.pi,
        x.to(torch.float16 if x.dtype != torch.float16 else torch.float32),
        info.eps,
    )


@case((4,))
def try_without_ops(x):
    try:
        n = int("3")
    except ValueError:
        n = 4
    return x + n


# --- in place, on the graph's own ---


@case((4,))
def in_place_on_intermediate(x):
    y = x * 2
    z = y
    y += 1
    y.mul_(3)
    y.clamp_(min=0)
    return y, z is y, z


@case((4, 4))
def fill_and_assign(x):
    y = torch.zeros(4, 4)
    y[0] = 1.0
    y[1:3, 2] = x[0, :2]
    y[y > 0.5] = 7.0
    z = x.clone()
    z[:, 0] = 0
    z[..., -1] = x[:, 0]
    return y, z, x.clone().fill_(2.0), x.clone().zero_()


@case((4,))
def relu_in_place(x):
    return F.relu(x + 1, inplace=True), torch.relu_(x * 2)


# --- results ---


@case((4,), (4,))
def identities(x, y):
    shared = [x + 1]
    t = x * 2
    return {"in": x, "pair": (shared, shared), "t": (t, t), "none": None, "y": y}


@case((4,))
def nested_results(x):
    return [(x, {"a": [x + 1, (2, 3)]}), [], (), {}, "s", 1.5, True, torch.float32, slice(1, 2), range(3)]


@case((4,))
def no_tensor_result(x):
    return x.shape, x.shape[0] + 1, x.dtype


class Point(NamedTuple):
    x: Any
    y: Any = 2

    def total(self):
        return self.x + self.y


@case((4,))
def named_tuples(x):
    p = Point(x, 3)
    q = p._replace(y=x * 2)
    return p, p.total(), q.y, p[0], Point(x=x).y, p._fields


@case((4,))
def collections_used(x):
    d = collections.OrderedDict(a=x)
    d["b"] = x + 1
    dd = collections.defaultdict(list)
    dd["k"].append(x)
    return d, dd


# --- arguments of other kinds ---


@case(args=lambda: ([r(4), r(4)], {"a": r(4), "n": 3}, (r(4), (2, r(4)))))
def containers_of_tensors(xs, d, t):
    total = xs[0] + xs[1] + d["a"] * d["n"] + t[0] + t[1][0] * t[1][1]
    for x in xs:
        total = total + x
    return total, len(xs), list(d), xs, t[1]


@case(args=lambda: (r(4), r(4), r(4)))
def star_arguments(first, *rest, **options):
    for x in rest:
        first = first + x
    return first * (2 if options else 1), len(rest)


@case(args=lambda: (r(4), torch.float64, torch.device("cpu"), torch.Size([2, 2]), slice(0, 2), range(3)))
def torch_arguments(x, dtype, device, size, part, numbers):
    return x.to(dtype).to(device).view(size), x[part], sum(numbers)


@case(args=lambda: (r(4), torch.relu, lambda v: v * 2, nn.functional))
def function_arguments(x, f, g, module):
    return f(x), g(x), module.gelu(x)


@case(args=lambda: (nn.Parameter(r(4)), r(4)))
def parameter_arguments(p, x):
    return p * x, isinstance(p, nn.Parameter), p.requires_grad, (p * x).requires_grad


@case(args=lambda: (Point(r(4), 3),))
def named_tuple_argument(p):
    return p.x * p.y, p.total(), p


class Config:
    kind = "plain"
    __slots__ = ("__dict__", "slot")

    def __init__(self):
        self.width = 8
        self.scale = 0.5
        self.table = {"k": 2}
        self.slot = 9

    @property
    def half(self):
        return self.width // 2

    @classmethod
    def named(cls):
        return cls.kind

    @staticmethod
    def twice(v):
        return v * 2

    def apply(self, x):
        return x * self.scale

    def __call__(self, x):
        return self.apply(x) + 1

    def __len__(self):
        return 3

    def __getitem__(self, k):
        return self.table[k]

    def __add__(self, other):
        return other + self.width

    def __contains__(self, k):
        return k in self.table


@case(args=lambda: (r(4), Config()))
def user_objects(x, c):
    return (
        c.apply(x) + c.half + c.slot,
        c.named(),
        c.twice(x),
        c(x),
        len(c),
        c["k"],
        c + x,
        "k" in c,
        hasattr(c, "absent"),
        getattr(c, "absent", 1),
        c.kind,
        isinstance(c, Config),
        c is c,
        type(c) is Config,
        c.__class__.__name__,
    )


@dataclass
class Options:
    steps: int = 2
    names: list = field(default_factory=lambda: ["a", "b"])


@case(args=lambda: (r(4), Options()))
def dataclass_argument(x, o):
    for name in o.names:
        x = x + len(name) * o.steps
    return x


# --- modules ---


class Block(nn.Module):
    def __init__(self, width=8, act=F.gelu):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.act = act
        self.scale = 0.5
        self.register_buffer("offset", torch.ones(width))

    def forward(self, x):
        h = self.act(self.up(self.norm(x)))
        return x + self.down(h) * self.scale + self.offset


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
        self.extra = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Identity()})
        self.params = nn.ParameterList([nn.Parameter(torch.ones(8)) for _ in range(2)])
        self.eval()

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            x = block(x) * (i + 1)
        for name, layer in self.extra.items():
            x = x + layer(x)
        x = x + self.blocks[0](x) + self.extra["a"](x)
        for p in self.params:
            x = x * p
        if self.training:
            x = x * 100
        return self.head(x), len(self.blocks), self.blocks[-1](x)


class Child(Block):
    def forward(self, x):
        return super().forward(x) * 2 + super().forward(x)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.eval()

    def forward(self, x):
        x = F.relu(self.bn(self.conv(x)), inplace=True)
        return self.pool(x).flatten(1)


class Walks(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        total = x.sum() * 0
        for name, p in self.named_parameters():
            total = total + p.sum() * len(name)
        for m in self.children():
            total = total + m(x).sum()
        for p in self.a.parameters():
            total = total + p.mean()
        return total


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


MODULES = {name: seeded(make) for name, make in {
    "linear": lambda: nn.Linear(8, 3),
    "block": Block,
    "stack": Stack,
    "child": Child,
    "sequential": lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)),
    "embedding": lambda: nn.Embedding(10, 8),
    "convolutions": Convolutions,
    "walks": Walks,
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True).eval(),
    "encoder": lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True).eval(),
    "frozen": lambda: nn.Linear(8, 3).requires_grad_(False),
}.items()}  # fmt: skip
MODULE_ARGS: dict[str, Args] = {
    "embedding": lambda: (torch.tensor([1, 2, 9]),),
    "convolutions": lambda: (r(2, 3, 8, 8),),
    "walks": lambda: (r(2, 4),),
    "attention": lambda: (r(2, 5, 8), r(2, 5, 8), r(2, 5, 8)),
    "encoder": lambda: (r(2, 5, 8), r(2, 5, 8)),
}


def _module_case(name: str) -> None:
    module = MODULES[name]

    def run(*args):
        return module(*args)

    run.__name__ = f"module_{name}"
    CASES[run.__name__] = run, MODULE_ARGS.get(name, lambda: (r(2, 4, 8),))


for _name in MODULES:
    _module_case(_name)


@case((2, 4, 8))
def module_from_global(x):
    return MODULES["block"](x)


@case(args=lambda: (MODULES["block"], r(2, 4, 8)))
def module_as_argument(m, x):
    return m(x) + m.norm.weight.sum() + m.down.weight.shape[0] + m.norm.eps, m.norm.normalized_shape, m.down.bias is None


CASES["bound_forward"] = MODULES["block"].forward, lambda: (r(2, 4, 8),)


# --- small idioms of real models ---


@case((2, 5, 16), (16,))
def rms_norm_by_hand(x, w):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (w * h).to(x.dtype)


@case((2, 4, 6, 8), (6, 8), (6, 8))
def rotary(q, cos, sin):
    a, b = q.chunk(2, dim=-1)
    rotated = torch.cat((-b, a), dim=-1)
    return q * cos + rotated * sin


@case((2, 6, 24))
def split_heads(x):
    B, T, C3 = x.shape
    q, k, v = x.split(C3 // 3, dim=2)
    q, k, v = (t.view(B, T, 2, C3 // 6).transpose(1, 2) for t in (q, k, v))
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    mask = torch.tril(torch.ones(T, T, dtype=torch.bool)).view(1, 1, T, T)
    att = F.softmax(att.masked_fill(~mask, float("-inf")), dim=-1)
    return (att @ v).transpose(1, 2).contiguous().view(B, T, C3 // 3)


@case(args=lambda: (torch.tensor([[1, 2], [3, 0]]), r(10, 8), r(4, 8)))
def token_embedding(ids, wte, wpe):
    pos = torch.arange(0, ids.size(1), dtype=torch.long, device=ids.device)
    return F.embedding(ids, wte) + wpe[pos]


@case((4, 8), (4, 8))
def gated(a, b):
    return F.silu(a) * b, torch.sigmoid(a).mul(b).add(1), torch.addcmul(a, a, b, value=0.5)


@case((4, 8))
def standardise(x):
    mean, std = x.mean(0), x.std(0)
    return (x - mean) / (std + 1e-5)


@case((4, 4))
def newton_steps(x):
    y = x @ x.T + torch.eye(4) * 4
    z = torch.eye(4) / y.trace()
    for _ in range(3):
        z = z @ (2 * torch.eye(4) - y @ z)
    return z


@case((6, 3), (5, 3))
def pairwise_distance(a, b):
    return ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1).sqrt(), torch.cdist(a, b)


@case((3, 7))
def one_hot_loss(x):
    target = x.argmax(1)
    onehot = F.one_hot(target, 7).to(x.dtype)
    return -(onehot * F.log_softmax(x, 1)).sum(1).mean()


@case((2, 3, 4, 4))
def image_ops(x):
    return (
        F.interpolate(x, scale_factor=2, mode="nearest"),
        x.flip(-1),
        F.pixel_shuffle(torch.cat([x, x[:, :1]], 1), 2),
        x.mean((2, 3)),
    )


def _simple(name: str, text: str, *shapes: tuple[int, ...]) -> None:
    """A one-line case; the code is text so that many small methods can be listed."""
    params = "xyz"[: len(shapes)]
    space = {"torch": torch, "F": F, "math": math}
    exec(f"def {name}({', '.join(params)}):\n    return {text}\n", space)
    CASES[name] = space[name], lambda: tuple(r(*s) for s in shapes)


for _name, _text in {
    "m_add_alpha": "x.add(y, alpha=2)", "m_sub": "x.sub(y)", "m_mul_scalar": "x.mul(3)", "m_div_floor": "torch.div(x, 2, rounding_mode='floor')",
    "m_pow": "x.abs().pow(0.5)", "m_exp2": "x.exp2()", "m_log1p": "x.abs().log1p()", "m_sign": "x.sign()", "m_round": "x.round()",
    "m_floor": "x.floor(), x.ceil(), x.trunc()", "m_atan2": "torch.atan2(x, y)", "m_hypot": "torch.hypot(x, y)", "m_lerp": "torch.lerp(x, y, 0.3)",
    "m_cumsum": "x.cumsum(-1)", "m_prod": "x.prod(1)", "m_norm": "x.norm(), torch.norm(x, dim=1)", "m_any": "(x > 0).any(), (x > 0).all(1)",
    "m_std": "x.std(), x.var(1, unbiased=False)", "m_topk": "x.topk(2, dim=1)", "m_gather": "x.gather(1, x.argsort(1))",
    "m_expand": "x[:, :1].expand(4, 6), x[:1].expand_as(x)", "m_repeat": "x.repeat(2, 1), x.tile(2)", "m_movedim": "x.movedim(0, 1)",
    "m_swapaxes": "x.swapaxes(0, 1), x.adjoint()", "m_narrow": "x.narrow(1, 0, 2), x.select(0, 1)", "m_diag": "x.diagonal(), torch.diag(x[0])",
    "m_outer": "torch.outer(x[0], y[0])", "m_bmm": "torch.bmm(x[None], y.T[None])", "m_addmm": "torch.addmm(x[:, :4], x, y.t())",
    "m_dot": "torch.dot(x[0], y[0])", "m_relu6": "F.relu6(x), F.leaky_relu(x, 0.1), F.elu(x)", "m_softplus": "F.softplus(x), F.hardtanh(x)",
    "m_mish": "F.mish(x), F.selu(x), F.hardswish(x)", "m_normalize": "F.normalize(x, dim=1)", "m_cosine": "F.cosine_similarity(x, y, dim=1)",
    "m_glu": "F.glu(x)", "m_linear": "F.linear(x, y)", "m_logical": "torch.logical_and(x > 0, y > 0), torch.isnan(x), x.isinf()",
    "m_minmax": "x.min(), x.max(), torch.aminmax(x)", "m_stack": "torch.stack((x, y), 1), torch.hstack([x, y]), torch.vstack([x, y])",
    "m_unfold": "x.unfold(1, 2, 2)", "m_nan_to_num": "x.nan_to_num()", "m_sqrt_chain": "x.abs().sqrt().neg().exp()", "m_reciprocal": "x.reciprocal()",
    "m_clamp_tensor": "torch.clamp(x, min=y), x.clamp_min(0), x.clamp_max(1)", "m_where_scalar": "torch.where(x > 0, x, 0.0)",
    "m_rsub": "5 - x, torch.rsub(x, 2)", "m_mean_dims": "x.mean((0, 1)), x.sum((0, 1), keepdim=True)", "m_count": "(x > 0).sum(), torch.count_nonzero(x)",
    "m_to": "x.to('cpu'), x.cpu(), x.to(y), x.to(dtype=torch.float64)", "m_meshgrid": "torch.meshgrid(x[0], y[0], indexing='ij')",
    "m_bucketize": "torch.searchsorted(x[0].sort().values, y[0])", "m_kron": "torch.kron(x[:2, :2], y[:2, :2])",
}.items():  # fmt: skip
    _simple(_name, _text, (4, 6), (4, 6))
