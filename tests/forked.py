"""The command in a process of its own, forked from one that has loaded what takes longest to load.

It is started hundreds of times, and PyTorch takes seconds to load, which is not what these tests are about. What is
about the start itself, or about signals, starts the command with `conftest.command`.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

LOADED = ["forked", "torch", "regard.cli", "regard.search", "regard.tasks", "regard.training", "regard.translate"]


def forked(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], input: bytes, streams: Path
) -> CompletedProcess[str]:
    """Runs `regard …` in a folder; `streams` is one for what goes in and out."""
    streams.mkdir(exist_ok=True)
    paths = [streams / name for name in ("in", "out", "err")]
    paths[0].unlink(missing_ok=True)
    os.mkfifo(paths[0])
    process = context().Process(target=run, args=(arguments, str(folder), dict(environment), list(map(str, paths))))
    with patch.dict(os.environ, environment):  # the one that is forked from is started with the first
        process.start()
    writer = threading.Thread(target=write, args=(paths[0], input), daemon=True)
    writer.start()
    process.join()
    if writer.is_alive():
        os.close(os.open(paths[0], os.O_RDONLY | os.O_NONBLOCK))  # nobody has read: who writes need not wait
    writer.join()
    assert process.exitcode is not None
    out, err = (path.read_bytes().decode() for path in paths[1:])
    return CompletedProcess(["regard", *arguments], process.exitcode, out, err)


@cache
def context() -> multiprocessing.context.ForkServerContext:
    """Of processes that are forked from one with all of this loaded."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(LOADED)
    return made


def run(arguments: Sequence[str], folder: str, environment: dict[str, str], paths: Sequence[str]) -> None:
    """What the process does."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in enumerate(paths):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
        os.dup2(os.open(path, flags), number)
    sys.stdin, sys.stdout, sys.stderr = (open(number, "w" if number else "r", closefd=False) for number in range(3))  # noqa: SIM115
    sys.argv = ["regard", *arguments]
    runpy.run_module("regard", run_name="__main__", alter_sys=True)


def write(path: Path, data: bytes) -> None:
    """Lets a process read it; it may not want to, or not all of it."""
    try:
        path.write_bytes(data)
    except BrokenPipeError:
        return
