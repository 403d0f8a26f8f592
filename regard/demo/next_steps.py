"""The commands that a demo suggests at its end, spelled so that they work as they are printed."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path


def format_next_steps(*commands: str) -> str:
    """Format `Try next:` with each command; `{regard}` in it is replaced by how `regard` is called here."""
    lines = [f"  {command.replace('{regard}', _program())}{_install_hint(command)}" for command in commands]
    return "\n".join(["Try next:", *lines])


def _program() -> str:
    if shutil.which("regard"):
        return "regard"
    script = Path(sys.executable).with_name("regard")  # a virtual environment that is not activated
    if os.access(script, os.X_OK):
        return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)
    return "python -m regard"


def _install_hint(command: str) -> str:
    """Return a hint where a command needs an extra that is not installed."""
    if " serve " not in command or (find_spec("fastapi") and find_spec("uvicorn")):
        return ""
    return "   # first: pip install 'regard[serve]'"
