"""Decoding with int8 kernels on the CPU, for Transformers."""

from __future__ import annotations

from regard.errors import UserError
from regard.fast.octets import way
from regard.search import SearchModel
from regard.translate.backends import INT8, TORCH
from regard.translate.backends.exports import LoadedRun, check_on_cpu


def find_obstacle(loaded: LoadedRun) -> str | None:
    """Return the reason why the int8 kernels cannot run a model; None if they can."""
    return way.lacking(loaded.model)


def make_int8_model(loaded: LoadedRun) -> SearchModel:
    """Return the model with int8 kernels; raise UserError with the reason if they cannot run it."""
    check_on_cpu(loaded, f"{TORCH} in {INT8}")
    if (why := find_obstacle(loaded)) is not None:
        command = f"regard export {loaded.run.folder} --precision {INT8}"
        raise UserError(f"{TORCH} does not decode {loaded.run.folder} in {INT8}: {why}; instead run: {command}")
    return way.in_bytes(loaded.model)
