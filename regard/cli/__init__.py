"""Command-line interface `regard`."""

from regard.cli.app import main

__all__ = ["main"]
