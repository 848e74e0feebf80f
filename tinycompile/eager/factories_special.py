"""Tensors by a rule, a distribution or a window, and sparse ones. Arguments are torch's; ``dtype``, ``device`` and
``requires_grad`` by keyword, as for every factory."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.eager.factories import as_tensor, make
from tinycompile.eager.tensor import Tensor, unwrap


def asarray(
    data: Any, *, dtype: torch.dtype | None = None, device: Device | str | None = None, copy: bool | None = None
) -> Tensor:
    """As :func:`~tinycompile.eager.factories.as_tensor`. ``copy``: True is always one, off the tape; False never, so that
    ValueError is raised where one is needed; None where one is needed."""
    made = as_tensor(data, dtype, device)
    if copy:
        return made.detach().clone()
    if copy is False and made is not data:
        torch.asarray(unwrap(data), dtype=dtype, device=unwrap(device), copy=False)  # raises
    return made


def frombuffer(buffer: Any, **options: Any) -> Tensor:
    """A 1-d tensor of ``dtype`` on the memory of an object with Python's buffer protocol."""
    return make(torch.frombuffer, (buffer,), options)


def scalar_tensor(value: Any, **options: Any) -> Tensor:
    """A 0-d tensor."""
    return make(torch.scalar_tensor, (value,), options)


def empty_permuted(size: Any, physical_layout: Any, **options: Any) -> Tensor:
    """Uninitialised memory of ``size`` whose dims lie in memory in the order ``physical_layout``."""
    return make(torch.empty_permuted, (size, physical_layout), options)


def tril_indices(row: int, col: int, offset: int = 0, **options: Any) -> Tensor:
    """(2, n): the coordinates of the lower triangle of a ``row`` by ``col`` matrix."""
    return make(torch.tril_indices, (row, col, offset), options)


def triu_indices(row: int, col: int, offset: int = 0, **options: Any) -> Tensor:
    """(2, n): the coordinates of the upper triangle."""
    return make(torch.triu_indices, (row, col, offset), options)


def vander(x: Any, **options: Any) -> Tensor:
    """The Vandermonde matrix of a vector."""
    return make(torch.vander, (x,), options)


def cartesian_prod(*tensors: Any) -> Tensor:
    """Every combination of the elements of vectors, a row each."""
    return make(torch.cartesian_prod, tensors, {})


def complex(real: Any, imag: Any) -> Tensor:
    """A complex tensor of two real ones."""
    return make(torch.complex, (real, imag), {})


def polar(magnitude: Any, angle: Any) -> Tensor:
    """A complex tensor of magnitudes and angles (radians)."""
    return make(torch.polar, (magnitude, angle), {})


def normal(mean: Any, std: Any, size: Any = None, **options: Any) -> Tensor:
    """Normal with ``mean`` and ``std``: tensors, or numbers and a ``size``."""
    return make(torch.normal, (mean, std) if size is None else (mean, std, size), options)


def bernoulli(probability: Any, **options: Any) -> Tensor:
    """1 with these probabilities, else 0."""
    return make(torch.bernoulli, (probability,), options)


def multinomial(weights: Any, num_samples: int, replacement: bool = False, **options: Any) -> Tensor:
    """Indices drawn by weights, along the last dim."""
    return make(torch.multinomial, (weights, num_samples, replacement), options)


def poisson(rates: Any, **options: Any) -> Tensor:
    """Poisson with these rates."""
    return make(torch.poisson, (rates,), options)


def hann_window(length: int, periodic: bool = True, **options: Any) -> Tensor:
    """A Hann window."""
    return make(torch.hann_window, (length, periodic), options)


def hamming_window(length: int, periodic: bool = True, **options: Any) -> Tensor:
    """A Hamming window."""
    return make(torch.hamming_window, (length, periodic), options)


def blackman_window(length: int, periodic: bool = True, **options: Any) -> Tensor:
    """A Blackman window."""
    return make(torch.blackman_window, (length, periodic), options)


def bartlett_window(length: int, periodic: bool = True, **options: Any) -> Tensor:
    """A Bartlett window."""
    return make(torch.bartlett_window, (length, periodic), options)


def kaiser_window(length: int, periodic: bool = True, beta: float = 12.0, **options: Any) -> Tensor:
    """A Kaiser window."""
    return make(torch.kaiser_window, (length, periodic, beta), options)


def sparse_coo_tensor(*args: Any, **options: Any) -> Tensor:
    """A sparse tensor of (indices, values), (indices, values, size) or (size): ``values`` at the columns of ``indices``
    (dims, n), zero elsewhere."""
    return make(torch.sparse_coo_tensor, args, options)


def sparse_csr_tensor(*args: Any, **options: Any) -> Tensor:
    """A sparse matrix by compressed rows, of (crow_indices, col_indices, values) and a size if need be: row i has
    ``values[crow_indices[i]:crow_indices[i + 1]]`` at these columns."""
    return make(torch.sparse_csr_tensor, args, options)


def sparse_csc_tensor(*args: Any, **options: Any) -> Tensor:
    """The same by compressed columns: (ccol_indices, row_indices, values)."""
    return make(torch.sparse_csc_tensor, args, options)


def sparse_bsr_tensor(*args: Any, **options: Any) -> Tensor:
    """As ``sparse_csr_tensor``, of blocks of one size."""
    return make(torch.sparse_bsr_tensor, args, options)


def sparse_bsc_tensor(*args: Any, **options: Any) -> Tensor:
    """As ``sparse_csc_tensor``, of blocks of one size."""
    return make(torch.sparse_bsc_tensor, args, options)


def sparse_compressed_tensor(*args: Any, **options: Any) -> Tensor:
    """One of these four, by its ``layout``."""
    return make(torch.sparse_compressed_tensor, args, options)
