"""What is in a tensor: its elements as Python's numbers, and its memory for other libraries. All as torch's tensors do."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tinycompile.eager import copies


class ValueMethods:
    """A part of ``Tensor``."""

    __slots__ = ()

    def __array__(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
        """numpy's protocol: the same memory, unless a dtype or a copy is asked for. What ``numpy()`` refuses is refused."""
        array = self.numpy()
        return array.astype(dtype, copy=bool(copy)) if dtype is not None else array.copy(order="K") if copy else array

    __array_priority__ = 1000  # numpy's scalars and arrays leave operators to us, as to torch

    def __array_wrap__(self: Any, array: Any, *rest: Any) -> Any:
        """What numpy makes of a result that it computed from this tensor: a tensor again, as torch."""
        return copies.make[0](torch.empty(0).__array_wrap__(array))

    def __dlpack__(self: Any, **options: Any) -> Any:
        """DLPack's protocol: a capsule on the same memory. Raises BufferError where torch sees none."""
        try:
            return _shared(self).__dlpack__(**options)
        except BufferError as error:
            if self.requires_grad:
                error.add_note(
                    "torch.sparse_coo_tensor(...) and other constructors of torch's ask for the data of what is no tensor of "
                    "torch's; tinycompile.sparse_coo_tensor(...) and its kin keep gradients"
                )
            raise

    def __dlpack_device__(self: Any) -> Any:
        """DLPack's device pair. Raises BufferError where torch sees no memory."""
        return _shared(self).__dlpack_device__()

    @property
    def __cuda_array_interface__(self: Any) -> Any:
        """The protocol of numba and cupy, for memory of a card. Raises AttributeError where there is none."""
        if self.lacks_handle:
            raise AttributeError(f"Can't get __cuda_array_interface__ on a tensor of {self.device}")
        return self.torch().__cuda_array_interface__

    def readable(self: Any) -> Any:
        """A torch tensor with the same values: the handle, or a copy where there is none."""
        return self.elsewhere.host(self) if self.lacks_handle else self.raw()

    def item(self: Any) -> Any:
        """The one element as a Python number."""
        return self.readable().item()

    def tolist(self: Any) -> Any:
        """Nested lists of Python numbers."""
        return self.readable().tolist()

    def __bool__(self: Any) -> bool:
        return bool(self.readable())

    def __int__(self: Any) -> int:
        return int(_telling(self, int))

    def __float__(self: Any) -> float:
        return float(_telling(self, float))

    def __complex__(self: Any) -> complex:
        return complex(_telling(self, complex))

    def __index__(self: Any) -> int:
        return self.readable().__index__()

    def __len__(self: Any) -> int:
        if not self.ndim:
            raise TypeError("len() of a 0-d tensor")
        return self.meta.shape[0]

    def __iter__(self: Any) -> Iterator[Any]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind())

    def __reversed__(self: Any) -> Any:
        """The rows from the last to the first, as one tensor."""
        return self.flip(0) if self.ndim else self

    def __delitem__(self: Any, index: Any) -> None:
        raise TypeError("Tensor does not support deleting items")

    def __contains__(self: Any, element: Any) -> bool:
        if not isinstance(element, (ValueMethods, torch.Tensor, numbers.Number)):
            raise RuntimeError(f"Tensor.__contains__ only supports Tensor or scalar, but you passed in a {type(element)}.")
        return bool((element == self).any())

    def __format__(self: Any, spec: str) -> str:
        return format(self.item(), spec) if not self.ndim and not self.is_meta else object.__format__(self, spec)


def _telling(tensor: Any, kind: Callable[[Any], Any]) -> Any:
    """The values; torch says what it says of a number that is made of a tensor with gradients."""
    if tensor.requires_grad:
        with torch.inference_mode(False):
            leaf = torch.ones((), device="cpu").requires_grad_()
        kind(leaf)
    return tensor.readable()


def _shared(tensor: Any) -> torch.Tensor:
    """The torch tensor on the same memory. Raises BufferError where torch sees none."""
    if tensor.lacks_handle:
        raise BufferError(f"memory on {tensor.device} can't be shared through DLPack: copy it with .cpu() first")
    return tensor.torch()
