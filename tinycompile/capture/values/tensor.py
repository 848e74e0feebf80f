"""Tensors: metadata is answered here, ops go through the records (``tr.tensor_method``)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinycompile.base import shapes
from tinycompile.base.meta import TensorMeta
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import Source
from tinycompile.capture.trust import module_of
from tinycompile.capture.values.base import Kwargs, MethodOf, Value, no_attribute
from tinycompile.capture.values.classes import defines
from tinycompile.capture.values.constant import FALSE, NONE, Const, boolean
from tinycompile.capture.values.function import of_instance
from tinycompile.capture.values.sequence import TupleValue, size_value
from tinycompile.capture.values.symbolic import dim_value
from tinycompile.capture.views import ViewOf, requires_grad_alone
from tinycompile.dispatch import dispatcher
from tinycompile.eager.batched import BatchedTensor
from tinycompile.eager.fake import FakeTensor

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class Memory:
    """The tensors of the program that share one storage. ``outside``: some of them exist outside the graph. ``writes``: how
    often it was written to; ``version``: how many of these writes torch counts; ``contents``: the graph's values that the last
    write put there. ``last``: the nodes that computed what the last write with a history put there, and whether that was a
    write to a view. ``followed``: how many writes there were up to the first with a history. ``lent``: it is that of an
    argument of a function under ``tinycompile.func``, another tensor's outside."""

    __slots__ = ("contents", "followed", "last", "lent", "members", "outside", "version", "writes")

    def __init__(self, outside: bool = False) -> None:
        self.members: weakref.WeakSet[TensorValue] = weakref.WeakSet()
        self.outside, self.lent = outside, False
        self.writes = self.version = 0
        self.contents: list[FakeTensor] = []
        self.last: tuple[frozenset[str], bool] | None = None
        self.followed: int | None = None


class TensorValue(Value):
    """One tensor object of the program. An in-place op gives it a new ``fake``: every name of the object sees that.

    ``cls``: ``torch.Tensor``, ``Parameter`` or ``tinycompile.Tensor``. ``obj``: the tensor itself if it came from outside.
    ``view``: what it is a view of; None for the owner of the memory, and for views that capture knows no way back from."""

    __slots__ = ("_apart", "_fake", "_requires_grad", "_seen", "cls", "memory", "obj", "view")

    def __init__(
        self,
        fake: FakeTensor,
        cls: type,
        requires_grad: bool,
        memory: Memory | None = None,
        obj: Any = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self._fake, self.cls, self._requires_grad, self.obj = fake, cls, requires_grad, obj
        self.memory = memory if memory is not None else Memory(outside=obj is not None)
        self.memory.members.add(self)
        self.view: ViewOf | None = None
        self._seen, self._apart = self.memory.writes, False

    @property
    def fake(self) -> FakeTensor:
        """Its value now. A view takes it anew when the memory was written to through another tensor."""
        if self._seen != self.memory.writes:
            self._look_again()
        return self._fake

    @property
    def requires_grad(self) -> bool:
        """Whether it does now."""
        if self._seen != self.memory.writes:
            self._look_again()
        return self._requires_grad

    @property
    def knows_history(self) -> bool:
        """Whether it was made, written to or looked at since its memory has a history: torch has told it by then."""
        return self.memory.followed is not None and self._seen >= self.memory.followed

    def become(self, fake: FakeTensor, requires_grad: bool) -> None:
        """Take over the value that a write gives it."""
        self._fake, self._requires_grad, self._seen = fake, requires_grad, self.memory.writes
        self._apart = self.view is not None

    def _look_again(self) -> None:
        view = self.view
        if view is not None:
            fake = view.base.fake
            for step in view.steps:
                fake = step.apply(fake)
            self._requires_grad = view.base.requires_grad and not view.cut
            self._fake = dispatcher.call("detach", fake) if view.cut and view.base.requires_grad else fake
        self._seen, self._apart = self.memory.writes, False

    def settle(self) -> bool:
        """Make its value a view of the owner's in the graph too, where a write gave it one of its own; whether it changed."""
        changed = self.view is not None and self.view.base.settle()
        if changed or self._apart or self._seen != self.memory.writes:
            self._look_again()
            return True
        return False

    @property
    def meta(self) -> TensorMeta:
        """Its metadata now."""
        return self.fake.meta

    @property
    def is_input(self) -> bool:
        """Whether it came from outside and was not rebound since."""
        return self.obj is not None

    @property
    def is_leaf(self) -> bool:
        """Whether torch calls it a leaf now: one from outside is none once a write gave it a history."""
        own = self.obj.is_leaf and self.requires_grad is self.obj.requires_grad if self.is_input else not self.requires_grad
        return bool(own)

    def python_type(self, tr: Tracer) -> type:
        return self.cls

    def describe(self) -> str:
        return f"tensor {self.source.label if self.source is not None else ''}({self.meta})"

    def argument(self, tr: Tracer) -> Any:
        return self.fake

    def truth(self, tr: Tracer) -> bool:
        made = self.by_program(tr, "__bool__")
        if made is not None:
            return made.truth(tr)
        raise GraphBreak("data-dependent", f"the truth of {self.describe()} decides a branch")

    def constant(self, tr: Tracer) -> Any:
        raise GraphBreak("data-dependent", f"a Python value of {self.describe()} is needed")

    # --- attributes ---

    def replaced(self, tr: Tracer, name: str) -> Value | None:
        """What the program put in place of torch's attribute or special method, as the tensor gives it; None mostly."""
        found = tr.replaced_on_tensors(self.cls, name)
        if found is None:
            return None
        return of_instance(tr, *found, self, name)

    def by_program(self, tr: Tracer, name: str, *args: Value) -> Value | None:
        """The answer of a special method that the program replaced."""
        method = self.replaced(tr, name)
        return None if method is None else method.call(tr, args, {})

    def get_attr(self, tr: Tracer, name: str) -> Value:
        replaced = self.replaced(tr, name)
        if replaced is not None:
            return replaced
        rule = ATTRIBUTES.get(name)
        if rule is not None and defines(self.cls, name):  # (torch 2.13 has no names)
            return rule(self, tr)
        if name == "grad":
            return _grad(self, tr)
        if name in ("grad_fn", "_version", "_backward_hooks"):
            raise GraphBreak("unsupported-value", f"Tensor.{name}")
        if name == "data":
            return _data(self, tr)
        if self.obj is not None and self.source is not None and name in getattr(self.obj, "__dict__", ()):
            return tr.attribute_of(self.source, self.obj, name)
        if not defines(self.cls, name):
            if self.obj is not None and self.source is not None:
                tr.lacks(self.obj, name, self.source)
            raise no_attribute(self, self.cls, name)
        if callable(getattr(self.cls, name)):
            return MethodOf(self, name)
        return tr.tensor_attribute(self, name)

    def set_attr(self, tr: Tracer, name: str, value: Value) -> None:
        if name != "grad":
            raise GraphBreak("side-effect", f"Tensor.{name} was set")
        tr.effects.gradients.write(tr, self, value)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        rule = METHODS.get(name)
        if rule is not None:
            answer = rule(self, tr, args, kwargs)
            if answer is not None:
                return answer
        return tr.tensor_method(self, name, args, kwargs)

    # --- as a container ---

    def get_item(self, tr: Tracer, key: Value) -> Value:
        made = self.by_program(tr, "__getitem__", key)
        return tr.index_tensor(self, key) if made is None else made

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        if self.by_program(tr, "__setitem__", key, value) is None:
            tr.write_tensor(self, key, value)

    def length(self, tr: Tracer) -> Value:
        made = self.by_program(tr, "__len__")
        if made is not None:
            return made
        if not self.meta.shape:
            raise TypeError("len() of a 0-d tensor")
        return dim_value(self.meta.shape[0])

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        made = self.by_program(tr, "__iter__")
        if made is not None:
            return made.iterate(tr)
        if not self.meta.shape:
            raise TypeError("iteration over a 0-d tensor")
        made = self.by_program(tr, "unbind", Const(0))  # which torch's own ``__iter__`` asks
        return (tr.tensor_method(self, "unbind", [Const(0)], {}) if made is None else made).iterate(tr)

    def contains(self, tr: Tracer, item: Value) -> bool:
        made = self.by_program(tr, "__contains__", item)
        if made is not None:
            return made.truth(tr)
        raise GraphBreak("data-dependent", "`in` on a tensor")

    def same_object(self, tr: Tracer, other: Value) -> bool:
        if not isinstance(other, TensorValue) or self.obj is None or other.obj is None:
            return False
        same = self.obj is other.obj
        assert self.source is not None and other.source is not None
        tr.guards.check(f"{'' if same else 'not '}{self.source.text} is {other.source.text}", "which arguments are one tensor")
        return same


# --- attributes and methods that metadata answers -----------------------------------------------------------


def _requires_grad(t: TensorValue, tr: Tracer) -> Value:
    if t.is_input and t.source is not None:
        tr.guards.check(f"{t.source.text}.requires_grad is {t.obj.requires_grad}", f"{t.source.label}.requires_grad")
    return boolean(t.requires_grad or requires_grad_alone(t))


def _data(t: TensorValue, tr: Tracer) -> Value:
    """``x.data``: as ``detach``, but writes to it aren't counted. Eager code refuses that of an example, or does not."""
    if isinstance(t.fake, BatchedTensor):
        raise GraphBreak("unsupported-value", "Tensor.data under vmap")
    made = tr.tensor_method(t, "detach", [], {})
    if isinstance(made, TensorValue) and made.view is not None:
        made.view = replace(made.view, origin="data")
    return made


def _grad(t: TensorValue, tr: Tracer) -> Value:
    """``x.grad``. One of a tensor that capture made is there only if the program set it, which breaks."""
    if t.is_input and t.source is not None and isinstance(t.obj, torch.Tensor) and t.is_leaf:
        gradients = tr.effects.gradients
        return gradients.read(tr, gradients.slot(tr, t.obj, t.source))
    if t.is_input or t.requires_grad:
        raise GraphBreak("unsupported-value", "the .grad of a tensor that is no leaf")
    return NONE


def _is_leaf(t: TensorValue, tr: Tracer) -> Value:
    if t.is_input and t.source is not None:
        tr.guards.check(f"{t.source.text}.is_leaf is {t.obj.is_leaf}", f"{t.source.label}.is_leaf")
    return boolean(t.is_leaf)


def _device(t: TensorValue, tr: Tracer) -> Value:
    plain = module_of(t.cls).startswith("torch")  # (another object each time)
    return tr.computed(torch.device(t.meta.device.torch())) if plain else tr.from_python(t.meta.device)


ATTRIBUTES: dict[str, Callable[[TensorValue, Tracer], Value]] = {
    "shape": lambda t, tr: size_value(t.meta.shape),
    "dtype": lambda t, tr: Const(t.meta.dtype),
    "device": _device,
    "ndim": lambda t, tr: Const(t.meta.rank),
    "layout": lambda t, tr: Const(torch.strided),
    "requires_grad": _requires_grad,
    "is_leaf": _is_leaf,
    "itemsize": lambda t, tr: Const(t.meta.dtype.itemsize),
    "nbytes": lambda t, tr: dim_value(t.meta.numel * t.meta.dtype.itemsize),
    "is_cuda": lambda t, tr: boolean(t.meta.device.type == "cuda"),
    "is_cpu": lambda t, tr: boolean(t.meta.device.type == "cpu"),
    "is_meta": lambda t, tr: boolean(t.meta.device.type == "meta"),
    "is_mps": lambda t, tr: boolean(t.meta.device.type == "mps"),
    "is_xpu": lambda t, tr: boolean(t.meta.device.type == "xpu"),
    "is_sparse": lambda t, tr: FALSE,
    "is_sparse_csr": lambda t, tr: FALSE,
    "is_quantized": lambda t, tr: FALSE,
    "is_nested": lambda t, tr: FALSE,
    "is_mkldnn": lambda t, tr: FALSE,
    "names": lambda t, tr: TupleValue([NONE] * t.meta.rank),
    "__class__": lambda t, tr: tr.from_python(t.cls),
}


def _dim(t: TensorValue, tr: Tracer, value: Value) -> int:
    return shapes.normalize_dim(tr.index(value, "size"), t.meta.rank)


def _size(t: TensorValue, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
    which = kwargs.get("dim", args[0] if args else NONE)
    if which is NONE:
        return size_value(t.meta.shape)
    if not t.meta.rank:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")
    return dim_value(t.meta.shape[_dim(t, tr, which)])


def _stride(t: TensorValue, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
    which = kwargs.get("dim", args[0] if args else NONE)
    if which is NONE:
        return TupleValue(map(dim_value, t.meta.strides))
    return dim_value(t.meta.strides[_dim(t, tr, which)])


def _is_contiguous(t: TensorValue, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
    wanted = kwargs.get("memory_format", args[0] if args else Const(torch.contiguous_format)).constant(tr)
    if wanted is torch.contiguous_format:
        return boolean(t.meta.is_contiguous())
    shape = [shapes.hint(s) for s in t.meta.shape]
    if list(shape) != list(t.meta.shape):
        raise GraphBreak("unsupported-value", f"is_contiguous({wanted}) of a tensor with symbolic sizes")
    like = torch.empty_strided(shape, t.meta.strides, device="meta")  # type: ignore[arg-type]
    return boolean(like.is_contiguous(memory_format=wanted))


def _type(t: TensorValue, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    if args or kwargs:
        return None
    return Const(torch.empty(0, dtype=t.meta.dtype, device="cpu").type().replace("torch.", _type_prefix(t)))


def _type_prefix(t: TensorValue) -> str:
    return "torch." if t.meta.device.type == "cpu" else f"torch.{t.meta.device.type}."


def _new_tensor(t: TensorValue, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    """torch refuses some of numpy's numbers here."""
    if any(isinstance(v, Const) and isinstance(v.value, np.generic) for v in args):
        raise GraphBreak("unsupported-argument", "new_tensor() of a number of numpy's")
    made = tr.tensor_of_numbers(t, args, kwargs)
    if made is None and t.requires_grad:  # it only says which dtype and where: nothing flows to it
        return t.call_method(tr, "detach", [], {}).call_method(tr, "new_tensor", args, kwargs)
    return made


def _bit(t: TensorValue, tr: Tracer, name: str) -> Value:
    """Inputs have neither bit: they would not be plain. What is made of complex tensors may, and fakes don't tell."""
    if t.is_input or not any(isinstance(m := n.meta, TensorMeta) and m.dtype.is_complex for n in tr.builder.nodes.values()):
        return FALSE
    raise GraphBreak(
        "tensor-kind", f"Tensor.{name}() of {t.describe()}, which may be a view that torch conjugates when it is read"
    )


def _split(t: TensorValue, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    """torch takes one of numpy's integers for a list here, and refuses it."""
    if any(isinstance(v, Const) and isinstance(v.value, np.generic) for v in (*args[:1], *kwargs.values())):
        raise GraphBreak("unsupported-argument", "split() by a number of numpy's")
    return None


def _reads_data(name: str) -> Callable[[TensorValue, Tracer, Sequence[Value], Kwargs], Value]:
    def rule(t: TensorValue, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        raise GraphBreak("data-dependent", f"Tensor.{name}() of {t.describe()}")

    return rule


def _breaks(kind: str, name: str) -> Callable[[TensorValue, Tracer, Sequence[Value], Kwargs], Value]:
    def rule(t: TensorValue, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        raise GraphBreak(kind, f"Tensor.{name}()")

    return rule


def _self_when(test: Callable[[TensorValue], bool]) -> Callable[[TensorValue, Tracer, Sequence[Value], Kwargs], Value | None]:
    """Ops that return the very same object when there is nothing to do."""
    return lambda t, tr, args, kwargs: t if not args and not kwargs and test(t) else None


_Rule = Callable[[TensorValue, "Tracer", Sequence[Value], Kwargs], "Value | None"]


def _is_inference(t: TensorValue, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
    if t.is_input:
        return boolean(t.obj.is_inference())
    if torch.is_inference_mode_enabled():
        raise GraphBreak("unsupported-value", f"is_inference of {t.describe()}")  # views of ordinary tensors are none
    return FALSE


def _set_item(t: TensorValue, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
    if len(args) != 2 or kwargs:
        return None
    t.set_item(tr, *args)
    return NONE


METHODS: dict[str, _Rule] = {
    "backward": lambda t, tr, args, kwargs: tr.backward(t, args, kwargs),
    "size": _size,
    "stride": _stride,
    "dim": lambda t, tr, args, kwargs: Const(t.meta.rank),
    "ndimension": lambda t, tr, args, kwargs: Const(t.meta.rank),
    "numel": lambda t, tr, args, kwargs: dim_value(t.meta.numel),
    "nelement": lambda t, tr, args, kwargs: dim_value(t.meta.numel),
    "element_size": lambda t, tr, args, kwargs: Const(t.meta.dtype.itemsize),
    "is_contiguous": _is_contiguous,
    "is_floating_point": lambda t, tr, args, kwargs: boolean(t.meta.dtype.is_floating_point),
    "is_complex": lambda t, tr, args, kwargs: boolean(t.meta.dtype.is_complex),
    "is_signed": lambda t, tr, args, kwargs: boolean(t.meta.dtype.is_signed),
    "is_conj": lambda t, tr, args, kwargs: _bit(t, tr, "is_conj"),
    "is_neg": lambda t, tr, args, kwargs: _bit(t, tr, "is_neg"),
    "is_inference": _is_inference,
    "get_device": lambda t, tr, args, kwargs: Const(t.meta.device.index),
    "type": _type,
    "contiguous": _self_when(lambda t: t.meta.is_contiguous()),
    "resolve_conj": _self_when(lambda t: True),
    "resolve_neg": _self_when(lambda t: True),
    "cpu": _self_when(lambda t: t.meta.device.type == "cpu"),
    "__len__": lambda t, tr, args, kwargs: t.length(tr),
    "new_tensor": _new_tensor,
    "split": _split,
    "__getitem__": lambda t, tr, args, kwargs: t.get_item(tr, args[0]) if len(args) == 1 and not kwargs else None,
    "__setitem__": _set_item,
    "__hash__": _breaks("unsupported-value", "__hash__"),
    "has_names": lambda t, tr, args, kwargs: FALSE,
    "__bool__": _reads_data("__bool__"),
    "is_nonzero": _reads_data("is_nonzero"),
    **{
        n: _reads_data(n)
        for n in ("item", "tolist", "numpy", "__int__", "__float__", "__index__", "__array__", "equal", "allclose")
    },
    **{n: _breaks("unsupported-value", n) for n in ("data_ptr", "untyped_storage", "storage", "register_hook")},
    **{n: _breaks("side-effect", n) for n in ("requires_grad_", "retain_grad", "set_", "resize_", "share_memory_")},
}
