"""From where a run's model aligns, where the config leaves that open (`model.align_layer: auto`): `viewpoint.json`.

Training chooses it anew for each model that is the best so far, and keeps it apart from the config, by which training
goes on.
"""

from __future__ import annotations

import json
from pathlib import Path

from regard.errors import UserError
from regard.models import Decoder, Viewpoint

FILE = "viewpoint.json"


def write(folder: Path, viewpoint: Viewpoint) -> None:
    """What was found."""
    beside = folder / f".{FILE}.part"
    beside.write_text(json.dumps({"layer": viewpoint.layer, "head": viewpoint.head, "after": viewpoint.after}) + "\n", encoding="utf-8")
    beside.replace(folder / FILE)


def read(folder: Path, decoder: Decoder) -> Viewpoint:
    """What was found for this decoder; its own viewpoint where nothing was yet."""
    path = folder / FILE
    if not path.exists():
        return decoder.viewpoint
    found = None
    try:
        match json.loads(path.read_text(encoding="utf-8")):
            case {"layer": int(layer), "head": int() | None as head, "after": bool(after)}:
                found = Viewpoint(layer, head, after)
    except (OSError, ValueError, RecursionError):
        pass
    if found is None or found._replace(after=False) not in decoder.viewpoints():
        raise UserError(f"{path} is damaged: delete it; `regard align {folder} PAIRS --choose-head` finds another")
    return found
