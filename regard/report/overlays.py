"""An image on the page, once for each word, under a layer that is clearest where the model looked."""

from __future__ import annotations

import base64
import hashlib
from html import escape

import numpy as np

from regard.plot import Overlay

READ = "The image once for each word: the clearer a place, the more weight it had; the number is the highest weight."


def overlays(overlay: Overlay) -> str:
    """All words; the image itself stands in the page once."""
    png = overlay.png()
    rows, columns = overlay.weights.shape[1:]
    name = "" if png is None else f"image-{hashlib.sha256(png).hexdigest()[:16]}"
    image = "" if png is None else defined(png, name, rows, columns)
    return f"{image}<div class=overlays>{''.join(one(overlay, word, name) for word in range(len(overlay.words)))}</div>"


def defined(png: bytes, name: str, rows: int, columns: int) -> str:
    """The image, to be used by its name."""
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<svg class=hidden aria-hidden="true"><defs><image id="{name}" width="{columns}" height="{rows}" '
        f'preserveAspectRatio="none" href="data:image/png;base64,{data}"/></defs></svg>'
    )


def one(overlay: Overlay, word: int, name: str) -> str:
    """One word with its look."""
    rows, columns = overlay.weights.shape[1:]
    weights, shade = overlay.weights[word], overlay.shade(word)
    cells = "".join(
        f'<rect x="{x}" y="{y}" width="1" height="1" fill-opacity="{shade[y, x]:.3f}">'
        f"<title>{weights[y, x]:.3f}</title></rect>"
        for y, x in np.ndindex(rows, columns)
    )
    image = f'<use href="#{name}"/>' if name else f'<rect class=blank width="{columns}" height="{rows}"/>'
    written, most = escape(overlay.words[word]), float(weights.max(initial=0.0))
    return (
        f'<figure><svg viewBox="0 0 {columns} {rows}" role="img" aria-label="{written}">{image}{cells}</svg>'
        f"<figcaption><b>{written}</b> {most:.2f}</figcaption></figure>"
    )
