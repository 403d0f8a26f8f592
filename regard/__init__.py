"""Train, look inside and serve attention models on your own text.

`regard.train(recipe, data, out)` trains, `regard.load(run).translate([text])` translates, `regard.nn` has the parts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from regard.version import VERSION

if TYPE_CHECKING:
    from regard.api import load, train

# PyTorch's memory on ARM is mimalloc's, which gives back to the system what was not used for 10 ms, and the next update
# has to ask for it again: a tenth of its time. This is read when PyTorch is first imported.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "60000")

__version__ = VERSION
__all__ = ["__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    """`train` and `load` on first use, so that `import regard` does not wait for PyTorch."""
    if name in ("load", "train"):
        from regard import api

        return getattr(api, name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
