"""Generate the reference pages from the code: command line, recipe keys, environment variables, HTTP and Python API.

`make docs` puts them on the documentation site; `python docs/reference.py FOLDER` writes them as Markdown files.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import typer
import yaml

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"^Example: (.*)$", re.MULTILINE)
HEADING = re.compile(r"^\w+:$")
QUOTED_TYPE = re.compile(r"(: |-> )'([^']*)'")
MAX_SIGNATURE = 100
KEY = re.compile(r"^  (\w+): (.*?)(?:\s+# (.*))?$")
ENVIRONMENT_CALLS = ("get", "setdefault", "pop")
PUBLIC_PACKAGES = (
    *("regard", "regard.translate", "regard.search", "regard.training", "regard.evaluate", "regard.documents"),
    *("regard.models", "regard.tasks", "regard.text", "regard.runs", "regard.nn"),
)


def escape_cell(text: object) -> str:
    """Return a text for a cell of a table; what stands in backquotes stays as it is."""
    parts = " ".join(str(text).split()).split("`")
    parts[::2] = [part.replace("|", "\\|").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def make_code(text: object) -> str:
    """Return code for a cell of a table."""
    return f"`{' '.join(str(text).split())}`" if str(text) else ""


def make_table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table for Python-Markdown, which does not split cells at a `|` in code."""
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# Command line


def iterate_commands() -> Iterator[tuple[str, Any]]:
    """Yield each command with its full name, `regard data clean`, in the order of the help."""
    from regard.cli.app import app

    def visit(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for child, subcommand in command.commands.items():
                yield from visit(f"{name} {child}", subcommand)
        else:
            yield name, command

    yield from visit("regard", typer.main.get_command(app))


def make_command_line_page() -> str:
    """Describe every command with all of its arguments and options."""
    parts = ["# Command line", "`regard COMMAND --help` prints the same. Options of all commands: `--help`, `--debug`."]
    for name, command in iterate_commands():
        context = command.make_context(name, [], resilient_parsing=True)
        arguments = [piece for parameter in command.params for piece in parameter.get_usage_pieces(context)]
        parts += [f"## {name}", EXAMPLE.sub(r"```\n\1\n```", inspect.cleandoc(command.help))]
        parts.append(f"Usage: `{' '.join([name, '[OPTIONS]', *arguments])}`")
        records = [parameter.get_help_record(context) for parameter in command.params if not parameter.hidden]
        rows = [(make_code(name), escape_cell(text)) for name, text in records]
        parts.append(make_table(("argument or option", "meaning"), rows) if rows else "")
    return "\n\n".join(filter(None, parts)) + "\n"


# Recipe keys


def list_recipe_keys() -> dict[str, dict[str, dict[str, list[str]]]]:
    """Return section → key → `value  # comment` → recipes that have it so."""
    from regard.recipes.recipe import list_recipes, read_recipe_text

    keys: dict[str, dict[str, dict[str, list[str]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for recipe in list_recipes():
        section = ""
        for line in read_recipe_text(recipe).splitlines():
            if HEADING.match(line):
                section = line.rstrip(":")
            elif section and (match := KEY.match(line)):
                key, value, comment = match.groups()
                keys[section][key][f"{value}  # {comment or ''}"].append(recipe)
    return keys


def make_recipe_keys_page() -> str:
    """Describe every key of every recipe, with its values."""
    parts = [
        "# Recipe keys",
        "Each key can be changed on the command line of `regard train`, as in `model.size=256`. `regard recipes NAME` "
        "prints one recipe with the same comments. A recipe has the keys of its model and its task only; a value "
        "without names is that of every recipe with the key.",
    ]
    for section, keys in list_recipe_keys().items():
        parts.append(f"## {section}")
        rows = []
        for key, values in keys.items():
            meanings: dict[str, list[str]] = defaultdict(list)
            for text, recipes in values.items():
                value, _, comment = text.partition("  # ")
                meanings[comment].append(f"{make_code(value)} ({', '.join(recipes)})")
            for comment, given in meanings.items():
                is_same = len(given) == 1 and len(values) == 1
                recipes_of_key = given[0].partition("` (")[0] + "`" if is_same else "; ".join(given)
                rows.append((make_code(f"{section}.{key}"), escape_cell(comment), recipes_of_key))
        parts.append(make_table(("key", "meaning", "value in the recipes"), rows))
    return "\n\n".join(parts) + "\n"


# Environment variables


def find_environment_variables() -> set[str]:
    """Return the names of all environment variables that `regard` reads or sets, found in its source code."""
    options = yaml.safe_load((ROOT / "regard/cli/options.yaml").read_text(encoding="utf-8"))
    found = {option["envvar"] for group in options.values() for option in group.values() if "envvar" in option}
    for path in sorted((ROOT / "regard").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "environ" not in text:
            continue
        nodes = list(ast.walk(ast.parse(text)))
        constants: dict[str, object] = {}
        for node in nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    constants |= _list_constants(target, node.value)
        for name in itertools.chain.from_iterable(map(_list_variable_names, nodes)):
            value = name.value if isinstance(name, ast.Constant) else constants.get(getattr(name, "id", ""))
            if isinstance(value, str):
                found.add(value)
    return found


def _list_constants(target: ast.expr, value: ast.expr) -> dict[str, object]:
    """Return the names that an assignment gives to constants."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=True))
    else:
        pairs = [(target, value)]
    return {name.id: one.value for name, one in pairs if isinstance(name, ast.Name) and isinstance(one, ast.Constant)}


def _list_variable_names(node: ast.AST) -> list[ast.expr]:
    """Return the expressions that name environment variables in a node of a syntax tree."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ENVIRONMENT_CALLS:
        return node.args[:1] if _is_environment(node.func.value) else []
    if isinstance(node, ast.Subscript) and _is_environment(node.value):
        return [node.slice]
    if isinstance(node, ast.Compare) and _is_environment(node.comparators[0]):
        return [node.left]
    return []


def _is_environment(node: ast.expr) -> bool:
    """Return whether an expression is `os.environ`."""
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def make_environment_page() -> str:
    """Describe the environment variables; one that the code uses and `environment.yaml` lacks is an error."""
    described: dict[str, dict[str, str]] = yaml.safe_load((ROOT / "docs/environment.yaml").read_text(encoding="utf-8"))
    names = {name for group in described.values() for name in group}
    if missing := find_environment_variables() - names:
        raise SystemExit(f"docs/environment.yaml does not describe {', '.join(sorted(missing))}")
    parts = ["# Environment variables"]
    for group, variables in described.items():
        rows = [(make_code(name), escape_cell(text)) for name, text in variables.items()]
        parts += [f"## {group}", make_table(("variable", "meaning"), rows)]
    for command, options in list_option_variables().items():
        rows = [(make_code(variable), make_code(option)) for variable, option in options.items()]
        parts += [f"## Options of {command}", make_table(("variable", "option"), rows)]
    return "\n\n".join(parts) + "\n"


def list_option_variables() -> dict[str, dict[str, str]]:
    """Return command → environment variable → option, for options that can be set by a variable."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, command in iterate_commands():
        for parameter in command.params:
            variables = parameter.envvar or ()
            for variable in [variables] if isinstance(variables, str) else variables:
                found[name][variable] = parameter.opts[0]
    return found


# HTTP API


def read_openapi() -> dict[str, Any]:
    """Return the OpenAPI description of a service without models."""
    from regard.serve.app import make_routes
    from regard.serve.settings import Settings

    return make_routes(MagicMock(settings=Settings())).openapi()


def name_type(schema: dict[str, Any]) -> str:
    """Return a short name of the type that a JSON schema describes, with links to named schemas."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(name_type, options)))
    if schema.get("type") == "array":
        return f"list of {name_type(schema.get('items') or schema.get('prefixItems', [{}])[0])}"
    if values := schema.get("enum"):
        return ", ".join(make_code(value) for value in values)
    return str(schema.get("type", "any"))


def make_fields_table(schema: dict[str, Any]) -> str:
    """Return a table of the fields of an object."""
    required = schema.get("required", ())
    rows = [
        (
            make_code(name),
            name_type(field),
            "required" if name in required else make_code(field["default"]) if field.get("default") else "",
            escape_cell(field.get("description", "")),
        )
        for name, field in schema.get("properties", {}).items()
    ]
    return make_table(("field", "type", "default", "meaning"), rows) if rows else ""


def make_http_page() -> str:
    """Describe each route of the service, its parameters and its responses."""
    api = read_openapi()
    parts = [
        "# HTTP API",
        "The routes of `regard serve`. A running service has this description at `/openapi.json`, and pages to try it "
        'at `/docs`. Every error is `{"error": "…"}`.',
    ]
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            parts += [f"## {method.upper()} {path}", operation.get("description") or operation.get("summary", "")]
            rows = [
                (make_code(one["name"]), one["in"], name_type(one["schema"]), escape_cell(one.get("description", "")))
                for one in operation.get("parameters", ())
            ]
            parts.append(make_table(("parameter", "in", "type", "meaning"), rows) if rows else "")
            content = operation.get("requestBody", {}).get("content", {})
            for schema in [body["schema"] for body in content.values()][:1]:  # the same for each type of content
                parts += [f"Body ({', '.join(map(make_code, content))}):", make_fields_table(schema)]
            responses = []
            for status, response in operation["responses"].items():
                types = [
                    name_type(body["schema"]) for body in response.get("content", {}).values() if body.get("schema")
                ]
                responses.append((status, ", ".join(types), escape_cell(response.get("description", ""))))
            parts.append(make_table(("status", "body", "meaning"), responses))
    parts.append("## Schemas")
    for name, schema in api["components"]["schemas"].items():
        parts += [f"### {name}", schema.get("description", ""), make_fields_table(schema)]
    return "\n\n".join(filter(None, parts)) + "\n"


# Python API


def format_signature(name: str, member: Any) -> str:
    """Return a call of a function or class with its parameters, one per line if they are many."""
    try:
        signature = inspect.signature(member)
    except (TypeError, ValueError):  # protocols and type aliases
        return name
    signature = signature.replace(parameters=[one for one in signature.parameters.values() if one.name != "self"])
    text = QUOTED_TYPE.sub(r"\1\2", f"{name}{signature}")
    if len(text) <= MAX_SIGNATURE or not inspect.isclass(member):
        return text
    parameters = [QUOTED_TYPE.sub(r"\1\2", str(one)) for one in signature.parameters.values()]
    return f"{name}(\n    " + ",\n    ".join(parameters) + "\n)"


def describe_member(name: str, member: Any, prefix: str) -> list[str]:
    """Return the heading, the signature and the docstring of a public function or class, and of its public methods."""
    text = inspect.getdoc(member) or ""
    if not callable(member):
        return [f"### {prefix}.{name}", make_code(type(member).__name__)]
    parts = [f"### {prefix}.{name}", f"```python\n{format_signature(name, member)}\n```"]
    if not text.startswith(f"{name}("):  # the docstring that dataclasses make
        parts.append(text)
    if inspect.isclass(member):
        methods = [
            (make_code(format_signature(key, method)), escape_cell((inspect.getdoc(method) or "").split("\n\n")[0]))
            for key, method in vars(member).items()
            if inspect.isfunction(method) and not key.startswith("_")
        ]
        parts.append(make_table(("method", "meaning"), methods) if methods else "")
    return parts


def make_python_page() -> str:
    """Describe everything that the public packages export."""
    parts = ["# Python API", "The names that the packages export. Other names may change in any version."]
    for package in PUBLIC_PACKAGES:
        module = importlib.import_module(package)
        parts += [f"## {package}", inspect.getdoc(module) or ""]
        for name in module.__all__:
            if not name.startswith("__"):
                parts += describe_member(name, getattr(module, name), package)
    return "\n\n".join(filter(None, parts)) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "command-line.md": make_command_line_page,
    "recipe-keys.md": make_recipe_keys_page,
    "environment.md": make_environment_page,
    "http-api.md": make_http_page,
    "python-api.md": make_python_page,
}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for page, make_page in PAGES.items():
        (folder / page).write_text(make_page(), encoding="utf-8")
