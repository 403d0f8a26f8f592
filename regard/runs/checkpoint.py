"""Checkpoints on disk: weights, optimizer, and the state that the next update depends on.

A checkpoint is a folder of safetensors and JSON files with checksums. It is written under a temporary name and renamed,
so that a folder with its final name is complete. Reading a checkpoint cannot execute code.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from regard.console import log_message
from regard.errors import UserError, to_single_line
from regard.paths import (
    compute_sha256,
    create_folder_atomically,
    format_json,
    fsync_path,
    read_json_object,
    write_atomically,
)

if TYPE_CHECKING:  # `regard runs` reads states without PyTorch
    import torch
    from torch import Tensor, nn

    _TensorMap = Mapping[str, Tensor]

CHECKPOINT_FORMAT = 1
MODEL_FILE, OPTIMIZER_FILE, STATE_FILE = "model.safetensors", "optimizer.safetensors", "state.json"


def write_checkpoint(folder: Path, model: _TensorMap, optimizer: _TensorMap, state: Mapping[str, Any]) -> None:
    """Write a checkpoint.

    Its folder appears once all files are on the disk. An existing one only gets the new state.
    """
    if folder.exists():
        rewrite_state_file(folder, state)
        return
    remove_partial_checkpoints(folder.parent)
    try:
        with create_folder_atomically(folder) as partial_folder:
            _write_checkpoint_files(partial_folder, {MODEL_FILE: model, OPTIMIZER_FILE: optimizer}, state)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"checkpoint {folder} could not be written ({error}); earlier checkpoints are intact"
        ) from error
    fsync_path(folder.parent)


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint; it is renamed first, so that an interrupted removal leaves no incomplete checkpoint."""
    renamed_folder = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(renamed_folder, ignore_errors=True)
    try:
        folder.rename(renamed_folder)
    except PermissionError as error:  # on Windows, while another program reads it
        log_message(f"checkpoint {folder} cannot be removed now ({error.strerror}); the next removal tries again")
        return
    shutil.rmtree(renamed_folder)


def remove_partial_checkpoints(folder: Path) -> None:
    """Remove the remains of interrupted writes and removals."""
    for leftover in folder.glob(".*.part"):
        shutil.rmtree(leftover)


def rewrite_state_file(folder: Path, state: Mapping[str, Any]) -> None:
    """Update only `state.json` of an existing checkpoint; its tensors do not change."""
    write_atomically(folder / STATE_FILE, _format_state(state, read_state(folder)["files"]))


def _format_state(state: Mapping[str, Any], checksums: Mapping[str, str]) -> str:
    return format_json({"format": CHECKPOINT_FORMAT, **state, "files": checksums}, indent=1) + "\n"


def _write_checkpoint_files(folder: Path, files: Mapping[str, _TensorMap], state: Mapping[str, Any]) -> None:
    """Write the files of a checkpoint and wait until they are on the disk."""
    from safetensors.torch import save_file

    for name, tensors in files.items():
        save_file(dict(tensors), str(folder / name))
    paths = [folder / name for name in files]
    with ThreadPoolExecutor() as executor:  # checksums need the CPU while fsync waits for the disk
        syncs, checksums = executor.map(fsync_path, paths), executor.map(compute_sha256, paths)
        text = _format_state(state, dict(zip(files, checksums, strict=True)))
        list(syncs)  # raises what they have raised
    (folder / STATE_FILE).write_text(text, encoding="utf-8")
    for path in (folder / STATE_FILE, folder):
        fsync_path(path)


def read_state(folder: Path) -> dict[str, Any]:
    """Read `state.json` of a checkpoint; raise CorruptCheckpointError if it is damaged."""
    state = read_json_object(folder / STATE_FILE)
    if not state:
        raise make_corrupt_error(folder, f"{STATE_FILE} cannot be read")
    version, files, best = state.get("format"), state.get("files"), state.get("best")
    if type(version) is not int or not isinstance(files, dict) or not isinstance(best, dict | None):
        raise make_corrupt_error(folder, f"{STATE_FILE} lacks a valid format, files or best")
    if version != CHECKPOINT_FORMAT:
        raise UserError(
            f"checkpoint {folder} has format {version}; this version of regard reads format {CHECKPOINT_FORMAT}"
        )
    return state


def verify_file(folder: Path, name: str) -> str:
    """Return the path of one of a checkpoint's files after verifying its checksum."""
    expected = read_state(folder)["files"].get(name)
    if not (folder / name).is_file():
        raise make_corrupt_error(folder, f"{name} is missing")
    if compute_sha256(folder / name) != expected:
        raise make_corrupt_error(folder, f"{name} does not match its checksum")
    return str(folder / name)


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """Read the tensors of one of a checkpoint's files."""
    from safetensors.torch import load_file

    path = verify_file(folder, name)
    try:
        return load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise make_corrupt_error(folder, f"{name} is not a safetensors file: {to_single_line(error)}") from error


def read_model_tensors(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    """Read the weights if their names and shapes match the model, which may be on the meta device."""
    tensors = read_tensors(folder, MODEL_FILE)
    check_tensors_match(folder, tensors, collect_model_tensors(model))
    return tensors


def check_tensors_match(folder: Path, tensors: _TensorMap, expected: _TensorMap) -> None:
    """Raise CorruptCheckpointError unless tensors match those of a model in name, shape and dtype."""
    misfit = f"{MODEL_FILE} does not fit the run's config.yaml"
    if tensors.keys() != expected.keys():
        raise make_corrupt_error(folder, f"{misfit}: it has {len(tensors)} tensors with other names")
    for name, tensor in tensors.items():
        if (tensor.shape, tensor.dtype) != (expected[name].shape, expected[name].dtype):
            found, wanted = _describe_tensor(tensor), _describe_tensor(expected[name])
            raise make_corrupt_error(folder, f"{misfit}: {name} is {found}, not {wanted}")


def _describe_tensor(tensor: Tensor) -> str:
    """Return dtype and shape as text, such as `float32 8×24`."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape))}"


def collect_model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's tensors; tied weights occur once, under their first name."""
    first_names: dict[int, str] = {}
    state_dict = model.state_dict(keep_vars=True)
    for name, tensor in state_dict.items():
        first_names.setdefault(id(tensor), name)
    return {name: state_dict[name].detach().contiguous() for name in first_names.values()}


def load_optimizer_tensors(
    tensors: _TensorMap,
    optimizer: torch.optim.Optimizer,
    take_shard: Callable[[Tensor, Tensor], Tensor] = lambda whole, _: whole,
) -> None:
    """Restore an optimizer from the tensors that `collect_optimizer_tensors` returned; others are ignored.

    `take_shard` returns this rank's shard of a tensor as large as a weight. Tensors are copied: they are mapped from
    the file of a checkpoint, which Windows could not remove before the end of training.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    indices = {str(index): index for index in range(len(weights))}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        if index in indices:
            weight = weights[indices[index]]
            if tensor.dim() and tensor.shape != weight.shape:
                raise ValueError(f"{name} is {_describe_tensor(tensor)}, its weight {_describe_tensor(weight)}")
            state.setdefault(indices[index], {})[key] = (take_shard(tensor, weight) if tensor.dim() else tensor).clone()
    if len({frozenset(keys) for keys in state.values()}) > 1:
        raise ValueError("the weights do not all have the same optimizer tensors")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def collect_optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's tensors, named by parameter index and key, such as `0.exp_avg`."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{key}": value.contiguous() for index, values in state.items() for key, value in values.items()}


class CorruptCheckpointError(UserError):
    """Damaged checkpoint, or one that does not fit the run."""


def make_corrupt_error(folder: Path, reason: str) -> CorruptCheckpointError:
    """Build the error for a damaged checkpoint."""
    return CorruptCheckpointError(f"checkpoint {folder} is damaged: {reason}")
