"""The states of torch's generators, for what draws the same numbers twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tinycompile.dispatch import dispatcher

State = tuple[torch.Tensor, list[torch.Tensor]]
Cards = Sequence[int | torch.device]


def cuda_devices(args: Sequence[Any]) -> list[int]:
    """The cards on which tensors among the arguments are."""
    return sorted({t.device.index for t in dispatcher.tensors_in(args) if t.device.type == "cuda"})


def rng_state(devices: Cards) -> State:
    """Of the host, and of these cards."""
    return torch.get_rng_state(), [torch.cuda.get_rng_state(d) for d in devices]


def same_state(a: State, b: State) -> bool:
    """Whether nothing was drawn between two states of the same generators."""
    return all(map(torch.equal, (a[0], *a[1]), (b[0], *b[1])))


def set_rng_state(state: State, devices: Cards) -> None:
    """Back to what :func:`rng_state` gave for them."""
    torch.set_rng_state(state[0])
    for device, of_device in zip(devices, state[1], strict=True):
        torch.cuda.set_rng_state(of_device, device)


@contextmanager
def drawn_again(state: State | None, devices: Cards) -> Iterator[None]:
    """The same numbers are drawn as from ``state`` on, and then the generators stand as before. None: nothing is done."""
    with torch.random.fork_rng(devices, enabled=state is not None, device_type="cuda"):
        if state is not None:
            set_rng_state(state, devices)
        yield
