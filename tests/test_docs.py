"""Documentation: links resolve, examples run, recipes are listed."""

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
def test_relative_links_in_the_documentation_exist(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_python_examples_in_the_documentation_run() -> None:
    """Run each example; its last line is an expression with the expected value in a comment."""
    executed = []
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            if NEEDS_A_RUN not in block:
                *before, last = block.rstrip().splitlines()
                expression, _, value = last.partition("  # ")
                scope: dict[str, object] = {}
                exec(compile("\n".join(before), str(page), "exec"), scope)
                assert eval(expression, scope) == eval(value), f"{page}: {last}"
                executed.append(page.name)
    assert len(executed) >= 2


def test_documented_custom_alignment_is_equal_in_parallel_and_stepwise() -> None:
    """Check the example of a custom alignment: all steps at once and one by one give the same weights."""
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


def test_readme_lists_every_recipe() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in readme for name in names())
