"""What the README shows is what happens."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_example_becomes_the_kernel_that_is_shown(tmp_path: Path) -> None:
    program, kernel, wrapper = BLOCKS
    path = tmp_path / "example.py"
    path.write_text(program)
    spec = importlib.util.spec_from_file_location("example", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert kernel in example.f.source("triton")
    assert wrapper.strip() in example.f.source("wrapper")


def test_both_commands_name_one_environment_and_extras_that_exist() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert len(commands) == 2
    assert all(command.startswith("python3 -m venv .venv && .venv/bin/pip install -e ") for command in commands)
    assert commands[0].endswith("python -m tinycompile demo")
    assert commands[1].endswith("python -m pytest -q -n auto")


def test_links_lead_somewhere() -> None:
    root = Path(__file__).parents[1]
    for page in (root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))):
        for target in re.findall(r"\]\(([^)#:]+)\)", re.sub(r"`[^`]*`", "", page.read_text())):
            assert (page.parent / target).exists(), f"{page.relative_to(root)} links to {target}"
