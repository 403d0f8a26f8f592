"""Where and how precisely to compute."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from regard.errors import UserError
from regard.fast.halves.way import halved
from regard.training.settings import TrainingSettings


def choose_device(device_name: str = "auto", option_name: str = "training.device=") -> torch.device:
    """`auto` is a GPU where there is one; `key` is how it was asked for."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    chosen = next(name for name, there in available.items() if there) if device_name == "auto" else device_name
    if not available[chosen]:
        raise UserError(f"{option_name}{device_name}, but this machine has no {device_name}")
    return torch.device("cuda", torch.cuda.current_device()) if chosen == "cuda" else torch.device(chosen)


def build_autocast(settings: TrainingSettings, device: torch.device) -> AbstractContextManager[object]:
    """Half precision for matrix products where the settings, or `auto` and a GPU that has bf16, say so.

    A GPU before Ampere (V100, T4, RTX 20) only emulates bf16, more slowly than it computes in fp32.

    `mixed` is the same on a GPU; on a CPU products are counted in halves where it has kernels that are faster so.
    """
    able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if settings.precision == "mixed" and device.type == "cpu":
        return halved()
    if settings.precision == "fp16":
        return torch.autocast(device.type, dtype=torch.float16)
    if settings.precision == "bf16" or (settings.precision in ("auto", "mixed") and able):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def build_grad_scaler(settings: TrainingSettings, device: torch.device) -> torch.amp.GradScaler:
    """Keeps gradients within the range of fp16; with any other precision it does nothing."""
    return torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed PyTorch's random generators of the CPU and of the device; those of other GPUs stay as they are."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def preserve_generators(device: torch.device) -> AbstractContextManager[object]:
    """Restore the generators of the CPU and of a GPU on exit: training seeds them, and they belong to the program."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def measure_peak_memory_mb(device: torch.device) -> float:
    """The most memory used so far, in MB: the GPU's, or this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
