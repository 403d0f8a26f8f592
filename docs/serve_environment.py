"""Write `deploy/regard.env`: the environment variable of each option of `regard serve`, with its default.

python docs/serve_environment.py
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import typer

from regard.cli.app import app

FILE = Path(__file__).parents[1] / "deploy" / "regard.env"
HEADER = """\
# Every option of `regard serve` as a variable, for `docker run --env-file`, and as /etc/regard.env for systemd.
# Remove the # before the lines that you change. Values are not quoted; several are separated by spaces.
# An option on the command line has precedence. Written by: python docs/serve_environment.py
"""


def format_environment() -> str:
    """Return the content of the file."""
    commands: Any = typer.main.get_command(app)
    blocks = [HEADER]
    for parameter in commands.commands["serve"].params:
        if parameter.envvar and not parameter.hidden:
            names = " ".join(name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("-"))
            title = f"{names}: {parameter.help}" if names else parameter.help
            lines = [f"# {line}" for line in textwrap.wrap(title, 110)]
            variable = parameter.envvar[0] if isinstance(parameter.envvar, list) else parameter.envvar
            blocks.append("\n".join([*lines, f"#{variable}={_format_default(parameter.default)}\n"]))
    return "\n".join(blocks)


def _format_default(value: Any) -> str:
    if value is None or callable(value) or isinstance(value, list | tuple):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    FILE.write_text(format_environment(), encoding="utf-8")
