"""Synthetic translation corpora with gold word alignments in train, dev and test splits: English–German and –Japanese.

Each adjective with its noun and each verb with its object is a combination; a fixed fraction of them, the same for
every seed, is held out for the test split. A model that translates the test sentences correctly has therefore combined
words that it learnt in other combinations.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random

from regard.data.readers.text import format_pharaoh
from regard.errors import UserError
from regard.synthetic.grammar.sentences import AlignedPair, SentenceGenerator, realize_sentence_pair
from regard.synthetic.grammar.syntax import (
    Clause,
    PrepositionalPhrase,
    Sentence,
    iterate_head_nouns,
    iterate_noun_phrases,
)
from regard.tokenizers.segmentation import join_words

_MAX_HELD_OUT_PAIRS = 1000  # maximum size of dev and of test
_HELD_OUT_FRACTION = 0.08  # of all combinations of words
_MAX_WORDS = 22
# The same English sentences in each pair. Without spaces, a file of target words shows what the links of `align` count.
PAIR_EXTENSIONS = {"en-de": ("en", "de", "align"), "en-ja": ("en", "ja", "align", "words.ja")}
DEFAULT_PAIR = "en-de"
# After so many draws in a row without a new sentence, the grammar is considered exhausted.
MAX_FRUITLESS_DRAWS = 20_000


@cache
def is_held_out(combination: str) -> bool:
    """Return True if the combination ("adjective old man", "verb read book") is held out for the test split."""
    return zlib.crc32(combination.encode()) < _HELD_OUT_FRACTION * 2**32


def iterate_combinations(clause: Clause) -> Iterator[str]:
    """Yield the combinations in a clause and in its relative clause, by English lemmas."""
    for part in (clause.subject, clause.direct, clause.indirect, clause.complement, clause.place):
        for phrase in iterate_noun_phrases(part.nominal if isinstance(part, PrepositionalPhrase) else part):
            for word in phrase.adjectives:
                yield f"adjective {word.english} {phrase.noun.english}"
    if clause.predicate:
        for noun in iterate_head_nouns(clause.subject):
            yield f"adjective {clause.predicate.english} {noun.english}"
    complement = clause.complement.nominal if clause.complement and clause.verb.frame == "prep" else None
    for nominal in (clause.direct, complement):
        for noun in iterate_head_nouns(nominal):
            yield f"verb {clause.verb.lemma} {noun.english}"
    if clause.relative:
        yield from iterate_combinations(clause.relative)


def generate_corpus(
    train: int, dev: int, test: int, seed: int = 1, pair: str = DEFAULT_PAIR
) -> dict[str, list[AlignedPair]]:
    """Return the splits "train", "dev" and "test", without repeated English sentences.

    Training and dev sentences contain no held-out combination, every test sentence contains one or more. Each split has
    its own random stream: a larger one begins with the smaller one, and the others stay as they are.
    """
    splits: dict[str, list[AlignedPair]] = {"train": [], "dev": [], "test": []}
    known_sources: set[str] = set()
    for name, size, stream in (("test", test, 2), ("dev", dev, 1), ("train", train, 0)):
        if size < 0:
            raise ValueError(f"{name} must not be negative, it is {size}")
        generator = SentenceGenerator(Random(3 * seed + stream))
        splits[name] = collect_pairs(generator.draw_sentence, size, known_sources, name == "test", pair)
    return splits


def collect_pairs(
    draw: Callable[[], Sentence], size: int, known: set[str], held_out: bool, pair: str = DEFAULT_PAIR
) -> list[AlignedPair]:
    """Return `size` new pairs, all with or all without a held-out combination; add their sources to `known`."""
    pairs: list[AlignedPair] = []
    target = pair.rpartition("-")[2]
    num_fruitless = 0
    while len(pairs) < size:
        sentence = draw()
        made = realize_sentence_pair(sentence, target) if _has_held_out_combination(sentence) == held_out else None
        if made and made.source not in known and made.source.count(" ") < _MAX_WORDS:
            known.add(made.source)
            pairs.append(made)
            num_fruitless = 0
        elif (num_fruitless := num_fruitless + 1) > MAX_FRUITLESS_DRAWS:
            raise ValueError(f"{size} different sentence pairs were requested, the grammar has only {len(pairs)}")
    return pairs


def _has_held_out_combination(sentence: Sentence) -> bool:
    """Return True if the sentence contains a held-out combination."""
    clauses = filter(None, (sentence.first, sentence.second))
    return any(is_held_out(combination) for clause in clauses for combination in iterate_combinations(clause))


def write_translation_corpus(
    folder: Path, pairs: int, seed: int = 1, overwrite: bool = False, pair: str = DEFAULT_PAIR
) -> dict[str, int]:
    """Write `train`, `dev` and `test`, each with the extensions of the pair; return the number of sentences of each.

    `pairs` is the size of the training set; dev and test have a tenth of it each, at most 1,000.
    """
    if pairs < 10:
        raise UserError(f"a corpus has at least 10 pairs, not {pairs}")
    names = (f"{split}.{extension}" for split in ("train", "dev", "test") for extension in PAIR_EXTENSIONS[pair])
    existing = [name for name in names if (folder / name).exists()]
    if existing and not overwrite:
        raise UserError(f"{folder} already holds {', '.join(existing)}; nothing is overwritten, choose another --out")
    held_out = min(_MAX_HELD_OUT_PAIRS, pairs // 10)
    folder.mkdir(parents=True, exist_ok=True)
    splits = generate_corpus(train=pairs, dev=held_out, test=held_out, seed=seed, pair=pair)
    for name, split in splits.items():
        write_aligned_pairs(folder, name, split, pair)
    return {name: len(split) for name, split in splits.items()}


def write_aligned_pairs(folder: Path, name: str, pairs: Sequence[AlignedPair], pair: str = DEFAULT_PAIR) -> None:
    """Write sentence pairs to `NAME.en`, `NAME.de` (as `pair` says) and their alignments to `NAME.align`.

    The text of a language without spaces is written without, and its words with spaces to `NAME.words.ja`.
    """
    lines = [
        (made.source, join_words(made.target.split()), format_pharaoh(made.alignment, made.possible), made.target)
        for made in pairs
    ]
    for column, extension in enumerate(PAIR_EXTENSIONS[pair]):
        text = "".join(cells[column] + "\n" for cells in lines)
        (folder / f"{name}.{extension}").write_text(text, encoding="utf-8")
