"""A small GPT trained on the project's own documents, byte by byte: eager's loss curve and ours.

``python -m benchmarks.loss_curve [--steps 300] [--out docs/results/training]`` saves ``loss_curve.json`` and a plot, and fails
when the mean of the last tenth of the losses differs by more than 0.5%.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from pathlib import Path

import torch

import tinycompile
from benchmarks.results import about
from benchmarks.train_models import GPT, Sizes

SMALL = Sizes(layers=2, heads=4, width=64, vocabulary=256, batch=8, length=64)
ALLOWED = 0.005


def corpus(root: Path) -> torch.Tensor:
    """The bytes of all documents."""
    text = b"".join(p.read_bytes() for p in sorted(root.rglob("*.md")))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def curve(compiled: bool, steps: int, tokens: torch.Tensor, sizes: Sizes = SMALL) -> list[float]:
    """The losses of AdamW steps from one seed."""
    torch.manual_seed(0)
    model = GPT(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    forward = model
    if compiled:
        forward = tinycompile.compile(model, fullgraph=True)
        optimizer.step = tinycompile.compile(optimizer.step)  # type: ignore[method-assign]
    draw = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        at = torch.randint(len(tokens) - sizes.length - 1, (sizes.batch,), generator=draw)
        rows = torch.stack([tokens[i : i + sizes.length + 1] for i in at])
        loss = forward(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def apart(a: list[float], b: list[float]) -> float:
    """The relative difference of the means of the last tenth."""
    tail = max(len(a) // 10, 1)
    x, y = statistics.fmean(a[-tail:]), statistics.fmean(b[-tail:])
    return abs(x - y) / y


def _plot(curves: dict[str, list[float]], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        axes.plot(losses, style, label=name, linewidth=1.2)
    axes.set_xlabel("step")
    axes.set_ylabel("cross-entropy (nats a byte)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/training"))
    given = parser.parse_args()
    tokens = corpus(given.docs)
    curves = {"eager": curve(False, given.steps, tokens), "tinycompile": curve(True, given.steps, tokens)}
    difference = apart(curves["tinycompile"], curves["eager"])
    given.out.mkdir(parents=True, exist_ok=True)
    record = {"about": about("cpu"), "bytes": len(tokens), "difference": difference, "losses": curves}
    (given.out / "loss_curve.json").write_text(json.dumps(record, indent=1))
    if importlib.util.find_spec("matplotlib"):
        _plot(curves, given.out / "loss_curve.png")
    print(
        f"last losses: eager {curves['eager'][-1]:.4f}, ours {curves['tinycompile'][-1]:.4f}; tails differ by {difference:.2%}"
    )
    return 0 if difference <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
