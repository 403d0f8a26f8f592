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

from regard.errors import UserError
from regard.paths import compute_sha256, fsync_path
from regard.strict_json import dumps

_TensorMap = Mapping[str, Tensor]

CHECKPOINT_FORMAT = 1
MODEL_FILE, OPTIMIZER_FILE, STATE_FILE = "model.safetensors", "optimizer.safetensors", "state.json"


def write_checkpoint(folder: Path, model: _TensorMap, optimizer: _TensorMap, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint; the folder appears when everything in it is on the disk."""
    if folder.exists():
        rewrite_state_file(folder, state)
        return
    remove_partial_checkpoints(folder.parent)
    partial_folder = folder.with_name(f".{folder.name}.part")
    try:
        partial_folder.mkdir(parents=True)
        _write_checkpoint_files(partial_folder, {MODEL_FILE: model, OPTIMIZER_FILE: optimizer}, state)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial_folder, ignore_errors=True)
        raise UserError(f"checkpoint {folder} could not be written ({error}); those before it are whole") from error
    except BaseException:
        shutil.rmtree(partial_folder)
        raise
    partial_folder.rename(folder)
    fsync_path(folder.parent)


def remove_checkpoint(folder: Path) -> None:
    """Removes a checkpoint: first its name, so that what has a name is whole also where this is cut short."""
    renamed_folder = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(renamed_folder, ignore_errors=True)
    folder.rename(renamed_folder)
    shutil.rmtree(renamed_folder)


def remove_partial_checkpoints(folder: Path) -> None:
    """Removes what is left of writes and removals that were killed."""
    for leftover in folder.glob(".*.part"):
        shutil.rmtree(leftover)


def rewrite_state_file(folder: Path, state: Mapping[str, Any]) -> None:
    """New words on a step that is saved already: its weights are what they were, only what is known of it changes."""
    document = {"format": CHECKPOINT_FORMAT, **state, "files": read_state(folder)["files"]}
    partial_file = folder / f".{STATE_FILE}.part"
    partial_file.write_text(dumps(document, indent=1) + "\n", encoding="utf-8")
    fsync_path(partial_file)
    partial_file.replace(folder / STATE_FILE)
    fsync_path(folder)


def _write_checkpoint_files(folder: Path, files: Mapping[str, _TensorMap], state: Mapping[str, Any]) -> None:
    """Writes the files of a checkpoint and waits until they are on the disk."""
    with ThreadPoolExecutor() as together:  # checksums keep the processor busy, syncing the disk
        for name, tensors in files.items():
            save_file(dict(tensors), str(folder / name))
        synced = [together.submit(fsync_path, folder / name) for name in files]
        digests = {name: together.submit(compute_sha256, folder / name) for name in files}
        document = {
            "format": CHECKPOINT_FORMAT,
            **state,
            "files": {name: one.result() for name, one in digests.items()},
        }
        for one in synced:
            one.result()
    (folder / STATE_FILE).write_text(dumps(document, indent=1) + "\n", encoding="utf-8")
    for path in (folder / STATE_FILE, folder):
        fsync_path(path)


def read_state(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint."""
    try:
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        version, files, best = state["format"], state["files"], state.get("best")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise make_corrupt_error(folder, f"{STATE_FILE} cannot be read") from error
    if type(version) is not int or not isinstance(files, dict) or not isinstance(best, dict | None):
        raise make_corrupt_error(folder, f"{STATE_FILE} is not what training wrote")
    if version != CHECKPOINT_FORMAT:
        raise UserError(
            f"checkpoint {folder} has format {version}; this version of regard reads format {CHECKPOINT_FORMAT}"
        )
    return dict(state)


def verify_file(folder: Path, name: str) -> str:
    """The path of one of a checkpoint's files, after it has been held against its checksum."""
    expected = read_state(folder)["files"].get(name)
    if not (folder / name).is_file():
        raise make_corrupt_error(folder, f"{name} is missing")
    if compute_sha256(folder / name) != expected:
        raise make_corrupt_error(folder, f"{name} does not match its checksum")
    return str(folder / name)


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors of one of a checkpoint's files."""
    path = verify_file(folder, name)
    try:
        return load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise make_corrupt_error(folder, f"{name} holds no tensors: {' '.join(str(error).split())}") from error


def load_model_weights(folder: Path, model: nn.Module) -> None:
    """Loads the weights into a model of the same recipe."""
    model.load_state_dict(read_model_tensors(folder, model), strict=False)


def read_model_tensors(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    """The weights, if they are those of such a model, which may be an outline without numbers (on device meta)."""
    tensors = read_tensors(folder, MODEL_FILE)
    check_tensors_match(folder, tensors, collect_model_tensors(model))
    return tensors


def check_tensors_match(folder: Path, tensors: _TensorMap, expected: _TensorMap) -> None:
    """Whether tensors that were read are those of a model, by name, shape and kind."""
    if tensors.keys() != expected.keys():
        raise make_corrupt_error(
            folder, f"{MODEL_FILE} does not fit the run's config.yaml: it holds {len(tensors)} other tensors"
        )
    for name, tensor in tensors.items():
        if (tensor.shape, tensor.dtype) != (expected[name].shape, expected[name].dtype):
            raise make_corrupt_error(
                folder,
                f"{MODEL_FILE} does not fit the run's config.yaml: {name} is {_describe_tensor(tensor)}, not "
                f"{_describe_tensor(expected[name])}",
            )


def _describe_tensor(tensor: Tensor) -> str:
    """Numbers and their form: `float32 8×24`."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape))}"


def collect_model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's tensors, each under the first of its names where it has several (tied weights)."""
    first: dict[int, str] = {}
    whole = model.state_dict(keep_vars=True)
    for name, tensor in whole.items():
        first.setdefault(id(tensor), name)
    return {name: whole[name].detach().contiguous() for name in first.values()}


def load_optimizer_tensors(
    tensors: _TensorMap,
    optimizer: torch.optim.Optimizer,
    take_shard: Callable[[Tensor, Tensor], Tensor] = lambda whole, _: whole,
) -> None:
    """Gives an optimizer what it had gathered: the tensors that `optimizer_tensors` named; others are left alone.

    `part` cuts what belongs to this process out of a tensor that is as large as a weight.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    known = {str(number): number for number in range(len(weights))}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        if number in known:
            weight = weights[known[number]]
            if tensor.dim() and tensor.shape != weight.shape:
                raise ValueError(f"{name} is {_describe_tensor(tensor)}, its weight {_describe_tensor(weight)}")
            state.setdefault(known[number], {})[key] = take_shard(tensor, weight) if tensor.dim() else tensor
    if len({frozenset(own) for own in state.values()}) > 1:
        raise ValueError("not every weight has the same tensors")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def collect_optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors by the number of their parameter and their own name."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{key}": value.contiguous() for number, own in state.items() for key, value in own.items()}


class CorruptCheckpointError(UserError):
    """A checkpoint cannot be used."""


def make_corrupt_error(folder: Path, reason: str) -> CorruptCheckpointError:
    """What to say of a checkpoint that cannot be used."""
    return CorruptCheckpointError(f"checkpoint {folder} is damaged: {reason}")
