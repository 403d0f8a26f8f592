"""One moment of a training run on disk: weights, optimizer, and all that the next update depends on.

safetensors and JSON, each with its checksum; written beside and renamed, so that what has the name is whole. Nothing
that is read here can run code.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.data.disk import digest, sync
from regard.errors import UserError
from regard.strict_json import dumps

Tensors = Mapping[str, Tensor]

FORMAT = 1
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


def write(folder: Path, model: Tensors, optimizer: Tensors, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint; the folder appears when everything in it is on the disk."""
    if folder.exists():
        rewrite(folder, state)
        return
    sweep(folder.parent)
    beside = folder.with_name(f".{folder.name}.part")
    try:
        beside.mkdir(parents=True)
        fill(beside, {MODEL: model, OPTIMIZER: optimizer}, state)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise UserError(f"checkpoint {folder} could not be written ({error}); those before it are whole") from error
    except BaseException:
        shutil.rmtree(beside)
        raise
    beside.rename(folder)
    sync(folder.parent)


def remove(folder: Path) -> None:
    """Removes a checkpoint: first its name, so that what has a name is whole also where this is cut short."""
    aside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    shutil.rmtree(aside)


def sweep(folder: Path) -> None:
    """Removes what is left of writes and removals that were killed."""
    for leftover in folder.glob(".*.part"):
        shutil.rmtree(leftover)


def rewrite(folder: Path, state: Mapping[str, Any]) -> None:
    """New words on a step that is saved already: its weights are what they were, only what is known of it changes."""
    document = {"format": FORMAT, **state, "files": read_state(folder)["files"]}
    beside = folder / f".{STATE}.part"
    beside.write_text(dumps(document, indent=1) + "\n", encoding="utf-8")
    sync(beside)
    beside.replace(folder / STATE)
    sync(folder)


def fill(folder: Path, files: Mapping[str, Tensors], state: Mapping[str, Any]) -> None:
    """Writes the files of a checkpoint and waits until they are on the disk."""
    with ThreadPoolExecutor() as together:  # checksums keep the processor busy, syncing the disk
        for name, tensors in files.items():
            save_file(dict(tensors), str(folder / name))
        synced = [together.submit(sync, folder / name) for name in files]
        digests = {name: together.submit(digest, folder / name) for name in files}
        document = {"format": FORMAT, **state, "files": {name: one.result() for name, one in digests.items()}}
        for one in synced:
            one.result()
    (folder / STATE).write_text(dumps(document, indent=1) + "\n", encoding="utf-8")
    for path in (folder / STATE, folder):
        sync(path)


def read_state(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        version, files, best = state["format"], state["files"], state.get("best")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(folder, f"{STATE} cannot be read") from error
    if type(version) is not int or not isinstance(files, dict) or not isinstance(best, dict | None):
        raise damaged(folder, f"{STATE} is not what training wrote")
    if version != FORMAT:
        raise UserError(f"checkpoint {folder} has format {version}; this version of regard reads format {FORMAT}")
    return dict(state)


def checked(folder: Path, name: str) -> str:
    """The path of one of a checkpoint's files, after it has been held against its checksum."""
    expected = read_state(folder)["files"].get(name)
    if not (folder / name).is_file():
        raise damaged(folder, f"{name} is missing")
    if digest(folder / name) != expected:
        raise damaged(folder, f"{name} does not match its checksum")
    return str(folder / name)


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors of one of a checkpoint's files."""
    path = checked(folder, name)
    try:
        return load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise damaged(folder, f"{name} holds no tensors: {' '.join(str(error).split())}") from error


def read_model(folder: Path, model: nn.Module) -> None:
    """Loads the weights into a model of the same recipe."""
    model.load_state_dict(fitting(folder, model), strict=False)


def fitting(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    """The weights, if they are those of such a model, which may be an outline without numbers (on device meta)."""
    tensors = read_tensors(folder, MODEL)
    check_fit(folder, tensors, unique_tensors(model))
    return tensors


def check_fit(folder: Path, tensors: Tensors, own: Tensors) -> None:
    """Whether tensors that were read are those of a model, by name, shape and kind."""
    if tensors.keys() != own.keys():
        raise damaged(folder, f"{MODEL} does not fit the run's config.yaml: it holds {len(tensors)} other tensors")
    for name, tensor in tensors.items():
        if (tensor.shape, tensor.dtype) != (own[name].shape, own[name].dtype):
            raise damaged(
                folder,
                f"{MODEL} does not fit the run's config.yaml: {name} is {kind_of(tensor)}, not {kind_of(own[name])}",
            )


def kind_of(tensor: Tensor) -> str:
    """Numbers and their form: `float32 8×24`."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape))}"


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's tensors, each under the first of its names where it has several (tied weights)."""
    first: dict[int, str] = {}
    whole = model.state_dict(keep_vars=True)
    for name, tensor in whole.items():
        first.setdefault(id(tensor), name)
    return {name: whole[name].detach().contiguous() for name in first.values()}


def read_optimizer(
    tensors: Tensors,
    optimizer: torch.optim.Optimizer,
    part: Callable[[Tensor, Tensor], Tensor] = lambda whole, _: whole,
) -> None:
    """Gives an optimizer what it had gathered: the tensors that `optimizer_tensors` named; others are left alone.

    `part` cuts what belongs to this process out of a tensor that is as large as a weight.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    gathered: dict[int, dict[str, Tensor]] = {}
    known = {str(number): number for number in range(len(weights))}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        if number in known:
            weight = weights[known[number]]
            if tensor.dim() and tensor.shape != weight.shape:
                raise ValueError(f"{name} is {kind_of(tensor)}, its weight {kind_of(weight)}")
            gathered.setdefault(known[number], {})[key] = part(tensor, weight) if tensor.dim() else tensor
    if len({frozenset(own) for own in gathered.values()}) > 1:
        raise ValueError("not every weight has the same tensors")
    optimizer.load_state_dict({"state": gathered, "param_groups": optimizer.state_dict()["param_groups"]})


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors by the number of their parameter and their own name."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{key}": value.contiguous() for number, own in state.items() for key, value in own.items()}


class DamageError(UserError):
    """A checkpoint cannot be used."""


def damaged(folder: Path, reason: str) -> DamageError:
    """What to say of a checkpoint that cannot be used."""
    return DamageError(f"checkpoint {folder} is damaged: {reason}")
