"""What the documentation says of the code: links lead somewhere, examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from regard.recipes import names

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#]+)\)")
NEEDS_A_RUN = "regard.train("


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_examples_run() -> None:
    """Each of them is run as it stands; the last line says a value, in a comment, and must give it."""
    seen = []
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            if NEEDS_A_RUN not in block:
                *before, last = block.rstrip().splitlines()
                said, _, value = last.partition("  # ")
                scope: dict[str, object] = {}
                exec(compile("\n".join(before), str(page), "exec"), scope)
                assert eval(said, scope) == eval(value), f"{page}: {last}"
                seen.append(page.name)
    assert len(seen) >= 2


def test_an_alignment_of_ones_own_is_the_same_step_by_step() -> None:
    """The example in the documentation, held to what every alignment here is held to."""
    import torch

    from regard import nn

    page = (ROOT / "docs" / "mechanisms" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    scope: dict[str, type] = {}
    exec(block, scope)
    attention = nn.Attention(nn.Dot(), scope["Nearest"]())
    states, query = torch.randn(2, 7, 16), torch.randn(2, 5, 16)
    memory = nn.Memory(states, states, nn.prefix_mask(torch.tensor([7, 4]), 7))
    together = attention(query, memory)
    for t in range(5):
        torch.testing.assert_close(attention(query[:, t : t + 1], memory, t).weights[:, 0], together.weights[:, t])


def test_every_recipe_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in readme for name in names())
