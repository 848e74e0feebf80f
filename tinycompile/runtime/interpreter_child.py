"""The process in which Triton's interpreter runs; started by ``interpreter_worker``, never imported by the package."""

from __future__ import annotations

import json
import mmap
import os
import sys
import traceback
from typing import Any

import torch

from tinycompile.base.dtypes import FLOAT8
from tinycompile.runtime import interpreter_patches
from tinycompile.runtime.modules import load_module


def serve(fd: int) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels print must not mix with answers
    torch.set_num_threads(1)
    interpreter_patches.install()
    memory: mmap.mmap | None = None
    for line in sys.stdin:
        request = json.loads(line)
        size = os.fstat(fd).st_size
        if size and (memory is None or len(memory) != size):
            memory = mmap.mmap(fd, size)
        try:
            _run(request, memory)
            reply: dict[str, Any] = {}
        except Exception:  # noqa: BLE001 - the parent raises it
            reply = {"error": traceback.format_exc(limit=-8)}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def _run(request: dict[str, Any], memory: mmap.mmap | None) -> None:
    args = [a["size"] if "size" in a else _tensor(a, memory) for a in request["args"]]
    kernel = getattr(load_module(request["text"], request["name"]), request["name"])
    kernel[tuple(request["grid"])](*args, **request["constants"])


def _tensor(described: dict[str, Any], memory: mmap.mmap | None) -> torch.Tensor:
    dtype = getattr(torch, described["dtype"])
    dtype = torch.uint8 if dtype in FLOAT8 else dtype  # kernels take the bits
    shape, strides = described["shape"], described["strides"]
    if memory is None or 0 in shape:
        return torch.empty(shape, dtype=dtype)
    count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=described["offset"]).as_strided(shape, strides)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
