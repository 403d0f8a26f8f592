"""Synthetic translation corpus: English–German sentence pairs with gold word alignments, written as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.data.readers.text import format_pharaoh
from regard.errors import UserError
from regard.synthetic.grammar import AlignedPair, generate_corpus

_MAX_HELD_OUT_PAIRS = 1000  # maximum size of dev and of test


def write_translation_corpus(folder: Path, pairs: int, seed: int = 1, overwrite: bool = False) -> dict[str, int]:
    """Write `train`, `dev` and `test`, each as `.en`, `.de` and `.align`, and return the number of pairs of each.

    `pairs` is the size of the training set; dev and test have a tenth of it each, at most 1,000.
    """
    if pairs < 10:
        raise UserError(f"a corpus has at least 10 pairs, not {pairs}")
    names = (f"{split}.{extension}" for split in ("train", "dev", "test") for extension in ("en", "de", "align"))
    existing = [name for name in names if (folder / name).exists()]
    if existing and not overwrite:
        raise UserError(f"{folder} already holds {', '.join(existing)}; nothing is overwritten, choose another --out")
    held_out = min(_MAX_HELD_OUT_PAIRS, pairs // 10)
    folder.mkdir(parents=True, exist_ok=True)
    splits = generate_corpus(train=pairs, dev=held_out, test=held_out, seed=seed)
    for name, split in splits.items():
        write_aligned_pairs(folder, name, split)
    return {name: len(split) for name, split in splits.items()}


def write_aligned_pairs(folder: Path, name: str, pairs: Sequence[AlignedPair]) -> None:
    """Write both sides and the alignments of sentence pairs to `NAME.en`, `NAME.de` and `NAME.align`."""
    columns = {
        "en": (pair.source for pair in pairs),
        "de": (pair.target for pair in pairs),
        "align": (format_pharaoh(pair.alignment) for pair in pairs),
    }
    for extension, lines in columns.items():
        (folder / f"{name}.{extension}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
