"""Draws pictures of captions for the documentation from runs of `regard demo --task caption`, which it is given."""

from __future__ import annotations

import sys
from pathlib import Path

from regard import load
from regard.plot.attention_overlay import plot_attention_overlay
from regard.plot.heatmap import write_figure
from regard.runs import Run
from regard.tasks.captioning import image_files

IMAGES = Path(__file__).parent / "images"
WORDS = 12  # of the caption that is drawn


def draw(run: Path) -> None:
    """The first scene of the test set with so many words, as the run captions it."""
    examples = image_files.read_captions([run / "corpus" / "test.jsonl"])
    chosen = next(one.picture for one in examples if len(one.caption.split()) == WORDS)
    model = load(run)
    (made,) = model.predict([chosen])
    write_figure(plot_attention_overlay(made.make_image_overlay()), IMAGES / f"{made_by(run)}.png")


def made_by(run: Path) -> str:
    """The recipe of a run."""
    return str(Run(run).read_config()["recipe"])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        draw(Path(name))
