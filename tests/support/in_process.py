"""Run the `regard` command in the process of the tests.

It takes 0.1 s at most, where a forked process (`support.commands.run_forked`) takes 0.3 s and imports anew.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import chdir
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

import typer.main

from support.commands import environment

build_command = cache(typer.main.get_command)  # takes 0.06 s


def run_in_process(arguments: Sequence[str], folder: Path, input: bytes, streams: Path) -> CompletedProcess[str]:
    """Run `regard …` in `folder`; `streams` is the folder of the files that stand for stdin, stdout and stderr."""
    from regard.cli import main

    streams.mkdir(exist_ok=True)
    (streams / "in").write_bytes(input)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)}
    with (
        (streams / "in").open(encoding="utf-8") as stdin,
        (streams / "out").open("w", encoding="utf-8") as stdout,
        (streams / "err").open("w", encoding="utf-8") as stderr,
        chdir(folder),
        patch.dict(os.environ, environment()),
        patch("typer.main.get_command", build_command),
        patch.multiple(sys, argv=["regard", *arguments], stdin=stdin, stdout=stdout, stderr=stderr),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        else:
            code = 0
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    out, err = ((streams / name).read_bytes().decode() for name in ("out", "err"))
    assert code is None or isinstance(code, int)
    return CompletedProcess(["regard", *arguments], code or 0, out, err)
