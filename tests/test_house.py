"""The house: imports go down only, and what no file may do."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "regard"
FILES = sorted(PACKAGE.rglob("*.py"))

# From the bottom up. A room may import itself and whatever stands on a floor below it; rooms that share a floor do not
# know each other, but for the ground floor, which is one room.
GROUND = ("symbols", "errors", "version", "config", "console", "group", "folders")
FLOORS = (
    ("nn",),
    ("recipes",),
    ("models",),
    ("fast",),
    ("text",),
    ("data",),
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
LEVEL = dict.fromkeys(GROUND, 0) | {room: level for level, floor in enumerate(FLOORS, 1) for room in floor}
UNPACKERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def package_of(path: Path) -> list[str]:
    """What a relative import of a file starts from: `regard/data/grammar/forms.py` -> regard, data, grammar."""
    return ["regard", *path.relative_to(PACKAGE).parent.parts]


def imports(tree: ast.Module, package: list[str]) -> Iterator[str]:
    """Every module that is imported anywhere in a file, also inside functions, by its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{name.name}" for name in node.names)


def rooms_of(tree: ast.Module, package: list[str]) -> set[str]:
    """The rooms of the house that a file imports from; what `import regard` itself has is its face, `__init__`."""
    found = set()
    for name in imports(tree, package):
        top, _, rest = name.partition(".")
        if top == "regard":
            first = rest.split(".")[0]
            found.add(first if first in LEVEL else "__init__")
    return found


def may_import(own: str, other: str) -> bool:
    return own == other or LEVEL[other] < LEVEL[own] or (own in GROUND and other in GROUND)


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


every_file = pytest.mark.parametrize("path", FILES, ids=name_of)


def test_every_room_has_its_floor() -> None:
    assert {room(path) for path in FILES} == set(LEVEL)


@every_file
def test_imports_go_down_only(path: Path) -> None:
    own = room(path)
    wrong = {other for other in rooms_of(parsed(path), package_of(path)) if not may_import(own, other)}
    assert wrong == set(), f"{own} stands below {wrong}, or beside it"


@every_file
def test_every_module_says_what_it_is(path: Path) -> None:
    said = ast.get_docstring(parsed(path))
    assert said
    assert said.strip()


@pytest.mark.parametrize("path", [path for path in FILES if room(path) == "nn"], ids=name_of)
def test_nn_needs_nothing_but_torch(path: Path) -> None:
    allowed = {"torch", *sys.stdlib_module_names}
    for name in imports(parsed(path), package_of(path)):
        assert name.split(".")[0] in allowed or name.startswith("regard.nn."), name


@every_file
def test_nothing_that_is_read_can_run(path: Path) -> None:
    tree = parsed(path)
    assert not {name.split(".")[0] for name in imports(tree, package_of(path))} & UNPACKERS
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = {function.id for function in calls if isinstance(function, ast.Name)}
    assert not named & {"eval", "exec", "compile", "__import__"}
    attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not attributes & {"torch.save", "yaml.unsafe_load", "yaml.full_load", "yaml.Loader"}
    assert ("torch.load" in attributes) == (name_of(path) == "tasks/captioning/weights.py")
    loads = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"]
    assert len(loads) == ("torch.load" in attributes)
    assert all("weights_only=True" in ast.unparse(node) for node in loads), "tensors, and nothing that runs"
    keywords = {word.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords}
    assert "allow_pickle" not in keywords
    assert "torch.load" not in set(imports(tree, package_of(path)))


def test_the_command_line_starts_without_torch() -> None:
    code = (
        "import sys, regard, regard.cli, regard.recipes, regard.text, regard.data.corpus, regard.data.settings\n"
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
    assert rooms_of(ast.parse(code), ["regard", own]) == found


def test_the_check_knows_up_from_down() -> None:
    assert may_import("cli", "nn")
    assert may_import("nn", "nn")
    assert may_import("config", "errors")
    assert not may_import("nn", "models")
    assert not may_import("translate", "training")
    assert not may_import("tasks", "training")
    assert not may_import("errors", "nn")
    assert not may_import("data", "evaluate")
