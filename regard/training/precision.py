"""Device, mixed precision (autocast, gradient scaler), random generators and peak memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from regard.errors import UserError
from regard.fast.halves.way import halved
from regard.recipes import TrainingSettings


def choose_device(device_name: str = "auto", option_name: str = "training.device=") -> torch.device:
    """Return the device; `auto` is a GPU if there is one. `option_name` is named in the error."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    chosen = next(name for name, usable in available.items() if usable) if device_name == "auto" else device_name
    if not available[chosen]:
        raise UserError(f"{option_name}{device_name}, but this machine has no {device_name}")
    return torch.device("cuda", torch.cuda.current_device()) if chosen == "cuda" else torch.device(chosen)


def build_autocast(settings: TrainingSettings, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context of the settings; `auto` is bf16 on a GPU that supports it, else fp32.

    A GPU before Ampere (V100, T4, RTX 20) only emulates bf16, which is slower than fp32. `mixed` is like `auto` on a
    GPU; on a CPU, matrix products use fp16 kernels where they are faster.
    """
    supports_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if settings.precision == "mixed" and device.type == "cpu":
        return halved()
    if settings.precision == "fp16":
        return torch.autocast(device.type, dtype=torch.float16)
    if settings.precision == "bf16" or (settings.precision in ("auto", "mixed") and supports_bf16):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def build_grad_scaler(settings: TrainingSettings, device: torch.device) -> torch.amp.GradScaler:
    """Return the gradient scaler, which is active for fp16 only."""
    return torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed PyTorch's random generators of the CPU and of the device; those of other GPUs do not change."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def preserve_generators(device: torch.device) -> AbstractContextManager[object]:
    """Restore the random generators of CPU and GPU on exit: training seeds them, but they belong to the caller."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def measure_peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory so far, in MB: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
