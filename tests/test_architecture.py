"""The import rule, read from the source: nouns below, verbs above, verbs never import each other.

``base <- dispatch <- ops <- eager <- ir``: each sees only what is to its left. A stage sees those five and itself. The
files in the package's root see everything, as do ``journey``, which shows it, and ``selfcheck``, which doubts it; layers and
stages see none of them.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tinycompile"
LAYERS = ("base", "dispatch", "ops", "eager", "ir")
STAGES = ("capture", "aot", "passes", "lower", "fuse", "codegen", "runtime")
VIEWERS = ("journey", "selfcheck")
FORBIDDEN = ("torch.fx", "torch._dynamo", "torch._functorch", "torch._inductor", "torch._decomp")
PRIVATE_TORCH = PACKAGE / "base" / "torch_private.py"
REGISTERING = ("ops", "eager")
BANNED_NAMES = {"utils", "util", "common", "core", "helpers", "misc"}
FILES = sorted(PACKAGE.rglob("*.py"))


@dataclass(frozen=True)
class Import:
    """``module`` imported at ``line``; ``scope``: the function it stands in."""

    module: str
    line: int
    scope: str | None


def imports(tree: ast.AST, scope: str | None = None) -> Iterator[Import]:
    """Every import below a node, with names that are modules spelt out (``from a import b`` gives ``a.b``)."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, scope) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (Import(f"{node.module}.{alias.name}", node.lineno, scope) for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(node, getattr(node, "name", "<lambda>"))
        else:
            yield from imports(node, scope)


def allowed(folder: str) -> set[str]:
    """The folders that a folder may import from."""
    if folder in LAYERS:
        return set(LAYERS[: LAYERS.index(folder) + 1])
    return {*LAYERS, folder}


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an attribute chain on a plain name, else the empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def test_every_folder_is_a_layer_or_a_stage() -> None:
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders == {*LAYERS, *STAGES, *VIEWERS}


def test_imports_follow_the_arrows() -> None:
    wrong = []
    for path in FILES:
        relative = path.relative_to(PACKAGE)
        if len(relative.parts) == 1 or relative.parts[0] in VIEWERS:
            continue  # compiler, api, report, __main__, __init__ see everything, and so does what shows it
        for found in imports(parsed(path)):
            if found.module.split(".")[0] != "tinycompile":
                continue
            target = (found.module.split(".") + [""])[1]
            if target not in allowed(relative.parts[0]):
                wrong.append(f"{where(path, found.line)} imports {found.module}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_our_package_is_imported_at_the_top_only() -> None:
    wrong = [
        f"{where(path, found.line)} imports {found.module} inside {found.scope}"
        for path in FILES
        for found in imports(parsed(path))
        if found.scope is not None and found.module.split(".")[0] == "tinycompile"
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_torch_gives_no_compiler() -> None:
    """Neither imported nor reached through an attribute."""
    wrong = []
    for path in FILES:
        tree = parsed(path)
        uses = [(found.module, found.line) for found in imports(tree)]
        uses += [(name, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and (name := dotted(node))]
        wrong += [
            f"{where(path, line)} uses {name}"
            for name, line in uses
            if any(name == f or name.startswith(f + ".") for f in FORBIDDEN)
        ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_private_torch_is_in_one_file() -> None:
    wrong = []
    for path in FILES:
        if path == PRIVATE_TORCH:
            continue
        tree = parsed(path)
        uses = [(found.module, found.line) for found in imports(tree)]
        uses += [(name, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and (name := dotted(node))]
        wrong += [f"{where(path, line)} uses {name}" for name, line in uses if (name + ".").startswith("torch._C.")]
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_file_without_a_subject() -> None:
    parts = {part.removesuffix(".py") for path in FILES for part in path.relative_to(PACKAGE).parts}
    assert not parts & BANNED_NAMES


def test_folders_re_export_nothing() -> None:
    """Only the package's root has public names. ``ops`` and ``eager`` run their registrations when imported, and no more."""
    wrong = []
    for path in FILES:
        relative = path.relative_to(PACKAGE)
        if path.name != "__init__.py" or len(relative.parts) == 1:
            continue
        tree = parsed(path)
        body = [node for node in tree.body if not _is_docstring(node)]
        if str(relative.parent) in REGISTERING:
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            body = [node for node in body if not _registers(node, used)]
        wrong += [where(path, node.lineno) for node in body]
    assert not wrong, f"more than a docstring: {wrong}"


def test_every_module_says_what_it_is() -> None:
    assert not [where(path, 1) for path in FILES if not ast.get_docstring(parsed(path))]


def test_no_private_name_is_imported_from_another_module() -> None:
    wrong = [
        f"{where(path, node.lineno)} imports {alias.name} from {node.module}"
        for path in FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tinycompile")
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _registers(node: ast.stmt, used: set[str]) -> bool:
    """A statement that names nothing for others: a call, a loop, an import of a module, or of a name that is used right here."""
    if isinstance(node, ast.ImportFrom):
        return all(_is_module(f"{node.module}.{alias.name}") or alias.name in used for alias in node.names)
    return isinstance(node, ast.Expr | ast.For)


def _is_module(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


PLANTED = {
    "from tinycompile.ops.record import Op": "ops",
    "import tinycompile.eager.tensor": "eager",
    "def f():\n    from tinycompile.ir.graph import Graph": "ir",
    "from tinycompile import capture": "capture",
}


@pytest.mark.parametrize("text", PLANTED, ids=PLANTED.values())
def test_the_reader_of_imports_sees_each_form(text: str) -> None:
    (found,) = imports(ast.parse(text))
    assert found.module.split(".")[1] == PLANTED[text]
    assert PLANTED[text] not in allowed("base")
    assert (found.scope == "f") == text.startswith("def")
