"""Weights of torchvision's networks by name: torchvision's own, or those of a file.

No code in a file is ever run: PyTorch's files are read with `weights_only`, which makes tensors and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from regard.data.files import in_a_line
from regard.errors import UserError

SAFE, PICKLED = ".safetensors", (".pth", ".pt")
WRAPPED = ("state_dict", "model")  # under which training programs keep weights beside other things
COUNTER = "num_batches_tracked"  # of batch normalisation, which never reads it once it is trained

State = Mapping[str, Tensor]


def is_file_name(weights: str) -> bool:
    """Whether weights are named by their file."""
    return Path(weights).suffix.lower() in (SAFE, *PICKLED)


def from_file(path: Path) -> State:
    """The weights that a file holds."""
    if not path.is_file():
        raise UserError(f"there is no file {path}, which should hold a network's weights")
    try:
        found = load_file(path) if path.suffix.lower() == SAFE else unpickled(path)
    except Exception as error:  # whatever bytes that are no weights make either reader stumble on
        raise UserError(f"{path} cannot be read as a network's weights: {reason(error)}") from error
    for key in WRAPPED:
        found = found[key] if isinstance(found, dict) and isinstance(found.get(key), dict) else found
    if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
        raise UserError(
            f"{path} holds no weights by their names, which `torch.save(network.state_dict(), FILE)` writes"
        )
    return found


def unpickled(path: Path) -> Any:
    """What PyTorch has written, as long as it is tensors and plain values."""
    return torch.load(path, map_location="cpu", weights_only=True)


def reason(error: Exception) -> str:
    """The first sentence of what PyTorch says, which is whole paragraphs."""
    return in_a_line(error).split(". ")[0]


def pretrained(member: Any, network: str) -> State:
    """torchvision's own, which it keeps in a folder of PyTorch's once they are downloaded."""
    try:
        found: State = member.get_state_dict(progress=True, check_hash=True, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(
            f"the weights {member.name} of {network} are not on this machine and cannot be downloaded "
            f"({in_a_line(error)}): fetch {member.url} elsewhere, and name the file by --weights or put it into "
            f"{Path(torch.hub.get_dir()) / 'checkpoints'}"
        ) from error
    except Exception as error:
        raise UserError(f"the weights {member.name} of {network} cannot be read: {reason(error)}") from error
    return found


def put(state: State, own: State, where: str, network: str) -> None:
    """Copies into `own` the weights of the same names, all of which must be there and of the same sizes."""
    for name, tensor in own.items():
        given = state.get(name)
        if given is None:
            raise UserError(f"{where} does not fit {network}: it has no {name}{held(state)}")
        if given.shape != tensor.shape:
            raise UserError(f"{where} does not fit {network}: {name} is {size(given)} there, and {size(tensor)} here")
        tensor.copy_(given)


def held(state: State) -> str:
    """A few of the names that there are."""
    return f", but {', '.join(list(state)[:3])} …" if state else ", and nothing else"


def size(tensor: Tensor) -> str:
    """As a person writes it."""
    return " × ".join(map(str, tensor.shape)) or "one number"


def checksum(own: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 of weights, their names and their sizes."""
    found = hashlib.sha256()
    for name, tensor in own:
        found.update(f"{name} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return found.hexdigest()
