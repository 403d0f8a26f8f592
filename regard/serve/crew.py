"""The models that do something else than translate: they tag, classify, read, caption, follow numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.serve.aside import Aside
from regard.serve.fleet import summarize_served
from regard.serve.refusal import Refusal
from regard.serve.rounding import numbers
from regard.tasks import get_task
from regard.tasks.base import Prediction, Predictor


@dataclass(frozen=True)
class Hand:
    """One of them at work."""

    name: str
    task: str
    folder: Path
    predictor: Predictor

    def predict(self, given: Sequence[Any]) -> list[dict[str, Any]]:
        """What it makes of inputs as a request holds them."""
        return [told(made) for made in self.predictor.predict([self.predictor.parse_json_input(one) for one in given])]

    def described(self) -> dict[str, Any]:
        """What its run tells."""
        known = summarize_served(self.folder)
        best = known.best
        return {
            "name": self.name,
            "task": self.task,
            "recipe": known.recipe,
            "parameters": known.parameters,
            "scores": {best.measure: best.score, "loss": best.loss} if best else {},
            "steps": known.steps,
            "finished": known.finished,
        }


class Crew:
    """All of them, and the thread that they work in, one after the other."""

    def __init__(self, hands: Sequence[Hand]) -> None:
        self.hands = {hand.name: hand for hand in hands}
        self.work = Aside(threads=1, room=60)

    def named(self, name: str) -> Hand:
        """One by its name; the first where none is given."""
        if not self.hands:
            raise Refusal("nothing is served here that tags, classifies, reads or captions")
        if name and name not in self.hands:
            raise Refusal(f"there is no model {name!r} that predicts; there are {', '.join(self.hands)}")
        return self.hands[name or next(iter(self.hands))]

    def close(self) -> None:
        """Ends the thread."""
        self.work.close()


def enlisted(name: str, task: str, folder: Path) -> Hand:
    """A run, loaded."""
    return Hand(name, task, folder, get_task({"task": task}).load(folder))


def told(made: Prediction) -> dict[str, Any]:
    """A prediction, as an answer has it."""
    looks = [
        {
            "label": line.label,
            "words": list(line.words),
            "weights": numbers(line.weights),
            "weight": line.weight,
            "darkest": line.darkest_weight,
        }
        for line in made.make_attention_lines()
    ]
    return {"text": made.to_text(), **made.to_dict(), "looks": looks}
