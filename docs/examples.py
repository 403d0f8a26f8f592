"""Draw the documentation's examples of attention, and BLEU by sentence length, from `docs/examples.json`.

    python docs/examples.py              # draw the pictures
    python docs/examples.py runs/learn   # first write the JSON file from the runs of `make learn`

A picture shows one sentence of the test set that its model translates as the reference has it. It is the same for all
models that translate it so.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import toys

import regard
from regard.data.readers.dispatch import read_all_pairs
from regard.data.readers.text import Pair
from regard.evaluate.alignment_error_rate import read_gold_alignments
from regard.evaluate.translation_metrics import LengthGroup, bleu
from regard.plot.charts import plot_bleu_by_length
from regard.plot.heatmap import DecodingStep, Floats, plot_heatmap, plot_heatmaps
from regard.translate import Translation
from regard.translate.inspection import trace_decoding

DOCS = Path(__file__).parent
DATA, IMAGES = DOCS / "examples.json", DOCS / "images"
NO_SPACE = "␣"  # before a token that follows the one before without a space
GREY = "#7d8795"  # legible on light and dark pages
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
    "savefig.transparent": True,
    "svg.hashsalt": "regard",
    "axes.titlecolor": GREY,
}
LENGTH_RANGES = ((4, 7), (8, 10), (11, 13), (14, 16), (17, 22))  # words; the test set has 4 to 22
LENGTHS = range(8, 11)  # words of a sentence that is drawn, few enough for a small picture
PANELS = {  # pictures of several models, by file name
    "scores": {
        "dot": "luong2015-global-dot",
        "general": "luong2015-global",
        "concat": "luong2015-global-concat",
        "location": "luong2015-global-location",
    },
    "coverage": {
        "without coverage": "bahdanau2015",
        "linguistic": "bahdanau2015-linguistic",
        "neural": "bahdanau2015-neural",
    },
    "transformer": {"vaswani2017-base": "vaswani2017-base", "default": "default"},
}
SINGLE = ("bahdanau2015", "luong2015-local-m", "luong2015-local-p", "mino2017", "xu2015-soft", "xu2015-hard")
BY_LENGTH = ("bahdanau2015", "luong2015-global", "default", "sutskever2014", "cho2014")


class Example(NamedTuple):
    """The attention (T, S) of a right translation, and the windows and Gaussians of local attention."""

    sentence: int  # its number in the test set
    source: list[str]
    target: list[str]
    attention: list[list[float]]
    windows: Sequence[Sequence[int]] = ()
    gaussians: Sequence[Sequence[float]] = ()

    @property
    def weights(self) -> Floats:
        """The attention as an array."""
        return np.array(self.attention, dtype=np.float32)

    @property
    def steps(self) -> list[DecodingStep]:
        """The steps of local attention, for `plot_heatmap`."""
        steps = [
            DecodingStep(word, [], window=(one[0], one[1]))
            for word, one in zip(self.target, self.windows, strict=False)
        ]
        if self.gaussians:
            gaussians = [(one[0], one[1]) for one in self.gaussians]
            steps = [step._replace(gaussian=one) for step, one in zip(steps, gaussians, strict=True)]
        return steps


# From runs to the JSON file


def collect(runs: Path) -> None:
    """Write the examples and the BLEU by length of the runs."""
    folders = sorted(path for path in runs.iterdir() if (path / "corpus" / "test.en").is_file())
    corpus = folders[0] / "corpus"
    test = read_all_pairs([corpus / "test.en", corpus / "test.de"])
    gold = read_gold_alignments(corpus / "test.align", test, presegmented=True)
    crossings = [count_crossings(sorted(one.sure)) for one in gold]
    translations = {folder.name: regard.load(folder).translate([pair.source for pair in test]) for folder in folders}
    right = {name: find_right(of_run, test) for name, of_run in translations.items()}
    chosen = choose_sentences(right, crossings)
    document = {
        "examples": {name: make_example(runs / name, translations[name][number], number) for name, number in chosen},
        "by_length": {name: measure_by_length([one.text for one in translations[name]], test) for name in BY_LENGTH},
    }
    write(document)


def find_right(translations: Sequence[Translation], test: Sequence[Pair]) -> set[int]:
    """Return the numbers of the sentences whose translation is the reference, and whose attention can be drawn."""
    return {
        number
        for number, (pair, one) in enumerate(zip(test, translations, strict=True))
        if one.attention is not None and one.text == pair.target and len(pair.source.split()) in LENGTHS
    }


def choose_sentences(right: Mapping[str, set[int]], crossings: Sequence[int]) -> list[tuple[str, int]]:
    """Return names of runs with a sentence that each translates rightly, the same one for the runs of a picture.

    It is the sentence that most runs translate rightly; of several, that with the most crossing links.
    """
    counts = Counter(number for numbers in right.values() for number in numbers)
    ranked = sorted(counts, key=lambda number: (-counts[number], -crossings[number], number))
    chosen = []
    for names in [*(list(panels.values()) for panels in PANELS.values()), *([name] for name in SINGLE)]:
        common = set.intersection(*(right[name] for name in names))
        chosen += [(name, next(number for number in ranked if number in common)) for name in names]
    return list(dict(reversed(chosen)).items())  # a run with a picture of its own has it of the sentence of its panel


def count_crossings(links: Sequence[tuple[int, int]]) -> int:
    """Count the pairs of alignment links that cross."""
    return sum(left[0] < right[0] and left[1] > right[1] for left in links for right in links)


def make_example(run: Path, one: Translation, number: int) -> dict[str, Any]:
    """Return an example as JSON."""
    assert one.attention is not None
    translator = regard.load(run)
    steps = trace_decoding(translator, *translator.encode_pair(one.source, one.text))
    example = Example(
        number,
        [token.lstrip(NO_SPACE) for token in one.source_tokens],
        [token.lstrip(NO_SPACE) for token in one.tokens],
        [[round(float(weight), 3) for weight in row] for row in one.attention],
        [step.window for step in steps if step.window is not None],
        [(round(step.gaussian[0], 3), step.gaussian[1]) for step in steps if step.gaussian is not None],
    )
    return example._asdict()


def measure_by_length(hypotheses: Sequence[str], test: Sequence[Pair]) -> list[LengthGroup]:
    """Return the BLEU of each range of source lengths."""
    groups = []
    for first, last in LENGTH_RANGES:
        rows = [row for row, pair in enumerate(test) if first <= len(pair.source.split()) <= last]
        value = bleu([hypotheses[row] for row in rows], [test[row].target for row in rows]).value
        groups.append(LengthGroup(f"{first}–{last}", len(rows), round(value, 1)))
    return groups


def write(document: Mapping[str, Any]) -> None:
    """Write the JSON file, a row of a matrix on a line."""
    DATA.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


# From the JSON file to pictures


def draw() -> None:
    """Draw all pictures."""
    document = json.loads(DATA.read_text(encoding="utf-8"))
    examples = {name: Example(**example) for name, example in document["examples"].items()}
    with use_style():
        for name in SINGLE:
            example = examples[name]
            figure = plot_heatmap(example.weights, example.source, example.target, steps=example.steps)
            save(figure, name)
        for name, panels in PANELS.items():
            first = examples[next(iter(panels.values()))]
            weights = {title: examples[run].weights for title, run in panels.items()}
            save(plot_heatmaps(weights, first.source, first.target), name)
        groups = {name: [LengthGroup(*group) for group in rows] for name, rows in document["by_length"].items()}
        figure = plot_bleu_by_length(groups)
        figure.axes[0].grid(axis="y", color=GREY, alpha=0.25)
        save(figure, "lengths")


def use_style() -> AbstractContextManager[None]:
    """Return a context in which pictures are legible on light and dark pages."""
    return mpl.rc_context(STYLE)


def save(figure: Any, name: str) -> None:
    """Write a figure as SVG without the date, so that it changes only with its data."""
    figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})


def main() -> None:
    """Write the JSON file if runs are given, then draw."""
    if len(sys.argv) > 1:
        collect(Path(sys.argv[1]))
        toys.draw(IMAGES)
    draw()


if __name__ == "__main__":
    main()
