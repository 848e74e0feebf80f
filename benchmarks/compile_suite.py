"""The suite ``compile``: seconds from a Python function to its first result, each in a fresh process.

Cold: all caches empty. Warm: a second fresh process with the caches that the first one left. Imports and the start of
CUDA are over before the clock starts, for both contenders. While one process is measured the next ones may already
import, where there are cores to spare; only one compiles at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders import EAGER, OURS, Settings
from benchmarks.results import Progress, Results, Row, about

PROTOCOL = (
    "seconds of the first call in a fresh process; imports and the start of the device excluded for both; "
    "cold: empty caches, warm: a second process with the caches of the first"
)


@dataclass(frozen=True)
class Task:
    """One process to run."""

    name: str
    who: str
    kind: str  # discover, cold, warm
    folder: Path

    def start(self, device: str, modules: Path) -> subprocess.Popen[str]:
        """The process, importing."""
        caches = {
            "TINYCOMPILE_CACHE_DIR": self.folder / "tinycompile",
            "TORCHINDUCTOR_CACHE_DIR": self.folder / "inductor",
            "TRITON_CACHE_DIR": self.folder / "triton",
        }
        environment = {**os.environ, **{name: str(path) for name, path in caches.items()}}
        command = [sys.executable, "-m", "benchmarks.compile_child", self.who, self.name, device, str(modules)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def run_compile(sizes: Mapping[str, str], settings: Settings) -> Results:
    """Cold and warm compile seconds of tinycompile and torch.compile. ``sizes``: what is said of each workload or model, by
    its name."""
    device = settings.device
    results = Results("compile", device, {**about(device), "protocol": PROTOCOL})
    rows = {name: Row(name, text) for name, text in sizes.items()}
    results.rows = list(rows.values())
    with tempfile.TemporaryDirectory(prefix="tinycompile-bench-") as root:
        tasks = _tasks(list(sizes), [c for c in settings.contenders if c != EAGER], Path(root))
        progress = Progress(len(tasks))
        discoveries = [task for task in tasks if task.kind == "discover"]
        rest = [task for task in tasks if task.kind != "discover"]
        for batch in (discoveries, rest):  # the second needs what the first found
            ahead = max(1, min(7, (os.cpu_count() or 1) // 2 - 1)) if batch is rest else 1
            running: list[tuple[Task, subprocess.Popen[str]]] = []
            waiting = list(batch)
            while waiting or running:
                while waiting and len(running) < ahead:
                    task = waiting.pop(0)
                    running.append((task, task.start(device, Path(root) / f"modules-{task.who}")))
                task, process = running.pop(0)
                progress.step(f"{task.kind}: {task.who} on {task.name}")
                _record(rows[task.name], task, _finish(process))
                if settings.out is not None:
                    results.write_json(settings.out)  # what is finished outlives a run that is cut off
        progress.close()
    return results


def _tasks(names: Sequence[str], contenders: Sequence[str], root: Path) -> list[Task]:
    tasks = [Task(names[-1], who, "discover", root / f"discover-{who}") for who in contenders] if names else []
    for i, name in enumerate(names):
        for who in contenders:
            tasks += [Task(name, who, kind, root / f"{i}-{who}") for kind in ("cold", "warm")]
    return tasks


def _finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Let it compile; its seconds, or what it said on failing."""
    out, err = process.communicate("go\n", timeout=600)
    if process.returncode != 0:
        return {"failed": (err.strip().splitlines() or ["no message"])[-1][:200]}
    return json.loads(out.splitlines()[-1])


def _record(row: Row, task: Task, answer: dict[str, Any]) -> None:
    if "failed" in answer:
        row.failed[task.who] = f"{task.kind}: {answer['failed']}"
    elif task.kind != "discover":
        getattr(row, task.kind)[task.who] = answer["seconds"]
        if task.who == OURS and task.kind == "cold":
            row.stages = answer["stages"]
