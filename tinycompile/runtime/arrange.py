"""Sets up a wrapper's contests: builds their entrants, or takes over what an earlier contest found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tinycompile.base.device import Device
from tinycompile.base.errors import BackendError
from tinycompile.base.logs import log
from tinycompile.ir.source import ChoiceSource, Config, KernelSource, Source
from tinycompile.runtime import contest, interpreter_worker, triton_build, triton_restore
from tinycompile.runtime.autotune import STEM, Launcher, Tuner, only
from tinycompile.runtime.contest import Contest, Entrant, Slot
from tinycompile.runtime.linked import Linked


def arrange(
    choice: ChoiceSource, source: Source, device: Device, linked: Linked, slots: Mapping[str, Slot], tuner: Tuner | None
) -> None:
    """Bind the name that the wrapper calls. Without a tuner, or where nothing competes, it is the library's way."""
    names = linked.namespace
    library = names[choice.library]
    names[choice.name] = library
    if tuner is None or not choice.ways:
        return
    found = contest.recall(choice, source, tuner)
    kernels = {k.name: k for k in source.kernels}
    settle = functools.partial(_settle, choice, linked)
    if found is not None:
        if found.place is not None:
            settle(
                *_restored(
                    choice, kernels, slots, names, found.place, functools.partial(_from_disk, found.entry.folder, device)
                )
            )
        tuner.told[choice.name] = f"{found.name} is used, as an earlier contest found"
        return
    entrants = []
    for at, (way, name) in enumerate(choice.ways):
        for number, (config, launcher) in enumerate(_launchers(kernels[name], device)):
            if launcher is not None:
                entrants.append(Entrant(kernels[name], config, launcher, slots[name], names[way], (at, number)))
    names[choice.name] = Contest(
        choice, library, entrants, settle, functools.partial(_keep, choice, source, tuner),
        functools.partial(tuner.told.__setitem__, choice.name), tuner.timer,
    )  # fmt: skip


def _settle(choice: ChoiceSource, linked: Linked, way: Callable[..., Any], entrant: Entrant | None) -> None:
    """The wrapper calls the winner from now on, and a winning kernel its launcher."""
    if entrant is not None:
        linked.replace(entrant.kernel.name, entrant.launcher)
    linked.namespace[choice.name] = way


def _keep(choice: ChoiceSource, source: Source, tuner: Tuner, entrant: Entrant | None, seconds: Mapping[str, float]) -> None:
    files = {} if entrant is None else triton_restore.binaries(STEM, entrant.launcher)
    contest.keep(choice, source, tuner, entrant, seconds, files)


def _restored(
    choice: ChoiceSource,
    kernels: Mapping[str, KernelSource],
    slots: Mapping[str, Slot],
    names: Mapping[str, Any],
    place: tuple[int, int],
    restore: Callable[[KernelSource], Launcher],
) -> tuple[Callable[..., Any], Entrant]:
    way, name = choice.ways[place[0]]
    config = kernels[name].configs[place[1]]
    launcher = restore(only(kernels[name], config))
    slots[name].launcher = launcher
    return names[way], Entrant(kernels[name], config, launcher, slots[name], names[way], place)


def _from_disk(folder: Any, device: Device, kernel: KernelSource) -> Launcher:
    if device.type == "cpu":
        return interpreter_worker.interpreted(kernel)
    return triton_restore.restore(kernel, folder, STEM, max(device.index, 0))


def _launchers(kernel: KernelSource, device: Device) -> list[tuple[Config, Launcher | None]]:
    """A launcher for each configuration; None for one that doesn't compile."""
    if device.type == "cpu":
        return [(c, interpreter_worker.interpreted(only(kernel, c))) for c in kernel.configs]
    index = max(device.index, 0)
    try:
        return list(zip(kernel.configs, triton_build.compile_candidates([(kernel, kernel.configs)], index)[0], strict=True))
    except BackendError:  # one of them: find out which
        return [(c, _compiled(only(kernel, c), index)) for c in kernel.configs]


def _compiled(kernel: KernelSource, index: int) -> Launcher | None:
    try:
        return triton_build.compile_kernel(kernel, index)
    except BackendError as error:
        log("kernels", f"{kernel.name} {kernel.configs[0]}: out of the contest, it does not compile: {error}")
        return None
