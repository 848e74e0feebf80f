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
from pathlib import Path

import torch

from benchmarks.contenders import CONTENDERS
from benchmarks.timing import synchronize
from benchmarks.workloads import WORKLOADS


def main(who: str, name: str, device: str, modules: Path) -> None:
    """The protocol above."""
    workload = next(w for w in WORKLOADS if w.name == name)
    if modules.exists():
        for module in modules.read_text().splitlines():
            with contextlib.suppress(ImportError):  # generated modules of the earlier compile are not there
                importlib.import_module(module)
    inputs = workload.inputs(device)
    workload.fn(*inputs)  # CUDA context, library handles
    synchronize(device)
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    fn = CONTENDERS[who](workload.fn)
    fn(*inputs)
    synchronize(device)
    seconds = time.perf_counter() - start
    stages = getattr(fn, "stage_times", {})
    if not modules.exists():
        modules.write_text("\n".join(sorted(m for m in sys.modules if m != "__main__" and not m.startswith("benchmarks"))))
    print(json.dumps({"seconds": seconds, "stages": stages, "cuda": torch.cuda.is_available()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
