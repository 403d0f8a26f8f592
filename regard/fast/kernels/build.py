"""C kernels: compiled for this CPU at first use, and cached."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from regard.paths import find_cache_folder

SOURCES = Path(__file__).with_name("native")
HEADER = SOURCES / "simd.h"
FLAGS = ("-O3", "-march=native" if platform.machine() == "x86_64" else "-mcpu=native", "-fPIC")
TELLING = {
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
}
APPROVED = "approved"
SECONDS = 60  # that a compiler may take
WHOLE, YES, SINGLE, PLACE = ctypes.c_long, ctypes.c_int, ctypes.c_float, ctypes.c_void_p  # what functions take
Signatures = Mapping[str, tuple[Any, Sequence[Any]]]  # what each function gives, and what it takes


class MissingError(Exception):
    """There are no such kernels here; why."""


def library(folder: Path, signatures: Signatures, *, threaded: bool = False, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """The kernels of a folder of this room, compiled if they have not been."""
    threads = shared_threads() if threaded else None
    path = kept(folder, [*FLAGS, *flags, *["-fopenmp"] * (threads is not None)])
    try:
        if threads is not None:
            ctypes.CDLL(threads, ctypes.RTLD_GLOBAL)
        found = ctypes.CDLL(str(path))
    except OSError as error:
        raise MissingError(str(error)) from error
    for name, (gives, takes) in signatures.items():
        function = getattr(found, name)
        function.restype, function.argtypes = gives, takes
    return found


def approved(kernels: ctypes.CDLL, trial: Callable[[], str]) -> None:
    """Raises what speaks against kernels, if something does: a trial is made once for all runs on this machine, so that
    one that goes on counts as it did before."""
    path, verdict = Path(kernels._name).with_suffix(".verdict"), ""
    with suppress(OSError):
        verdict = path.read_text(encoding="utf-8")
    if not verdict:
        verdict = trial() or APPROVED
        with suppress(OSError), tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            made.write_text(verdict, encoding="utf-8")
            made.replace(path)
    if verdict != APPROVED:
        raise MissingError(verdict)


def kept(folder: Path, flags: Sequence[str]) -> Path:
    """Where they are, for this source, compiler and processor."""
    named = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(named[0]) is None:
        raise MissingError(f"there is no C compiler {named[0]}; CC names another")
    command = [*named, *flags]
    try:
        sources = sorted(folder.glob("*.c"))
        read = [path.read_bytes() for path in (HEADER, *sorted(folder.glob("*.h")), *sources)]
        macros = run([*command, "-dM", "-E", "-x", "c", os.devnull])  # they tell compilers apart, and processors
        told = b"\n".join([*read, macros, *map(str.encode, [*command, processor()])])
        path = find_cache_folder() / f"{folder.name}-{hashlib.sha256(told).hexdigest()[:24]}.so"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            compile_to(path, command, named, sources)
    except (OSError, RuntimeError) as error:  # there may be no home to keep it in
        raise MissingError(f"{error}; REGARD_CACHE names another folder") from error
    return path


def compile_to(path: Path, command: list[str], linker: list[str], sources: list[Path]) -> None:
    """Writes the library in one go: another process may want it at the same time.

    It is linked without the compiler's own threads: PyTorch's are there already, and the cores are for one of the two.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        parts, made = [f"{folder}/{source.stem}.o" for source in sources], Path(folder) / path.name
        for part, source in zip(parts, sources, strict=True):
            run([*command, "-c", str(source), "-o", part])
        run([*linker, "-shared", *parts, "-o", str(made), "-lm"])
        made.replace(path)


def run(command: list[str]) -> bytes:
    """What a compiler says."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, check=True, capture_output=True, timeout=SECONDS)
    except subprocess.CalledProcessError as error:
        told = [line for line in error.stderr.decode(errors="replace").splitlines() if "error" in line]
        first = min(told or [str(error)], key=lambda line: "#error" not in line)  # a source's own words, if it has some
        raise MissingError(" ".join(first.split("#error")[-1].split())[:200]) from error
    except subprocess.TimeoutExpired as error:
        raise MissingError(str(error)) from error
    return done.stdout


def shared_threads() -> str | None:
    """The library of threads that PyTorch has loaded: two of them would wait for each other's cores."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return None
    found = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "libgomp" in line}
    inside = Path(torch.__file__).parent
    homes = {inside, inside.with_name("torch.libs")}  # other packages may have theirs
    own = [path for path in found if homes & set(Path(path).parents)]
    return next(iter(sorted(own) or sorted(found)), None)


def processor() -> str:
    """What tells this one from others, on which the same folder may be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.split(":")[0].strip() in TELLING)
