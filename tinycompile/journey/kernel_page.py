"""Generated kernels for a page: sources side by side, and what a card makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinycompile.base.errors import BackendError
from tinycompile.journey.card import H100, WARP, Card
from tinycompile.journey.listing import Listing, plain_rows, ptx_rows, sass_rows, source_rows
from tinycompile.journey.page import KernelShown
from tinycompile.runtime.triton_build import parallel
from tinycompile.terminal import size

if TYPE_CHECKING:
    from tinycompile.report import KernelInfo


def shown(kernels: Sequence[KernelInfo], card: Card | None = None) -> list[KernelShown]:
    """One entry for all kernels with the same code, in order of appearance. ``card``: for the occupancy; an H100's without."""
    groups: dict[object, list[KernelInfo]] = {}
    for k in kernels:
        groups.setdefault(k.twin, []).append(k)
    return parallel(lambda group: _shown(group, card or H100), list(groups.values()))


def _shown(group: Sequence[KernelInfo], card: Card) -> KernelShown:
    k = group[0]
    facts = [
        ("language", k.language),
        ("grid", " x ".join(map(str, k.grid)) if k.language == "triton" else ""),
        ("moves", size(k.bytes_moved)),
        ("operations", f"{k.flops:,}" if k.flops else ""),
        ("why", k.why),
        ("lines", ", ".join(dict.fromkeys(k.lines))),
    ]
    listings = [Listing("C++, which ran", plain_rows(k.source), linked=False)] if k.language == "cpp" else []
    if k.triton:
        listings.append(Listing("Triton", source_rows(k.triton)))
    problem = ""
    try:
        if k.triton:
            facts += _compiled_facts(k, card)
            listings += [Listing("PTX", ptx_rows(k.ptx)), Listing("SASS", sass_rows(k.listing, k.name))]
    except BackendError as error:  # no Triton here, say: the page shows what there is
        problem = f"not compiled for a GPU: {str(error).partition(chr(10))[0]}"
    return KernelShown(k.name, tuple(facts), tuple(listings), tuple(t.name for t in group[1:]), problem)


def _compiled_facts(k: KernelInfo, card: Card) -> list[tuple[str, str]]:
    occupancy = card.occupancy(k.warps * WARP, k.registers, k.shared)
    return [
        ("warps a block", str(k.warps)),
        ("registers a thread", str(k.registers)),
        ("spilled", f"{k.spills} B" if k.spills else ""),
        ("shared memory a block", size(k.shared)),
        (f"occupancy on {card.name}", f"{occupancy:.0%}"),
    ]
