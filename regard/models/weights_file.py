"""Files of pretrained weights from other programs, read without running code: safetensors, and pickles of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from regard.errors import UserError, to_single_line

SAFETENSORS_SUFFIX = ".safetensors"
_WRAPPER_KEYS = ("state_dict", "model")  # keys under which training programs store the weights

StateDict = Mapping[str, Tensor]


def read_weights_file(path: Path) -> StateDict:
    """Read the weights of a .safetensors file, or of one that `torch.save` wrote."""
    if not path.is_file():
        raise UserError(f"there is no file {path}, which should hold a network's weights")
    try:
        is_safetensors = path.suffix.lower() == SAFETENSORS_SUFFIX
        state: Any = load_file(path) if is_safetensors else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files make the readers raise many types
        raise UserError(f"{path} cannot be read as a network's weights: {get_first_sentence(error)}") from error
    for key in _WRAPPER_KEYS:
        state = state[key] if isinstance(state, dict) and isinstance(state.get(key), dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} is not a state dict, as `torch.save(network.state_dict(), FILE)` writes it")
    return state


def get_first_sentence(error: Exception) -> str:
    """Return the first sentence of an error's message."""
    return to_single_line(error).split(". ")[0]
