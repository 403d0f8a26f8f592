"""Numbers over time on the page: what is right, and what the model gave."""

from __future__ import annotations

from collections.abc import Sequence

from regard.plot import Track
from regard.report.chart import BOTTOM, HEIGHT, LEFT, TOP, grid_line, ticks

OVER_TIME = "Some series of the dev set: the broad curve is what is right, the thin one what the model gave."
WIDTH = 860


def drawn(some: Sequence[Track]) -> str:
    """The curves of one series, a picture for each number of a step."""
    return f"<section>{''.join(map(picture, some))}</section>"


def picture(track: Track) -> str:
    """Both curves over time, with axes."""
    every = [*track.right, *track.made]
    low, high = min(every), max(every)
    margin = 0.0 if high > low else abs(low) or 1.0
    low, high, right = low - margin, high + margin, WIDTH - 12
    last = max(1, len(track.right) - 1)

    def height(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def curve(values: Sequence[float], kind: str) -> str:
        points = (f"{LEFT + x / last * (right - LEFT):.1f},{height(y):.1f}" for x, y in enumerate(values))
        return f'<polyline class="{kind}" points="{" ".join(points)}"/>'

    grid = "".join(grid_line(height(value), value, right) for value in ticks(low, high))
    name = f"{len(track.right)} steps of time, what is right and what the model gave"
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">{grid}'
        f"{curve(track.right, 'right')}{curve(track.made, 'curve')}"
        f'<text x="{LEFT}" y="{HEIGHT - 8}">step of time 1</text>'
        f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end">{len(track.right)}</text></svg></figure>'
    )
