"""Noun phrases and prepositional phrases: one abstract form, realized in English and German.

A token is a word and the names of its meanings. A name is a path in the abstract sentence, such as "0.subject.noun".
Two words of the two languages translate each other exactly if they have a name in common.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from regard.synthetic.grammar import english_morphology as en
from regard.synthetic.grammar import german_morphology as de
from regard.synthetic.grammar.lexicon import Adjective, Noun, Pronoun

Token = tuple[str, tuple[str, ...]]

_INDEFINITE_DETERMINERS = ("a", "", "no", "two", "three", "many", "some")


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """A noun with its modifiers; the determiner is the English singular word, "" for none."""

    noun: Noun
    determiner: str = "the"
    plural: bool = False
    adjectives: tuple[Adjective, ...] = ()
    very: bool = False
    owner: "NounPhrase | None" = None
    companion: "PrepositionalPhrase | None" = None

    @property
    def person(self) -> str:
        """Person that a verb agrees with."""
        return "p" if self.plural else "3"

    @property
    def gender(self) -> str:
        """German gender, or "p" for plural."""
        return "p" if self.plural else self.noun.gender


@dataclass(frozen=True, slots=True)
class CoordinatedPhrase:
    """Two noun phrases joined by "and"."""

    left: NounPhrase
    right: NounPhrase

    @property
    def person(self) -> str:
        """Person that a verb agrees with."""
        return "p"


Nominal = Pronoun | NounPhrase | CoordinatedPhrase


@dataclass(frozen=True, slots=True)
class PrepositionalPhrase:
    """A preposition in both languages, the German case that it governs, and its noun phrase."""

    english: str
    german: str
    case: str
    nominal: Nominal


def make_relative_pronoun(phrase: NounPhrase) -> Pronoun:
    """Return the pronoun with which a relative clause refers to the phrase."""
    human = phrase.noun.kind in {"person", "kin", "youth"}
    words = ("who", "whom") if human else ("which", "which")
    return Pronoun(words, de.RELATIVE_PRONOUNS[phrase.gender], phrase.person, phrase.noun)


def is_indefinite(nominal: Nominal) -> bool:
    """Return True if the phrase introduces something new, which tends to come late in a German clause."""
    return isinstance(nominal, NounPhrase) and nominal.determiner in _INDEFINITE_DETERMINERS


def realize_english_phrase(nominal: Nominal, path: str, objective: bool = False) -> list[Token]:
    """Return the English words of a noun phrase."""
    if isinstance(nominal, Pronoun):
        return [(nominal.english[objective], (path + ".noun",))]
    if isinstance(nominal, CoordinatedPhrase):
        left = realize_english_phrase(nominal.left, path + ".left")
        return [*left, ("and", (path + ".and",)), *realize_english_phrase(nominal.right, path + ".right")]
    words: list[Token] = [("very", (path + ".very",))] if nominal.very else []
    words += [(word.english, (f"{path}.{index}",)) for index, word in enumerate(nominal.adjectives)]
    words.append((en.inflect_noun(nominal.noun, nominal.plural), (path + ".noun",)))
    if nominal.determiner:
        words.insert(0, (en.inflect_article(nominal.determiner, nominal.plural, words[0][0]), (path + ".the",)))
    if nominal.owner:
        words += [("of", (path + ".owner.case",)), *realize_english_phrase(nominal.owner, path + ".owner")]
    if nominal.companion:
        words += realize_english_prepositional(nominal.companion, path + ".with")
    return words


def realize_german_phrase(nominal: Nominal, case: str, path: str, denial: str = "") -> list[Token]:
    """Return the German words of a noun phrase; `denial` (the name of "not") turns its article into kein.

    The first word also carries the case, for an English preposition ("of", "to") without a German counterpart.
    """
    if isinstance(nominal, Pronoun):
        return [(nominal.inflect_german(case), (path + ".noun", path + ".case"))]
    if isinstance(nominal, CoordinatedPhrase):
        left = realize_german_phrase(nominal.left, case, path + ".left")
        return [*left, ("und", (path + ".and",)), *realize_german_phrase(nominal.right, case, path + ".right")]
    determiner = "no" if denial else nominal.determiner
    words: list[Token] = []
    if determiner:
        names = (path + ".the", path + ".case", *([denial] if denial else []))
        words.append((de.inflect_article(determiner, nominal.gender, case), names))
    if nominal.very:
        words.append(("sehr", (path + ".very",)))
    for index, word in enumerate(nominal.adjectives):
        words.append((de.inflect_adjective(word, determiner, nominal.gender, case), (f"{path}.{index}",)))
    words.append((de.inflect_noun(nominal.noun, nominal.plural, case), (path + ".noun",)))
    if nominal.owner:
        words += realize_german_phrase(nominal.owner, "gen", path + ".owner")
    if nominal.companion:
        words += realize_german_prepositional(nominal.companion, path + ".with")
    return words


def realize_english_prepositional(phrase: PrepositionalPhrase, path: str) -> list[Token]:
    """Return the English words of a prepositional phrase."""
    words: list[Token] = [(word, (path + ".in",)) for word in phrase.english.split()]
    return words + realize_english_phrase(phrase.nominal, path, objective=True)


def realize_german_prepositional(phrase: PrepositionalPhrase, path: str) -> list[Token]:
    """Return the German words of a prepositional phrase; preposition and article are contracted if possible."""
    words = realize_german_phrase(phrase.nominal, phrase.case, path)
    name = path + ".in"
    first, names = words[0]
    contraction = de.CONTRACTIONS.get(f"{phrase.german} {first}")
    if contraction and isinstance(phrase.nominal, NounPhrase):
        return [(contraction, (name, *names)), *words[1:]]
    return [(phrase.german, (name,)), *words]


def realize_adverbial(words: tuple[tuple[str, int], ...], path: str) -> list[Token]:
    """Return the words of a fixed phrase, in either language."""
    return [(word, (f"{path}.{unit}",)) for word, unit in words]


def iterate_noun_phrases(nominal: Nominal) -> Iterator[NounPhrase]:
    """Yield every full noun phrase in it, from the outside in."""
    if isinstance(nominal, CoordinatedPhrase):
        yield from iterate_noun_phrases(nominal.left)
        yield from iterate_noun_phrases(nominal.right)
    elif isinstance(nominal, NounPhrase):
        yield nominal
        if nominal.owner:
            yield from iterate_noun_phrases(nominal.owner)
        if nominal.companion:
            yield from iterate_noun_phrases(nominal.companion.nominal)
