"""Charts as SVG, for a page that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Point = tuple[float, float]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 220, 64, 30, 12


def chart(title: str, points: Sequence[Point]) -> str:
    """One curve over the steps, with its title, axes and last value."""
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    margin = 0.0 if high > low else abs(low) or 1.0  # a flat curve needs room, in proportion: 1e43 − 1 is 1e43
    low, high = low - margin, high + margin
    right, first, last = WIDTH - 12, min(xs), max(xs)

    def place(x: float, y: float) -> Point:
        across = (x - first) / (last - first) if last > first else 0.5
        return LEFT + across * (right - LEFT), TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM)

    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    grid = "".join(grid_line(place(first, value)[1], value, right) for value in ticks(low, high))
    end_x, end_y = place(xs[-1], ys[-1])
    name = f"{title}: {ys[0]:.4g} at step {xs[0]:.0f}, {ys[-1]:.4g} at step {xs[-1]:.0f}"
    return (
        f"<figure><figcaption>{escape(title)} <b>{short(ys[-1])}</b></figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">{grid}'
        f'<polyline class="curve" points="{path}"/><circle class="end" cx="{end_x:.1f}" cy="{end_y:.1f}" r="3.5"/>'
        f'<text x="{LEFT}" y="{HEIGHT - 8}">step {first:.0f}</text>'
        f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end">{last:.0f}</text></svg></figure>'
    )


def grid_line(y: float, value: float, right: float) -> str:
    """A horizontal line and what it stands for."""
    return (
        f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>'
    )


def ticks(low: float, high: float) -> list[float]:
    """Four values from the bottom to the top."""
    return [low + (high - low) * part / 3 for part in range(4)]


def short(value: float) -> str:
    """A number in a few signs: 0.0012, 41.3, 18.2k."""
    return f"{value / 1000:.3g}k" if abs(value) >= 1000 else f"{value:.3g}"


def bars(title: str, values: Sequence[tuple[str, float, str]], top: float) -> str:
    """A bar for each (name, value, remark); the scale goes from 0 to `top`."""
    if not values:
        return ""
    right = WIDTH - 12
    room = (right - LEFT) / len(values)
    grid = "".join(
        grid_line(TOP + (1 - part / 4) * (HEIGHT - TOP - BOTTOM), top * part / 4, right) for part in range(5)
    )
    drawn = ""
    for place, (name, value, remark) in enumerate(values):
        height = value / top * (HEIGHT - TOP - BOTTOM)
        middle = LEFT + (place + 0.5) * room
        drawn += (
            f'<rect class="bar" x="{middle - room * 0.35:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" '
            f'width="{room * 0.7:.1f}" height="{height:.1f}"><title>{escape(remark)}</title></rect>'
            f'<text x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(name)}</text>'
        )
    told = f"{title}: " + "; ".join(f"{name}: {value:.1f}, {remark}" for name, value, remark in values)
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(told)}">{grid}{drawn}</svg></figure>'
    )
