"""numpy arrays and scalars: passed in, made inside, met with tensors."""

from __future__ import annotations

import collections
import copy
import operator

import numpy as np
import torch

from tests.capture.constructs.registry import breaks, case
from tests.capture.corpus import r

TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)
MASK = np.array([True, False, True, False])
ORDER = np.array([2, 0, 1, 3])


@case(args=lambda: (r(4), np.float64(0.5), np.int64(3), np.float32(2.0), np.bool_(True)))
def numpy_scalar_arguments(x, f, i, s, b):
    y = x * float(f) + int(i)
    return y if b else x, y * f, y + i, y * s


@case
def numpy_constants(x):
    return x * np.pi + np.e, np.inf > 1, x * np.sqrt(2.0)


@case
def numpy_scalars_made(x):
    a, b, c = np.float32(2.0), np.int64(3), np.float64(x.shape[0])
    return a * x, x * a, b + x, x - b, c / x, x**b, a + b, a < b, type(a * 2), isinstance(c, float), int(b) // 2, -a, abs(-b)


@case
def numpy_scalars_and_other_dtypes(x):
    n, h = x.long(), x.half()
    return n * np.float32(2), n + np.int8(1), h * np.float64(3), np.float32(0.1) + h, n > np.float64(0.5), n // np.int32(2)


@case(args=lambda: (np.arange(4, dtype=np.float32), r(4)))
def numpy_array_argument(a, x):
    return torch.from_numpy(a) + x, a.shape, a.dtype == np.float32, len(a), a.ndim, a.size, a.nbytes, a.strides, a is a


@case(args=lambda: (np.arange(6.0).reshape(2, 3),))
def numpy_functions(a):
    b = np.sin(a) + a.sum(axis=0)
    return b, b.mean(), a.T @ a, np.concatenate([a, a]), np.add.reduce(a), np.linalg.norm(a), np.where(a > 2, a, -a)


@case
def numpy_made_inside(x):
    a = np.linspace(0, 1, 4)
    return x + torch.as_tensor(a, dtype=torch.float32), a[1:3]


@breaks
def numpy_of_tensor(x):
    a = (x * 2).numpy()
    return a.max(), torch.from_numpy(a) + 1


@breaks
def numpy_array_of_tensor(x):
    return np.asarray(x * 2), np.array([1, 2, 3]).sum()


@breaks(args=lambda: (np.zeros(3), r(4)))
def numpy_array_changed(a, x):
    a[0] = 5
    a += 1
    return x * 2, a


@case(args=lambda: (r(4), np.dtype("float32")))
def numpy_dtype_argument(x, d):
    return x + 1, d.itemsize, d == np.float32, d != np.dtype(np.float64), d.name, np.dtype("int8")


@case
def numpy_shapes_and_numbers(x):
    n = np.prod(x.shape)
    return (
        x.reshape(int(n)),
        np.ceil(2.1),
        int(np.argmax([1, 3, 2])),
        x.reshape(np.int64(2), -1),
        x[np.int64(1)],
        range(np.int64(3)),
    )


@breaks
def numpy_random(x):
    np.random.seed(0)
    return x * np.random.rand()


@case
def numpy_ranges(x):
    a, b = np.arange(4), np.arange(0.0, 1.0, 0.25)
    return (
        x * torch.tensor(b).float(),
        a + b,
        a[::-1],
        a[1:3] * 2,
        np.zeros((2, 2)),
        np.ones(3),
        np.full(2, 7),
        np.eye(2),
        len(a),
    )


@case
def numpy_array_from_outside_as_constant(x):
    return x * TABLE[1, 2], TABLE[0].sum() + x, TABLE.shape, TABLE.max(), TABLE[:, 1], TABLE is TABLE


@case
def numpy_array_from_outside_as_tensor(x):
    a, b, c = torch.from_numpy(TABLE), torch.tensor(TABLE), torch.as_tensor(TABLE, dtype=torch.float64)
    return a * x, b + x, c.sum(), a, a, b


@case
def numpy_arrays_as_indices(x):
    y = x.clone()
    y[ORDER[:2]] = 7.0
    return x[ORDER], x[MASK], x[None, ORDER], x[np.nonzero(MASK)[0]], x[ORDER[0]], y, x.view(2, 2)[:, np.array([1, 1, 0])]


@case
def numpy_arrays_written_inside(x):
    a = np.zeros(4, dtype=np.float32)
    b = a[1:3]
    b[:] = 2
    a[0] += 5
    a *= np.float32(2)
    c = a.copy()
    c.fill(1)
    c[MASK] = 9
    d = np.array([3, 1, 2])
    d.sort()
    return torch.from_numpy(a) * x, a.sum(), c, d


@case
def numpy_views_stay_views(x):
    a = np.arange(6)
    b = a.reshape(2, 3)
    c = b[1]
    c[0] = 100
    return a, b, c, np.shares_memory, x + int(a[3])


@case
def numpy_methods(x):
    a = np.array([[1.0, 2.0], [3.0, 4.0]])
    return (
        x, a.mean(axis=0), a.reshape(-1), a.astype(np.int32), a.tolist(), a.item(0), a.argmax(), a.cumsum(), a.clip(1.5, 3), a.any(),
        a.ravel(), a.flatten(), a.transpose(), a.T, a.std(), a.var(), a.min(1), a.dot(a), a.squeeze(), a.round(), a.prod(), a.real,
        a.repeat(2), a.nonzero(), a.take([0, 1]), a.diagonal(), a.trace(), a.swapaxes(0, 1), a.tobytes(),
    )  # fmt: skip


@case
def numpy_as_python(x):
    a = np.array([3.0, 1.0])
    first, second = a
    return (
        x * first + second,
        list(a),
        [v for v in a],
        sum(a),
        max(a),
        min(a),
        sorted(a),
        3.0 in a,
        float(a[0]),
        bool(a[0] > 1),
        any(a > 2),
    )


@case
def numpy_truth_of_an_array(x):
    try:
        return x if np.array([1, 2]) else x + 1
    except ValueError as error:
        return x * 2, str(error)


@case
def numpy_errors_are_caught(x):
    found = []
    for key in (7, "a"):
        try:
            found.append(np.arange(3)[key])
        except IndexError as error:
            found.append(str(error))
    try:
        np.zeros(3) + np.zeros(4)
    except ValueError as error:
        found.append(str(error))
    return x, found


@case
def numpy_copies(x):
    a = np.arange(3)
    b, c = copy.copy(a), copy.deepcopy([a, a])
    b[0] = 9
    return x, a, b, c, c[0] is c[1], np.asarray(a) is a, np.array(a) is a


@case
def numpy_limits(x):
    return (
        x + np.finfo(np.float32).eps,
        np.finfo(np.float16).max,
        np.iinfo(np.int8).min,
        np.isnan(np.nan),
        np.nan != np.nan,
        -np.inf,
    )


@case
def numpy_operators(x):
    a, b = np.array([1, 2, 3]), np.array([2, 2, 2])
    return (
        x, a + b, a - 1, 2 * a, a / b, a // b, a % b, a**2, a @ b, a & b, a | 1, a ^ b, ~a, -a, a << 1, a == b, a != 2, a < b,
        [1, 1, 1] + a, np.float64(2) + [1, 2], operator.add(a, b), a > 1, np.maximum(a, b), (a, 1)[1], np.add(a, b),
    )  # fmt: skip


@breaks
def numpy_warnings(x):
    with np.errstate(divide="ignore"):
        return x, np.array([1.0]) / 0


@case
def numpy_array_and_tensor_share_memory(x):
    a = np.arange(4, dtype=np.float32)
    t = torch.from_numpy(a)
    return a, t, t * x


@breaks(args=lambda: (np.ones(4, dtype=np.float32), r(4)))
def numpy_array_written_as_a_tensor(a, x):
    torch.from_numpy(a).add_(x)
    return a.sum() > 100, a


@case(args=lambda: ({"a": np.ones(2), "n": np.float32(3)}, [np.arange(3)], r(2)))
def numpy_arrays_in_containers(d, l, x):
    l.append(np.zeros(2))
    d["b"] = d["a"]
    return x * d["n"], d["a"] is d["b"], l[0][1] + 1, len(l), {k: v.shape for k, v in d.items()}, torch.as_tensor(d["a"]) + x


@breaks(args=lambda: (np.array(1), collections.deque([0, 1]), r(2, 3)))
def odd_indices(at, both, x):
    y = x * 2
    y[np.array(0)] += 1
    y[:, range(2)] = x[both, range(2)]
    try:
        torch.zeros(range(3))
    except TypeError as error:
        refused = str(error)
    y[..., ...] -= x[at]
    return y[range(2)], x[:, at], y[at, range(3)], torch.tensor(both), refused
