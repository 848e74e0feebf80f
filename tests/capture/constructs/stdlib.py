"""functools, itertools, operator, math, copy, typing, random, and builtins."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import operator
import random
import typing
import warnings

import torch

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r


@functools.lru_cache(maxsize=None)
def pure(n):
    return n * 2


@functools.cache
def cached_key(a, b=1):
    return (a, b)


def wrapper(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        log("wrapped")
        return fn(*args, **kwargs) + 1

    return inner


def repeated(times):
    def decorate(fn):
        def inner(x):
            for _ in range(times):
                x = fn(x)
            return x

        return inner

    return decorate


@wrapper
def decorated(x, k=2):
    """Doc."""
    return x * k


@repeated(3)
@wrapper
def decorated_twice(x):
    return x * 2


@functools.singledispatch
def dispatched(v):
    return "object"


@dispatched.register
def _(v: int):
    return "int"


@dispatched.register(list)
def _(v):
    return "list"


@case
def lru_cache_calls(x):
    return x * pure(3) + pure(3), cached_key(1), cached_key(1, b=2)


@case
def functools_wraps(x):
    return decorated(x, k=3), decorated_twice(x), decorated.__name__, decorated.__doc__


@case
def decorator_made_inside(x):
    @wrapper
    def f(v):
        return v * 2

    @repeated(2)
    def g(v):
        return v + 1

    return f(x), g(x), f.__name__


@case
def functools_partial(x):
    def f(a, b, *, c=1):
        return a * b + c

    p = functools.partial(f, x, c=2)
    q = functools.partial(p, 3)
    return p(2), q(), p.func is f, p.keywords, q.args[1], functools.partial(max, 3)(1, 2)


@case
def functools_reduce(x):
    return (
        functools.reduce(operator.mul, [x, x + 1, 2]),
        functools.reduce(lambda a, b: a + [b], (1, 2), []),
        functools.reduce(max, [1, 3, 2]),
    )


@breaks
def functools_cmp_to_key(x):
    return x, sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))


@breaks
def functools_singledispatch(x):
    return x, dispatched(1), dispatched([]), dispatched("s")


class Multi:
    def __init__(self):
        self.k = 3

    @functools.singledispatchmethod
    def f(self, v):
        return "other"

    pm = functools.partialmethod(lambda self, a, b: self.k * a + b, 2)


@case(args=lambda: (Multi(), r(4)))
def functools_partialmethod(m, x):
    return m.pm(x)


@case
def itertools_infinite(x):
    c = itertools.count(10, 2)
    cyc = itertools.cycle("ab")
    return x, [next(c) for _ in range(3)], [next(cyc) for _ in range(5)], list(itertools.repeat(7, 2))


@case
def itertools_finite(x):
    return (
        list(itertools.accumulate([1, 2, 3], operator.mul)), list(itertools.accumulate([x, x])), list(itertools.chain("ab", [1])), list(itertools.chain.from_iterable([[1], (2,)])),
        list(itertools.compress("abc", [1, 0, 1])), list(itertools.dropwhile(lambda v: v < 2, [1, 2, 1])), list(itertools.takewhile(lambda v: v < 2, [1, 2, 1])),
        list(itertools.filterfalse(lambda v: v % 2, range(5))), list(itertools.islice("abcdef", 1, 5, 2)), list(itertools.starmap(pow, [(2, 3), (3, 2)])),
        list(itertools.zip_longest("ab", [1], fillvalue=0)), list(itertools.pairwise("abc")),
    )  # fmt: skip


@case
def itertools_combinatoric(x):
    return (
        x, list(itertools.product("ab", repeat=2)), list(itertools.permutations([1, 2, 3], 2)), list(itertools.combinations("abc", 2)),
        list(itertools.combinations_with_replacement([1, 2], 2)), sum(a * b for a, b in itertools.product([1, 2], [3])),
    )  # fmt: skip


@case
def itertools_groupby(x):
    return (
        x,
        [(k, list(g)) for k, g in itertools.groupby([1, 1, 2, 3, 3])],
        {k: len(list(g)) for k, g in itertools.groupby("aab", key=str.upper)},
    )


@case
def itertools_tee(x):
    a, b = itertools.tee(iter([x, x + 1]))
    return list(a), next(b)


@case
def builtin_iterators(x):
    z = zip([1, 2], "ab")
    e = enumerate("xy", start=1)
    m = map(lambda a, b: a * b, [x, x], (2, 3))
    f = filter(lambda v: v > 1, [1, 2, 3])
    it = iter([1, 2, 3])
    return next(z), list(z), dict(e), list(m), list(f), next(it), list(it), next(it, "end"), list(reversed([1, 2])), list(zip())


@case
def iter_with_sentinel(x):
    values = iter([3, 2, 0, 5])
    return x, [v for v in iter(lambda: next(values), 0)]


@case
def zip_strict(x):
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError as error:
        return x, str(error)


@case
def iterator_shared(x):
    it = iter(range(6))
    pairs = list(zip(it, it))
    it2 = iter([1, 2, 3, 4])
    first = [v for v, _ in zip(it2, range(2))]
    return x, pairs, first, list(it2)


@case
def builtin_folds(x):
    return (
        x, sum([1, 2.5]), sum([[1], [2]], []), min(3, 1), max([1, 5], key=lambda v: -v), min([], default=7), max("abc"), any(v > 1 for v in (1, 2)), all([]),
        sorted("bca", reverse=True), sorted([(2, "a"), (1, "b")]), abs(-1), round(1.2345, 2), divmod(7, 2), pow(2, 5, 7), bin(5), hex(255), oct(8), len("abc"),
    )  # fmt: skip


@case
def builtin_conversions(x):
    return (
        x, int(3.9), float("inf"), str(1.0), bool([]), list("ab"), tuple({1: 2}), set([1, 1]), frozenset("a"), dict([("a", 1)], b=2), bytes([65]), complex(1, 2),
        int("12"), int(True), ascii("é"), repr("q"), format(3.5, ".1f"), list(range(3)), slice(1, 2), type(1),
    )  # fmt: skip


@case
def builtin_questions(x):
    return (
        x, isinstance(1, (int, str)), isinstance(x, int | torch.Tensor), issubclass(bool, (int,)), callable(len), callable(3), hasattr([], "append"), getattr(x, "nope", 1),
        hash("a") == hash("a"), type(x) is torch.Tensor, type([]) is list, type(None) is type(None),
    )  # fmt: skip


@case
def operator_functions(x):
    get, attr = operator.itemgetter(1), operator.attrgetter("ndim")
    return (
        get([1, 2]), attr(x), operator.itemgetter(0, 2)("abc"), operator.methodcaller("add", 1)(x), operator.add(x, 1), operator.truediv(3, 2), operator.contains([1], 1),
        operator.index(3), operator.concat([1], [2]), operator.is_(x, x), operator.not_(0), operator.xor(5, 3),
        operator.neg(x), operator.getitem({"a": 1}, "a"), operator.attrgetter("shape", "dtype")(x),
    )  # fmt: skip


@breaks
def mutable_bytes(x):
    b = bytearray(b"xy")
    b[0] = 65
    return b, memoryview(b)[1], x + 1


@case
def operator_in_place(x):
    a = [1]
    b = operator.iadd(a, [2])
    d = {}
    operator.setitem(d, "k", x)
    operator.delitem(a, 0)
    return a, b is a, d


@case
def math_functions(x):
    return (
        x * math.sqrt(2), math.floor(2.5), math.ceil(-2.5), math.log(8, 2), math.gcd(12, 18), math.prod([2, 3]), math.isclose(0.1 + 0.2, 0.3), math.inf > 1, math.factorial(5),
        math.hypot(3, 4), math.copysign(1, -0.0), math.isnan(math.nan), math.comb(5, 2), math.tau, math.fsum([0.1] * 3), math.trunc(-1.5), math.log2(8), math.dist([0], [1]),
    )  # fmt: skip


@case
def copy_shallow(x):
    a = [x, [1]]
    b = copy.copy(a)
    b.append(2)
    d = copy.copy({"k": a})
    return a, b, b[1] is a[1], d["k"] is a, copy.copy((1, 2)), copy.copy(3), copy.copy({1, 2})


@case
def copy_deep(x):
    a = {"k": [1, [2]], "t": (1, [3])}
    b = copy.deepcopy(a)
    b["k"][1].append(9)
    return x, a, b, b["t"][1] is a["t"][1]


@case
def typing_use(x):
    n: int = typing.cast(int, "s")
    v: typing.Optional[int] = None
    return x, n, v, typing.TYPE_CHECKING


@case
def annotations_of_locals(x):
    def f(a: int, b: "str" = "x") -> torch.Tensor:
        c: float = 1.0
        return x * a + c

    return f(2), f.__annotations__.keys() == {"a", "b", "return"}


@breaks
def random_numbers(x):
    random.seed(0)
    return x * random.random() + random.randint(1, 3)


@breaks
def random_tensor(x):
    torch.manual_seed(0)
    return x + torch.rand(4)


@breaks
def warning_given(x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning, stacklevel=1)
    return x, len(caught)


@breaks
def identity_number(x):
    return {id(x): 1}[id(x)], x + 1


@case
def globals_and_locals(x):
    y = 1
    return x, "lru_cache_calls" in globals(), y


@case
def locals_read(x):
    y = 1
    return x, sorted(locals())


@breaks
def eval_and_exec(x):
    return eval("x * 2", {"x": x})


@case
def import_inside(x):
    import math as m
    from functools import reduce
    from os import path

    return x * m.pi, reduce(lambda a, b: a + b, [1, 2]), path.basename("a/b")


@case
def sorting_with_keys(x):
    rows = [{"n": 2, "t": x}, {"n": 1, "t": x * 2}]
    rows.sort(key=lambda q: q["n"])
    return (
        [q["t"] for q in rows],
        sorted(rows, key=operator.itemgetter("n"), reverse=True)[0]["n"],
        sorted(["b", "A"], key=str.lower),
    )


@case
def recursion_mutual(x):
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    return x * even(4), odd(3)


@case
def default_arguments_shared(x):
    def f(v, seen=[]):
        seen.append(v)
        return len(seen)

    return x, f(1), f(2)


@case
def keyword_only_and_positional_only(x):
    def f(a, /, b, *rest, c=3, **more):
        return a * b + c + len(rest) + len(more)

    return f(x, 2), f(x, 2, 9, 9, c=1, z=0), f(x, b=4)


@case
def wrong_calls(x):
    def f(a, *, b):
        return a

    out = []
    for call in (lambda: f(), lambda: f(1), lambda: f(1, 2), lambda: f(1, b=2, c=3), lambda: f(1, a=1, b=2)):
        try:
            call()
        except TypeError as error:
            out.append(str(error))
    return x, out


@case
def function_attributes(x):
    def f(v):
        f.calls = getattr(f, "calls", 0) + 1
        return v * f.calls

    return f(x), f(x), f.calls


@case
def comprehension_scopes(x):
    i = 10
    a = [i for i in range(3)]
    b = {j: [k * i for k in range(j)] for j in range(3)}
    c = [f() for f in [lambda i=i: i for i in range(3)]]
    d = [(p, q) for p in range(3) if p for q in range(p) if q != 1]
    return x, i, a, b, c, d


@case
def late_binding_closures(x):
    fs = []
    for i in range(3):
        fs.append(lambda: x * i)
    return [f() for f in fs]


@case
def lambda_recursion(x):
    fact = lambda n: 1 if n < 2 else n * fact(n - 1)
    return x * fact(5)


@case
def nonlocal_chain(x):
    def outer():
        n = 1

        def middle():
            def inner():
                nonlocal n
                n += 1
                return n

            return inner() + inner()

        return middle() + n

    return x * outer()


@case
def tensor_of_values(x):
    return (
        torch.tensor([1, 2.5]),
        torch.tensor(3),
        torch.as_tensor([True]),
        x.new_tensor([1.0, 2.0]),
        torch.tensor([[1], [2]], dtype=torch.float64),
    )


@case
def autograd_function(x):
    return Square.apply(x) + 1


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        ctx.mark_non_differentiable()
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x, k):
        return x * k

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None


@case
def autograd_functions_without_gradients(x):
    return Scaled.apply(x, 3), Split.apply(x, 2)
