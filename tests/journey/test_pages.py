"""The pages: well formed, whole in themselves, alive in a browser, small, and with the numbers of ``f.kernels``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tests.journey.browser import Checked, browser, loaded
from tests.models.gpt import GPT, GPTConfig
from tinycompile.terminal import size

pytestmark = pytest.mark.cpu
in_browser = pytest.mark.skipif(browser() is None, reason="needs a headless Chromium")
SCRIPT = Path(tinycompile.__file__).parent / "journey" / "page.js"


@pytest.fixture(scope="module")
def profiled() -> tuple[tinycompile.Profile, list[tinycompile.report.KernelInfo]]:
    @tinycompile
    def f(x, y):
        return F.gelu(x + 1) * y.sum(1, keepdim=True)

    x, ours = torch.randn(32, 32), tinycompile.randn(32, 32, requires_grad=True)
    f(x, x)
    with tinycompile.profile() as p:
        torch.relu(ours @ ours).sum().backward()
        f(x, x)
    return p, f.kernels


@pytest.fixture(scope="module")
def profile_page(profiled, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "profile.html"
    profiled[0].html(path)
    return path


@pytest.fixture(scope="module")
def report_page(tmp_path_factory) -> Path:
    @tinycompile
    def f(x, y):
        h = torch.relu(x @ y)
        tinycompile.graph_break()
        return (h * y).sum(0)

    path = tmp_path_factory.mktemp("pages") / "report.html"
    report = f.explain(torch.randn(8, 8, requires_grad=True), torch.randn(8, 8))
    assert report.html(path) == path.read_text()
    return path


def test_the_profiles_page_is_well_formed(profile_page: Path) -> None:
    checked = Checked(profile_page.read_text())
    assert {"when", "steps", "roofline", "kernels", "timeline", "timeline-data", "step0"} <= set(checked.ids)


def test_the_reports_page_is_well_formed_and_has_every_stage(report_page: Path) -> None:
    text = report_page.read_text()
    checked = Checked(text)
    assert {"breaks", "stages", "fusion", "guards", "times", "kernels", "stages-1"} <= set(checked.ids)
    for name in ("0_bytecode.txt", "1_graph.py", "2_joint.py", "2_backward.py", "4_loops.py", "5_plan.py", "6_wrapper.py"):
        assert f"<summary>{name}" in text, name


def test_passes_that_change_nothing_are_one_line(report_page: Path) -> None:
    text = report_page.read_text()
    idle = re.findall(r"<p>passes that left the graph as it was: (.*?)</p>", text)
    assert idle and "cse" in idle[0].split(", ") and "_cse.py" not in text


def test_its_numbers_are_those_of_f_kernels(profiled, profile_page: Path) -> None:
    p, kernels = profiled
    text = unescape(profile_page.read_text())
    (kernel,) = kernels
    (step,) = [s for s in p.walk() if s.kind == "kernel"]
    assert step.moved == kernel.bytes_moved and f"moves: <b>{size(kernel.bytes_moved)}</b>" in text
    assert f"operations: <b>{kernel.flops:,}</b>" in text
    assert f"registers a thread: <b>{kernel.registers}</b>" in text
    assert f"shared memory a block: <b>{size(kernel.shared)}</b>" in text
    assert "Triton" in text and "PTX" in text and "SASS" in text and "LDG" in text


def test_lines_of_the_listings_are_lines_of_the_kernel(profiled, profile_page: Path) -> None:
    (kernel,) = profiled[1]
    panes = re.findall(r"<h4>(.*?)</h4><div class=\"code\">(.*?)</div></div>", profile_page.read_text(), re.DOTALL)
    found = {name: {int(n) for n in re.findall(r"data-l=(\d+)", body)} for name, body in panes}
    lines = kernel.triton.splitlines()
    store = next(i for i, line in enumerate(lines, 1) if "tl.store" in line)
    assert found["Triton"] == set(range(1, len(lines) + 1))
    assert store in found["PTX"] and store in found["SASS"] and found["SASS"] <= found["Triton"] >= found["PTX"]


@in_browser
def test_the_profiles_page_lives_in_a_browser(profiled, profile_page: Path) -> None:
    steps = sum(1 for _ in profiled[0].walk())
    shown = loaded(profile_page)
    assert 'data-ready="yes"' in shown
    assert len(re.findall(r"<rect ", shown)) == steps
    click = "document.querySelector('#timeline rect').dispatchEvent(new Event('click'))"
    assert re.search(r'<details class="step" id="step0" open=""', loaded(profile_page, f"setTimeout(() => {click}, 50)"))


@in_browser
def test_a_click_on_a_line_lights_up_what_belongs_to_it(profiled, profile_page: Path) -> None:
    line = next(i for i, text in enumerate(profiled[1][0].triton.splitlines(), 1) if "tl.store" in text)
    click = f"setTimeout(() => document.querySelector('.panes [data-l=\"{line}\"]').click(), 50)"
    shown = loaded(profile_page, click)
    lit = re.findall(r'data-l="(\d+)" class="on"', shown)
    assert len(lit) >= 3 and set(lit) == {str(line)}


@in_browser
def test_the_reports_page_lives_in_a_browser(report_page: Path) -> None:
    assert 'data-ready="yes"' in loaded(report_page)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_parses() -> None:
    subprocess.run(["node", "--check", str(SCRIPT)], check=True)


def test_text_of_the_users_can_not_break_the_page() -> None:
    def f(x):
        """</script><b>&amp;"""
        return x + 1

    f.__name__ = f.__qualname__ = "</title><script>alert(1)</script>"
    text = tinycompile.explain(f)(torch.randn(3)).html()
    Checked(text)
    assert "<script>alert(1)" not in text


LAYERS = 12 if os.environ.get("TINYCOMPILE_TESTS") == "full" else 2


def test_the_page_of_a_gpt_is_under_5_mb(tmp_path: Path) -> None:
    """GPT-2 has 12 layers; kernels that differ in names alone are shown once, so few layers make a page of nearly that size."""
    model = GPT(GPTConfig(block_size=32, vocab_size=64, n_layer=LAYERS, n_head=2, n_embd=16)).eval()
    compiled, ids = tinycompile.compile(model), torch.randint(64, (1, 16))
    with torch.no_grad():
        compiled(ids)
        report = compiled.explain(ids)
        with tinycompile.profile() as p:
            compiled(ids)
    path = tmp_path / "gpt.html"
    p.html(path)
    checked = Checked(path.read_text())
    assert path.stat().st_size < 5e6
    ran = [s for s in p.walk() if s.kind == "kernel"]
    kernels = compiled.compiled.kernels
    assert [(s.name, s.moved) for s in ran] == [(k.name, k.bytes_moved) for k in kernels]
    assert {f"kernel-{k.name}" for k in kernels} <= set(checked.ids)
    assert json.loads(p.chrome_trace())["traceEvents"]
    explained = tmp_path / "explained.html"
    assert len(report.html(explained)) < 5e6
    assert {f"kernel-{k.name}" for k in kernels} <= set(Checked(explained.read_text()).ids)
    if browser() is not None:
        assert all('data-ready="yes"' in loaded(page) for page in (path, explained))
