"""Abstract sentences, the same for all languages: noun phrases, prepositional phrases and clauses.

A token is a word and the names of its meanings. A name is a path in the abstract sentence, such as "0.subject.noun".
Two words of the two languages translate each other exactly if they have a name in common.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from regard.synthetic.grammar.lexicon import (
    SECTIONS,
    Adjective,
    Adverbial,
    Conjunction,
    Modal,
    Noun,
    Pronoun,
    Verb,
    iterate_rows,
)

Token = tuple[str, tuple[str, ...]]

_RELATIVE_PRONOUNS = {  # nominative, accusative and dative by gender
    gender: (nominative, accusative, dative)
    for gender, nominative, accusative, dative in iterate_rows(SECTIONS["german_relative_pronouns"])
}
_INDEFINITE_DETERMINERS = ("a", "", "no", "two", "three", "many", "some")


class NounPhrase(NamedTuple):
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


class CoordinatedPhrase(NamedTuple):
    """Two noun phrases joined by "and"."""

    left: NounPhrase
    right: NounPhrase

    @property
    def person(self) -> str:
        """Person that a verb agrees with."""
        return "p"


Nominal = Pronoun | NounPhrase | CoordinatedPhrase


class PrepositionalPhrase(NamedTuple):
    """A preposition in both languages, the German case that it governs, and its noun phrase."""

    english: str
    german: str
    case: str
    nominal: Nominal


def make_relative_pronoun(phrase: NounPhrase) -> Pronoun:
    """Return the pronoun with which a relative clause refers to the phrase."""
    human = phrase.noun.kind in {"person", "kin", "youth"}
    words = ("who", "whom") if human else ("which", "which")
    return Pronoun(words, _RELATIVE_PRONOUNS[phrase.gender], phrase.person, phrase.noun)


def has_determiner(nominal: Nominal | None, *determiners: str) -> bool:
    """Return True for a noun phrase with one of these determiners."""
    return isinstance(nominal, NounPhrase) and nominal.determiner in determiners


def is_indefinite(nominal: Nominal | None) -> bool:
    """Return True if the phrase introduces something new, which tends to come late in a German clause."""
    return has_determiner(nominal, *_INDEFINITE_DETERMINERS)


def iterate_noun_phrases(nominal: Nominal | None) -> Iterator[NounPhrase]:
    """Yield every full noun phrase in it, from the outside in."""
    inner: tuple[Nominal | None, ...] = ()
    if isinstance(nominal, CoordinatedPhrase):
        inner = nominal
    elif isinstance(nominal, NounPhrase):
        yield nominal
        inner = (nominal.owner, nominal.companion and nominal.companion.nominal)
    for part in inner:
        yield from iterate_noun_phrases(part)


def iterate_head_nouns(nominal: Nominal | None) -> Iterator[Noun]:
    """Yield the noun that it is about, or two that are joined by "and"; none for most pronouns."""
    for part in nominal if isinstance(nominal, CoordinatedPhrase) else (nominal,):
        if isinstance(part, NounPhrase | Pronoun) and part.noun:
            yield part.noun


@dataclass(slots=True)
class Clause:
    """The parts of a clause: verb, subject, objects, adverbials; filled in one by one.

    `tense` is "present", "past", "perfect", "pluperfect" or "future"; a modal has its own. `front` names the part that
    opens the clause: "subject", "direct", "time", "place", "interrogative", or "" for a yes-no question.
    `relative` is a clause about the subject or the direct object, as `host` says; its front is a relative pronoun.
    """

    verb: Verb
    subject: Nominal
    tense: str = "present"
    modal: Modal | None = None
    negated: bool = False
    direct: Nominal | None = None
    indirect: Nominal | None = None
    recipient_last: bool = False
    complement: PrepositionalPhrase | None = None
    predicate: Adjective | None = None
    very: bool = False
    frequency: Adverbial | None = None
    manner: Adverbial | None = None
    means: Adverbial | None = None
    place: PrepositionalPhrase | None = None
    time: Adverbial | None = None
    interrogative: Adverbial | None = None
    front: str = "subject"
    relative: "Clause | None" = None
    host: str = "subject"

    @property
    def is_past(self) -> bool:
        """True if the finite verb is in a past form."""
        return self.modal.is_past if self.modal else self.tense in {"past", "pluperfect"}


class Sentence(NamedTuple):
    """One clause, or two joined by a conjunction.

    `kind` is "statement", "question"; or with two clauses: "trailing" (main clause, conjunction, subordinate clause),
    "leading" (conjunction, subordinate clause, main clause), "joined" (two main clauses) or "shared" (the second main
    clause has the first one's subject). The main clause is always `first`.
    """

    kind: str
    first: Clause
    second: Clause | None = None
    conjunction: Conjunction | None = None
