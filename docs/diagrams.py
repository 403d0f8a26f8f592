"""Draw the block diagrams of `docs/mechanisms` as SVG from `docs/diagrams.yaml`, which states its own format.

    python docs/diagrams.py

Colours are dark enough for a white page and light enough for a dark one; the background is transparent.
"""

from __future__ import annotations

import math
import re
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DOCS = Path(__file__).parent
IMAGES = DOCS / "images" / "diagrams"
COLOURS = {
    "word": "#64707f",
    "encoder": "#2f6fd0",
    "decoder": "#8a4fc4",
    "attention": "#c2570c",
    "vector": "#1f7f4f",
    "line": "#7a8290",
    "none": "none",
}
LINE, TEXT = COLOURS["line"], "#7d8795"
BOX_HEIGHT = 34.0
SANS, SERIF = "Helvetica, Arial, sans-serif", "'STIX Two Text', 'Times New Roman', Georgia, serif"
SIDES = {"t": (0, -1), "b": (0, 1), "l": (-1, 0), "r": (1, 0)}
UPRIGHT = ("softmax", "tanh", "exp", "log", "GRU")  # names of functions in mathematics
LISTS = ("lines", "frames", "windows", "texts", "grids", "curves")
Point = tuple[float, float]


class Box(NamedTuple):
    """A box by its centre."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    text: str


def read_diagrams() -> dict[str, dict[str, Any]]:
    """Read the diagrams by name, with the parts that each includes."""
    read: dict[str, dict[str, Any]] = yaml.safe_load((DOCS / "diagrams.yaml").read_text(encoding="utf-8"))
    diagrams = {}
    for name, diagram in read.items():
        if not name.startswith("_"):
            parts = [*(read[part] for part in diagram.get("parts", [])), diagram]
            boxes = {key: _read_box(str(box)) for part in parts for key, box in part.get("boxes", {}).items()}
            lists = {key: [row for part in parts for row in part.get(key, [])] for key in LISTS}
            diagrams[name] = {**diagram, **lists, "boxes": boxes}
    return diagrams


def _read_box(row: str) -> Box:
    x, y, size, colour, *text = row.split(" ", 4)
    width, _, height = size.partition("x")
    return Box(float(x), float(y), float(width), float(height or BOX_HEIGHT), COLOURS[colour], *text or [""])


def draw(diagram: dict[str, Any]) -> str:
    """Return a diagram as SVG."""
    width, height = diagram["size"].split()
    boxes: dict[str, Box] = diagram["boxes"]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(diagram["title"])}</title>',
            f'<desc id="desc">{escape(diagram["description"])}</desc>',
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0.5 8 4 0 7.5z" fill="{LINE}"/></marker></defs>',
            *(_draw_frame(row, LINE, "0.10") for row in diagram["frames"]),
            *(_draw_frame(row, COLOURS["attention"], "0.22") for row in diagram["windows"]),
            *(_draw_line(row, boxes) for row in diagram["lines"]),
            *(_draw_curve(row) for row in diagram["curves"]),
            *map(_draw_box, boxes.values()),
            *(_draw_grid(row, boxes) for row in diagram["grids"]),
            *(_draw_free_text(row) for row in diagram["texts"]),
            "</svg>\n",
        ]
    )


def _draw_box(box: Box) -> str:
    lines = box.text.split(" // ")
    top = box.y - 9 * (len(lines) - 1) + 5
    colour = TEXT if box.colour == "none" else "#ffffff"
    rect = (
        f'<rect x="{box.x - box.width / 2:g}" y="{box.y - box.height / 2:g}" width="{box.width:g}" '
        f'height="{box.height:g}" rx="{min(8, box.height / 3):g}" fill="{box.colour}"/>'
    )
    texts = [_draw_text(box.x, top + 18 * row, line, colour) for row, line in enumerate(lines) if line]
    return "".join([rect if box.colour != "none" else "", *texts])


def _draw_frame(row: str, colour: str, opacity: str) -> str:
    left, top, right, bottom, *label = row.split(" ", 4)
    width, height = float(right) - float(left), float(bottom) - float(top)
    rect = (
        f'<rect x="{left}" y="{top}" width="{width:g}" height="{height:g}" rx="10" fill="{colour}" '
        f'fill-opacity="{opacity}" stroke="{colour}" stroke-opacity="0.7" stroke-dasharray="3 3"/>'
    )
    return rect + "".join(
        _draw_text(float(left) + 10, float(top) + 17, text, anchor="start", size=13) for text in label
    )


def _draw_grid(row: str, boxes: dict[str, Box]) -> str:
    """Draw a matrix with cells of a size, centred in a box."""
    name, size, colour, digits = row.split()
    box, cell, rows = boxes[name], float(size), digits.split("/")
    left, top = box.x - cell * len(rows[0]) / 2, box.y - cell * len(rows) / 2
    return "".join(
        f'<rect x="{left + cell * column + 1:g}" y="{top + cell * number + 1:g}" width="{cell - 2:g}" '
        f'height="{cell - 2:g}" rx="2" fill="{COLOURS[colour]}" fill-opacity="{0.1 + 0.1 * int(digit):.1f}"/>'
        for number, line in enumerate(rows)
        for column, digit in enumerate(line)
    )


def _draw_curve(row: str) -> str:
    colour, path = row.split(" ", 1)
    dashes = ' stroke-dasharray="4 3"' if colour == "line" else ""
    return f'<path d="{path}" fill="none" stroke="{COLOURS[colour]}" stroke-width="1.8"{dashes}/>'


def _draw_line(row: str, boxes: dict[str, Box]) -> str:
    """Draw a line with rounded corners, and its label at its longest part."""
    route, _, label = (part.strip() for part in row.partition("|"))
    start, *moves, end = (part.strip() for part in route.lstrip("~").split(">"))
    (x, y), is_vertical_start = _find_port(start, boxes)
    (last_x, last_y), is_vertical = _find_port(end, boxes)
    points = [(x, y)]
    for move in moves:
        x, y = (float(move[1:]), y) if move[0] == "x" else (x, float(move[1:]))
        points.append((x, y))
    if x != last_x and y != last_y:
        if moves or is_vertical != is_vertical_start:
            points.append((last_x, y) if is_vertical else (x, last_y))
        elif is_vertical:
            points += [(x, (y + last_y) / 2), (last_x, (y + last_y) / 2)]
        else:
            points += [((x + last_x) / 2, y), ((x + last_x) / 2, last_y)]
    points.append((last_x, last_y))
    dashes = ' stroke-dasharray="5 4"' if route.startswith("~") else ""
    path = f'<path d="{_round_corners(points)}" fill="none" stroke="{LINE}" stroke-width="1.6"{dashes} '
    return path + 'marker-end="url(#arrow)"/>' + (_draw_line_label(points, label) if label else "")


def _find_port(name: str, boxes: dict[str, Box]) -> tuple[Point, bool]:
    """Return the coordinates of a port such as `h1.t+10`, and whether a line leaves it vertically."""
    found = re.fullmatch(r"(\w+)\.([tblr])([+-]\d+)?", name)
    if found is None or found[1] not in boxes:
        raise ValueError(f"no port {name}")
    box, (dx, dy), offset = boxes[found[1]], SIDES[found[2]], float(found[3] or 0)
    return (box.x + dx * box.width / 2 + abs(dy) * offset, box.y + dy * box.height / 2 + abs(dx) * offset), dx == 0


def _round_corners(points: list[Point], radius: float = 7.0) -> str:
    """Return the path through points, its corners rounded."""
    parts = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for before, (x, y), after in zip(points, points[1:], points[2:], strict=False):
        ends = []
        for other_x, other_y in (before, after):
            length = abs(other_x - x) + abs(other_y - y)
            step = min(radius, length / 2) / length if length else 0.0
            ends += [x + (other_x - x) * step, y + (other_y - y) * step]
        parts.append("L{:g} {:g}Q{:g} {:g} {:g} {:g}".format(*ends[:2], x, y, *ends[2:]))
    return "".join([*parts, f"L{points[-1][0]:g} {points[-1][1]:g}"])


def _draw_line_label(points: list[Point], label: str) -> str:
    (x0, y0), (x1, y1) = max(pairwise(points), key=lambda part: math.dist(*part))
    if y0 == y1:
        return _draw_text((x0 + x1) / 2, y0 - 7, label, size=13)
    return _draw_text(x0 + 7, (y0 + y1) / 2 + 4, label, size=13, anchor="start")


def _draw_free_text(row: str) -> str:
    x, y, anchor, text = row.split(" ", 3)
    return _draw_text(float(x), float(y), text, size=13, anchor=anchor)


def _draw_text(x: float, y: float, text: str, colour: str = TEXT, size: int = 14, anchor: str = "middle") -> str:
    """Draw text; parts between dollar signs are mathematics."""
    parts = [
        _set_mathematics(part, size) if number % 2 else escape(part) for number, part in enumerate(text.split("$"))
    ]
    return (
        f'<text x="{x:g}" y="{y:g}" font-family="{SANS}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}" xml:space="preserve">{"".join(parts)}</text>'
    )


def _set_mathematics(text: str, size: int) -> str:
    """Set letters in italics, sub- and superscripts smaller."""
    parts, shift = [], 0.0
    for level, braced, single, plain in re.findall(r"([_^])(?:\{([^}]*)\}|(.))|([^_^]+)", text):
        new_shift = {"_": 0.28, "^": -0.38, "": 0.0}[level] * size
        dy = f' dy="{new_shift - shift:.1f}"' if new_shift != shift else ""
        font_size = 0.78 * size if level else size + 2
        for piece in re.split(f"({'|'.join(UPRIGHT)})", (plain or braced or single).replace("-", "−")):
            style = "normal" if piece in UPRIGHT else "italic"
            if piece:
                parts.append(
                    f'<tspan font-family="{SERIF}" font-style="{style}" font-size="{font_size:g}"{dy}>'
                    f"{escape(piece)}</tspan>"
                )
                dy = ""
        shift = new_shift
    return "".join(parts) + (f'<tspan dy="{-shift:.1f}">\u200b</tspan>' if shift else "")


def main() -> None:
    """Write all diagrams."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, diagram in read_diagrams().items():
        (IMAGES / f"{name}.svg").write_text(draw(diagram), encoding="utf-8")


if __name__ == "__main__":
    main()
