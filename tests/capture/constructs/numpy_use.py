"""numpy arrays and scalars: passed in, made inside, met with tensors."""

from __future__ import annotations

import numpy as np
import torch

from tests.capture.constructs.registry import breaks, case
from tests.capture.corpus import r


@case(args=lambda: (r(4), np.float64(0.5), np.int64(3), np.float32(2.0), np.bool_(True)))
def numpy_scalar_arguments(x, f, i, s, b):
    y = x * float(f) + int(i)
    return y if b else x, y * f, y + i, y * s


@case
def numpy_constants(x):
    return x * np.pi + np.e, np.inf > 1, x * np.sqrt(2.0)


@breaks(args=lambda: (np.arange(4, dtype=np.float32), r(4)))
def numpy_array_argument(a, x):
    return torch.from_numpy(a) + x, a.shape, a.dtype == np.float32, len(a)


@breaks(args=lambda: (np.arange(6.0).reshape(2, 3),))
def numpy_functions(a):
    b = np.sin(a) + a.sum(axis=0)
    return b, b.mean(), a.T @ a, np.concatenate([a, a])


@breaks
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
    return x + 1, d.itemsize


@breaks
def numpy_shapes_and_numbers(x):
    n = np.prod(x.shape)
    return x.reshape(int(n)), np.ceil(2.1), int(np.argmax([1, 3, 2]))


@breaks
def numpy_random(x):
    np.random.seed(0)
    return x * np.random.rand()
