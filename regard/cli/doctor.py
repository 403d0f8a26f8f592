"""`regard doctor`: what this machine has, which implementations regard uses on it, and why no faster ones."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Literal

import typer

from regard.cli.options import describe_options
from regard.console import log_message
from regard.paths import find_cache_folder, format_json
from regard.version import VERSION

PACKAGES = {  # the extra that installs each optional package
    **{"ctranslate2": "export", "onnxruntime": "export", "fastapi": "serve", "ray": "cluster"},
    **{"translate-toolkit": "formats", "torchvision": "vision", "tensorboard": "tensorboard"},
}


@describe_options
def doctor(device: Literal["auto", "cuda", "mps", "cpu"] = "auto", as_json: bool = False) -> None:
    """Show which implementation each part of training and decoding uses on this machine, and why not a faster one.

    Example: regard doctor --json
    """
    from regard.fast.diagnosis import diagnose_parts
    from regard.training.distributed import choose_device

    chosen_device = choose_device(device, "--device ")
    log_message("running the fast paths in tiny models; kernels are compiled the first time")
    parts = diagnose_parts(chosen_device)
    machine, packages = describe_machine(), describe_packages()
    if as_json:
        report = {"machine": machine, "packages": packages, "implementations": [part._asdict() for part in parts]}
        typer.echo(format_json(report))
        return
    implementations = {part.part: part.implementation + (f" ({part.reason})" if part.reason else "") for part in parts}
    for title, rows in {"machine": machine, "packages": packages, "implementations": implementations}.items():
        typer.echo(f"{title}:")
        for name, value in rows.items():
            typer.echo(f"  {name}: {value}")


def describe_machine() -> dict[str, str]:
    """Return versions, processor, memory, GPUs, C compiler and cache folder."""
    import torch

    free, total = (
        int((_read_field("/proc/meminfo", field) or "0").split()[0]) / 2**20 for field in ("MemAvailable", "MemTotal")
    )
    machine = {
        "regard": VERSION,
        "python": platform.python_version(),
        "system": platform.platform(),
        "torch": torch.__version__,
        "cpu": f"{_read_field('/proc/cpuinfo', 'model name') or platform.machine()}, {torch.get_num_threads()} threads",
        "memory": f"{free:.1f} of {total:.1f} GiB free" if total else "unknown",
        "C compiler": _find_compiler() or "none: kernels that are not yet in the cache folder cannot be compiled",
        "cache folder": str(find_cache_folder()),
    }
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        machine[f"gpu {index}"] = (
            f"{properties.name}, sm_{properties.major}{properties.minor}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB"
            f" free, {getattr(properties, 'shared_memory_per_block_optin', 0) // 1024} KiB shared memory per block"
        )
    return machine


def describe_packages() -> dict[str, str]:
    """Return the version of each optional package, or how to install it."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and other commands do not need it

    packages = {}
    for name, extra in PACKAGES.items():
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = f"not installed (pip install 'regard[{extra}]')"
    return packages


def _find_compiler() -> str | None:
    """Return the first line of the version of the C compiler, or None."""
    command = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run([*command, "--version"], capture_output=True, encoding="utf-8", errors="replace", check=False)
    return next(iter(done.stdout.splitlines()), command[0])


def _read_field(path: str, field: str) -> str | None:
    """Return the value of the first line `field: value` of a file, None without such a file or line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), None)
