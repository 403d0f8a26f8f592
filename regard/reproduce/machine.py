"""What figures were measured on."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch


def hardware() -> dict[str, Any]:
    """This machine."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
