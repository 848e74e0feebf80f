"""The texts of one compile, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path


class Artifacts:
    """An ordered map from a file name (``4_loops.py``) to its text."""

    def __init__(self) -> None:
        self._texts: dict[str, str | Callable[[], str]] = {}

    def __setitem__(self, name: str, text: str) -> None:
        if not name or Path(name).name != name:
            raise ValueError(f"an artifact's name must be a plain file name, not {name!r}")
        self._texts[name] = text

    def lazy(self, name: str, text: Callable[[], str]) -> None:
        """Add a text that is printed only when somebody reads it."""
        self[name] = ""
        self._texts[name] = text

    def __getitem__(self, name: str) -> str:
        text = self._texts[name]
        if not isinstance(text, str):
            text = self._texts[name] = text()
        return text

    def __contains__(self, name: object) -> bool:
        return name in self._texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, name: str, default: str = "") -> str:
        """The text, or ``default``."""
        return self[name] if name in self._texts else default

    def items(self) -> Iterator[tuple[str, str]]:
        """Pairs of name and text, in the order in which they were added."""
        return ((name, self[name]) for name in self._texts)

    def write(self, folder: str | Path) -> Path:
        """Write every text as a file under ``folder`` (made if absent) and return the folder."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        for name, text in self.items():
            (path / name).write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
        return path
