"""``explain``'s report as a page: every stage's text, fusion reasons, kernels' code, guards, breaks, stage times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from tinycompile.journey import kernel_page
from tinycompile.journey.page import Section, document, escape, folded, kernels, rows_table
from tinycompile.terminal import duration, size

if TYPE_CHECKING:
    from tinycompile.ir.plan import Decision
    from tinycompile.report import Report

_UNFOLDED = 40  # decisions of a kind that are shown at once

# What each artifact is, by the beginning of its name.
_STAGES = (
    ("0_bytecode", "the bytecode that was read"),
    ("1_python", "the Python that runs in its place"),
    ("1_guards", "the guards as code"),
    ("1_graph", "the captured graph"),
    ("2_joint", "the joint graph: forward and backward"),
    ("2_forward", "the forward graph"),
    ("2_backward", "the backward graph"),
    ("3_", "the graph after a pass"),
    ("4_loops", "loops: one nest an op"),
    ("5_plan", "the plan: fused kernels, buffers, reasons"),
    ("6_cpp", "the generated C++"),
    ("6_triton", "the generated Triton"),
    ("6_wrapper", "the wrapper that launches the kernels"),
)


def page(report: Report) -> str:
    """The whole page, with the pieces behind graph breaks one after the other."""
    everything = list(_all(report))
    facts = [
        ("backend", report.backend),
        ("kernels", f"{len(report.kernels)} generated, {len(report.externs)} from libraries"),
        ("moved", size(report.bytes_moved) if report.bytes_moved else ""),
        ("moved by libraries", size(report.bytes_library) if report.bytes_library else ""),
        ("inputs once + outputs once", size(report.bytes_minimum) if report.bytes_minimum else ""),
        ("compiled in", duration(sum(t for _, t in report.times))),
        ("code from the disk cache", "yes" if report.from_disk else ""),
        ("pieces behind breaks", str(len(everything) - 1) if len(everything) > 1 else ""),
    ]
    sections = []
    for number, one in enumerate(everything):
        suffix = f"-{number}" if number else ""
        of = f" of {one.name}" if number else ""
        sections += [
            Section(f"breaks{suffix}", f"Graph breaks{of}", _breaks(one)),
            Section(f"stages{suffix}", f"Stages{of}", _stages(one)),
            Section(f"fusion{suffix}", f"Fusion{of}", _fusion(one)),
            Section(f"guards{suffix}", f"Guards{of}", _guards(one)),
            Section(f"times{suffix}", f"Time by stage{of}", _times(one)),
        ]
    found = [k for one in everything for k in one.kernels]
    sections.append(Section("kernels", "Kernels", kernels(kernel_page.shown(found))))
    return document(f"explain {report.name}", facts, sections)


def _all(report: Report) -> Iterator[Report]:
    yield report
    for later in report.then:
        yield from _all(later)


def _breaks(report: Report) -> str:
    return "".join(f"<pre>{escape(b)}</pre>" for b in report.breaks)


def _stages(report: Report) -> str:
    """Each stage's text; passes that changed nothing are one line."""
    texts = report.artifacts
    given = {"": texts.get("2_forward.py") or texts.get("1_graph.py"), "_backward": texts.get("2_backward.py")}
    idle: dict[str, list[str]] = {half: [] for half in given}
    parts = []
    for name, text in texts.items():
        if name.startswith("3_"):
            half = "_backward" if PurePath(name).stem.endswith("_backward") else ""
            if text == given[half]:
                idle[half].append(_pass_name(name))
                continue
            given[half] = text
        parts.append(folded(f"{name}: {_told(name)}", text, name == "1_graph.py"))
    for half, names in idle.items():
        of = "backward graph" if half else "graph"
        parts += [f"<p>passes that left the {of} as it was: {escape(', '.join(names))}</p>"] if names else []
    return "\n".join(parts)


def _pass_name(artifact: str) -> str:
    return PurePath(artifact).stem[5:].removesuffix("_backward")


def _told(name: str) -> str:
    told = next((told for stem, told in _STAGES if name.startswith(stem)), "")
    if name.startswith("3_"):
        told = f"after {_pass_name(name)}"
    return f"{told}, of the backward" if name.rpartition(".")[0].endswith("_backward") and name != "2_backward.py" else told


def _fusion(report: Report) -> str:
    """What was refused, and what was fused; many decisions of a kind are folded."""
    kinds = (("refused", "not fused", False), ("fused", "fused", True))
    return "".join(_decisions([d for d in report.decisions if d.fused == fused], style, told) for style, told, fused in kinds)


def _decisions(decisions: Sequence[Decision], style: str, told: str) -> str:
    if not decisions:
        return ""
    rows = "".join(
        f'<tr><td class="{style}">{told}</td><td>{escape(d.first)}</td><td>{escape(d.second)}</td>'
        f"<td>{escape(d.why)}</td><td>{escape(d.rule)}</td></tr>"
        for d in decisions
    )
    head = "".join(f"<th>{name}</th>" for name in ("", "first", "second", "why", "rule"))
    is_open = " open" if len(decisions) <= _UNFOLDED else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<details{is_open}><summary>{told}: {len(decisions)}</summary>{table}</details>"


def _guards(report: Report) -> str:
    return rows_table(("guard",), [(g,) for g in report.guards])


def _times(report: Report) -> str:
    longest = max((t for _, t in report.times), default=0.0)
    rows = "".join(
        f'<tr><td>{escape(stage)}</td><td class="n">{seconds * 1e3:.2f} ms</td>'
        f'<td style="width:70%"><span class="bar" style="width:{100 * seconds / longest:.1f}%"></span></td></tr>'
        for stage, seconds in report.times
    )
    return f"<table><tbody>{rows}</tbody></table>" if rows and longest else ""
