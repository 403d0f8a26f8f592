"""Train, inspect and serve attention models on your own text.

`regard.train(recipe, data, out)` trains, `regard.load(run).translate([text])` translates, and `regard.nn` holds the
attention layers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from regard.version import VERSION

if TYPE_CHECKING:
    from regard.api import load, train

# On ARM PyTorch allocates with mimalloc, which returns memory to the system after 10 ms without use; allocating it
# again took a tenth of each update's time. mimalloc reads this variable when PyTorch is first imported.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "60000")

__version__ = VERSION
__all__ = ["__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    """Import `train` and `load` on first use, so that `import regard` does not load PyTorch."""
    if name in ("load", "train"):
        from regard import api

        return getattr(api, name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
