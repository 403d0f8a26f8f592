"""Run the `regard` command: forked from a process that has imported PyTorch, or started from scratch.

Forking saves the two seconds that `import torch` takes. Tests about start-up, signals or the environment start a new
interpreter with `regard_command` instead.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

ROOT = Path(__file__).parent.parent.parent
PRELOADED = [  # what takes long to import, and what typer imports with each command
    "support.commands",
    "torch",
    "torch._dynamo",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "rich.console",
    "typer._adapters",
    "typer.rich_utils",
    "regard.cli",
    "regard.corpus.statistics",
    "regard.search",
    "regard.tasks",
    "regard.training",
    "regard.translate",
]

Command = Callable[..., "CompletedProcess[str]"]


def environment() -> dict[str, str]:
    """Return the environment of a child process: one thread, the checkout on the path, no terminal."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "120"}


def regard_command(arguments: Sequence[object]) -> list[str]:
    """Return the argument list of `python -m regard …`."""
    return [sys.executable, "-m", "regard", *map(str, arguments)]


def run_forked(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], input: bytes, streams: Path
) -> CompletedProcess[str]:
    """Run `regard …` in `folder`; `streams` is the folder of the files that stand for stdin, stdout and stderr."""
    streams.mkdir(exist_ok=True)
    paths = [streams / name for name in ("in", "out", "err")]
    paths[0].unlink(missing_ok=True)
    os.mkfifo(paths[0])
    process = _fork_server().Process(
        target=_run_command, args=(arguments, str(folder), dict(environment), list(map(str, paths)))
    )
    with patch.dict(os.environ, environment):  # the fork server starts with the first process and keeps its environment
        process.start()
    writer = threading.Thread(target=_write_stdin, args=(paths[0], input), daemon=True)
    writer.start()
    process.join()
    if writer.is_alive():
        os.close(os.open(paths[0], os.O_RDONLY | os.O_NONBLOCK))  # the command read nothing: unblock the writer
    writer.join()
    assert process.exitcode is not None
    out, err = (path.read_bytes().decode() for path in paths[1:])
    return CompletedProcess(["regard", *arguments], process.exitcode, out, err)


@cache
def _fork_server() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _run_command(arguments: Sequence[str], folder: str, environment: dict[str, str], paths: Sequence[str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in enumerate(paths):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
        os.dup2(os.open(path, flags), number)
    sys.stdin, sys.stdout, sys.stderr = (open(number, "w" if number else "r", closefd=False) for number in range(3))  # noqa: SIM115
    sys.argv = ["regard", *arguments]
    runpy.run_module("regard", run_name="__main__", alter_sys=True)


def _write_stdin(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except BrokenPipeError:
        return
