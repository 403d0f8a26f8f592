"""Captions as ids, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.config import parse
from regard.runs import Run
from regard.tasks.captioning.examples import Captions, Encoded
from regard.tasks.captioning.eye import Eye
from regard.tasks.captioning.files import Example
from regard.tasks.captioning.judgement import Marks
from regard.text import Tokenizer, VocabularySettings, file_name, learn_one, load_one

NAME = "caption"


def learnt(examples: Sequence[Example], settings: VocabularySettings) -> Tokenizer:
    """A vocabulary of captions."""
    lines = [" ".join(one.caption.split()) for one in examples]
    return learn_one(settings, lambda: lines)


def save(tokenizer: Tokenizer, settings: VocabularySettings, folder: Path) -> None:
    """Writes it into a folder."""
    tokenizer.save(folder / file_name(NAME, settings))


def kept(run: Run) -> Tokenizer:
    """That of a run."""
    settings = parse(VocabularySettings, run.config()["text"], "text")
    return load_one(settings, run.folder / "tokenizer" / file_name(NAME, settings))


def encoded(
    examples: Sequence[Example], eye: Eye, tokenizer: Tokenizer, features: int | None, digests: Sequence[str] = ()
) -> list[Encoded]:
    """Examples whose places have so many features each, or as many as those of the first, with their captions' ids."""
    found: list[Encoded] = []
    for number, one in enumerate(examples):
        extent = eye.extent(*one.picture.header(), one.picture.name)
        features = features or extent.features
        if extent.features != features:
            image = "; it is an image, and `regard data features` makes features of images" if extent.of_pixels else ""
            raise one.picture.wrong(
                f"{extent.features:,} numbers for each place, and the others have {features:,}{image}"
            )
        digest = digests[number] if digests else ""
        found.append(Encoded(one.picture, extent, tokenizer.encode(one.caption), digest))
    return found


def marks(examples: Sequence[Example], captions: Captions, tokenizer: Tokenizer) -> list[Marks]:
    """Which tokens of each caption name which cells, where that is known."""
    return [marked(one, captions, row, tokenizer) for row, one in enumerate(examples)]


def marked(example: Example, captions: Captions, row: int, tokenizer: Tokenizer) -> Marks:
    """Those of one caption, if its cells are of the grid that the model looks at."""
    extent = captions.extents[row]
    if example.truth is None or example.truth.grid != (extent.rows, extent.columns):
        return {}
    _, words = tokenizer.split(example.caption)
    cells = example.truth.cells
    return {token: cells[word] for token, word in enumerate(words) if word in cells}


def exact(captions: Sequence[str], references: Sequence[Sequence[str]], tokenizer: Tokenizer) -> float:
    """How many of a hundred captions are one of the references, as far as the vocabulary can write it."""
    right = sum(
        text in {tokenizer.decode(tokenizer.encode(one)) for one in some}
        for text, some in zip(captions, references, strict=True)
    )
    return 100 * right / max(1, len(captions))
