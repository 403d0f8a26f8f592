"""SVG line charts, bar charts and series for the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from regard.plot import PredictedSeries

Point = tuple[float, float]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 220, 64, 30, 12


def plot_svg_curve(title: str, points: Sequence[Point]) -> str:
    """Return a line chart over the training steps, with title, axes and the last value; empty without points."""
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    margin = 0.0 if high > low else abs(low) or 1.0  # for a flat curve; proportional, because 1e43 − 1 is 1e43
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
    """Return a horizontal grid line with its value."""
    return (
        f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_format_tick(value)}</text>'
    )


def _choose_ticks(low: float, high: float) -> list[float]:
    return [low + (high - low) * tick / 3 for tick in range(4)]


def _format_tick(value: float) -> str:
    """Return a number in a few characters: 0.0012, 41.3, 18.2k."""
    return f"{value / 1000:.3g}k" if abs(value) >= 1000 else f"{value:.3g}"


def plot_svg_bars(title: str, values: Sequence[tuple[str, float, str]], max_value: float) -> str:
    """Return a bar chart of (name, value, tooltip); the scale goes from 0 to `max_value`."""
    if not values:
        return ""
    right = WIDTH - 12
    bar_width = (right - LEFT) / len(values)
    grid = "".join(
        _plot_svg_grid_line(TOP + (1 - part / 4) * (HEIGHT - TOP - BOTTOM), max_value * part / 4, right)
        for part in range(5)
    )
    bars = ""
    for index, (name, value, remark) in enumerate(values):
        height = value / max_value * (HEIGHT - TOP - BOTTOM)
        middle = LEFT + (index + 0.5) * bar_width
        bars += (
            f'<rect class="bar" x="{middle - bar_width * 0.35:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" '
            f'width="{bar_width * 0.7:.1f}" height="{height:.1f}"><title>{escape(remark)}</title></rect>'
            f'<text x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(name)}</text>'
        )
    label = f"{title}: " + "; ".join(f"{name}: {value:.1f}, {remark}" for name, value, remark in values)
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{grid}{bars}</svg></figure>'
    )


SERIES_CAPTION = "Some series of the dev set: the broad curve is the reference, the thin one the prediction."
SERIES_WIDTH = 860


def plot_svg_series(series: Sequence[PredictedSeries]) -> str:
    """Return the charts of one series, one for each output column."""
    return f"<section>{''.join(map(_plot_svg_series_panel, series))}</section>"


def _plot_svg_series_panel(series: PredictedSeries) -> str:
    all_values = [*series.reference, *series.prediction]
    low, high = min(all_values), max(all_values)
    margin = 0.0 if high > low else abs(low) or 1.0
    low, high, right = low - margin, high + margin, SERIES_WIDTH - 12
    last = max(1, len(series.reference) - 1)

    def scale_y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def format_polyline(values: Sequence[float], kind: str) -> str:
        points = (f"{LEFT + x / last * (right - LEFT):.1f},{scale_y(y):.1f}" for x, y in enumerate(values))
        return f'<polyline class="{kind}" points="{" ".join(points)}"/>'

    grid = "".join(_plot_svg_grid_line(scale_y(value), value, right) for value in _choose_ticks(low, high))
    name = f"{len(series.reference)} time steps, reference and prediction"
    return (
        f'<figure><svg viewBox="0 0 {SERIES_WIDTH} {HEIGHT}" role="img" aria-label="{name}">{grid}'
        f"{format_polyline(series.reference, 'right')}{format_polyline(series.prediction, 'curve')}"
        f'<text x="{LEFT}" y="{HEIGHT - 8}">time step 1</text>'
        f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end">{len(series.reference)}</text></svg></figure>'
    )
