"""Commands that a demo suggests at its end, spelled so that they work when pasted."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def format_next_steps(*commands: str) -> str:
    """Format `Try next:` with each command; `{regard}` is replaced by the way to call `regard` on this machine."""
    lines = [
        f"  {command.replace('{regard}', _find_regard_command())}{_format_install_hint(command)}"
        for command in commands
    ]
    return "\n".join(["Try next:", *lines])


def _find_regard_command() -> str:
    script = Path(sys.executable).with_name("regard")  # this environment may not be the activated one
    if not os.access(script, os.X_OK):
        return f"{shlex.quote(sys.executable)} -m regard"
    if (on_path := shutil.which("regard")) and Path(on_path).samefile(script):
        return "regard"
    return shlex.quote(str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script))


def _format_install_hint(command: str) -> str:
    """Return a hint if a command needs an extra that is not installed."""
    if " serve " not in command:
        return ""
    try:
        from regard.serve import serve  # noqa: F401
    except ModuleNotFoundError:
        return "   # first: pip install 'regard[serve]'"
    return ""
