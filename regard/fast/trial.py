"""Whether kernels do what they should on this card: tried once, before they are relied on."""

from __future__ import annotations

from collections.abc import Callable

import torch

from regard.console import say


def succeeds(purpose: str, work: Callable[[], object]) -> bool:
    """Whether the work can be done; if not, what the purpose goes without is said, and why."""
    try:
        work()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton has many ways to fail, and its own errors
        say(f"{purpose} goes without kernels of its own: {' '.join(str(error).split())[:200]}")
        return False
    return True
