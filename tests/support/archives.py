"""Zip archives in memory."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence


def make_zip(members: Mapping[str, str | bytes], stored: Sequence[str] = ("mimetype",)) -> bytes:
    """Return a zip file; the members named in `stored` are not compressed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content, zipfile.ZIP_STORED if name in stored else None)
    return out.getvalue()
