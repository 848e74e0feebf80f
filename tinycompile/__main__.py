"""The command line: ``python -m tinycompile demo|doctor|cache|ops|bench``."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import tinycompile.ops  # noqa: F401  # fills the table of records
from tinycompile import demo, doctor
from tinycompile.base.config import config
from tinycompile.base.device import Device
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import KeySet, backend_key
from tinycompile.eager.autocast_policy import POLICIES
from tinycompile.eager.batching import rule_in_words
from tinycompile.ops import table
from tinycompile.ops.record import OPS
from tinycompile.runtime.cache import DiskCache, Entry
from tinycompile.terminal import columns, size, title


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(
        prog="python -m tinycompile", description="A small compiler stack in the mould of torch.compile."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    p = commands.add_parser("demo", help="compile, check, time and show a few functions")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--lines", type=int, default=60, help="lines of generated code to show for each function (%(default)s)")
    p.set_defaults(run=lambda o: run_demo(o.device, o.lines))

    p = commands.add_parser("doctor", help="what was found on this machine and what it means")
    p.set_defaults(run=lambda o: doctor.run())

    p = commands.add_parser("cache", help="the cache on disk")
    p.add_argument("action", choices=["ls", "show", "clear"])
    p.add_argument("key", nargs="?", default="", help="for show: the first characters of an entry's key")
    p.set_defaults(run=lambda o: run_cache(o.action, o.key))

    p = commands.add_parser("ops", help="all ops, or the record and the dispatch table of one")
    p.add_argument("name", nargs="?")
    p.set_defaults(run=lambda o: run_ops(o.name))

    commands.add_parser("bench", help="the benchmarks of the repository; further options go to `python -m benchmarks`")
    return top


def run_demo(device: str, lines: int) -> int:
    """The demo, where its device is there."""
    if device == "cuda" and not torch.cuda.is_available():
        print("torch sees no CUDA device here; --device cpu shows what a GPU would run", file=sys.stderr)
        return 2
    return demo.run(device, lines)


def run_cache(action: str, key: str) -> int:
    """List, show or remove entries; 0 on success."""
    cache = DiskCache(config.cache_dir)
    if key and action != "show":
        print(f"cache {action} takes no key: it is for all entries", file=sys.stderr)
        return 2
    if action == "clear":
        try:
            removed, freed = cache.clear()
        except OSError as error:
            print(f"can't clear {cache.folder}: {error}", file=sys.stderr)
            return 1
        print(f"removed {removed} entries, {size(freed)}, from {cache.folder}")
        return 0
    if action == "show":
        try:
            print(_show(cache.show(key)))
        except KeyError as error:
            print(error.args[0], file=sys.stderr)
            return 1
        return 0
    entries = cache.ls()
    rows = [(e.key[:12], _age(e), size(e.size), _target(e), _function(e)) for e in entries]
    print(f"{len(entries)} entries, {size(sum(e.size for e in entries))}, in {cache.folder}")
    if rows:
        print("\n" + columns(rows, ("key", "age", "size", "target", "function"), " rr"))
    return 0


def _show(entry: Entry) -> str:
    lines = [title(f"entry {entry.key}"), f"folder: {entry.folder}", f"age: {_age(entry)}", "", "files:"]
    lines.append(columns([(f"  {name}", size(len(data))) for name, data in sorted(entry.files.items())], right=" r"))
    lines += ["", "parts of the key:"]
    for name, text in entry.parts.items():
        lines += [f"  {name}:", *(f"    {line}" for line in text.splitlines())]
    return "\n".join(lines)


def _age(entry: Entry) -> str:
    seconds = time.time() - entry.meta["created"]
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _target(entry: Entry) -> str:
    """Language and architecture, out of the text that the key has of the target."""
    text = entry.parts.get("target", "")
    found = re.search(r"language='(\w+)', arch='(\w+)'", text)
    return " ".join(found.groups()) if found else text


def _function(entry: Entry) -> str:
    """The name of the function whose graph it is."""
    found = re.search(r"^def (\w+)", entry.parts.get("graph", ""), re.MULTILINE)
    name = found[1] if found else ""
    room = max(20, shutil.get_terminal_size().columns - 60)
    return name if len(name) <= room else name[: room - 3] + "..."


def run_ops(name: str | None) -> int:
    """The list of records, or all about one."""
    if name is None:
        rows = [
            (op.name, type(op.lowering).__name__.lower(), str(op.schema)) for op in sorted(OPS.values(), key=lambda o: o.name)
        ]
        print(columns(rows, ("op", "kind", "schema")))
        print(f"\n{len(rows)} ops. `python -m tinycompile ops NAME` shows one.")
        return 0
    name = _record_of(name)
    if name not in OPS:
        close = ", ".join(sorted(known for known in OPS if name in known or known in name)) or "none is like it"
        print(f"no record for {name!r}; {close}", file=sys.stderr)
        return 1
    op = OPS[name]
    print(title(name))
    if op.doc:
        print(op.doc)
    reached = ", ".join(table.functions_of(name)) or "other records, and calls that come to them"
    print(f"kind:      {type(op.lowering).__name__.lower()}\nreached by {reached}")
    print("\ndispatch table, highest key first:\n" + dispatcher.table(name))
    for device in ("cpu", "cuda"):
        keys = KeySet.of(backend_key(Device.of(device).type))
        print(f"a call on {device} tensors runs {dispatcher.resolve(name, keys)}")
    print(f"\nvmap runs it {rule_in_words(op)}")
    for device, policies in POLICIES.items():
        policy = policies.get(name)
        print(f"autocast on {device}: {policy.value if policy else 'casts nothing'}")
    return 0


def _record_of(name: str) -> str:
    """The record that a name means: its own, a torch function's (``torch.relu``), or ATen's (``aten::add``)."""
    if name in OPS:
        return name
    for dotted in (name, *(f"{where}.{name}" for where in ("torch", "torch.Tensor", "torch.nn.functional"))):
        meant = table.records_of(table.resolve(dotted)) if dotted.partition(".")[0] in table.ROOTS else ()
        if meant:
            own = dotted.rpartition(".")[2].strip("_")
            return own if own in meant else min(meant)
    plain = re.sub(r"^(torch\.ops\.)?aten(::|\.)", "", name).partition(".")[0] if "aten" in name else name
    return plain if plain in OPS else plain.lower()


def run_bench(arguments: Sequence[str]) -> int:
    """Run the repository's benchmarks, which are not installed with the package."""
    root = Path(__file__).parents[1]
    if not (root / "benchmarks" / "__main__.py").exists():
        print("the benchmarks are part of the repository, not of the installed package: run this in a clone", file=sys.stderr)
        return 1
    return subprocess.run([sys.executable, "-m", "benchmarks", *arguments], cwd=root, check=False).returncode


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["bench"]:  # argparse would take the benchmarks' options for its own
        return run_bench(given[1:])
    options = parser().parse_args(given)
    try:
        status = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (``head``, a pager) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
