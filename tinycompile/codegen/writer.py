"""A structured writer of source text: lines, indented blocks and comments. Python and C++ codegen share it."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator

WIDTH = 120


class Writer:
    """Collects lines at the current indentation. ``comment`` is the language's line comment, ``indent`` one level of blanks."""

    def __init__(self, comment: str = "#", indent: str = "    ") -> None:
        self._comment, self._indent = comment, indent
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        """One line (or several, split at newlines); an empty text gives an empty line."""
        for part in text.split("\n"):
            self._lines.append(self._indent * self._depth + part if part else "")

    def lines(self, *texts: str) -> None:
        """Several lines."""
        for text in texts:
            self.line(text)

    def comment(self, text: str) -> None:
        """A comment, wrapped to the width."""
        room = max(40, WIDTH - len(self._indent) * self._depth - len(self._comment) - 1)
        for part in textwrap.wrap(text, room) or [""]:
            self.line(f"{self._comment} {part}".rstrip())

    @contextlib.contextmanager
    def block(self, opener: str, closer: str = "") -> Iterator[None]:
        """``with w.block("for i in range(n):"):`` or ``with w.block("for (...) {", "}"):`` indents what is written inside."""
        self.line(opener)
        with self.indented():
            yield
        if closer:
            self.line(closer)

    @contextlib.contextmanager
    def indented(self) -> Iterator[None]:
        """One level deeper."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def text(self) -> str:
        """All lines, newline-terminated."""
        return "\n".join(self._lines) + "\n" if self._lines else ""
