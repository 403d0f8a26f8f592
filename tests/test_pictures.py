"""Pictures of the documentation: block diagrams as their script draws them, and alternative texts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SVG = "{http://www.w3.org/2000/svg}"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the diagrams as `docs/diagrams.py` draws them."""
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    import diagrams

    return {name: diagrams.draw(diagram) for name, diagram in diagrams.read_diagrams().items()}


def test_diagrams_of_the_documentation_are_what_their_script_draws(drawn: dict[str, str]) -> None:
    folder = DOCS / "images" / "diagrams"
    assert {path.stem: path.read_text(encoding="utf-8") for path in folder.iterdir()} == drawn, "docs/diagrams.py"


def test_diagrams_have_a_title_and_are_described_by_the_alternative_text_of_their_page(drawn: dict[str, str]) -> None:
    for name, text in drawn.items():
        svg = ElementTree.fromstring(text)
        description, page = svg.findtext(f"{SVG}desc"), "README" if name == "shared-idea" else name
        assert svg.findtext(f"{SVG}title")
        markdown = (DOCS / "mechanisms" / f"{page}.md").read_text(encoding="utf-8")
        assert f"![{description}](../images/diagrams/{name}.svg)" in markdown, name


def test_boxes_and_texts_of_diagrams_are_inside_the_picture(drawn: dict[str, str]) -> None:
    for name, text in drawn.items():
        svg = ElementTree.fromstring(text)
        width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
        for element in [*svg.iter(f"{SVG}rect"), *svg.iter(f"{SVG}text")]:
            x, y = float(element.attrib["x"]), float(element.attrib["y"])
            right, bottom = (float(element.get(key, 0)) for key in ("width", "height"))
            assert x >= 0 <= y, name
            assert x + right <= width, name
            assert y + bottom <= height, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pictures_of_a_page_exist_and_have_alternative_texts(page: Path) -> None:
    for alternative, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).is_file(), target
        assert len(alternative.split()) >= 3, f"{target}: {alternative!r} does not describe the picture"
