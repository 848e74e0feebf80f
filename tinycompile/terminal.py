"""Plain text for the command line: titles, aligned tables, and units."""

from __future__ import annotations

from collections.abc import Sequence


def title(text: str, mark: str = "=") -> str:
    """The text, underlined."""
    return f"{text}\n{mark * len(text)}"


def columns(rows: Sequence[Sequence[str]], head: Sequence[str] = (), right: str = "") -> str:
    """Aligned columns. ``right`` holds an ``r`` for each column to align right, anything else for left."""
    table = [list(head), *map(list, rows)] if head else [list(row) for row in rows]
    if not table:
        return ""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    align = right.ljust(len(widths))
    lines = ["  ".join(_pad(c, w, a) for c, w, a in zip(row, widths, align, strict=True)).rstrip() for row in table]
    if head:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def indent(text: str, prefix: str = "    ") -> str:
    """Every line with a prefix; empty lines stay empty."""
    return "\n".join(prefix + line if line else line for line in text.splitlines())


def size(count: float) -> str:
    """Bytes in decimal units: ``25.2 MB``."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def duration(seconds: float) -> str:
    """``850 us``, ``3.21 ms``, ``1.20 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _pad(cell: str, width: int, align: str) -> str:
    return cell.rjust(width) if align == "r" else cell.ljust(width)
