"""The command line."""

from regard.cli.app import main

__all__ = ["main"]
