"""Compares a compiled call with eager's on the same arguments: value (float64 judges), metadata, aliasing, exceptions."""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}


class DifferenceError(Exception):
    """What differs: ``kind`` is one word for tables, the message says the rest."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


@dataclass
class Call:
    """One sample: the function's arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def copy(self) -> Call:
        """The same with tensors of its own, of the same strides and sharing."""
        memo: dict[int, Any] = {}

        def one(t: Any) -> Any:
            plain = not isinstance(t, torch.Tensor) or t.layout is torch.strided
            return copy.deepcopy(t, memo) if plain else t.clone()

        return Call(_mapped(self.args, one), _mapped(self.kwargs, one))

    def mapped(self, fn: Callable[[Any], Any]) -> Call:
        """With ``fn`` of each tensor and dtype."""
        return Call(_mapped(self.args, fn), _mapped(self.kwargs, fn))

    def wide(self) -> Call:
        """The same values in double precision."""
        return Call(_converted(self.args, _WIDE), _converted(self.kwargs, _WIDE))

    def moved(self) -> Call:
        """Doubles moved by an ulp."""
        return Call(_mapped(self.args, _moved), _mapped(self.kwargs, _moved))

    def near(self) -> Call:
        """Every float moved by about an ulp of its dtype."""
        return Call(_mapped(self.args, _nudged), _mapped(self.kwargs, _nudged))

    def narrow(self) -> Call:
        """The same values, doubles rounded to single precision."""
        return Call(_converted(self.args, _NARROW), _converted(self.kwargs, _NARROW))


def _as_double(t: Any) -> Any:
    return t.double() if isinstance(t, torch.Tensor) and t.dtype in _INTEGERS else t


def _moved(t: Any) -> Any:
    """A double tensor's neighbours, up or down by chance."""
    if not isinstance(t, torch.Tensor) or t.dtype is not torch.float64 or t.layout is not torch.strided:
        return t
    return torch.nextafter(t, torch.where(torch.rand(t.shape, device=t.device) < 0.5, -torch.inf, torch.inf).to(t.dtype))


def _nudged(t: Any) -> Any:
    """Neighbours in a tensor's own dtype, up or down by chance; zeros stay."""
    if not isinstance(t, torch.Tensor) or not t.is_floating_point() or t.layout is not torch.strided:
        return t
    steps = torch.randint(0, 2, t.shape, device=t.device) * 2 - 1
    return (t.double() * (1 + steps * torch.finfo(t.dtype).eps)).to(t.dtype)


def run(fn: Callable[..., Any], call: Call, seed: int) -> Any:
    """The result, or the exception that was raised."""
    torch.manual_seed(seed)
    try:
        return fn(*call.args, **call.kwargs)
    except Exception as error:  # noqa: BLE001  # an exception is a result here
        return error


# Functions whose float64 result in torch is itself off by up to 4e-7: mpmath's names and leading arguments.
_MORE_EXACT: dict[Any, tuple[str, tuple[int, ...]]] = {
    torch.special.bessel_j0: ("besselj", (0,)),
    torch.special.bessel_j1: ("besselj", (1,)),
    torch.special.bessel_y0: ("bessely", (0,)),
    torch.special.bessel_y1: ("bessely", (1,)),
    torch.special.airy_ai: ("airyai", ()),
}


# Remainders are exact in any precision; torch's vector kernels give NaN where the quotient overflows.
_BY_NUMPY: dict[Any, Callable[..., Any]] = {torch.fmod: np.fmod, torch.remainder: np.remainder}


def _by_numpy(fn: Callable[..., Any], call: Call) -> torch.Tensor:
    args = (a.double().cpu().numpy() if isinstance(a, torch.Tensor) else a for a in call.args)
    with np.errstate(all="ignore"):
        return torch.as_tensor(fn(*args))


def _by_mpmath(name: str, leading: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    mpmath = importlib.import_module("mpmath")

    def one(v: float) -> float:
        found = getattr(mpmath, name)(*leading, v)
        return float(found) if mpmath.im(found) == 0 else float("nan")

    found = [one(v) for v in x.double().flatten().tolist()]
    return torch.tensor(found, dtype=torch.float64, device=x.device).reshape(x.shape)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Judge:
    """What the op gives, and makes of its arguments, in other precisions; worked out only where something is not bit-equal."""

    def __init__(self, op: Callable[..., Any], call: Call, seed: int) -> None:
        self.op, self.call, self.seed = op, call, seed
        self.asked: dict[str, list[Any]] = {}
        self.lucky = False  # whether something was right because eager's own error here is less than it is elsewhere

    def double(self, at: int) -> Any:
        """Result ``at`` in double precision; not by torch where its doubles are not that good, and of integers as doubles where
        it makes float32 of them itself."""
        if self.op in _MORE_EXACT:
            return _by_mpmath(*_MORE_EXACT[self.op], self.call.args[0])
        if self.op in _BY_NUMPY and at == 0:
            return _by_numpy(_BY_NUMPY[self.op], self.call)
        found = self._ask("double", self.call.wide, at)
        if isinstance(found, torch.Tensor) and found.dtype is torch.float32:
            wider = self._ask("doubles", lambda: self.call.wide().mapped(_as_double), at)
            found = wider if isinstance(wider, torch.Tensor) and wider.dtype is torch.float64 else found
        return found

    def single_error(self, at: int) -> float:
        """Eager's own error in single precision, in units of its epsilon: what a double result's error is like."""
        narrow = self.call.narrow()
        single, double = self._ask("single", lambda: narrow, at), self._ask("widened", narrow.wide, at)
        if not isinstance(single, torch.Tensor) or not isinstance(double, torch.Tensor) or single.dtype not in _WIDE:
            return 0.0
        error = (single.to(double.dtype) - double).abs()
        return error[error.isfinite()].max().item() / torch.finfo(single.dtype).eps if error.isfinite().any() else 0.0

    def sensitivity(self, at: int) -> float:
        """How far the result moves when every double given moves by an ulp, the most of eight tries: no algorithm can be
        asked for less."""
        result, most = self._ask("double", self.call.wide, at), 0.0
        for i in range(8):
            torch.manual_seed(i)
            moved = self._ask(f"moved {i}", self.call.moved, at)
            if isinstance(moved, torch.Tensor) and moved.shape == result.shape:
                error = (moved - result).abs()
                most = max([most, *error[error.isfinite()].flatten().tolist()])
        return most

    def usual_error(self, at: int, norm: Callable[[torch.Tensor], float]) -> float:
        """Eager's error for eight calls whose floats are an ulp off, the middle one. A sum whose terms cancel is now and then
        exact by luck; an algorithm that adds the same terms in another order, or exactly, can't have that luck, too."""
        errors = []
        for mine, exact in self._near(at):
            error = (mine - exact)[mine.isfinite() & exact.isfinite()].double()
            errors.append(norm(error) if error.numel() else 0.0)
        return sorted(errors)[len(errors) // 2] if errors else 0.0

    def settled_signs(self, at: int, want: torch.Tensor) -> torch.Tensor:
        """Where eager's sign is the same for those calls. It is not where a zero is what rounding has left of what cancels."""
        signs = torch.signbit(want)
        settled = torch.ones_like(signs)
        for mine, _ in self._near(at):
            settled &= torch.signbit(mine) == signs
        return settled

    def _near(self, at: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Eager's result and float64's for calls whose floats are an ulp off."""
        for i in range(8 if self.op not in _MORE_EXACT and self.op not in _BY_NUMPY else 0):
            torch.manual_seed(i)
            near = self.call.near()
            found = [self._ask(f"single {i}", near.copy, at), self._ask(f"double {i}", near.wide, at)]
            if all(isinstance(f, torch.Tensor) for f in found) and found[0].shape == found[1].shape:
                mine, exact = (torch.view_as_real(f.resolve_conj()) if f.is_complex() else f.double() for f in found)
                yield mine, exact

    def _ask(self, what: str, call: Callable[[], Call], at: int) -> Any:
        if what not in self.asked:  # results, then the arguments as the call left them
            given = call().copy()
            with _default_dtype(torch.float32 if what.startswith("single") else torch.float64):  # what integers become
                self.asked[what] = [*leaves(run(self.op, given, self.seed)), *leaves((given.args, given.kwargs))]
        return self.asked[what][at] if at < len(self.asked[what]) else None


def compare(
    got: Any, want: Any, mine: Call, theirs: Call, judge: Judge, values: bool = True, unwritten: Collection[int] = ()
) -> None:
    """Raise DifferenceError unless ``got`` (computed from ``mine``) is as good as ``want`` (from ``theirs``).

    ``values=False``: the op's result is memory that nobody has written. ``unwritten``: these of its results are."""
    if isinstance(want, Exception) or isinstance(got, Exception):
        if type(got) is not type(want):
            raise DifferenceError("exception", f"{_shown(got)}, eager {_shown(want)}")
        return
    _structure(got, want, "result")
    ours, eagers = list(leaves(got)), list(leaves(want))
    _same_aliases(ours, eagers, list(leaves((mine.args, mine.kwargs))), list(leaves((theirs.args, theirs.kwargs))))
    for i, (g, w) in enumerate(zip(ours, eagers, strict=True)):
        if isinstance(w, torch.Tensor):
            _same_metadata(g, w, i)
            if values and i not in unwritten:
                compare_values(g, w, judge, i)
        elif values and not (g == w or (g != g and w != w)):
            raise DifferenceError("value", f"result {i}: {g!r}, eager {w!r}")
    for i, (g, w) in enumerate(zip(leaves((mine.args, mine.kwargs)), leaves((theirs.args, theirs.kwargs)), strict=True)):
        if isinstance(w, torch.Tensor):
            try:
                compare_values(g, w, judge, len(eagers) + i)
            except DifferenceError as difference:
                raise DifferenceError("mutation", f"argument {i} after the call: {difference.message}") from None


def compare_values(got: torch.Tensor, want: torch.Tensor, judge: Judge, at: int) -> None:
    """Raise DifferenceError unless the values of result ``at`` are as good as eager's."""
    if _bit_equal(got, want):
        return
    if not (want.is_floating_point() or want.is_complex()):
        raise DifferenceError("value", f"result {at}: {_first_difference(got, want)}")
    _close(got, want, judge, at)


# --- structure and metadata ----------------------------------------------------------------------------------------------


def leaves(value: Any) -> Iterator[Any]:
    """What is no container, in order."""
    if isinstance(value, dict):
        for v in value.values():
            yield from leaves(v)
    elif isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        for v in value:
            yield from leaves(v)
    else:
        yield value


def _structure(got: Any, want: Any, where: str) -> None:
    if type(got) is not type(want):
        raise DifferenceError("class", f"{where}: {type(got).__name__}, eager {type(want).__name__}")
    if isinstance(want, (tuple, list)):
        if len(got) != len(want):
            raise DifferenceError("class", f"{where}: {len(got)} items, eager {len(want)}")
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            _structure(g, w, f"{where}[{i}]")


def _same_metadata(got: torch.Tensor, want: torch.Tensor, at: int) -> None:
    for what in ("shape", "dtype", "device", "layout"):
        if getattr(got, what) != getattr(want, what):
            raise DifferenceError(what, f"result {at}: {getattr(got, what)}, eager {getattr(want, what)}")
    if want.layout is torch.strided and got.stride() != want.stride():
        raise DifferenceError("stride", f"result {at} of shape {tuple(want.shape)}: {got.stride()}, eager {want.stride()}")
    for what in ("requires_grad", "is_conj", "is_neg"):
        g, w = getattr(got, what), getattr(want, what)
        if (g() if callable(g) else g) != (w() if callable(w) else w):
            raise DifferenceError(what, f"result {at}")


def _same_aliases(got: Sequence[Any], want: Sequence[Any], mine: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Each result shares memory with the same argument (or earlier result) at the same offset, or with none."""
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        ours, eagers = _partner(g, [*mine, *got[:i]]), _partner(w, [*theirs, *want[:i]])
        if ours != eagers:
            raise DifferenceError("alias", f"result {i}: {_partner_text(ours)}, eager {_partner_text(eagers)}")


def _partner(x: Any, others: Sequence[Any]) -> tuple[int, int, bool] | None:
    if not _has_memory(x):
        return next(((i, 0, True) for i, o in enumerate(others) if isinstance(x, torch.Tensor) and o is x), None)
    start = x.untyped_storage().data_ptr()
    for i, o in enumerate(others):
        if _has_memory(o) and o.untyped_storage().data_ptr() == start:
            return i, x.storage_offset() - o.storage_offset(), any(p is x for p in others)
    return None


def _has_memory(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout is torch.strided and x.numel() > 0


def _partner_text(partner: tuple[int, int, bool] | None) -> str:
    return "fresh" if partner is None else f"tensor {partner[0]}{' itself' if partner[2] else f' at {partner[1]}'}"


# --- values --------------------------------------------------------------------------------------------------------------


def _bit_equal(got: torch.Tensor, want: torch.Tensor) -> bool:
    if got.layout is not torch.strided or got.is_quantized:
        return bool(torch.equal(got.to_dense(), want.to_dense()))
    same = (got == want) | ((got != got) & (want != want))
    if want.is_floating_point():
        same &= (torch.signbit(got) == torch.signbit(want)) | want.isnan()
    return bool(same.all())


def _first_difference(got: torch.Tensor, want: torch.Tensor) -> str:
    at = (got != want).nonzero()
    where = tuple(at[0].tolist())
    return f"{len(at)} of {want.numel()} differ, first at {where}: {got[where].item()}, eager {want[where].item()}"


def _close(got: torch.Tensor, want: torch.Tensor, judge: Judge, at: int) -> None:
    """Normwise: maximum and RMS of the error at most twice eager's (here, or what it usually is) plus an ulp; NaN, infinity and
    signed zero as eager's.

    Nothing is more exact than doubles here: their own error is taken from the op in single precision, and from what an ulp in
    the inputs does."""
    exact, slack = judge.double(at), 0.0
    if want.dtype in _NARROW:
        slack = max(3 * judge.single_error(at) * torch.finfo(want.dtype).eps, 2 * judge.sensitivity(at))
    if not isinstance(exact, torch.Tensor) or exact.shape != want.shape or exact.is_complex() != want.is_complex():
        exact = want
    if want.is_complex():
        got, want, exact = (torch.view_as_real(x.resolve_conj()) for x in (got, want, exact))
    known = (got.isfinite() & (exact.abs() <= torch.finfo(want.dtype).max)) | (got.isinf() & (got == exact.to(want.dtype)))
    lost = want.isnan() & known  # by eager: float64 knows the value
    want = torch.where(lost, exact.to(want.dtype), want)
    special = ~(want.isfinite() & got.isfinite())
    if not torch.equal(got[special].nan_to_num(7.0), want[special].nan_to_num(7.0)):
        raise DifferenceError("value", f"result {at}: NaN or infinity: {_first_difference(got, want)}")
    signs = (got == 0) & (want == 0) & (torch.signbit(got) != torch.signbit(want))
    if signs.any():
        if (signs & judge.settled_signs(at, want)).any():
            raise DifferenceError("value", f"result {at}: the sign of zero")
        judge.lucky = True
    keep = ~special & exact.isfinite()
    g, w, e = (x[keep].double() for x in (got, want, exact))
    if not g.numel():
        return
    info = torch.finfo(want.dtype)
    for norm in (_largest, _rms):
        ours, error, least = norm(g - e), norm(w - e), slack + info.eps * max(_largest(e), info.tiny)
        if not ours <= 2 * error + least and want.dtype not in _NARROW:
            error, judge.lucky = max(error, judge.usual_error(at, norm)), True
        if not ours <= 2 * error + least:
            what = f"error {ours:.3g}, allowed {2 * error + least:.3g} ({_first_difference(got, want)})"
            raise DifferenceError("value", f"result {at}: {what}")


def _largest(x: torch.Tensor) -> float:
    return x.abs().max().item()


def _rms(x: torch.Tensor) -> float:
    return x.square().mean().sqrt().item()


def _converted(value: Any, dtypes: Mapping[torch.dtype, torch.dtype]) -> Any:
    return _mapped(value, lambda t: dtypes.get(t, t) if isinstance(t, torch.dtype) else t.to(dtypes.get(t.dtype, t.dtype)))


def _mapped(value: Any, fn: Callable[[Any], Any]) -> Any:
    """``value`` with ``fn`` of each tensor and dtype in it."""
    if isinstance(value, (torch.Tensor, torch.dtype)):
        return fn(value)
    if isinstance(value, dict):
        return {k: _mapped(v, fn) for k, v in value.items()}
    return type(value)(_mapped(v, fn) for v in value) if type(value) in (tuple, list) else value


def _shown(value: Any) -> str:
    return f"{type(value).__name__}: {str(value)[:300]}" if isinstance(value, Exception) else type(value).__name__
