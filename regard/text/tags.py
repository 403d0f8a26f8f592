"""Tags: ids in front of a source that say where it comes from. No text can be read as one."""

from __future__ import annotations

from collections.abc import Sequence

from regard.errors import UserError, nearest


def tag_piece(name: str) -> str:
    """How a tag is written in a vocabulary."""
    return f"<{name}>"


def no_tag(name: str, known: Sequence[str]) -> UserError:
    """What to say of a tag that a vocabulary does not have."""
    why = nearest(name, known) if known else ": this model was trained without tags"
    return UserError(f"there is no tag {name!r}{why}")
