"""Where and how precisely to compute."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from regard.errors import UserError
from regard.training.settings import TrainingSettings


def choose_device(wanted: str = "auto") -> torch.device:
    """`auto` is a GPU where there is one."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(name for name, there in available.items() if there))
    if not available[wanted]:
        raise UserError(f"training.device={wanted}, but this machine has no {wanted}")
    return torch.device(wanted)


def autocast(settings: TrainingSettings, device: torch.device) -> AbstractContextManager[object]:
    """bf16 for matrix products where the settings, or `auto` and a GPU that has it, say so."""
    able = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if settings.precision == "bf16" or (settings.precision == "auto" and able):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
