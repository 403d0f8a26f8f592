"""Charts as SVG, for a page that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from regard.plot import PredictedSeries

Point = tuple[float, float]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 220, 64, 30, 12


def plot_svg_curve(title: str, points: Sequence[Point]) -> str:
    """One curve over the steps, with its title, axes and last value."""
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    margin = 0.0 if high > low else abs(low) or 1.0  # a flat curve needs room, in proportion: 1e43 − 1 is 1e43
    low, high = low - margin, high + margin
    right, first, last = WIDTH - 12, min(xs), max(xs)

    def scale_point(x: float, y: float) -> Point:
        across = (x - first) / (last - first) if last > first else 0.5
        return LEFT + across * (right - LEFT), TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM)

    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (scale_point(*point) for point in points))
    grid = "".join(
        _plot_svg_grid_line(scale_point(first, value)[1], value, right) for value in _choose_ticks(low, high)
    )
    end_x, end_y = scale_point(xs[-1], ys[-1])
    name = f"{title}: {ys[0]:.4g} at step {xs[0]:.0f}, {ys[-1]:.4g} at step {xs[-1]:.0f}"
    return (
        f"<figure><figcaption>{escape(title)} <b>{_format_tick(ys[-1])}</b></figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">{grid}'
        f'<polyline class="curve" points="{path}"/><circle class="end" cx="{end_x:.1f}" cy="{end_y:.1f}" r="3.5"/>'
        f'<text x="{LEFT}" y="{HEIGHT - 8}">step {first:.0f}</text>'
        f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end">{last:.0f}</text></svg></figure>'
    )


def _plot_svg_grid_line(y: float, value: float, right: float) -> str:
    """A horizontal line and what it stands for."""
    return (
        f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_format_tick(value)}</text>'
    )


def _choose_ticks(low: float, high: float) -> list[float]:
    """Four values from the bottom to the top."""
    return [low + (high - low) * part / 3 for part in range(4)]


def _format_tick(value: float) -> str:
    """A number in a few signs: 0.0012, 41.3, 18.2k."""
    return f"{value / 1000:.3g}k" if abs(value) >= 1000 else f"{value:.3g}"


def plot_svg_bars(title: str, values: Sequence[tuple[str, float, str]], max_value: float) -> str:
    """A bar for each (name, value, remark); the scale goes from 0 to `top`."""
    if not values:
        return ""
    right = WIDTH - 12
    room = (right - LEFT) / len(values)
    grid = "".join(
        _plot_svg_grid_line(TOP + (1 - part / 4) * (HEIGHT - TOP - BOTTOM), max_value * part / 4, right)
        for part in range(5)
    )
    drawn = ""
    for place, (name, value, remark) in enumerate(values):
        height = value / max_value * (HEIGHT - TOP - BOTTOM)
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


SERIES_CAPTION = "Some series of the dev set: the broad curve is what is right, the thin one what the model gave."
SERIES_WIDTH = 860


def plot_svg_series(series: Sequence[PredictedSeries]) -> str:
    """The curves of one series, a picture for each number of a step."""
    return f"<section>{''.join(map(_plot_svg_series_panel, series))}</section>"


def _plot_svg_series_panel(series: PredictedSeries) -> str:
    """Both curves over time, with axes."""
    every = [*series.reference, *series.prediction]
    low, high = min(every), max(every)
    margin = 0.0 if high > low else abs(low) or 1.0
    low, high, right = low - margin, high + margin, SERIES_WIDTH - 12
    last = max(1, len(series.reference) - 1)

    def scale_y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def format_polyline(values: Sequence[float], kind: str) -> str:
        points = (f"{LEFT + x / last * (right - LEFT):.1f},{scale_y(y):.1f}" for x, y in enumerate(values))
        return f'<polyline class="{kind}" points="{" ".join(points)}"/>'

    grid = "".join(_plot_svg_grid_line(scale_y(value), value, right) for value in _choose_ticks(low, high))
    name = f"{len(series.reference)} steps of time, what is right and what the model gave"
    return (
        f'<figure><svg viewBox="0 0 {SERIES_WIDTH} {HEIGHT}" role="img" aria-label="{name}">{grid}'
        f"{format_polyline(series.reference, 'right')}{format_polyline(series.prediction, 'curve')}"
        f'<text x="{LEFT}" y="{HEIGHT - 8}">step of time 1</text>'
        f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end">{len(series.reference)}</text></svg></figure>'
    )
