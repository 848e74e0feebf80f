"""Device functions of kernels that overlap: a kernel begins while the one before it in a CUDA graph ends ("programmatic
dependent launch", sm_90 and newer). Launched in the ordinary way, all of them do nothing that can be seen.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from tinycompile.codegen.triton.library_reductions import ONE_BY_ONE

SECTOR = tl.constexpr(32)  # bytes that the L2 fetches at least


@triton.jit
def launch_next():
    """The next kernel may begin once every program of this one has said so or ended."""
    if not ONE_BY_ONE:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous():
    """Wait until the kernel before this one has ended: from here on memory may be read and written. That one has waited for
    those before it."""
    if not ONE_BY_ONE:
        tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(pointers, mask):
    """Bring to the L2 what lies at ``pointers``, where ``mask``. Nothing is read, so it may still be written; one address a
    sector is asked for."""
    if not ONE_BY_ONE:
        places = pointers.to(tl.int64)
        asked = (mask & (places % SECTOR == 0)).to(tl.int32)
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
            "=r,l,r", [places, asked], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
