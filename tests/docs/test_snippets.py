"""The Python blocks of a page are one program, which runs; a ``text`` block right behind one is what it prints.

``console`` blocks show what differs from machine to machine (times, addresses) and are not compared. A block whose first line is
a comment that names a file of the repository is an excerpt, and stands in that file. Pages are found, not listed.
``python -m tests.docs.test_snippets`` writes what the programs print now into the pages."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tinycompile import backends
from tinycompile.dispatch import dispatcher
from tinycompile.eager.custom_device import forget_device
from tinycompile.ops.record import CUSTOM, OPS

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"```(\w+)\n(.*?)```\n", re.DOTALL)
EXCERPT = re.compile(r"# (\S+/\S+\.py)\n(.*)", re.DOTALL)
PAGES = [p.relative_to(DOCS).as_posix() for p in sorted(DOCS.rglob("*.md")) if "```python\n" in p.read_text()]


class Snippet(NamedTuple):
    """``shown``: the block of what it prints, None where the page does not say."""

    code: str
    shown: re.Match[str] | None


def snippets(page: str) -> Iterator[Snippet]:
    text = (DOCS / page).read_text()
    found = list(BLOCK.finditer(text))
    for block, after in zip(found, [*found[1:], None]):
        if block[1] == "python":
            adjacent = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
            yield Snippet(block[2], after if adjacent else None)


def printed(page: str, folder: Path) -> Iterator[tuple[Snippet, str]]:
    """What each snippet of the page's program prints. The program is a file named like the page, so that the lines that it
    prints are lines of its own."""
    program = [s for s in snippets(page) if not EXCERPT.match(s.code)]
    path = folder / f"{Path(page).stem}.py"
    path.write_text("".join(s.code for s in program))
    space: dict[str, object] = {"__name__": path.stem}
    above = 0
    for snippet in program:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.chdir(folder):
            exec(compile("\n" * above + snippet.code, str(path), "exec"), space)
        above += snippet.code.count("\n")
        yield snippet, re.sub(r" +\n", "\n", said.getvalue().replace(f"{folder}{os.sep}", ""))


@contextlib.contextmanager
def forgetting() -> Iterator[None]:
    """What a page registers goes with it."""
    ops, named = set(OPS), set(backends._REGISTERED)
    yield
    forget_device()
    for name in set(OPS) - ops:
        dispatcher.undefine(name)
        del OPS[name]
        CUSTOM.pop(name, None)
    for name in set(backends._REGISTERED) - named:
        del backends._REGISTERED[name]


@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_runs_and_prints_what_is_shown(page: str, tmp_path: Path) -> None:
    with forgetting():
        for snippet, said in printed(page, tmp_path):
            if snippet.shown is not None:
                assert said.strip() == snippet.shown[2].strip(), f"{page}, behind {snippet.code}"


def test_excerpts_stand_in_their_files() -> None:
    for page in PAGES:
        for snippet in snippets(page):
            if excerpt := EXCERPT.match(snippet.code):
                assert excerpt[2] in (ROOT / excerpt[1]).read_text(), f"{page}: not in {excerpt[1]}"


def test_the_tutorial_has_ten_steps() -> None:
    steps = re.findall(r"^## (\d+)\. ", (DOCS / "tutorial.md").read_text(), re.MULTILINE)
    assert steps == [str(i) for i in range(1, 11)]
    assert len(list(snippets("tutorial.md"))) >= 10


def rewrite(page: str) -> None:
    """Put what the page's program prints into the page."""
    text = (DOCS / page).read_text()
    with forgetting(), tempfile.TemporaryDirectory() as folder:
        found = [(s.shown, said) for s, said in printed(page, Path(folder)) if s.shown is not None]
    for shown, said in reversed(found):
        text = text[: shown.start(2)] + said.rstrip() + "\n" + text[shown.end(2) :]
    (DOCS / page).write_text(text)


if __name__ == "__main__":
    for one in PAGES:
        rewrite(one)
