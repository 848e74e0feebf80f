"""Functions that keep their results, numbers of objects, attributes of classes that are written."""

from __future__ import annotations

import functools

import torch
from torch import nn

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r


@functools.lru_cache
def mask(n):
    return torch.ones(n, n).tril()


@functools.cache
def table(n, scale=1.0):
    return {"half": [n // 2], "t": torch.arange(float(n)) * scale}


@functools.lru_cache(maxsize=0)
def never_kept(n):
    return [n]


@functools.cache
def noisy(n):
    log("noisy")
    return torch.ones(n)


@functools.cache
def random_once(n):
    return torch.rand(n)


@functools.cache
def number(n):
    return n * 2


class Holder(nn.Module):
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def cached(self, n):
        return torch.full((n,), 3.0)

    def forward(self, x):
        return x * self.cached(4)


HOLDER = Holder()


@case
def cached_tensor(x):
    return mask(4) @ x, mask(4) is mask(4), mask(3).shape, mask(4)


@case
def cached_containers(x):
    t = table(4, scale=2.0)
    return x * t["t"], t["half"][0], table(4, scale=2.0) is t, never_kept(1) is never_kept(1), number(3)


@case
def cached_method(x):
    return HOLDER(x)


@case
def cached_number_behind_a_change(x):
    out = [number(2)]
    out.append(number(3))
    return x * number(4), out


@case
def identity_numbers(x):
    return (
        x,
        id(HOLDER) == id(HOLDER),
        id(mask) == id(HOLDER),
        id(Holder) == id(Holder),
        id(None) == id(None),
        id(torch) in {id(torch)},
    )


@breaks(args=lambda: ((lambda t: [t, t])(r(4)), r(4)))
def identity_numbers_of_parts(l, x):
    return id(l[0]) == id(l[1])


@breaks
def identity_number_of_a_new_object(x):
    y = x + 1
    return id(y) == id(y), y
