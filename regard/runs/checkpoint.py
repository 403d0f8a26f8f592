"""One moment of a training run on disk: weights, optimizer, and all that the next update depends on.

safetensors and JSON, each with its checksum; written beside and renamed, so that what has the name is whole. Nothing
that is read here can run code.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

from regard.errors import UserError

FORMAT = 1
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


def write(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint; the folder appears when everything in it is on the disk."""
    beside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    save_model(model, str(beside / MODEL))
    save_file(optimizer_tensors(optimizer), str(beside / OPTIMIZER))
    files = {name: digest(beside / name) for name in (MODEL, OPTIMIZER)}
    document = {"format": FORMAT, **state, "files": files}
    (beside / STATE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for path in (*(beside / name for name in (MODEL, OPTIMIZER, STATE)), beside):
        sync(path)
    if folder.exists():
        shutil.rmtree(folder)
    beside.rename(folder)
    sync(folder.parent)


def read_state(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint, after its files have been held against their checksums."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        files = dict(state["files"])
        version = state["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(folder, f"{STATE} cannot be read") from error
    if version != FORMAT:
        raise UserError(f"checkpoint {folder} has format {version}; this version of regard reads format {FORMAT}")
    for name in (MODEL, OPTIMIZER):
        if not (folder / name).is_file():
            raise damaged(folder, f"{name} is missing")
        if digest(folder / name) != files.get(name):
            raise damaged(folder, f"{name} does not match its checksum")
    return dict(state)


def read_model(folder: Path, model: nn.Module) -> None:
    """Loads the weights into a model of the same recipe."""
    try:
        load_model(model, str(folder / MODEL))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise damaged(folder, f"{MODEL} does not fit the run's config.yaml: {' '.join(str(error).split())}") from error


def read_optimizer(folder: Path, optimizer: torch.optim.Optimizer) -> None:
    """Loads what the optimizer had gathered."""
    try:
        tensors = load_file(str(folder / OPTIMIZER))
        gathered: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            number, key = name.split(".", 1)
            gathered.setdefault(int(number), {})[key] = tensor
        optimizer.load_state_dict({"state": gathered, "param_groups": optimizer.state_dict()["param_groups"]})
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise damaged(folder, f"{OPTIMIZER} does not fit the run's config.yaml") from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors by the number of their parameter and their own name."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{key}": value.contiguous() for number, own in state.items() for key, value in own.items()}


def damaged(folder: Path, reason: str) -> UserError:
    """What to say of a checkpoint that cannot be used."""
    return UserError(f"checkpoint {folder} is damaged: {reason}; move it away to go on from the one before it")


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
