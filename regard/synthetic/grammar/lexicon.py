"""Lexicon: lookup of words by name and by the words that they can be combined with."""

from functools import cache

from regard.synthetic.grammar.adjectives import ADJECTIVES
from regard.synthetic.grammar.lexeme import Adjective, Noun, Verb
from regard.synthetic.grammar.nouns import NOUNS
from regard.synthetic.grammar.phrases import Pronoun
from regard.synthetic.grammar.verbs import VERBS

SPEAKER = Pronoun(("I", "me"), ("ich", "mich", "mir"), "1")
HE = Pronoun(("he", "him"), ("er", "ihn", "ihm"), "3")
SHE = Pronoun(("she", "her"), ("sie", "sie", "ihr"), "3")
WE = Pronoun(("we", "us"), ("wir", "uns", "uns"), "p")
THEY = Pronoun(("they", "them"), ("sie", "sie", "ihnen"), "p")
PRONOUNS = (SPEAKER, HE, SHE, WE, THEY)
WHO = Pronoun(("who", "whom"), ("wer", "wen", "wem"), "3")
WHAT = Pronoun(("what", "what"), ("was", "was", "was"), "3")

HUMAN = ("person", "kin", "youth")

_NOUNS = {noun.english: noun for noun in NOUNS}
_ADJECTIVES = {adjective.english: adjective for adjective in ADJECTIVES}


def find_noun(name: str) -> Noun:
    """Return the noun with this English singular."""
    return _NOUNS[name]


def find_adjective(name: str) -> Adjective:
    """Return the adjective with this English word."""
    return _ADJECTIVES[name]


def find_verb(lemma: str, frame: str = "") -> Verb:
    """Return the verb with this English lemma ("look for"), and with this frame if one is given."""
    return next(verb for verb in VERBS if verb.lemma == lemma and frame in {"", verb.frame})


def is_of_kind(word: Noun, kinds: tuple[str, ...]) -> bool:
    """Return True if the noun is of one of the kinds or is itself listed."""
    return word.kind in kinds or word.english in kinds


@cache
def find_nouns(kinds: tuple[str, ...]) -> tuple[Noun, ...]:
    """Return the nouns of these kinds."""
    return tuple(word for word in NOUNS if is_of_kind(word, kinds))


@cache
def find_adjectives(word: Noun) -> tuple[Adjective, ...]:
    """Return the adjectives that suit the noun.

    Those that suit few nouns are returned three times, so that they are drawn about as often as the others.
    """
    suitable = [adjective for adjective in ADJECTIVES if is_of_kind(word, adjective.kinds)]
    return tuple(adjective for adjective in suitable for _ in range(1 if len(find_nouns(adjective.kinds)) > 50 else 3))


@cache
def find_verbs(*frames: str) -> tuple[Verb, ...]:
    """Return the verbs with these frames."""
    return tuple(verb for verb in VERBS if verb.frame in frames)


@cache
def find_verbs_with_subject(word: Noun) -> tuple[Verb, ...]:
    """Return the verbs that the noun can be the subject of."""
    return tuple(
        verb for verb in VERBS if is_of_kind(word, verb.subjects) and not verb.frame.startswith(("that", "whether"))
    )


@cache
def find_verbs_with_object(word: Noun) -> tuple[Verb, ...]:
    """Return the verbs with one object that the noun can be the object of."""
    return tuple(
        verb
        for verb in VERBS
        if verb.frame in {"acc", "dat"} and is_of_kind(word, verb.objects) and verb.particle != "to"
    )
