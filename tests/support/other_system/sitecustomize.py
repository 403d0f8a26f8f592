"""Make regard see the `os`, `sys`, `signal` … of Windows or macOS, in this process and those that it spawns.

Python imports this module at start-up if its folder is in PYTHONPATH. REGARD_TEST_SYSTEM is `win32` or `darwin`. Only
modules of regard get the changed modules. What the file system of Windows refuses, it refuses to all modules.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import mmap
import multiprocessing
import os
import resource
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

SYSTEM = os.environ["REGARD_TEST_SYSTEM"]
NO_MODULE = {"win32": ("resource", "fcntl", "triton"), "darwin": ("triton",)}[SYSTEM]
NO_NAME = {  # what the modules lack
    "win32": {
        "os": ["fork", "register_at_fork", "sched_getaffinity", "getuid", "geteuid", "setpgrp", "killpg", "mkfifo"],
        "signal": ["SIGHUP", "SIGCHLD", "SIGKILL", "SIGPIPE", "SIGUSR1", "pthread_sigmask", "raise_signal"],
        "mmap": ["MADV_DONTNEED"],
    },
    "darwin": {"os": ["sched_getaffinity"]},
}[SYSTEM]
original = {name: getattr(os, name) for name in ("open", "fsync", "rename", "replace", "unlink", "remove")}
original_io_open, original_import = io.open, builtins.__import__


class ChangedModule(ModuleType):
    """A module that lacks some names and has other values of others; the rest is that of the original."""

    def __init__(self, module: ModuleType, missing: list[str], values: dict[str, Any]) -> None:
        super().__init__(module.__name__)
        self._original, self._missing = module, missing
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"{self.__name__} has no {name} on {SYSTEM}")
        return getattr(self._original, name)


def count_bytes_like_macos(who: int) -> Any:
    """Return `ru_maxrss` in bytes."""
    usage = resource.getrusage(who)
    return type("Usage", (), {"ru_maxrss": usage.ru_maxrss * 1024})


VALUES: dict[str, dict[str, Any]] = {"sys": {"platform": SYSTEM}}
if SYSTEM == "win32":
    VALUES["multiprocessing"] = {"get_all_start_methods": lambda: ["spawn"]}
else:
    VALUES["resource"] = {"getrusage": count_bytes_like_macos}
CHANGED = {
    name: ChangedModule(module, NO_NAME.get(name, []), VALUES.get(name, {}))
    for name, module in {
        "os": os,
        "sys": sys,
        "signal": signal,
        "mmap": mmap,
        "multiprocessing": multiprocessing,
        "resource": resource,
    }.items()
}


def import_like_other_system(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> Any:
    """Import a module; those of regard get the changed ones."""
    importer = (globals or {}).get("__name__", "")
    if importer.partition(".")[0] != "regard" or level:
        return original_import(name, globals, locals, fromlist, level)
    if name.partition(".")[0] in NO_MODULE:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return CHANGED.get(name) or original_import(name, globals, locals, fromlist, level)


builtins.__import__ = import_like_other_system
multiprocessing.set_start_method("spawn")


def open_without_proc(file: Any, *arguments: Any, **options: Any) -> Any:
    """Open a file, but none of Linux's process file system."""
    if str(file).startswith("/proc/"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    return original_io_open(file, *arguments, **options)


io.open = open_without_proc


def open_files() -> set[str]:
    """Return the paths of the files that this process has open or mapped."""
    paths = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself
            paths.add(str(link.readlink()))
    with original_io_open("/proc/self/maps", encoding="utf-8") as file:
        return paths | {line.split(maxsplit=5)[-1].strip() for line in file if "/" in line}


def refuse_if_open(*paths: Any) -> None:
    """Raise PermissionError if this process has one of the files open, or a file in one of the folders."""
    for path in map(os.path.abspath, map(os.fspath, paths)):
        if not path.startswith(os.environ["REGARD_TEST_FOLDER"]):
            continue
        for other in open_files():
            if other == path or other.startswith(f"{path}{os.sep}"):
                raise PermissionError(errno.EACCES, f"{other} is open", path)


def refuse_open_files(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that renames or removes files, except open ones."""

    def call(*paths: Any, **options: Any) -> Any:
        refuse_if_open(*paths)
        return function(*paths, **options)

    return call


def open_like_windows(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
    """Open a file; folders are refused."""
    descriptor: int = original["open"](path, flags, *arguments, **options)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PermissionError(errno.EACCES, "a folder", path)
    return descriptor


def fsync_like_windows(descriptor: int) -> None:
    """Write a file to disk; descriptors without write access are refused."""
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    original["fsync"](descriptor)


if SYSTEM == "win32":
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    setattr(os, "open", open_like_windows)  # noqa: B010 - mypy
    setattr(os, "fsync", fsync_like_windows)  # noqa: B010
    for name in ("rename", "replace", "unlink", "remove"):
        setattr(os, name, refuse_open_files(original[name]))
