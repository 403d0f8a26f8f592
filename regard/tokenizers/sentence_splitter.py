"""Sentence splitting with sentencex."""

from __future__ import annotations

from functools import cache
from importlib import metadata

from regard.console import log_message


def split_sentences(text: str, language: str | None) -> list[str]:
    """Return the sentences of a text, each with the white space that follows it: joined, they are the text."""
    if not _is_splitter_installed():
        return [text]
    from sentencex import segment  # slow to load, and may be missing in a checkout without its dependencies

    return list(segment((language or "en").partition("-")[0], text))


@cache
def _is_splitter_installed() -> bool:
    """Return True if sentencex is installed; log once if not."""
    if find_sentencex_version() is None:
        log_message("sentencex is not installed: a line of several sentences is translated as one")
        return False
    return True


@cache
def find_sentencex_version() -> str | None:
    """Return the version of sentencex, or None if it is not installed."""
    try:
        import sentencex  # noqa: F401
    except ImportError:
        return None
    try:
        return metadata.version("sentencex")
    except metadata.PackageNotFoundError:  # a copy that was not installed by pip
        return "unknown"
