"""Torch callables whose arguments don't follow a schema: other parameters, reversed operators, and overload families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tinycompile.ops import spellings_aten, spellings_images, spellings_parts, spellings_scatters, spellings_tensors
from tinycompile.ops.comparison import LONE_NAN_BOUNDS, bounds_as_torch_takes_them
from tinycompile.ops.record import OPS, BoundCall
from tinycompile.ops.spellings_images import one_a_dim
from tinycompile.ops.spellings_tensors import identity
from tinycompile.ops.table import KEYWORDS, Args, SchemaBinder, add, call_of, is_tensor

Kwargs = dict[str, Any]
Bound = BoundCall | None

# ------------------------------------------------------------------------------------------------------- other parameters

# callable -> (record, the callable's parameters in order). ``~name`` is ignored; ``?name`` must be None and ``!name`` false,
# else the call stays torch's; the rest are arguments of the schema.
_LOSS = "?size_average ?reduce reduction"
FORMS: dict[str, tuple[str, str]] = {
    "torch.nn.functional.relu": ("relu", "self inplace"),
    "torch.nn.functional.relu6": ("relu6", "self inplace"),
    "torch.nn.functional.hardtanh": ("hardtanh", "self min_val max_val inplace"),
    "torch.nn.functional.leaky_relu": ("leaky_relu", "self negative_slope inplace"),
    "torch.nn.functional.threshold": ("threshold", "self threshold value inplace"),
    "torch.nn.functional.elu": ("elu", "self alpha inplace"),
    "torch.nn.functional.celu": ("celu", "self alpha inplace"),
    "torch.nn.functional.selu": ("selu", "self inplace"),
    "torch.nn.functional.silu": ("silu", "self inplace"),
    "torch.nn.functional.mish": ("mish", "self inplace"),
    "torch.nn.functional.hardswish": ("hardswish", "self inplace"),
    "torch.nn.functional.hardsigmoid": ("hardsigmoid", "self inplace"),
    "torch.nn.functional.softmax": ("softmax", "self dim ~_stacklevel dtype"),
    "torch.nn.functional.log_softmax": ("log_softmax", "self dim ~_stacklevel dtype"),
    "torch.nn.functional.softmin": ("softmin", "input dim ~_stacklevel dtype"),
    "torch.special.log_softmax": ("log_softmax", "self dim"),
    "torch.layer_norm": ("layer_norm", "self normalized_shape weight bias eps ~cudnn_enable"),
    "torch.group_norm": ("group_norm", "self num_groups weight bias eps ~cudnn_enabled"),
    "torch.nn.functional.embedding": (
        "embedding", "indices weight padding_idx ?max_norm ~norm_type !scale_grad_by_freq !sparse"),
    "torch.nn.functional.mse_loss": ("mse_loss", f"self target {_LOSS} ?weight"),
    "torch.nn.functional.l1_loss": ("l1_loss", f"self target {_LOSS} ?weight"),
    "torch.nn.functional.smooth_l1_loss": ("smooth_l1_loss", f"self target {_LOSS} beta"),
    "torch.nn.functional.kl_div": ("kl_div", f"self target {_LOSS} log_target"),
    "torch.nn.functional.cross_entropy": (
        "cross_entropy", "self target weight ?size_average ignore_index ?reduce reduction label_smoothing"),
    "torch.nn.functional.nll_loss": ("nll_loss", "self target weight ?size_average ignore_index ?reduce reduction"),
    "torch.nn.functional.binary_cross_entropy": ("binary_cross_entropy", f"self target weight {_LOSS}"),
    "torch.nn.functional.binary_cross_entropy_with_logits": (
        "binary_cross_entropy_with_logits", f"self target weight {_LOSS} pos_weight"),
    "torch.nn.functional.huber_loss": ("huber_loss", "self target reduction delta ?weight"),
    "torch.nn.functional.soft_margin_loss": ("soft_margin_loss", f"input target {_LOSS}"),
    "torch.nn.functional.margin_ranking_loss": ("margin_ranking_loss", f"input1 input2 target margin {_LOSS}"),
    "torch.nn.functional.hinge_embedding_loss": ("hinge_embedding_loss", f"input target margin {_LOSS}"),
    "torch.nn.functional.multilabel_soft_margin_loss": (
        "multilabel_soft_margin_loss", f"input target weight {_LOSS}"),
    "torch.nn.functional.multi_margin_loss": ("multi_margin_loss", f"input target p margin weight {_LOSS}"),
    "torch.nn.functional.cosine_embedding_loss": ("cosine_embedding_loss", f"input1 input2 target margin {_LOSS}"),
    "torch.nn.functional.triplet_margin_loss": (
        "triplet_margin_loss", f"anchor positive negative margin p eps swap {_LOSS}"),
    "torch.nn.functional.poisson_nll_loss": (
        "poisson_nll_loss", "input target log_input full ?size_average eps ?reduce reduction"),
    "torch.nn.functional.adaptive_avg_pool1d": ("adaptive_avg_pool1d", "self output_size"),
    "torch.adaptive_avg_pool1d": ("adaptive_avg_pool1d", "self output_size"),
    "torch.nn.functional.adaptive_avg_pool2d": ("adaptive_avg_pool2d", "self output_size"),
    "torch.nn.functional.adaptive_avg_pool3d": ("adaptive_avg_pool3d", "self output_size"),
    "torch.index_select": ("index_select", "self dim index"),
    "torch.nn.functional.pad": ("pad", "self pad mode value"),
    "torch.constant_pad_nd": ("pad", "self pad value"),
    "torch.where": ("where", "condition self other"),
    "torch.Tensor.where": ("where", "self condition other"),
}  # fmt: skip
_OTHER_NAMES = {"torch.nn.functional.embedding": {"input": "indices"}}


class FormBinder:
    """Binds a call by the callable's own parameter list."""

    __slots__ = ("bind", "dropped", "false", "names", "none", "renamed")

    def __init__(self, op: str, form: str, renamed: dict[str, str]) -> None:
        words = form.split()
        self.names = [w.lstrip("~?!") for w in words]
        self.dropped = frozenset(w[1:] for w in words if w[0] in "~?!")
        self.none = frozenset(w[1:] for w in words if w[0] == "?")
        self.false = frozenset(w[1:] for w in words if w[0] == "!")
        self.renamed, self.bind = renamed, SchemaBinder(OPS[op])

    def __call__(self, args: Args, kwargs: Kwargs) -> Bound:
        if len(args) > len(self.names):
            return None
        given = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            given[name if name in self.names else self.renamed.get(name, KEYWORDS.get(name, name))] = value
        for name in self.dropped:
            value = given.pop(name, None)
            if (
                not isinstance(value, (int, float, type(None)))
                or (name in self.none and value is not None)
                or (name in self.false and value)
            ):
                return None
        return self.bind((), given)


# -------------------------------------------------------------------------------------------------------------- operators

_REVERSED = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "div": "div", "floordiv": "floor_divide", "mod": "remainder",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    "matmul": "matmul",
}  # fmt: skip


def _reversed(name: str) -> Callable[[Args, Kwargs], Bound]:
    bind = SchemaBinder(OPS[name])
    return lambda args, kwargs: bind((args[1], args[0], *args[2:]), kwargs) if len(args) == 2 else None


def _rsub(args: Args, kwargs: Kwargs) -> Bound:
    given = dict(zip(("self", "other", "alpha"), args, strict=False)) | kwargs
    x = given.pop("self", given.pop("input", None))
    if not is_tensor(x):
        return None
    return call_of("sub", given.pop("other", None), x, **given)


def _power(inplace: bool = False, swap: bool = False) -> Callable[[Args, Kwargs], Bound]:
    """A number as exponent, integers to integers, and the rest are three records. On a CPU float16 has no short cuts."""
    scalar, floats, integers = (SchemaBinder(OPS[n], inplace) for n in ("pow_scalar", "pow", "pow_integers"))

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        if swap:
            args = tuple(reversed(args))
        exponent: Any = kwargs.get("exponent", args[1] if len(args) > 1 else None)
        base: Any = args[0] if args else kwargs.get("self", kwargs.get("input"))
        if not is_tensor(exponent):
            plain = is_tensor(base) and base.dtype == torch.float16 and base.device.type == "cpu"
            return (floats if plain and isinstance(exponent, float) and not exponent.is_integer() else scalar)(args, kwargs)
        whole = not exponent.dtype.is_floating_point and not (
            base.dtype.is_floating_point if is_tensor(base) else isinstance(base, float)
        )
        return (integers if whole else floats)(args, kwargs)

    return binder


def _division(inplace: bool = False) -> Callable[[Args, Kwargs], Bound]:
    by_mode = {None: "div", "floor": "div_floor", "trunc": "div_trunc"}
    binders = {mode: SchemaBinder(OPS[name], inplace) for mode, name in by_mode.items()}

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        chosen = binders.get(kwargs.pop("rounding_mode", None))
        return None if chosen is None else chosen(args, kwargs)

    return binder


def _mv(args: Args, kwargs: Kwargs) -> Bound:
    """A matrix by a vector; torch words what else is given. On a CPU autocast has a policy for ``matmul``, none for it."""
    bound = call_of("matmul", *args, **{"other" if k == "vec" else k: v for k, v in kwargs.items()})
    given = [] if bound is None else [a for a in bound.args if is_tensor(a)]
    cast = torch.is_autocast_enabled("cpu") and any(a.device.type == "cpu" for a in given)
    return bound if [len(a.shape) for a in given] == [2, 1] and not cast else None


def _operators() -> None:
    for dotted in ("torch.mv", "torch.Tensor.mv"):
        add(dotted, _mv)
    for dunder, name in _REVERSED.items():
        add(f"torch.Tensor.__r{dunder}__", _reversed(name))
    add("torch.rsub", _rsub)
    for dotted in ("torch.pow", "torch.Tensor.pow", "torch.Tensor.__pow__", "operator.pow"):
        add(dotted, _power())
    for dotted in ("torch.Tensor.pow_", "torch.Tensor.__ipow__", "operator.ipow"):
        add(dotted, _power(inplace=True))
    add("torch.Tensor.__rpow__", _power(swap=True))
    for name in ("div", "divide"):
        for where in ("torch", "torch.Tensor"):
            add(f"{where}.{name}", _division())
            add(f"{where}.{name}_", _division(inplace=True))


# --------------------------------------------------------------------------------------------------- reductions by overload


def _dim_of(args: Args, kwargs: Kwargs) -> Any:
    return kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))


def _extreme(name: str) -> Callable[[Args, Kwargs], Bound]:
    """max(x), max(x, dim), max(x, y)."""
    whole, along = SchemaBinder(OPS[f"{name}_all"]), SchemaBinder(OPS[f"{name}_dim"])
    pair = SchemaBinder(OPS[f"{name}imum"])

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        second = kwargs.get("other", _dim_of(args, kwargs))
        if second is None:
            return whole(args, kwargs)
        return pair(args, kwargs) if is_tensor(second) else along(args, kwargs)

    return binder


def _moments(name: str) -> Callable[[Args, Kwargs], Bound]:
    """var(x, unbiased), var(x, dim, unbiased, keepdim), var(x, dim, correction=, keepdim=)."""
    bind = SchemaBinder(OPS[name])

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        if len(args) > 1 and isinstance(args[1], bool):
            if len(args) > 2:
                return None
            kwargs["unbiased"], args = args[1], (args[0],)
        if len(args) > 2:
            kwargs |= dict(zip(("unbiased", "keepdim"), args[2:], strict=False))
            args = args[:2]
        if "unbiased" in kwargs:
            unbiased = kwargs.pop("unbiased")
            if type(unbiased) is not bool or ("keepdim" in kwargs and not _named(args, kwargs)):
                return None
            kwargs["correction"] = int(unbiased)
        return bind(args, kwargs)

    return binder


def _norm(args: Args, kwargs: Kwargs) -> Bound:
    """torch.norm: what is a vector norm; matrix norms are torch's."""
    given = dict(zip(("self", "p", "dim", "keepdim", "dtype"), args[:1] + args[1:2] + args[2:], strict=False)) | kwargs
    x, p, dim = given.pop("self", given.pop("input", None)), given.pop("p", "fro"), given.pop("dim", None)
    keepdim, dtype, out = given.pop("keepdim", False), given.pop("dtype", None), given.pop("out", None)
    if given or out is not None or (isinstance(p, str) and p != "fro"):
        return None
    return call_of("linalg_vector_norm", x, 2 if p in (None, "fro") else p, dim, keepdim, dtype=dtype)


def _linalg_norm(args: Args, kwargs: Kwargs) -> Bound:
    given = dict(zip(("self", "ord", "dim", "keepdim"), args, strict=False)) | kwargs
    x, order, dim = given.pop("self", given.pop("A", None)), given.pop("ord", None), given.pop("dim", None)
    keepdim, dtype, out = given.pop("keepdim", False), given.pop("dtype", None), given.pop("out", None)
    vector = order is None or len(x.shape) == 1 or isinstance(dim, int)
    if given or out is not None or not vector or isinstance(order, str):
        return None
    return call_of("linalg_vector_norm", x, 2 if order is None else order, dim, keepdim, dtype=dtype)


def _implicit_softmax(name: str) -> Callable[[Args, Kwargs], Bound]:
    """``dim=None`` means what it once meant: 0 for ranks 0, 1 and 3, else 1."""
    bind = FormBinder(name, FORMS[f"torch.nn.functional.{name}"][1], {})

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        given = dict(zip(bind.names, args, strict=False)) | {KEYWORDS.get(k, k): v for k, v in kwargs.items()}
        if given.get("dim") is None and is_tensor(given.get("self")):
            given["dim"] = 0 if len(given["self"].shape) in (0, 1, 3) else 1
        return bind((), given)

    return binder


def _named(args: Args, kwargs: Kwargs) -> list[Any]:
    """The dims that a call names, if it does."""
    return list(args[1:2]) if len(args) > 1 else [v for k, v in kwargs.items() if k in ("dim", "axis")]


def _names_none(dims: list[Any], kwargs: Kwargs) -> bool:
    """Over all dims where none is named: None is no name."""
    return any(d is None for d in dims)


def _keeps_unnamed(dims: list[Any], kwargs: Kwargs) -> bool:
    """``keepdim`` goes with dims only."""
    return "keepdim" in kwargs and not dims


def _names_no_dim(dims: list[Any], kwargs: Kwargs) -> bool:
    """An empty list of dims means none of them, and not all as for other reductions."""
    return any(d in ((), []) for d in dims)


_TORCHS_OWN = {  # by record: which calls are torch's to judge, by the dims that they name
    "prod": _names_none, "squeeze": _names_none, "squeeze_copy": _names_none,
    "sum": _keeps_unnamed, "nansum": _keeps_unnamed, "mean": _keeps_unnamed,
    "any": _names_no_dim, "all": _names_no_dim,
}  # fmt: skip


def _over_dims(name: str) -> Callable[[Args, Kwargs], Bound]:
    bind, torchs_own = SchemaBinder(OPS[name]), _TORCHS_OWN[name]
    return lambda args, kwargs: None if torchs_own(_named(args, kwargs), kwargs) else bind(args, kwargs)


def _over_points(name: str) -> Callable[[Args, Kwargs], Bound]:
    """Points are given as a tensor or not at all."""
    bind = SchemaBinder(OPS[name])
    return lambda args, kwargs: None if any(v is None for v in (*args[1:2], kwargs.get("x", 0))) else bind(args, kwargs)


def _reductions() -> None:
    for name in ("trapezoid", "cumulative_trapezoid"):
        for dotted in OPS[name].functions:
            add(dotted, _over_points(name))
    for name in _TORCHS_OWN:
        for where in ("torch", "torch.Tensor"):
            add(f"{where}.{name}", _over_dims(name))
    for name in ("max", "min"):
        add(f"torch.{name}", _extreme(name))
        add(f"torch.Tensor.{name}", _extreme(name))
    for name in ("var", "std", "var_mean", "std_mean"):
        for where in ("torch", "torch.Tensor"):
            add(f"{where}.{name}", _moments(name))
    add("torch.norm", _norm)
    add("torch.Tensor.norm", _norm)
    add("torch.linalg.norm", _linalg_norm)
    for name in ("softmax", "log_softmax"):
        add(f"torch.nn.functional.{name}", _implicit_softmax(name))


# ---------------------------------------------------------------------------------------------------------------- layers


def _dropout(names: tuple[str, ...]) -> Callable[[Args, Kwargs], Bound]:
    """The identity in evaluation and for p = 0."""

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        given = dict(zip(names, args, strict=False)) | {KEYWORDS.get(k, k): v for k, v in kwargs.items()}
        x, p = given.get("self"), given.get("p", 0.5)
        train = given.get("training", given.get("train", True))
        if type(train) is not bool or not 0 <= p <= 1:
            return None
        if p == 0 or not train:
            return identity(x)
        return BoundCall(OPS["dropout"], (x, p, True), inplace=bool(given.get("inplace")))

    return binder


def _batch_norm(args: Args, kwargs: Kwargs) -> Bound:
    """Inference only: training updates the running statistics."""
    names = ("self", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = dict(zip(names, args, strict=False)) | {KEYWORDS.get(k, k): v for k, v in kwargs.items()}
    training, momentum = given.pop("training", False), given.pop("momentum", 0.1)
    if training is not False or type(momentum) not in (float, int):
        return None
    if given.get("running_mean") is None or given.get("running_var") is None:
        return None
    return call_of("batch_norm", **given)


def _round(args: Args, kwargs: Kwargs) -> Bound:
    decimals = kwargs.pop("decimals", 0)
    if len(args) > 1 or decimals is None or type(decimals) is float:
        return None
    if decimals:
        return None if kwargs else call_of("round_decimals", args[0], decimals)
    return call_of("round", *args, **kwargs)


def _special_round(args: Args, kwargs: Kwargs) -> Bound:
    """Of integers torch has none: they are left to it."""
    return _round(args, kwargs) if args and is_tensor(args[0]) and args[0].dtype.is_floating_point else None


def _max_pool(name: str) -> Callable[[Args, Kwargs], Bound]:
    """With or without the maxima's places."""
    names: tuple[str, ...] = ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    if name.startswith("adaptive"):
        names = ("self", "output_size", "return_indices")

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        given = dict(zip(names, args, strict=False)) | {KEYWORDS.get(k, k): v for k, v in kwargs.items()}
        return call_of(f"{name}_with_indices" if given.pop("return_indices", False) else name, **given)

    return binder


def _clamp(inplace: bool) -> Callable[[Args, Kwargs], Bound]:
    bind = SchemaBinder(OPS["clamp"], inplace)

    def binder(args: Args, kwargs: Kwargs) -> Bound:
        bound = bind(args, kwargs)
        return bound and replace(bound, args=(bound.args[0], *bounds_as_torch_takes_them(*bound.args[1:])))

    return binder


def _float_power(args: Args, kwargs: Kwargs) -> Bound:
    """Not of two numbers, nor of what is complex."""
    return call_of("float_power", *args, **kwargs) if any(map(is_tensor, (*args, *kwargs.values()))) else None


def _where(form: str) -> Callable[[Args, Kwargs], Bound]:
    bind = FormBinder("where", form, {})
    return lambda args, kwargs: bind(args, kwargs) if len(args) + len(kwargs) == 3 else None


def _repeat_interleave(args: Args, kwargs: Kwargs) -> Bound:
    given = dict(zip(("self", "repeats", "dim"), args, strict=False)) | {KEYWORDS.get(k, k): v for k, v in kwargs.items()}
    if given.pop("output_size", None) is not None:  # torch compares it
        return None
    return call_of("repeat_interleave", **given) if not is_tensor(given.get("repeats")) else None


def _layers() -> None:
    add("torch.nn.functional.dropout", _dropout(("self", "p", "training", "inplace")))
    add("torch.dropout", _dropout(("self", "p", "train")))
    add("torch.nn.functional.batch_norm", _batch_norm)
    for dotted in ("torch.round", "torch.Tensor.round"):
        add(dotted, _round)
    add("torch.special.round", _special_round)
    for rank in (1, 2, 3):
        for where in ("torch", "torch.nn.functional"):
            add(f"{where}.max_pool{rank}d", _max_pool(f"max_pool{rank}d"))
        add(f"torch.nn.functional.adaptive_max_pool{rank}d", one_a_dim(_max_pool(f"adaptive_max_pool{rank}d"), rank))
    if not LONE_NAN_BOUNDS:
        for dotted in ("torch.clamp", "torch.clip", "torch.Tensor.clamp", "torch.Tensor.clip"):
            add(dotted, _clamp(False))
            add(f"{dotted}_", _clamp(True))
    for dotted in ("torch.float_power", "torch.Tensor.float_power"):
        add(dotted, _float_power)
    add("torch.where", _where(FORMS["torch.where"][1]))
    add("torch.Tensor.where", _where(FORMS["torch.Tensor.where"][1]))
    for dotted in ("torch.repeat_interleave", "torch.Tensor.repeat_interleave"):
        add(dotted, _repeat_interleave)


def install() -> None:
    """Add every special spelling to the table; the records are registered by then."""
    for dotted, (op, form) in FORMS.items():
        add(dotted, FormBinder(op, form, _OTHER_NAMES.get(dotted, {})))
    of_families = (*spellings_tensors.GROUPS, *spellings_parts.GROUPS, *spellings_scatters.GROUPS, *spellings_images.GROUPS)
    for group in (_operators, _reductions, _layers, *of_families, *spellings_aten.GROUPS):
        group()
