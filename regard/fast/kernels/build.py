"""C kernels: compiled for this CPU at first use, and cached."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from regard.paths import find_cache_folder

SOURCES = Path(__file__).with_name("native")
HEADER = SOURCES / "simd.h"
FLAGS = ("-O3", "-march=native" if platform.machine() == "x86_64" else "-mcpu=native", "-fPIC")
CPUINFO_KEYS = {
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
}
PASSED = "approved"
COMPILER_TIMEOUT = 60  # per compiler call
POINTER = ctypes.c_void_p
INTEGERS = {"int": ctypes.c_int, "long": ctypes.c_long, "int64_t": ctypes.c_int64}
C_TYPES: dict[str, Any] = {"void": None, "float": ctypes.c_float, **INTEGERS}
Signatures = dict[str, tuple[Any, list[Any]]]  # return type and argument types of each function


class KernelUnavailableError(Exception):
    """C kernels cannot be used here; the message says why."""


@cache
def read_api(folder: Path) -> tuple[dict[str, type[ctypes.Structure]], Signatures]:
    """Return the structs and functions that the `api.h` of a source folder declares.

    Pointers are addresses, except for parameters that point to structs.
    """
    text = re.sub(r"/\*.*?\*/", "", (folder / "api.h").read_text(encoding="utf-8"), flags=re.DOTALL)
    types = dict(C_TYPES)
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", text, re.DOTALL):
        groups = re.findall(r"(?:const )?(\w+) ([^;]+);", body)
        declared = [(kind, field.strip()) for kind, fields in groups for field in fields.split(",")]
        fields = [(field.strip("*"), POINTER if field.startswith("*") else types[kind]) for kind, field in declared]
        types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    structs = {name: types[name] for name in types.keys() - C_TYPES.keys()}
    pointers = {name: ctypes.POINTER(struct) for name, struct in structs.items()}
    signatures: Signatures = {}
    for result, name, parameters in re.findall(r"^(\w+) (\w+)\(([^)]*)\);", text, re.MULTILINE):
        kinds = re.findall(r"(\w+) (\*?)\w+(?:,|$)", parameters)
        takes = [pointers.get(kind, POINTER) if star else types[kind] for kind, star in kinds]
        signatures[name] = C_TYPES[result], takes
    return structs, signatures


def load_library(folder: Path, *, threaded: bool = False, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """Load the kernels of a source folder, and compile them if they are not cached."""
    if sys.platform == "win32":  # its `long` has 32 bits, and its compilers have other options
        raise KernelUnavailableError("there are no C kernels for Windows; they run in WSL 2")
    threads = find_torch_openmp() if threaded else None
    path = _find_or_compile(folder, [*FLAGS, *flags, *["-fopenmp"] * (threads is not None)])
    try:
        if threads is not None:
            ctypes.CDLL(threads, ctypes.RTLD_GLOBAL)
        found, (_, signatures) = ctypes.CDLL(str(path)), read_api(folder)
    except OSError as error:
        raise KernelUnavailableError(str(error)) from error
    for name, (gives, takes) in signatures.items():
        function = getattr(found, name)
        function.restype, function.argtypes = gives, takes
    return found


def require_selftest(kernels: ctypes.CDLL, selftest: Callable[[], str]) -> None:
    """Raise a `KernelUnavailableError` if the self-test fails.

    Its result is stored beside the library, so that a resumed run uses the same kernels as before.
    """
    path, result = Path(kernels._name).with_suffix(".selftest"), ""
    with suppress(OSError):
        result = path.read_text(encoding="utf-8")
    if not result:
        result = selftest() or PASSED
        with suppress(OSError), tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            made.write_text(result, encoding="utf-8")
            made.replace(path)
    if result != PASSED:
        raise KernelUnavailableError(result)


def _find_or_compile(folder: Path, flags: Sequence[str]) -> Path:
    """Return the cached library for these sources, flags, compiler and CPU; compile it if there is none.

    Without a compiler, the newest library for these sources, flags and CPU is returned.
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    command = [*compiler, *flags]
    try:
        sources = sorted(folder.glob("*.c"))
        source_texts = [path.read_bytes() for path in (HEADER, *sorted(folder.glob("*.h")), *sources)]
        name = f"{folder.name}-{_hash(*source_texts, *map(str.encode, [*flags, describe_cpu()]))}"
        cache = find_cache_folder() / "kernels"
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)  # others may read it, as users of a container image
        _refuse_shared(cache)
        if shutil.which(compiler[0]) is None:
            path = max(cache.glob(f"{name}-*.so"), key=lambda path: path.stat().st_mtime, default=None)
            if path is None:
                raise KernelUnavailableError(f"there is no C compiler {compiler[0]}; set CC to another")
        else:
            # Predefined macros identify the compiler and the CPU features that it uses; CC may have further options.
            macros = _run_compiler([*command, "-dM", "-E", "-x", "c", os.devnull])
            path = cache / f"{name}-{_hash(macros, *map(str.encode, compiler))}.so"
            if not path.exists():
                _compile_library(path, command, compiler, sources)
        _refuse_shared(path)
    except (OSError, RuntimeError) as error:  # e.g. no home directory
        raise KernelUnavailableError(f"{error}; set REGARD_CACHE to another folder") from error
    return path


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:24]


def _refuse_shared(path: Path) -> None:
    """Raise a `KernelUnavailableError` if another user may write to a path: code is loaded from it."""
    status = path.stat()
    if hasattr(os, "geteuid") and (status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022):
        raise KernelUnavailableError(f"other users may write to {path}; set REGARD_CACHE to a folder of your own")


def _compile_library(path: Path, command: list[str], linker: list[str], sources: list[Path]) -> None:
    """Compile to a temporary file and move it, because another process may do the same.

    It is linked without the compiler's OpenMP library: PyTorch's is loaded already, and two would compete for the
    cores.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        parts, made = [f"{folder}/{source.stem}.o" for source in sources], Path(folder) / path.name
        for part, source in zip(parts, sources, strict=True):
            _run_compiler([*command, "-c", str(source), "-o", part])
        _run_compiler([*linker, "-shared", *parts, "-o", str(made), "-lm"])
        made.chmod(0o755)  # whatever the umask is
        made.replace(path)


def _run_compiler(command: list[str]) -> bytes:
    """Return the standard output of a compiler; raise a `KernelUnavailableError` with its first error."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, check=True, capture_output=True, timeout=COMPILER_TIMEOUT
        )
    except subprocess.CalledProcessError as error:
        errors = [line for line in error.stderr.decode(errors="replace").splitlines() if "error" in line]
        first = min(errors or [str(error)], key=lambda line: "#error" not in line)  # prefer messages of #error
        raise KernelUnavailableError(" ".join(first.split("#error")[-1].split())[:200]) from error
    except subprocess.TimeoutExpired as error:
        raise KernelUnavailableError(str(error)) from error
    return done.stdout


def find_torch_openmp() -> str | None:
    """Return the path of the OpenMP library that PyTorch has loaded, or None."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return None
    found = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "libgomp" in line}
    inside = Path(torch.__file__).parent
    homes = {inside, inside.with_name("torch.libs")}  # other packages may have loaded their own
    own = [path for path in found if homes & set(Path(path).parents)]
    return next(iter(sorted(own) or sorted(found)), None)


def describe_cpu() -> str:
    """Return the lines of /proc/cpuinfo that distinguish CPU models, since machines may share a cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.split(":")[0].strip() in CPUINFO_KEYS)
