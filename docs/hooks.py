"""Hooks of mkdocs: pages generated from the code and from notebooks, and files of the repository outside `docs/`."""

from __future__ import annotations

import json
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
    for notebook in sorted(Path(config.docs_dir).rglob("*.ipynb")):
        name = notebook.relative_to(config.docs_dir).with_suffix(".md").as_posix()
        files.append(File.generated(config, name, content=make_notebook_page(notebook)))
    for path in DEPLOY:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path), inclusion=InclusionLevel.INCLUDED))
    return files


def make_notebook_page(path: Path) -> str:
    """Return a notebook as Markdown: its text, code and printed output, and a link to the notebook below the title."""
    blocks = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        blocks.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        blocks += [f"```text\n{''.join(output['text'])}```" for output in cell.get("outputs", ())]
    title, _, rest = "\n\n".join(blocks).partition("\n")
    return f'{title}\n\nThis page is a <a href="{path.name}" download>notebook</a>: download it to run it.\n{rest}\n'


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Redirect links that leave `docs/`."""
    markdown = _redirect_links(markdown, "../" * page.file.src_uri.count("/"))
    return re.sub(r"(\]\([^):]+)\.ipynb\)", r"\1.md)", markdown).replace("](../deploy/", "](deploy/")


def _redirect_links(text: str, to_root: str) -> str:
    """Replace links to pages of the repository's root by links to their pages of the site."""
    for path, name in OUTSIDE.items():
        text = re.sub(rf"\]\((?:\.\./)*{re.escape(path)}\b", f"]({to_root}{name}", text)
    return text
