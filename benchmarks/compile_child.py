"""One compile in a fresh process: import everything, say ``ready``, wait for a line, compile, print the seconds as JSON.

``python -m benchmarks.compile_child CONTENDER WORKLOAD DEVICE MODULES``. ``MODULES`` is a file of module names, one a line:
those that an earlier compile of this contender ended up with are imported before the clock starts. If the file does not
exist, it is written at the end.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import CONTENDERS
from benchmarks.model_suite import ready
from benchmarks.plain_models import PLAIN
from benchmarks.timing import synchronize
from benchmarks.workloads import WORKLOADS


def prepare(name: str, device: str) -> tuple[Callable[..., Any], Callable[[Callable[..., Any]], Any]]:
    """The function or module of that name, and what calls it or its compiled form."""
    workload = next((w for w in WORKLOADS if w.name == name), None)
    if workload is not None:
        inputs = workload.inputs(device)
        return workload.fn, lambda fn: fn(*inputs)
    module, arguments = ready(next(s for s in PLAIN if s.name == name), device)
    return module, lambda fn: fn(**arguments)


@torch.no_grad()
def main(who: str, name: str, device: str, modules: Path) -> None:
    """The protocol above."""
    if modules.exists():
        for module in modules.read_text().splitlines():
            with contextlib.suppress(ImportError):  # generated modules of the earlier compile are not there
                importlib.import_module(module)
    function, call = prepare(name, device)
    call(function)  # CUDA context, library handles
    synchronize(device)
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    fn = CONTENDERS[who](function)
    call(fn)
    synchronize(device)
    seconds = time.perf_counter() - start
    stages = getattr(fn, "stage_times", {})
    if not modules.exists():
        modules.write_text("\n".join(sorted(m for m in sys.modules if m != "__main__" and not m.startswith("benchmarks"))))
    print(json.dumps({"seconds": seconds, "stages": stages, "cuda": torch.cuda.is_available()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
