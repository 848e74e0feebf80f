"""The structured writer."""

from __future__ import annotations

import pytest

from tinycompile.codegen.writer import WIDTH, Writer

pytestmark = pytest.mark.pure


def test_blocks_indent_and_close() -> None:
    w = Writer(comment="//")
    with w.block("for (;;) {", "}"):
        w.comment("why")
        with w.block("if (x) {", "}"):
            w.lines("a();", "b();")
        w.line()
    assert w.text() == "for (;;) {\n    // why\n    if (x) {\n        a();\n        b();\n    }\n\n}\n"


def test_lines_are_split_and_comments_wrapped() -> None:
    w = Writer()
    with w.indented():
        w.line("a\nb")
        w.comment("word " * 60)
    lines = w.text().splitlines()
    assert lines[:2] == ["    a", "    b"]
    assert all(line.startswith("    # ") and len(line) <= WIDTH for line in lines[2:]) and len(lines) > 3


def test_empty() -> None:
    assert Writer().text() == ""
