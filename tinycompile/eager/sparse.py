"""Tensors that are not strided: sparse COO, CSR and the like. Torch's own functions run on them, no record or kernel of ours.

Gradients are as far as torch's go: one that requires grad is a leaf of torch's tape, and calls that mix it with tensors on ours
are recorded on both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta, meta_of_sparse
from tinycompile.eager import tensor as dense
from tinycompile.eager.tensor import Tensor


class SparseTensor(Tensor):
    """A tensor by its torch handle alone. It has sizes and a dtype, but no strides and no storage of its own."""

    __slots__ = ()

    @property
    def meta(self) -> TensorMeta:
        """Sizes and dtype, as of a dense tensor with the same elements."""
        return meta_of_sparse(self.raw(), self.device)

    @property
    def layout(self) -> torch.layout:
        """torch.sparse_coo, torch.sparse_csr, ..."""
        found: torch.layout = self.raw().layout
        return found

    @property
    def strides(self) -> Any:
        """What torch says: of COO zeros, of the compressed layouts it raises RuntimeError."""
        return self.raw().stride()

    def stride(self, dim: int | None = None) -> Any:
        """As ``strides``."""
        return self.raw().stride() if dim is None else self.raw().stride(dim)

    def is_contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        """What torch says: there are no strides to be row-major."""
        return bool(self.raw().is_contiguous(memory_format=memory_format))

    @property
    def nbytes(self) -> Any:
        """What torch says: of COO it raises RuntimeError."""
        return self.raw().nbytes

    def data_ptr(self) -> int:
        """There is no memory of its own: raises RuntimeError as torch does."""
        return self.raw().data_ptr()

    @property
    def storage(self) -> Any:
        """There is none: raises NotImplementedError as torch does."""
        return self.raw().untyped_storage()

    def __getitem__(self, index: Any) -> Any:
        """torch's: no view by stride arithmetic."""
        return self._extern(torch.Tensor.__getitem__, (self, index), {})

    def __iter__(self) -> Iterator[Any]:
        """torch's."""
        return iter(self._extern(torch.Tensor.unbind, (self,), {}))

    def _nnz(self) -> int:
        """How many elements are stored."""
        return int(self.raw()._nnz())

    def requires_grad_(self, requires_grad: bool = True) -> SparseTensor:
        """Make it a leaf of torch's tape."""
        self.raw().requires_grad_(requires_grad)
        return self

    def _same_memory(self, keep_history: bool) -> Tensor:
        return of_handle(self.raw() if keep_history else self.raw().detach())

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Its torch tensor, and the user's attributes."""
        return of_handle, (self.raw(), vars(self)) if vars(self) else (self.raw(),)

    def __repr__(self) -> str:
        return repr(self.raw())


def of_handle(handle: torch.Tensor, attributes: Mapping[str, Any] = MappingProxyType({})) -> SparseTensor:
    """A SparseTensor with this handle."""
    made = SparseTensor.__new__(SparseTensor)
    vars(made).update(attributes)
    made._device, made.keys = dense.device_and_keys(handle.device)
    made._handle = handle
    made._meta = made._storage = made._viewed = made._autograd = made._view = made._views = None
    return made


dense.other_layouts.append(of_handle)
torch.serialization.add_safe_globals([of_handle])
