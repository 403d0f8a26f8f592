"""Hooks of mkdocs: pages generated from the code, and files of the repository that are outside `docs/`."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from reference import PAGES

ROOT = Path(__file__).parent.parent
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
DEPLOY = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "deploy").iterdir())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference, and the pages of the repository's root with links that fit the site."""
    for name, make_page in PAGES.items():
        files.append(File.generated(config, f"reference/{name}", content=make_page()))
    for path, name in OUTSIDE.items():
        text = (ROOT / path).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=_redirect_links(text, "")))
    for path in DEPLOY:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path), inclusion=InclusionLevel.INCLUDED))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Redirect links that leave `docs/`."""
    markdown = _redirect_links(markdown, "../" * page.file.src_uri.count("/"))
    return markdown.replace("](../deploy/", "](deploy/")


def _redirect_links(text: str, to_root: str) -> str:
    """Replace links to pages of the repository's root by links to their pages of the site."""
    for path, name in OUTSIDE.items():
        text = re.sub(rf"\]\((?:\.\./)*{re.escape(path)}\b", f"]({to_root}{name}", text)
    return text
