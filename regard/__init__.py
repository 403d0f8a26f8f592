"""Train, look inside and serve attention models on your own text.

`regard.train(recipe, data, out)` trains, `regard.load(run).translate([text])` translates, `regard.nn` has the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.version import VERSION

if TYPE_CHECKING:
    from regard.api import load, train

__version__ = VERSION
__all__ = ["__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    """`train` and `load` on first use, so that `import regard` does not wait for PyTorch."""
    if name in ("load", "train"):
        from regard import api

        return getattr(api, name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
