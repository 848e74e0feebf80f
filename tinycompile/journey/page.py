"""The shell of every page: one file with its style and its script inside, and the parts that pages share."""

from __future__ import annotations

import functools
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinycompile.journey.listing import Listing

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """A part of a page. ``body`` is HTML."""

    id: str
    title: str
    body: str


@dataclass(frozen=True)
class KernelShown:
    """A generated kernel. ``facts``: (name, value) for the line above its listings; ``twins``: others with the same code."""

    name: str
    facts: tuple[tuple[str, str], ...]
    listings: tuple[Listing, ...]
    twins: tuple[str, ...] = ()
    problem: str = ""


def document(title: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
    """A whole page, which needs nothing but itself."""
    shown = [s for s in sections if s.body]
    links = " ".join(f'<a href="#{s.id}">{escape(s.title)}</a>' for s in shown)
    parts = "\n".join(f'<section id="{s.id}"><h2>{escape(s.title)}</h2>\n{s.body}\n</section>' for s in shown)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>\n<style>\n{_asset("page.css")}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{fact_line(facts)}\n<nav>{links}</nav>\n{parts}\n"
        f"<script>\n{_asset('page.js')}</script></body></html>\n"
    )


@functools.cache
def _asset(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def escape(text: Any) -> str:
    """Text for HTML."""
    return html.escape(str(text))


def fact_line(facts: Sequence[tuple[str, str]]) -> str:
    """``name: value`` separated by dots; those without a value are left out."""
    told = " · ".join(f"{escape(name)}: <b>{escape(value)}</b>" for name, value in facts if value)
    return f'<p class="facts">{told}</p>' if told else ""


def data(name: str, value: Any) -> str:
    """JSON for the page's script."""
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def rows_table(head: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[int] = ()) -> str:
    """A table; the columns in ``numbers`` are aligned right."""
    if not rows:
        return ""

    def cells(tag: str, row: Sequence[Any]) -> str:
        return "".join(f"<{tag}{' class=n' if i in numbers else ''}>{escape(c)}</{tag}>" for i, c in enumerate(row))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def folded(title: str, text: str, is_open: bool = False) -> str:
    """Text that opens at a click; empty for none."""
    if not text:
        return ""
    return f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def kernels(shown: Sequence[KernelShown]) -> str:
    """Each kernel with its listings side by side. A click on a line lights up what belongs to it in the others."""
    seen: dict[str, int] = {}
    parts: list[str] = []
    for k in shown:
        seen[k.name] = seen.get(k.name, 0) + 1
        name = k.name if seen[k.name] == 1 else f"{k.name}-{seen[k.name]}"
        parts.append(_kernel(k, name, not parts))
    return "\n".join(parts)


def _kernel(k: KernelShown, anchor: str, is_open: bool) -> str:
    panes = "".join(_pane(listing) for listing in k.listings)
    others = "".join(f' <a id="kernel-{escape(t)}">{escape(t)}</a>' for t in k.twins if t != k.name)
    twins = f"<p>the same code: {others}</p>" if others else ""
    problem = f"<p>{escape(k.problem)}</p>" if k.problem else ""
    return (
        f'<details{" open" if is_open else ""} id="kernel-{escape(anchor)}"><summary><code>{escape(k.name)}</code></summary>'
        f'<div class="inner">{fact_line(k.facts)}{twins}{problem}<div class="panes">{panes}</div></div></details>'
    )


def _pane(listing: Listing) -> str:
    lines = "".join(
        f"<div data-l={line}>{escape(text) or ' '}</div>" if listing.linked and line else f"<div>{escape(text) or ' '}</div>"
        for text, line in listing.rows
    )
    return f'<div class="pane"><h4>{escape(listing.title)}</h4><div class="code">{lines}</div></div>'
