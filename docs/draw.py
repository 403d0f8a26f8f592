"""Draws the documentation's pictures of attention and its table of figures from the runs of `make learn`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import toys

import regard
from regard.plot.heatmap import plot_heatmap, write_figure

DOCS = Path(__file__).parent
RUNS = DOCS.parent / "runs" / "learn"
SENTENCE = "At night our mother does not call a colleague ."
HEAD = """# What each model learns

`make learn` trains every model on 20,000 sentence pairs of the embedded corpus, on the CPU, one thread each, and
checks that it reaches a given BLEU and AER on 1,000 held-out pairs, each with a combination of words that no training
sentence has. These are the figures of one run with one seed. They show that a mechanism works, not which one is best
on real text: the models are small, and the training is short and the same for all models of a family.

No recipe is trained as it is: vocabulary, sizes, optimizer, learning rate and length of training are changed in all of
them, by the section `translation` of `regard/synthetic/corpora.yaml`. The column "changed" has what is changed beyond
that.

| model | recipe | changed | BLEU | chrF | AER |
|---|---|---|---|---|---|
"""


def main() -> None:
    """A picture for each run that looks somewhere, and a row for every run."""
    rows = []
    for folder in sorted(RUNS.iterdir()):
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        rows.append(row(folder.name, results))
        (translation,) = regard.load(folder).translate([SENTENCE])
        alignment = translation.alignment
        if alignment is not None:
            picture = plot_heatmap(alignment.soft, alignment.source, alignment.target, folder.name)
            write_figure(picture, DOCS / "images" / f"{folder.name}.png")
    toys.draw(DOCS / "images")
    (DOCS / "learn.md").write_text(HEAD + "".join(rows), encoding="utf-8")


def row(name: str, results: dict[str, Any]) -> str:
    """One line of the table."""
    changed = results["changes"]
    told = ", ".join(f"`{key}={value}`" for key, value in changed.items()) or "–"
    error = "–" if results["aer"] is None else f"{results['aer']:.3f}"
    figures = f"{results['bleu']:.1f} | {results['chrf']:.1f} | {error}"
    return f"| {name} | `{results['recipe']}` | {told} | {figures} |\n"


if __name__ == "__main__":
    main()
