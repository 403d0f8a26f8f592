"""Which combinations of words only the test split may show.

Each adjective with its noun and each verb with its object is a combination; a fixed share of them, the same for every
seed, is reserved. A model that gives the test sentences right has therefore combined words it knew from elsewhere.
"""

import zlib
from collections.abc import Iterator
from functools import cache

from .clauses import Clause
from .phrases import Conjoined, Nominal, NounPhrase, Prepositional, Pronoun, phrases

SHARE = 0.08


@cache
def reserved(combination: str) -> bool:
    """Whether the combination ("adjective old man", "verb read book") is kept for the test split."""
    return zlib.crc32(combination.encode()) < SHARE * 2**32


def combinations(clause: Clause) -> Iterator[str]:
    """The combinations in a clause and in its relative clause, by English lemmas."""
    for nominal in _nominals(clause):
        for phrase in phrases(nominal):
            for word in phrase.adjectives:
                yield f"adjective {word.english} {phrase.noun.english}"
    if clause.predicate:
        for noun in _heads(clause.subject):
            yield f"adjective {clause.predicate.english} {noun}"
    if clause.direct:
        for noun in _heads(clause.direct):
            yield f"verb {clause.verb.lemma} {noun}"
    if clause.complement and clause.verb.frame == "prep":
        for noun in _heads(clause.complement.nominal):
            yield f"verb {clause.verb.lemma} {noun}"
    if clause.relative:
        yield from combinations(clause.relative)


def _nominals(clause: Clause) -> Iterator[Nominal]:
    for part in (clause.subject, clause.direct, clause.indirect, clause.complement, clause.place):
        if isinstance(part, Prepositional):
            yield part.nominal
        elif part:
            yield part


def _heads(nominal: Nominal) -> Iterator[str]:
    parts = (nominal.left, nominal.right) if isinstance(nominal, Conjoined) else (nominal,)
    for part in parts:
        if isinstance(part, NounPhrase | Pronoun) and part.noun:
            yield part.noun.english
