"""Functions that warn in eager Python: torch's own warnings, Python's, numpy's and the program's. ``TOLD`` are captured whole, and
what is compiled tells what torch does; ``LEFT`` break the graph, so that eager Python tells it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import tinycompile

COLUMN, ROW = torch.ones(3, 1), torch.arange(3.0)
BYTES, FIRST = torch.tensor([1, 0, 1], dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
READ_ONLY = np.arange(3.0)
READ_ONLY.setflags(write=False)
Story = Callable[[Any], Any]
TOLD: dict[str, Story] = {}
LEFT: dict[str, Story] = {}


def told(fn: Story) -> Story:
    TOLD[fn.__name__] = fn
    return fn


def left(fn: Story) -> Story:
    LEFT[fn.__name__] = fn
    return fn


# --- torch ---------------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def forward(self, x):
        return F.softmax(x) + x[:1].std().nan_to_num()


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax, self.model = nn.Softmax(), Model()

    def forward(self, x):
        return self.model(self.softmax(x))


MODEL, LOSS, SOFTMAX, SEQUENCE = Inner(), nn.MSELoss(), nn.Softmax(), nn.Sequential(nn.LogSoftmax(), nn.Tanh())
HOOKED = nn.Softmax()
HOOKED.register_forward_hook(lambda module, args, out: out + 1)

TOLD |= {
    "mse_loss": lambda x: F.mse_loss(x * COLUMN, ROW),
    "huber_loss": lambda x: F.huber_loss(x * COLUMN, ROW, reduction="sum"),
    "a loss as a module": lambda x: LOSS(x * COLUMN, ROW),
    "size_average": lambda x: F.mse_loss(x, ROW, size_average=False),
    "kl_div": lambda x: F.kl_div(x, ROW),
    "std": lambda x: x[:1].std().nan_to_num(),
    "var of a dim": lambda x: torch.var(x[None], dim=0).nan_to_num(),
    "var_mean": lambda x: torch.var_mean(x, correction=3)[1],
    "nobody reads it": lambda x: (x[:1].std(), x + 1)[1],
    "T": lambda x: x[None, None].T + 1,
    "T of no dims": lambda x: x.sum().T + 1,
    "adjoint of no dims": lambda x: x.sum().adjoint() + 1,
    "softmax": lambda x: F.softmax(x),
    "softmin": lambda x: F.softmin(x),
    "softmax as a module": lambda x: SOFTMAX(x),
    "modules in modules": lambda x: MODEL(x),
    "a sequence of modules": lambda x: SEQUENCE(x),
    "meshgrid": lambda x: torch.meshgrid(x, x)[0] + 1,
    "upsample": lambda x: F.upsample(x.view(1, 1, 3), scale_factor=2),
    "upsample_nearest": lambda x: F.upsample_nearest(x.view(1, 1, 3), scale_factor=2),
    "grid_sample": lambda x: F.grid_sample(x.view(1, 1, 1, 3), torch.zeros(1, 1, 1, 2)),
    "affine_grid": lambda x: F.affine_grid(torch.ones(1, 2, 3) * x.sum(), (1, 1, 2, 2)),
    "dropout2d": lambda x: F.dropout2d(x.view(1, 3), training=False),
    "dropout3d": lambda x: F.dropout3d(x.view(1, 3, 1), training=False) + 1,
    "embedding_bag": lambda x: F.embedding_bag(torch.ones(5, 3), torch.zeros(2, 2, dtype=torch.int64)) + x,
    "cross": lambda x: torch.cross(x, x + 1),
    "padding": lambda x: F.conv1d(x.view(1, 1, 3), torch.ones(1, 1, 2), padding="same"),
    "addcmul": lambda x: torch.addcmul(x, 2, x, x),
    "add": lambda x: torch.add(x, 2, x),
    "qr": lambda x: torch.qr(torch.eye(3) + x)[0].abs(),
    "chain_matmul": lambda x: torch.chain_matmul(x[:, None], x[None], x[:, None]),
    "stft": lambda x: torch.stft(torch.arange(64.0) + x.sum(), 16, return_complex=False, window=torch.ones(16)).sum(),
    "a tensor of a tensor": lambda x: torch.tensor(x) + 1,
    "complex as real": lambda x: torch.complex(x, x).to(torch.float32),
    "complex as an int": lambda x: torch.complex(x, x).int(),
    "complex like another": lambda x: torch.complex(x, x).type_as(x) + 1,
    "a sum of complex": lambda x: torch.complex(x, x).sum(dtype=torch.float32),
    "where": lambda x: torch.where(BYTES, x, x + 1),
    "searchsorted": lambda x: torch.searchsorted(torch.arange(6.0), torch.arange(12.0).view(2, 6).t() + x[0]),
    "bucketize": lambda x: torch.bucketize(torch.arange(6.0).view(2, 3).t() + x[0], torch.arange(3.0)),
    "scatter": lambda x: x.scatter(0, torch.arange(3), x, reduce="add"),
    "under vmap": lambda x: torch.func.vmap(lambda t: t[:1].std().nan_to_num())(x.view(1, 3)),
    "a region of autocast": lambda x: _in_a_region(x),
}  # fmt: skip
LEFT |= {
    "a module with hooks": lambda x: HOOKED(x),
    "add_": lambda x: x.clone().add_(2, x),
    "out=": lambda x: torch.add(x, 1, out=torch.zeros(2)),
    "an array that can't be written": lambda x: torch.from_numpy(READ_ONLY) + x,
    "a mask of bytes": lambda x: x[BYTES],
    "fill what is expanded": lambda x: x[:1].clone().expand(3).masked_fill_(x > 5, 2.0),
    "cov": lambda x: torch.cov(x[:, None]).nan_to_num(),
    "complex to a device": lambda x: torch.complex(x, x).to("cpu", torch.float32),
}  # fmt: skip


def _in_a_region(x):
    with torch.cuda.amp.autocast(enabled=False):
        return x + 1


@told
def in_place(x):
    y = x.clone()
    y[1:] = torch.complex(x, x)[1:]
    return y


@told
def in_a_loop(x):
    for i in range(2):
        x = x + x[: i + 1].std().nan_to_num()
    return x


@told
def with_a_gradient(x):
    y = x.clone().requires_grad_(True) if x.requires_grad else x
    return y * F.mse_loss(y * COLUMN, ROW)


@left
def softmax_in_a_handler(x):
    tinycompile.graph_break()
    try:
        return F.softmax(x)
    except UserWarning:
        return x - 1


@left
def on_both_sides_of_a_break(x):
    y = x[:1].std().nan_to_num()
    tinycompile.graph_break()
    return F.softmax(x) + x.T + y


@left
def breaks_in_a_loop(x):
    for _ in range(3):
        tinycompile.graph_break()
        x = F.softmax(x)
    return x


# --- Python and numpy ----------------------------------------------------------------------------------------------------

LEFT |= {
    "not NotImplemented": lambda x: x + (1 if not int.__eq__(1, "a") else 2),
    "bool of NotImplemented": lambda x: x + bool(NotImplemented),
    "NotImplemented and": lambda x: x + (1 if (NotImplemented and 3) else 2),
    "all of NotImplemented": lambda x: x + all([NotImplemented, 0]),
    "a division by zero": lambda x: x + float(np.float64(1.0) / np.float64(0.0) > 0),
    "a division of arrays": lambda x: x + len(np.zeros(3) / np.zeros(3)),
    "a mean of nothing": lambda x: x + (0 if math.isnan(np.mean(np.zeros(0))) else 1),
    "an overflow": lambda x: x + int(np.int8(127) + np.int8(1)),
    "numpy's complex as real": lambda x: x + float(np.array([1 + 2j]).astype(float).sum()),
    "an operator's own": lambda x: x + [1, 2, 3][_Index()],
}  # fmt: skip


class _Int(int):
    pass


class _Index:
    def __index__(self):
        return _Int(2)


@left
def numpy_in_a_handler(x):
    try:
        return x + float(np.float64(1) / np.float64(0) > 0)
    except RuntimeWarning:
        return x - 5


# --- the program's own ---------------------------------------------------------------------------------------------------


@left
def warns(x):
    warnings.warn("one")  # noqa: B028
    return x + 1


def _two_up(x):
    y = x + 1
    warnings.warn("two", stacklevel=2)
    return y


def _through_another(x):
    return _three_up(x) + 1


def _three_up(x):
    y = x * 2
    warnings.warn("three", FutureWarning, stacklevel=3)
    return y


@left
def warns_of_its_caller(x):
    return _two_up(x) * _through_another(x)


@left
def quiet_inside(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a = x[:1].std()
    return x[:1].var().nan_to_num() + a.nan_to_num()


@left
def recorded_inside(x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = F.softmax(x) + x[:1].std().nan_to_num()
    return y + len(caught)


@left
def raised_inside(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return F.softmax(x)
        except UserWarning:
            return x - 3


@left
def shown_by_the_program(x):
    said, before = [], warnings.showwarning
    warnings.showwarning = lambda *args, **kwargs: said.append(args[0])
    try:
        y = F.softmax(x)
    finally:
        warnings.showwarning = before
    return y + len(said)


@left
def filtered_from_here_on(x):
    a = x[:1].std()
    warnings.filterwarnings("ignore", message="std")
    return a.nan_to_num() + x[:1].std().nan_to_num()


@left
def first_in_the_filters(x):
    warnings.filters.insert(0, ("ignore", None, Warning, None, 0))
    y = F.softmax(x)
    del warnings.filters[0]
    return y


@left
def once(x):
    warnings.simplefilter("once")
    warnings.warn("of all")  # noqa: B028
    return F.softmax(x)


@left
def in_order(x):
    warnings.warn("before")  # noqa: B028
    y = F.softmax(x)
    warnings.warn("after")  # noqa: B028
    return y + x.T
