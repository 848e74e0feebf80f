"""A profile as a page: timeline, routes, kernels' code, roofline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinycompile.journey import kernel_page, roofline, table
from tinycompile.journey.events import KernelRun, Step
from tinycompile.journey.page import Section, data, document, escape, fact_line, kernels, rows_table
from tinycompile.report import KernelInfo, kernel_infos
from tinycompile.terminal import size

if TYPE_CHECKING:
    from tinycompile.journey.session import Profile


def page(p: Profile) -> str:
    """The whole page."""
    numbers = {id(step): i for i, step in enumerate(p.walk())}
    on_device = p.device.type == "cuda"
    facts = [
        ("device", p.card.name),
        ("bandwidth", f"{p.card.bandwidth / 1e9:.0f} GB/s"),
        ("wall time", f"{(p.end - p.start) / 1e6:.2f} ms"),
        ("steps", str(len(numbers))),
        ("kernels", str(sum(len(s.kernels) for s in p.walk()))),
        ("note", p.problem or ""),
    ]
    sections = [
        Section("when", "Timeline", _timeline(p, numbers)),
        Section("steps", "Steps and their routes", _steps(p, numbers)),
        Section("roofline", "Roofline", _roofline(p, numbers)),
        Section("kernels", "Generated kernels", kernels(kernel_page.shown(generated(p), p.card if on_device else None))),
    ]
    return document("tinycompile: a profile", facts, sections)


def generated(p: Profile) -> list[KernelInfo]:
    """The generated kernels that ran, each once, as ``f.kernels`` has them."""
    found: dict[tuple[int, str], KernelInfo] = {}
    for step in p.walk():
        if step.kind == "kernel" and step.facts is not None and (id(step.source), step.name) not in found:
            for info in kernel_infos(step.facts):
                found.setdefault((id(step.source), info.name), info)
    ran = {(id(step.source), step.name) for step in p.walk() if step.kind == "kernel"}
    return [info for key, info in found.items() if key in ran]


# -- the timeline -----------------------------------------------------------------------------------------------------------


def _timeline(p: Profile, numbers: dict[int, int]) -> str:
    """Threads, then streams; spans as [start, length, depth, kind, name, step] in microseconds."""
    hosts: dict[int, list[Any]] = {}
    streams: dict[str, list[Any]] = {}
    for root in p.steps:
        _spans(p, root, 0, numbers, hosts.setdefault(root.thread, []))
    for step in p.walk():
        for run in step.kernels:
            if run.device != "cpu":
                name = f"{run.device}, stream {run.stream if run.stream is not None else '?'}"
                streams.setdefault(name, []).append(_span(p, run.start, run.end, 0, step.kind, run.name, numbers[id(step)]))
    rows = [_row(f"host thread {t}", spans) for t, spans in sorted(hosts.items())]
    rows += [_row(name, spans) for name, spans in sorted(streams.items())]
    drawn = data("timeline-data", {"length": round((p.end - p.start) / 1e3, 2), "rows": rows})
    buttons = '<button id="wider" title="wider">+</button> <button id="narrower" title="narrower">-</button>'
    return f'<p>{buttons} a click on a span leads to its step</p><div id="timeline"></div>{drawn}'


def _row(name: str, spans: list[Any]) -> dict[str, Any]:
    return {"name": name, "depth": 1 + max((s[2] for s in spans), default=0), "spans": spans}


def _span(p: Profile, start: int, end: int, depth: int, kind: str, name: str, number: int) -> list[Any]:
    return [round((start - p.start) / 1e3, 2), round((end - start) / 1e3, 2), depth, kind, name[:80], number]


def _spans(p: Profile, step: Step, depth: int, numbers: dict[int, int], into: list[Any]) -> None:
    into.append(_span(p, step.start, step.end, depth, step.kind, step.name, numbers[id(step)]))
    for child in step.children:
        _spans(p, child, depth + 1, numbers, into)


# -- the steps --------------------------------------------------------------------------------------------------------------


def _steps(p: Profile, numbers: dict[int, int]) -> str:
    names = ("step", "keys", "kernel", "host us", "kernel us", "moved", "share", "line")
    head = "".join(f"<span{' class=n' if 3 <= i < 7 else ''}>{n}</span>" for i, n in enumerate(names))
    return f'<div class="head">{head}</div>' + "\n".join(_step(p, s, numbers) for s in p.steps)


def _step(p: Profile, step: Step, numbers: dict[int, int]) -> str:
    share = p.share(step)
    longest = max(step.kernels, key=lambda k: k.nanoseconds, default=None)
    cells = [
        (f"{step.kind} {step.name}", ""),
        (step.keyset.strip("{}"), ""),
        (longest.name if longest else "", ""),
        (f"{step.nanoseconds / 1e3:.1f}", "n"),
        (f"{step.busy / 1e3:.1f}" if step.kernels else "", "n"),
        ("" if step.moved is None else size(step.moved), "n"),
        ("" if share is None else f"{share:.0%}", "n"),
        (table.place(step), ""),
    ]
    head = "".join(f"<span{f' class={c}' if c else ''}>{escape(text)}</span>" for text, c in cells)
    inner = _inside(step) + "\n".join(_step(p, child, numbers) for child in step.children)
    number = numbers[id(step)]
    return f'<details class="step" id="step{number}"><summary>{head}</summary><div class="inner">{inner}</div></details>'


def _inside(step: Step) -> str:
    facts = [("operands", step.operands), ("results", step.results), ("line", step.line)]
    facts += [("operations", f"{step.flops:,}" if step.flops else ""), ("covers", ", ".join(dict.fromkeys(step.lines)))]
    code = f'<p><a href="#kernel-{escape(step.name)}">code</a></p>' if step.kind == "kernel" else ""
    route = rows_table(
        ("route", "handler", "key set", "us", "own us"),
        [
            (f"{' ' * h.depth}{h.key}", f"{h.kind} {h.name}", h.keyset, f"{h.nanoseconds / 1e3:.1f}", f"{own / 1e3:.1f}")
            for h, own in zip(step.handlers, table.own_times(step), strict=True)
        ],
        (3, 4),
    )
    runs = rows_table(
        ("kernel", "us", "grid", "block", "warps", "registers", "shared", "occupancy", "device", "stream"),
        [_run(k) for k in step.kernels],
        (1, 4, 5, 6, 7, 9),
    )
    return fact_line(facts) + code + route + runs


def _run(k: KernelRun) -> list[Any]:
    values = [
        k.name[:120],
        f"{k.nanoseconds / 1e3:.1f}",
        " x ".join(map(str, k.grid)) if k.grid else None,
        " x ".join(map(str, k.block)) if k.block else None,
        k.warps,
        k.registers,
        None if k.shared is None else size(k.shared),
        None if k.occupancy is None else f"{k.occupancy:.0%}",
        k.device,
        k.stream,
    ]
    return ["" if v is None else v for v in values]


# -- the roofline -----------------------------------------------------------------------------------------------------------


def _roofline(p: Profile, numbers: dict[int, int]) -> str:
    points = [
        roofline.Point(s.name, s.flops / s.moved, s.flops / (s.busy / 1e9), numbers[id(s)])
        for s in p.walk()
        if s.flops and s.moved and s.busy
    ]
    return roofline.svg(p.card, points)
