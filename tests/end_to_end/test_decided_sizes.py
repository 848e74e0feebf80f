"""What sizes decide in any stage is guarded: code made for an even size is not run for an odd one. So it is for code that comes
from disk, which was made for another size, by another capture of the same graph, or in another process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tinycompile.base.device import Device
from tinycompile.base.expr import sym
from tinycompile.base.shapes import Relation, ShapeEnv, assume
from tinycompile.base.target import GENERIC
from tinycompile.compiler import key_parts

pytestmark = pytest.mark.cpu


def strided(x: torch.Tensor) -> torch.Tensor:
    return x[::2][: x.shape[0] // 2] + x[1::2]


def halves(x: torch.Tensor) -> torch.Tensor:
    return x[: x.shape[0] // 2 * 2].view(2, -1).sum(0)


def gated(x: torch.Tensor) -> torch.Tensor:
    return F.glu(x[: x.shape[0] // 2 * 2], 0)


def chunks(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([c.flip(0) for c in x[: x.shape[0] // 2 * 2].chunk(2)])


def padded(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x[: x.shape[0] // 4 * 4].view(4, -1).flip(0).reshape(-1), (1, x.shape[0] % 4))


def gradient(f: Callable[[torch.Tensor], torch.Tensor], size: int) -> torch.Tensor:
    x = torch.arange(1.0, size + 1).requires_grad_()
    f(x).square().sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("fn", [strided, halves, gated, chunks, padded])
def test_even_sizes_then_odd_ones_and_the_other_way_round(fn: Callable[..., torch.Tensor], tmp_path: Path) -> None:
    with tinycompile.config.patch(cache_dir=str(tmp_path / "cache")):
        for sizes in ((8, 4, 7, 17), (8, 4, 7, 17), (7, 5, 8)):  # the second time all comes from disk
            c = tinycompile.compile(fn, dynamic=True)
            for size in sizes:
                torch.testing.assert_close(gradient(c, size), gradient(fn, size))


def test_code_from_disk_brings_the_guards_that_it_needs(tmp_path: Path) -> None:
    def pad_if_odd(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x[: x.shape[0] // 2 * 2], (0, x.shape[0] % 2)) * x

    with tinycompile.config.patch(cache_dir=str(tmp_path / "cache")):
        guards = []
        for from_disk in (0, 1):
            c = tinycompile.compile(pad_if_odd, dynamic=True)
            gradient(c, 8)
            assert c.cache_info()["from_disk"] == from_disk
            guards.append({line for line in c.source("guards").splitlines() if "sizes:" in line})
    assert guards[0] == guards[1]


def test_a_key_names_the_sizes_and_relations_reach_the_capture() -> None:
    cpu = Device.of("cpu")
    assert key_parts("", [("s0", 4)], GENERIC, cpu) != key_parts("", [("s0", 7)], GENERIC, cpu)
    relation = Relation("eq", sym("s0", 2) - 4)
    assume([relation])  # outside of a capture nothing is to be guarded
    with ShapeEnv({"s0": 4}).active() as env:
        assume([relation])
    assert list(env.relations) == [relation]
    assert relation.fits({"s0": 4}) and not relation.fits({"s0": 5})
