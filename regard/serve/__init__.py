"""An HTTP service for translations, and the page on which one sees where the model looked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.serve.settings import Settings

if TYPE_CHECKING:
    from regard.serve.server import serve

__all__ = ["Settings", "serve"]


def __getattr__(name: str) -> Any:
    """`serve` on first use, so that whoever only adds a key does not wait for PyTorch."""
    if name == "serve":
        from regard.serve.server import serve

        return serve
    raise AttributeError(f"module 'regard.serve' has no attribute {name!r}")
