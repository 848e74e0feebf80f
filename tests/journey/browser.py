"""A headless browser, where there is one, and a strict reader of pages for where there is none."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
VOID = {"meta", "link", "br", "img", "input", "hr"}


def browser() -> str | None:
    """Its path."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def loaded(path: Path, click: str = "") -> str:
    """The page's HTML after its script has run. Raises AssertionError for anything that the console says is wrong.

    ``click``: JavaScript that runs once the page is there."""
    page = path
    if click:
        page = path.with_name(f"clicked_{path.name}")
        script = f"<script>document.addEventListener('DOMContentLoaded', () => {{ {click} }});</script>"
        page.write_text(path.read_text().replace("</body>", f"{script}</body>"))
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += ["--virtual-time-budget=4000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not said, said
    return done.stdout


class Checked(html.parser.HTMLParser):
    """Balanced tags, ids that are there once, links that lead somewhere, nothing from outside."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.outside: list[str] = []
        self.tags: dict[str, int] = {}
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"
        assert len(self.ids) == len(set(self.ids)), sorted({i for i in self.ids if self.ids.count(i) > 1})
        assert not [link for link in self.links if link not in self.ids]
        assert not self.outside, self.outside

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "src"):
                if value and value.startswith("#"):
                    self.links.append(value[1:])
                elif not (value or "").startswith("data:"):
                    self.outside.append(f"{tag} {name}={value}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.outside += re.findall(r"url\([^)]*\)|@import[^;]*", data)
