"""``Device``, dtypes and ``TensorMeta``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tinycompile.base import dtypes
from tinycompile.base.device import DEVICE_TYPES, Device
from tinycompile.base.expr import sym
from tinycompile.base.meta import TensorMeta

pytestmark = pytest.mark.pure

USABLE = [t for t in DEVICE_TYPES if t != "metal"]  # torch spells it, but refuses it


@pytest.mark.parametrize("name", USABLE)
@pytest.mark.parametrize("index", [-1, 0, 3, 127])
def test_every_device_of_torchs_packs_and_spells_as_torchs(name: str, index: int) -> None:
    device = Device(name, index)
    assert len(device.pack()) == 4 and Device.unpack(device.pack()) == device
    assert Device.of(str(device)) == device
    if name != "privateuseone":
        assert Device.of(device.torch()) == device and str(device.torch()) == str(device)


def test_of_another_device() -> None:
    for given in (torch.device("cpu"), Device("cpu"), torch.device("cuda:1"), Device("cuda", 1)):
        assert Device(given) == given
    for given, index in ((None, -1), (3, -1), (torch.device("cuda"), 1), (Device("cuda"), 1)):
        with pytest.raises(TypeError, match="argument 'type' .position 1. must be str, not"):
            Device(given, index)  # type: ignore[arg-type]


def test_from_an_int_a_string_or_itself() -> None:
    assert Device.of("cuda:1") == Device("cuda", 1)
    assert Device.of(torch.device("cpu")) == Device("cpu")
    device = Device("cpu")
    assert Device.of(device) is device
    assert hash(Device("cuda", 1)) == hash(Device.of("cuda:1"))


@pytest.mark.parametrize("given", [("cuda:1",), ("cpu",), ("cuda:1", 0), ("cuda:x",), ("nope:1",), ("cuda:",), ("cuda:1:2",)])
def test_a_text_with_an_index_is_read_as_torch_reads_it(given: tuple[Any, ...]) -> None:
    try:
        want = torch.device(*given)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error)[:40])):
            Device(*given)
    else:
        assert Device(*given) == want


@pytest.mark.parametrize(("name", "index"), [("gpu", 0), ("cuda", 128), ("cuda", -2)])
def test_range_checks(name: str, index: int) -> None:
    with pytest.raises(RuntimeError, match="[Dd]evice"):
        Device(name, index)


def test_range_checks_go_away_with_the_optimise_flag() -> None:
    code = "from tinycompile.base.device import Device; print(Device('cuda', 4000))"
    done = subprocess.run(
        [sys.executable, "-O", "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "cuda:4000"


def test_dtype_names_and_kinds() -> None:
    for dtype in dtypes.COMPILED | dtypes.COMPLEX:
        assert dtypes.by_name(dtypes.name_of(dtype)) is dtype
        assert (dtype in dtypes.FLOAT) == dtype.is_floating_point and (dtype in dtypes.COMPLEX) == dtype.is_complex
    with pytest.raises(ValueError, match="no dtype"):
        dtypes.by_name("Tensor")


def test_accumulators_are_torchs() -> None:
    for dtype in dtypes.INTEGER | {torch.bool}:
        assert dtypes.accumulator(dtype) is torch.ones(2, dtype=dtype).sum().dtype
    assert dtypes.accumulator(torch.bfloat16) is dtypes.opmath(torch.float16) is torch.float32
    assert dtypes.accumulator(torch.float64) is torch.float64


def test_tensor_meta() -> None:
    meta = TensorMeta.contiguous((2, 3), torch.float32, Device("cpu"))
    assert (meta.strides, meta.rank, meta.numel, meta.is_contiguous()) == ((3, 1), 2, 6, True)
    turned = TensorMeta((3, 2), (1, 3), torch.float32, Device("cuda", 0), 4)
    assert str(meta) == "float32[2, 3] cpu"
    assert str(turned) == "float32[3, 2] strides[1, 3] offset 4 cuda:0"
    assert not turned.is_contiguous() and hash(turned) == hash(turned) and turned != meta
    assert TensorMeta.contiguous((sym("n", 2), 3), torch.float32, Device("cpu")).numel == sym("n", 2) * 3
