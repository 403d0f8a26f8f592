"""Which combinations of words only the test split may show.

Each adjective with its noun and each verb with its object is a combination; a fixed share of them, the same for every
seed, is reserved. A model that gives the test sentences right has therefore combined words it knew from elsewhere.
"""

import zlib
from collections.abc import Callable, Iterator
from functools import cache
from random import Random

from regard.synthetic.grammar.clauses import Clause
from regard.synthetic.grammar.phrases import (
    CoordinatedPhrase,
    Nominal,
    NounPhrase,
    PrepositionalPhrase,
    Pronoun,
    iterate_noun_phrases,
)
from regard.synthetic.grammar.sentence_generator import SentenceGenerator
from regard.synthetic.grammar.sentences import AlignedPair, Sentence, realize_sentence_pair

_HELD_OUT_FRACTION = 0.08


@cache
def is_held_out(combination: str) -> bool:
    """Whether the combination ("adjective old man", "verb read book") is kept for the test split."""
    return zlib.crc32(combination.encode()) < _HELD_OUT_FRACTION * 2**32


def iterate_combinations(clause: Clause) -> Iterator[str]:
    """The combinations in a clause and in its relative clause, by English lemmas."""
    for nominal in _iterate_nominals(clause):
        for phrase in iterate_noun_phrases(nominal):
            for word in phrase.adjectives:
                yield f"adjective {word.english} {phrase.noun.english}"
    if clause.predicate:
        for noun in _iterate_head_nouns(clause.subject):
            yield f"adjective {clause.predicate.english} {noun}"
    if clause.direct:
        for noun in _iterate_head_nouns(clause.direct):
            yield f"verb {clause.verb.lemma} {noun}"
    if clause.complement and clause.verb.frame == "prep":
        for noun in _iterate_head_nouns(clause.complement.nominal):
            yield f"verb {clause.verb.lemma} {noun}"
    if clause.relative:
        yield from iterate_combinations(clause.relative)


def _iterate_nominals(clause: Clause) -> Iterator[Nominal]:
    for part in (clause.subject, clause.direct, clause.indirect, clause.complement, clause.place):
        if isinstance(part, PrepositionalPhrase):
            yield part.nominal
        elif part:
            yield part


def _iterate_head_nouns(nominal: Nominal) -> Iterator[str]:
    parts = (nominal.left, nominal.right) if isinstance(nominal, CoordinatedPhrase) else (nominal,)
    for part in parts:
        if isinstance(part, NounPhrase | Pronoun) and part.noun:
            yield part.noun.english


_MAX_WORDS = 22
# so many fruitless draws in a row mean that the grammar has no new sentence left
MAX_FRUITLESS_DRAWS = 20_000


def generate_corpus(train: int, dev: int, test: int, seed: int = 1) -> dict[str, list[AlignedPair]]:
    """The splits "train", "dev" and "test", with no English sentence in two places.

    Training and development sentences contain no reserved combination, every test sentence contains one or more. Each
    split has its own random stream: a larger one begins with the smaller one, and the others stay as they are.
    """
    splits: dict[str, list[AlignedPair]] = {"train": [], "dev": [], "test": []}
    known: set[str] = set()
    for name, size, number in (("test", test, 2), ("dev", dev, 1), ("train", train, 0)):
        if size < 0:
            raise ValueError(f"{name} must not be negative, it is {size}")
        narrator = SentenceGenerator(Random(3 * seed + number))
        splits[name] = collect_pairs(narrator.draw_sentence, size, known, held_out=name == "test")
    return splits


def collect_pairs(
    draw: Callable[[], Sentence], size: int, known_sources: set[str], held_out: bool
) -> list[AlignedPair]:
    """So many new pairs, all with (held) or all without a reserved combination; `known` grows by their sources."""
    pairs: list[AlignedPair] = []
    fruitless = 0
    while len(pairs) < size:
        sentence = draw()
        made = realize_sentence_pair(sentence) if _has_held_out_combination(sentence) == held_out else None
        if made and made.source not in known_sources and made.source.count(" ") < _MAX_WORDS:
            known_sources.add(made.source)
            pairs.append(made)
            fruitless = 0
        elif (fruitless := fruitless + 1) > MAX_FRUITLESS_DRAWS:
            raise ValueError(f"asked for {size} different sentence pairs, the grammar gave only {len(pairs)}")
    return pairs


def _has_held_out_combination(sentence: Sentence) -> bool:
    """Whether a combination in the sentence is reserved for the test split."""
    clauses = (sentence.first, sentence.second)
    return any(is_held_out(combination) for clause in clauses if clause for combination in iterate_combinations(clause))
