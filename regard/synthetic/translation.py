"""The corpus that regard brings along, as files."""

from __future__ import annotations

from pathlib import Path

from regard.data.sentence_pair import format_pharaoh
from regard.errors import UserError
from regard.synthetic.grammar import generate_corpus

_SPLITS, _EXTENSIONS = ("train", "dev", "test"), ("en", "de", "align")
_MAX_HELD_OUT_PAIRS = 1000  # dev and test pairs, at the most


def write_translation_corpus(folder: Path, pairs: int, seed: int = 1, overwrite: bool = False) -> dict[str, int]:
    """Writes `train`, `dev` and `test`, each as `.en`, `.de` and `.align`, and says how many pairs each has.

    `pairs` is the size of the training set; dev and test have a tenth of it each, at most 1,000.
    """
    if pairs < 10:
        raise UserError(f"a corpus has at least 10 pairs, not {pairs}")
    there = [f"{name}.{ending}" for name in _SPLITS for ending in _EXTENSIONS if (folder / f"{name}.{ending}").exists()]
    if there and not overwrite:
        raise UserError(f"{folder} already holds {', '.join(there)}; nothing is overwritten, choose another --out")
    held_out = min(_MAX_HELD_OUT_PAIRS, pairs // 10)
    folder.mkdir(parents=True, exist_ok=True)
    splits = generate_corpus(train=pairs, dev=held_out, test=held_out, seed=seed)
    for name, split in splits.items():
        columns = {
            "en": (pair.source for pair in split),
            "de": (pair.target for pair in split),
            "align": (format_pharaoh(pair.alignment) for pair in split),
        }
        for ending, lines in columns.items():
            (folder / f"{name}.{ending}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return {name: len(split) for name, split in splits.items()}
