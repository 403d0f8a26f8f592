"""Architecture: packages import lower layers only, `nn` needs only torch, and loading a file never runs code."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "regard"
FILES = sorted(PACKAGE.rglob("*.py"))

# From the bottom up. A package may import itself and those of lower layers; packages of one layer do not import each
# other, except for the modules of the base layer.
BASE = ("special_tokens", "errors", "version", "config", "console", "paths", "process_group")
LAYERS = (
    ("nn",),
    ("recipes",),
    ("models",),
    ("fast",),
    ("export",),
    ("tokenizers",),
    ("text",),
    ("data",),
    ("corpus",),
    ("synthetic",),
    ("evaluate",),
    ("search",),
    ("runs",),
    ("plot",),
    ("translate",),
    ("tasks",),
    ("training",),
    ("documents",),
    ("report",),
    ("serve",),
    ("api",),
    ("demo",),
    ("reproduce",),
    ("cli",),
    ("__init__", "__main__"),
)
LEVEL = dict.fromkeys(BASE, 0) | {name: level for level, layer in enumerate(LAYERS, 1) for name in layer}
UNPICKLERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def parse(text: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module, the module itself first."""
    return tuple(ast.walk(ast.parse(text)))


@cache
def parse_file(path: Path) -> tuple[ast.AST, ...]:
    return parse(path.read_text(encoding="utf-8"))


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def parents_of(path: Path) -> list[str]:
    """Return what a relative import starts from: `regard/synthetic/grammar/lexicon.py` -> regard, data, grammar."""
    return ["regard", *path.relative_to(PACKAGE).parent.parts]


def find_imports(nodes: Sequence[ast.AST], parents: list[str]) -> Iterator[str]:
    """Yield the full name of every module that a file imports, also inside functions."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{name.name}" for name in node.names)


def find_packages(nodes: Sequence[ast.AST], parents: list[str]) -> set[str]:
    """Return the packages of regard that a file imports from; names of `regard` itself count as `__init__`."""
    found = set()
    for name in find_imports(nodes, parents):
        top, _, rest = name.partition(".")
        if top == "regard":
            first = rest.split(".")[0]
            found.add(first if first in LEVEL else "__init__")
    return found


def may_import(own: str, other: str) -> bool:
    return own == other or LEVEL[other] < LEVEL[own] or (own in BASE and other in BASE)


def find_code_execution(nodes: Sequence[ast.AST], parents: list[str], may_load: bool) -> list[str]:
    """Return every construct of a file by which data that is read could run code."""
    imported = set(find_imports(nodes, parents))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
    attributes = {
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr in ("load", "save", "unsafe_load", "full_load", "Loader")
    }
    loads = [node for node in calls if isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == "torch.load"]
    found = {
        *({name.split(".")[0] for name in imported} & UNPICKLERS),
        *(called & {"eval", "exec", "compile", "__import__"}),
        *(attributes & {"torch.save", "yaml.unsafe_load", "yaml.full_load", "yaml.Loader"}),
        *({"allow_pickle"} & {keyword.arg for node in calls for keyword in node.keywords}),
        *({"torch.load"} & imported),
    }
    if "torch.load" in attributes and not (may_load and len(loads) == 1):
        found.add("torch.load")
    if not all("weights_only=True" in ast.unparse(node) for node in loads):
        found.add("torch.load without weights_only=True")
    return sorted(found)


def test_every_package_has_a_layer() -> None:
    assert {package_of(path) for path in FILES} == set(LEVEL)


def test_packages_import_lower_layers_only() -> None:
    wrong = {
        str(path.relative_to(PACKAGE)): others
        for path in FILES
        if (
            others := {
                other
                for other in find_packages(parse_file(path), parents_of(path))
                if not may_import(package_of(path), other)
            }
        )
    }
    assert wrong == {}


def _read_docstring(path: Path) -> str | None:
    module = parse_file(path)[0]
    assert isinstance(module, ast.Module)
    return ast.get_docstring(module)


def test_every_module_has_a_docstring() -> None:
    assert [str(path) for path in FILES if not (_read_docstring(path) or "").strip()] == []


def test_nn_imports_nothing_but_torch() -> None:
    allowed = {"torch", *sys.stdlib_module_names}
    for path in FILES:
        if package_of(path) == "nn":
            for name in find_imports(parse_file(path), parents_of(path)):
                assert name.split(".")[0] in allowed or name.startswith("regard.nn."), (str(path), name)


def test_no_module_runs_code_from_data() -> None:
    loader = PACKAGE / "models" / "weights_file.py"
    wrong = {
        str(path.relative_to(PACKAGE)): found
        for path in FILES
        if (found := find_code_execution(parse_file(path), parents_of(path), path == loader))
    }
    assert wrong == {}
    assert find_code_execution(parse_file(loader), parents_of(loader), may_load=False) == ["torch.load"]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import pickle", ["pickle"]),
        ("from joblib import load", ["joblib"]),
        ("eval(text)", ["eval"]),
        ("yaml.unsafe_load(text)", ["yaml.unsafe_load"]),
        ("numpy.load(path, allow_pickle=True)", ["allow_pickle"]),
        ("from torch import load", ["torch.load"]),
        ("torch.load(path, weights_only=True)", ["torch.load"]),
        ("read = torch.load", ["torch.load"]),
        ("torch.load(path)", ["torch.load", "torch.load without weights_only=True"]),
        ("import torch\nyaml.safe_load(text)", []),
    ],
)
def test_the_check_finds_code_execution(code: str, found: list[str]) -> None:
    assert find_code_execution(parse(code), ["regard", "data"], may_load=False) == found


def test_the_command_line_starts_without_torch() -> None:
    code = (
        "import sys, regard, regard.cli, regard.recipes, regard.text, regard.data.split\n"
        "import regard.data.readers.dispatch\n"
        "heavy = {'torch', 'matplotlib', 'sacrebleu'} & set(sys.modules)\n"
        "sys.exit(f'imported at the start: {heavy}' if heavy else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("own", "code", "found"),
    [
        ("nn", "from regard.cli import main", {"cli"}),
        ("runs", "from regard import text", {"text"}),
        ("data", "def f():\n    import regard.search.beam", {"search"}),
        ("data", "if TYPE_CHECKING:\n    from ..training import train", {"training"}),
        ("data", "from .. import load, runs", {"__init__", "runs"}),
        ("data", "from . import files\nfrom .files import lines", {"data"}),
        ("data", "import regardless\nfrom torch import nn", set()),
    ],
)
def test_the_check_sees_every_kind_of_import(own: str, code: str, found: set[str]) -> None:
    assert find_packages(parse(code), ["regard", own]) == found


def test_the_check_knows_lower_layers_from_higher_ones() -> None:
    assert may_import("cli", "nn")
    assert may_import("nn", "nn")
    assert may_import("config", "errors")
    assert not may_import("nn", "models")
    assert not may_import("translate", "training")
    assert not may_import("tasks", "training")
    assert not may_import("errors", "nn")
    assert not may_import("data", "evaluate")
