"""Which tensors' signatures tell of modes, and that they do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tinycompile.base.mode_signatures import tells_modes
from tinycompile.base.torch_private import BulkCheck

pytestmark = pytest.mark.pure

with torch.inference_mode():
    INFERENCE = torch.ones(2)


class Own(torch.Tensor):
    """A class of a program's."""


TELLING = {
    "float32": torch.ones(2, 3),
    "int64": torch.ones(2, dtype=torch.int64),
    "a parameter": nn.Parameter(torch.ones(2)),
    "a view": torch.ones(4, 4).t()[1:],
    "0-d": torch.tensor(1.0),
    "empty": torch.ones(0, 2),
}
SILENT = {
    "an inference tensor": INFERENCE,
    "a subclass": torch.ones(2).as_subclass(Own),
    "no data": torch.ones(2, device="meta"),
}
MODES = {
    "inference mode": torch.inference_mode,
    "a dispatch mode": TorchDispatchMode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TELLING)
def test_the_check_fails_in_each_mode_and_holds_after_it(name: str, mode: str) -> None:
    tensor = TELLING[name]
    assert tells_modes(tensor)
    check = BulkCheck((tensor,)).check
    assert check(tensor)
    with MODES[mode]():
        assert not check(tensor)
    assert check(tensor)


@pytest.mark.parametrize("name", SILENT)
def test_others_do_not_tell(name: str) -> None:
    assert not tells_modes(SILENT[name])
