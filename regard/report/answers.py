"""Answers of a model on the page: what was asked, what is right, and words as dark as they were looked at."""

from __future__ import annotations

from html import escape

from regard.plot import Line
from regard.report.overlays import overlays
from regard.report.page import table
from regard.tasks import Asked, Prediction

CANDIDATES = 10  # shown, the best first
READ = "The darker a word, the more weight it had; beside a line, what the line as a whole had."


def answered(asked: Asked, prediction: Prediction) -> str:
    """One answer beside the right one."""
    told = table({"right": asked.answer, "model": prediction.line(), **candidates(prediction)})
    return f"<section>{told}{looked(prediction)}</section>"


def looked(prediction: Prediction) -> str:
    """Where the model looked: in an image, or at words."""
    overlay = prediction.overlay()
    if overlay is not None:
        return overlays(overlay)
    return "".join(map(line, prediction.looks())) or "<p>This model does not look anywhere.</p>"


def candidates(prediction: Prediction) -> dict[str, str]:
    """What the answer was chosen from, with its probabilities, where it was chosen from a list."""
    ranked = prediction.document().get("candidates", [])[:CANDIDATES]
    told = ", ".join(f"{one['word']} {one['probability']:.3f}" for one in ranked)
    return {"candidates": told} if told else {}


def line(looked: Line) -> str:
    """Words that were looked at."""
    pairs = zip(looked.words, looked.weights, strict=True)
    words = " ".join(word(written, weight, looked.shade(weight)) for written, weight in pairs)
    own = "" if looked.weight is None else word(f"{looked.weight:.2f}", looked.weight, looked.weight)
    return f"<p class=looked><b>{escape(looked.label)}</b> {own} {words}</p>"


def word(written: str, weight: float, shade: float) -> str:
    """One word on its shade."""
    dark = " class=dark" if shade >= 0.5 else ""
    return f'<span{dark} style="--w:{shade:.3f}" title="{weight:.3f}">{escape(written)}</span>'
