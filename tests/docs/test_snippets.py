"""Every Python block of these pages runs, in order; a ``text`` block right behind one is what it prints.

Blocks marked ``console`` show what differs from machine to machine (times, addresses) and are not compared."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinycompile.eager.custom_device import forget_device

pytestmark = pytest.mark.cpu

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("tutorial.md", "journey.md", "streams_and_memory.md", "training.md")
BLOCK = re.compile(r"```(python|text)\n(.*?)```\n", re.DOTALL)


def pairs(page: str) -> Iterator[tuple[str, str | None]]:
    """(code, what it prints); None where the page does not say."""
    text = (DOCS / page).read_text()
    found = list(BLOCK.finditer(text))
    for block, after in zip(found, [*found[1:], None]):
        if block[1] == "python":
            adjacent = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
            yield block[2], after[2] if after is not None and adjacent else None


@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_runs_and_prints_what_is_shown(page: str, tmp_path: Path) -> None:
    """Each block is a module's text, run in one namespace: capture reads the functions' lines from the file."""
    space: dict[str, object] = {"__name__": page.removesuffix(".md")}
    try:
        for number, (code, wanted) in enumerate(pairs(page), 1):
            path = tmp_path / f"step_{number}.py"
            path.write_text(code)
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(code, str(path), "exec"), space)
            if wanted is not None:
                assert said.getvalue().replace(str(tmp_path), ".").strip() == wanted.strip(), f"{page}, block {number}"
    finally:
        forget_device()


def test_the_tutorial_has_ten_steps() -> None:
    steps = re.findall(r"^## (\d+)\. ", (DOCS / "tutorial.md").read_text(), re.MULTILINE)
    assert steps == [str(i) for i in range(1, 11)]
    assert len(list(pairs("tutorial.md"))) >= 10
