"""An HTTP service for translations, and the page on which one sees where the model looked."""

from regard.serve.server import serve
from regard.serve.settings import Settings

__all__ = ["Settings", "serve"]
