"""Processes that check entries of the op database, fed one at a time: an entry that kills its process is a failure like any
other, and a new process goes on behind it. Each result is a line of JSON in the results file as soon as it is there."""

from __future__ import annotations

import json
import os
import queue
import resource
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import torch

from benchmarks.opinfo_entry import Outcome, check_entry, entries
from tinycompile.base.config import config

SECONDS = 3600  # for all samples of an entry and dtype; each has a limit of its own, which only code in Python heeds
_MOST_MEMORY = 4 << 20  # KiB, after which a process makes room for another


@dataclass(frozen=True)
class Task:
    """One entry and dtype to check. ``limit``: at most so many samples."""

    entry: str
    dtype: str
    device: str
    backend: str
    check: str
    limit: int | None


class Worker:
    """A child process, and the parent's end of it."""

    def __init__(self, threads: int) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "benchmarks.opinfo_workers"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def check(self, task: Task) -> tuple[Outcome, bool]:
        """What the child found, and whether it goes on; a death is an outcome too."""
        assert self.process.stdin is not None and self.process.stdout is not None
        killer = threading.Timer(SECONDS, self.process.kill)
        killer.start()
        try:
            self.process.stdin.write(json.dumps(asdict(task)) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            killer.cancel()
        if not line:
            return Outcome(task.entry, task.dtype, status=f"crashed: exit status {self.process.wait()}"), False
        found = json.loads(line)
        return Outcome(**found["outcome"]), found["memory"] < _MOST_MEMORY

    def stop(self) -> None:
        """End the child."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def check_all(tasks: Sequence[Task], out: Path, jobs: int, minutes: float | None) -> None:
    """Check every task in ``jobs`` processes, at most so many minutes long (then the rest waits for another run)."""
    left: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        left.put(task)
    lock, end = threading.Lock(), time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    threads = max(2, (os.cpu_count() or 1) // jobs)  # two at least: code for one thread is other code
    with out.open("a", encoding="utf-8") as file:
        crew = [threading.Thread(target=_feed, args=(left, file, lock, threads, end)) for _ in range(min(jobs, len(tasks)))]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()


def _feed(left: queue.SimpleQueue[Task], out: IO[str], lock: threading.Lock, threads: int, end: float) -> None:
    worker: Worker | None = None
    while time.monotonic() < end:
        try:
            task = left.get_nowait()
        except queue.Empty:
            break
        worker = worker or Worker(threads)
        outcome, lives = worker.check(task)
        if time.monotonic() > end and not lives and outcome.status != "done":
            break
        with lock:
            out.write(json.dumps(asdict(outcome)) + "\n")
            out.flush()
        if not lives:
            worker.stop()
            worker = None
    if worker is not None:
        worker.stop()


# --- the child -----------------------------------------------------------------------------------------------------------


def check_task(task: Task) -> Outcome:
    """Check one entry and dtype in this process."""
    (entry,) = (e for e in entries() if e.formatted_name == task.entry)
    try:
        with config.patch(on_error="raise", disk_cache=False):
            return check_entry(entry, task.device, getattr(torch, task.dtype), task.backend, task.limit, task.check)
    except Exception as error:  # noqa: BLE001  # the database's own fault: samples that can't be made
        return Outcome(task.entry, task.dtype, status=f"no samples: {type(error).__name__}: {error}"[:300])


def work() -> None:
    """Tasks come as lines, outcomes go as lines; what else is printed goes to stderr."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        outcome = check_task(Task(**json.loads(line)))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answers.write(json.dumps({"outcome": asdict(outcome), "memory": memory}) + "\n")
        answers.flush()


if __name__ == "__main__":
    work()
