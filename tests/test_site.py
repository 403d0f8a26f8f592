"""The documentation site: its reference has everything that the code has, and it is built without broken links."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """Return the functions of the script that generates the reference."""
    return runpy.run_path(str(ROOT / "docs" / "reference.py"))


def test_command_line_reference_has_every_option(reference: dict[str, Any]) -> None:
    page = reference["make_command_line_page"]()
    commands = dict(reference["iterate_commands"]())
    assert {"regard train", "regard data clean", "regard keys add"} <= commands.keys()
    for name, command in commands.items():
        _, _, section = page.partition(f"## {name}\n")
        section = section.partition("\n## ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert any(flag in section for flag in parameter.opts), f"{name} {parameter.opts}"


def test_environment_reference_has_every_variable_of_the_code(reference: dict[str, Any]) -> None:
    found = reference["find_environment_variables"]()
    assert {"REGARD_FAST", "REGARD_DATA", "REGARD_IMPORT", "REGARD_METRICS_TOKEN", "RANK", "WORLD_SIZE"} <= found
    page = reference["make_environment_page"]()
    assert [name for name in found if f"`{name}`" not in page] == []
    options = reference["list_option_variables"]()
    assert options["regard serve"]["REGARD_METRICS_TOKEN"] == "--metrics-token"
    assert all(f"| `{name}` | `{option}` |" in page for group in options.values() for name, option in group.items())


def test_messages_in_troubleshooting_are_those_of_the_code() -> None:
    """Each part of a quoted message between `…` occurs in a string of the source code."""
    sources = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "regard").rglob("*.py")))
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))  # strings that are continued in the next line
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(messages) >= 25
    for message in messages:
        parts = [part.strip(" ();:?") for part in message.split("…")]
        assert [part for part in parts if part not in code] == [], message


@pytest.mark.slow
def test_recipe_reference_has_every_key_with_a_meaning(reference: dict[str, Any]) -> None:
    from regard.recipes.recipe import list_recipes, read_recipe

    lines = reference["make_recipe_keys_page"]().splitlines()
    meanings = {line.split(" | ")[0].strip("| `"): line.split(" | ")[1] for line in lines if line.startswith("| `")}
    for recipe in list_recipes():
        for section, keys in read_recipe(recipe).items():
            for key in keys if isinstance(keys, dict) else ():
                assert meanings.get(f"{section}.{key}"), f"{recipe}: {section}.{key}"


@pytest.mark.slow
def test_http_reference_has_every_route_and_field(reference: dict[str, Any]) -> None:
    page, api = reference["make_http_page"](), reference["read_openapi"]()
    assert {"/translate", "/translate_file", "/metrics", "/ready"} <= api["paths"].keys()
    for path, operations in api["paths"].items():
        assert all(f"## {method.upper()} {path}\n" in page for method in operations)
    for schema in api["components"]["schemas"].values():
        assert all(f"| `{field}` |" in page for field in schema.get("properties", {}))


@pytest.mark.slow
def test_python_reference_has_every_exported_name(reference: dict[str, Any]) -> None:
    import regard.nn
    import regard.translate

    page = reference["make_python_page"]()
    for package in (regard.nn, regard.translate):
        assert [name for name in package.__all__ if f"### {package.__name__}.{name}\n" not in page] == []
    assert "0x" not in page


@pytest.mark.slow
def test_site_is_built_without_broken_links(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "First steps" in index
    assert (tmp_path / "site" / "reference" / "command-line.html").is_file()
