"""torchvision, where it is installed: imported when it is needed, and by nobody else."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from regard.data.files import in_a_line
from regard.errors import UserError

COMPILED = ("nms", "qnms")  # operators that detect objects; no network that classifies images calls them


@functools.cache
def library() -> torch.library.Library:
    """Names for the compiled operators, without the operators."""
    named = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in COMPILED:
        named.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return named


def models(wanted: str) -> Any:
    """torchvision's networks, of which one is wanted, or a word on how to have them."""
    try:
        return imported()
    except ImportError as error:
        raise UserError(
            f"sending images through {wanted} takes torchvision and Pillow (pip install 'regard[vision]'); features "
            "that are made already do without"
        ) from error
    except RuntimeError as error:
        raise UserError(
            f"the torchvision that is installed does not go with torch {torch.__version__} ({in_a_line(error)}): "
            "install both from the same place, https://pytorch.org/get-started"
        ) from error


def imported() -> Any:
    """The module, also where its compiled part was made for another build of torch, as PyPI's is beside a CPU's."""
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError as error:
        if f"torchvision::{COMPILED[0]} does not exist" not in str(error):
            raise
        library()
        return importlib.import_module("torchvision.models")
