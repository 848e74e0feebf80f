"""Triton, PTX and SASS of one kernel, line by line, each with the line of the Triton source that it comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass

Rows = tuple[tuple[str, int], ...]
"""(text, line of the Triton source; 0 where there is none)"""

_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)")
_CALLER = re.compile(r"@\[ \S+?:(\d+):\d+")
_FILE = re.compile(r'//## File "([^"]*)", line (\d+)')
_SASS = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(.*)")


@dataclass(frozen=True)
class Listing:
    """One way to write a kernel. ``linked``: its lines refer to the Triton source."""

    title: str
    rows: Rows
    linked: bool = True


def source_rows(text: str) -> Rows:
    """Every line is its own."""
    return tuple((line, i) for i, line in enumerate(text.splitlines(), 1))


def plain_rows(text: str) -> Rows:
    """Lines that refer to nothing."""
    return tuple((line, 0) for line in text.splitlines())


def ptx_rows(ptx: str) -> Rows:
    """The code without debug sections. ``.loc`` says where the next instructions come from; of what was inlined, the line of
    the kernel that called it counts: the outermost ``inlined_at``, or up to Triton 3.6 the outermost caller in a comment."""
    rows: list[tuple[str, int]] = []
    line = 0
    for text in ptx.splitlines():
        if text.lstrip().startswith(".section") and ".debug" in text:
            break
        found = _LOC.match(text)
        if found is not None:
            inlined, callers = _INLINED.search(text), _CALLER.findall(text)
            file, number = (inlined if inlined is not None else found).groups()
            if file != "1" and callers:
                file, number = "1", callers[-1]
            line = int(number) if file == "1" else line
        elif text.strip() and not text.lstrip().startswith(("$L__tmp", "$L__func", ".file", "//")):
            rows.append((text.expandtabs(4).partition("//")[0].rstrip(), line if text.startswith(("\t", "    ")) else 0))
    return tuple(rows)


def sass_rows(text: str, kernel: str) -> Rows:
    """Instructions and labels of ``nvdisasm -c -gi``. Of the ``//## File`` lines before an instruction, from the innermost
    function out, the last one in the kernel's own file counts; up to Triton 3.6 inlined functions don't name their callers."""
    rows: list[tuple[str, int]] = []
    line, fresh = 0, False
    for row in text.splitlines():
        found = _FILE.search(row)
        if found is not None:
            own = found.group(1).rsplit("/", 1)[-1].startswith(kernel)
            line = int(found.group(2)) if own else line if fresh else 0
            fresh = True
        elif (instruction := _SASS.match(row)) is not None:
            rows.append((f"  {instruction.group(1)}", line))
            fresh = False
        elif row.startswith(".L_"):
            rows.append((row, 0))
    return tuple(rows)
