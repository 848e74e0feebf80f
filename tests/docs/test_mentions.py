"""What pages mention is there: commands with their options, files, names of the package, settings, stages, channels."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tinycompile
from benchmarks.__main__ import parser as benchmarks_parser
from tinycompile.__main__ import parser
from tinycompile.base.config import CHANNELS

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PARSERS = {"tinycompile": parser, "benchmarks": benchmarks_parser}
STAND_INS = {"SUITE": "kernels", "KEY": "ab"}
COMMAND = re.compile(r"python -m ((?:tinycompile|benchmarks)[\w.]*)(.*)")
FILE = re.compile(r"(?:[\w.]+/)*\w+\.(?:py|h|css|js)")
MADE = re.compile(r"\d_\w+\.py|repro\.py|example\.py")  # files that are written, and the README's program
PROGRAMS = {f"{page.stem}.py" for page in PAGES}  # what pages call the program that their snippets are
FORBIDDEN = {"utils.py", "common.py"}
FILES = ["/" + p.relative_to(ROOT).as_posix() for d in ("tinycompile", "tests", "benchmarks") for p in (ROOT / d).rglob("*.*")]


def code(page: Path) -> Iterator[str]:
    """Code spans, and lines of shell blocks."""
    text = page.read_text()
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        yield from (line.partition(" #")[0].strip() for line in block.splitlines())
    yield from (
        span.replace(r"\|", "|") for span in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    )


def spans() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        yield from ((page.relative_to(ROOT).as_posix(), span) for span in code(page))


def commands() -> list[tuple[str, str]]:
    found = {(module, rest.strip()): None for _, span in spans() for module, rest in COMMAND.findall(span)}
    return list(found)


@pytest.mark.parametrize(("module", "rest"), commands(), ids=lambda text: text.replace("/", ":"))
def test_commands_are_understood(module: str, rest: str) -> None:
    """``a|b`` in an argument stands for either; words in capitals for something."""
    assert importlib.util.find_spec(module) is not None
    if module in PARSERS:
        for words in itertools.product(*(word.split("|") for word in shlex.split(rest))):
            PARSERS[module]().parse_args([STAND_INS.get(word, word) for word in words])


def test_files_are_there() -> None:
    absent = [
        (page, span)
        for page, span in spans()
        if FILE.fullmatch(span) and not MADE.fullmatch(span) and not any(f.endswith(f"/{span}") for f in FILES)
        if span not in PROGRAMS | FORBIDDEN
    ]
    assert not absent


def test_names_of_the_package_are_there() -> None:
    named = {(page, name) for page, span in spans() for name in re.findall(r"\btinycompile\.(\w+)", span)}
    named = {(page, name) for page, name in named if f"{name}.py" != "tinycompile.py" and not name.startswith("__")}
    assert len(named) > 20
    assert not [(page, n) for page, n in named if n != "ops" and not hasattr(tinycompile, n)]


def test_settings_and_channels_are_read() -> None:
    read = (ROOT / "tinycompile/base/config.py").read_text() + (ROOT / "tests/conftest.py").read_text()
    for page, span in spans():
        for name, value in re.findall(r"(TINYCOMPILE_\w+)(?:=([\w,]+))?", span):
            assert f'"{name}"' in read, f"{page}: {name}"
            assert name != "TINYCOMPILE_LOG" or set(filter(None, value.split(","))) <= CHANNELS, f"{page}: {value}"


def test_stages_have_a_text() -> None:
    @tinycompile(backend="eager")
    def f(x):
        return x

    f(torch.ones(1))
    named = {
        stage
        for _, span in spans()
        for told in re.findall(r"f\.source\(([\w\"' /]+)\)", span)
        for stage in re.findall(r"\w+", told)
    }
    assert len(named) >= 10
    for stage in named - {"stage"}:
        f.source(stage)
