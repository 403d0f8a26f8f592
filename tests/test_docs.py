"""Documentation: links resolve, commands parse, recipe keys exist, examples run, recipes are listed."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer

from regard.cli.app import app
from regard.cli.train import is_override
from regard.recipes.recipe import list_recipes, override, parse_override, read_recipe

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
KEY = re.compile(r"\b((?:data|loss|model|text|training)\.[a-z_]+)=")
OPERATORS = "|&;<>()"
# What an engineer of the field looks for; docs/architecture.md has a file for each.
FIELD_TERMS = (
    *("beam search loop", "length", "coverage penalty", "lexical constraints", "no-repeat n-grams", "top-k"),
    *("top-p sampling", "ensemble", "forced decoding", "scoring", "label smoothing", "R-Drop", "guided alignment"),
    *("learning-rate schedule", "EMA", "checkpoint averaging", "gradient accumulation", "out-of-memory split"),
    *("DDP", "FSDP", "mixed precision", "checkpoint format", "early stopping", "validation", "dev split"),
    *("token batching", "data order", "padding", "collate", "memory-mapped corpus", "TMX reader", "corpus cleaning"),
    *("packed training", "fused linear cross-entropy", "CUDA graph cache", "KV cache", "device beam search"),
    *("int8 GEMM", "ONNX export", "CTranslate2 export", "backend choice", "URL", "placeholder protection"),
    *("tag projection", "glossary", "forced", "forbidden words", "word alignment from attention"),
    *("choice of the alignment head", "AER", "BLEU", "chrF", "TER", "continuous batching", "rate limits", "API keys"),
    "sentence splitting",
)
NEEDS_A_RUN = "regard.train("
read_cached_recipe = functools.cache(read_recipe)
COMMAND: Any = typer.main.get_command(app)


def find_anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page without repeated headings."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def split_commands(line: str) -> Iterator[list[str]]:
    """Split a shell line at pipes and the like; a redirection and its file become a command of their own."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=OPERATORS)
    lexer.whitespace_split = True
    for is_operator, words in groupby(lexer, lambda word: set(word) <= set(OPERATORS)):
        if not is_operator:
            yield list(words)


def documented_commands(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of every call of `regard` in the shell blocks of a page."""
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if language in ("", "sh") and re.search(r"(^|[\s/])regard\s+[a-z]", line):
                for words in split_commands(line.removeprefix("$ ")):
                    program, *arguments = words[words.index("-m") + 1 :] if "-m" in words else words
                    if program.rpartition("/")[2] == "regard":
                        yield arguments


def parse_command(arguments: list[str]) -> dict[str, Any]:
    """Parse arguments as the command line does, without running anything, and return the values."""
    command = COMMAND
    context = command.make_context("regard", list(arguments))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return dict(context.params)


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_in_the_documentation_exist(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        if not link.startswith("http"):
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in find_anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_commands_are_accepted_by_the_command_line(page: Path) -> None:
    """Parse every `regard …` of a shell block; the keys of `regard train` must be those of the recipe."""
    for arguments in documented_commands(page):
        values = parse_command(arguments)
        recipe = values.get("recipe") or "default"
        if arguments[0] == "train" and recipe in list_recipes():
            keys = [argument for argument in values["data"] or () if is_override(argument)]
            override(read_cached_recipe(recipe), dict(map(parse_override, keys)))


def test_documented_commands_are_found() -> None:
    found = [arguments for page in PAGES for arguments in documented_commands(page)]
    assert len(found) > 150
    assert ["data", "clean", "-", "--out", "-", "--without", "copied"] in found
    assert ["train", "memory.tmx", "web.en", "web.de", "data.weights=[3, 1]"] in found
    with pytest.raises(Exception, match="No such option"):
        parse_command(["evaluate", "runs/mine", "test.tsv", "--beams", "3"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_recipe_keys_exist(page: Path) -> None:
    known = {
        f"{section}.{key}"
        for name in list_recipes()
        for section, values in read_cached_recipe(name).items()
        if isinstance(values, dict)
        for key in values
    }
    assert {*KEY.findall(page.read_text(encoding="utf-8"))} <= known


@patch.dict("regard.models.MODELS")  # an example adds a kind of its own
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


def test_page_of_recipes_lists_every_recipe() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in list_recipes())


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_architecture_names_existing_files() -> None:
    files = [path.relative_to(ROOT / "regard").as_posix() for path in (ROOT / "regard").rglob("*.py")]
    named = re.findall(r"`(?:regard/)?((?!tests/)[\w/]+\.py)\b", ARCHITECTURE)
    assert [path for path in named if not any(f"/{file}".endswith(f"/{path}") for file in files)] == []
    folders = re.findall(r"`(regard/[\w/]+/)`", ARCHITECTURE)
    assert [path for path in folders if not (ROOT / path).is_dir()] == []


def test_architecture_finds_the_terms_of_the_field() -> None:
    _, _, table = ARCHITECTURE.partition("## Where to find it")
    terms = dict(re.findall(r"\| ([^|`]+) \| `(regard/[\w/.]+)`", table))
    assert len(terms) >= 50
    assert set(FIELD_TERMS) <= {word.strip() for term in terms for word in re.split(r",| and ", term)}


def list_definitions(nodes: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Yield the names of functions, classes and fields, those inside a class as `Class.name`."""
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield prefix + node.target.id
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from list_definitions(node.body, f"{node.name}.")


def test_architecture_names_existing_functions() -> None:
    defined: dict[str, set[str]] = {}
    for path in (ROOT / "regard").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defined[path.relative_to(ROOT / "regard").as_posix()] = set(list_definitions(tree.body))
    everywhere = set().union(*defined.values())
    in_files = re.findall(r"`([\w/]+\.py): ([\w.]+)`", ARCHITECTURE)
    assert len(in_files) >= 15
    assert [(path, name) for path, name in in_files if name not in defined[path]] == []
    names = re.findall(r"`([A-Z]\w+(?:\.\w+)?|[a-z]+_\w+)`", ARCHITECTURE)
    assert len(names) >= 10
    assert [name for name in names if name not in everywhere] == []
