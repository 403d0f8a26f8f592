"""Plug-ins: the user's modules named in REGARD_IMPORT, with scores and kinds of models of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from regard.errors import UserError, format_suggestion
from regard.nn import SCORES, Score

PLUGIN_VARIABLE = "REGARD_IMPORT"


def import_plugins() -> dict[str, ModuleType]:
    """Import the modules named in REGARD_IMPORT, separated by commas; a module may add kinds to `MODELS`.

    An environment variable reaches every process that a command starts. Plug-ins are not read from the run's config:
    loading an untrusted run must not import code.
    """
    modules = {}
    for name in filter(None, os.environ.get(PLUGIN_VARIABLE, "").split(",")):
        if name not in sys.modules and str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        try:
            modules[name] = import_module(name)
        except ImportError as error:
            raise UserError(f"{PLUGIN_VARIABLE} names {name!r}, which cannot be imported: {error}") from error
    return modules


def find_score(name: str) -> Callable[..., Score]:
    """Return the constructor of a score: an entry of `SCORES`, or a plug-in's class such as `mine.Cosine`."""
    module, _, attribute = name.rpartition(".")
    plugin = import_plugins().get(module)
    constructor = getattr(plugin, attribute, None) if plugin else SCORES.get(name)
    if constructor is None or (plugin and not isinstance(constructor, type)):
        raise ValueError(
            f"unknown score {name!r}{format_suggestion(name, SCORES)} "
            f"(for a score of your own, such as mine.Cosine, set {PLUGIN_VARIABLE} to its module)"
        )
    return constructor
