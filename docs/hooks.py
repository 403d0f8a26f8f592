"""Hooks of mkdocs: pages generated from the code, and pages of the repository that are outside `docs/`."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from reference import PAGES

ROOT = Path(__file__).parent.parent
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference, and the pages of the repository's root with links that fit the site."""
    for name, make_page in PAGES.items():
        files.append(File.generated(config, f"reference/{name}", content=make_page()))
    for path, name in OUTSIDE.items():
        text = (ROOT / path).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=_redirect_links(text, "")))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Redirect links that leave `docs/`."""
    return _redirect_links(markdown, "../")


def _redirect_links(text: str, prefix: str) -> str:
    """Replace links to pages of the repository's root by links to their pages of the site."""
    for path, name in OUTSIDE.items():
        text = re.sub(rf"\]\({re.escape(prefix + path)}\b", f"]({name}", text)
    return text
