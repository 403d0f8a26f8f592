"""Lexicon: the words of `lexicon.yaml`, and lookup by name and by the words that they can be combined with."""

from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

import yaml

from regard.synthetic.grammar.lexeme import Adjective, Adverbial, Conjunction, DeterminerFrequencies, Modal, Noun, Verb
from regard.synthetic.grammar.phrases import Pronoun

_SECTIONS: dict[str, Any] = yaml.safe_load(
    resources.files("regard.synthetic.grammar").joinpath("lexicon.yaml").read_text(encoding="utf-8")
)


def _iterate_rows(table: str, separator: str | None = None) -> Iterator[list[str]]:
    """Yield the cells of each line; "-" is an empty one."""
    for line in table.splitlines():
        yield ["" if cell.strip() == "-" else cell.strip() for cell in line.split(separator)]


def _expand_names(text: str, groups: dict[str, str]) -> tuple[str, ...]:
    """Return the words of a list, with those of a group for its name."""
    return tuple(word for name in text.split() for word in groups.get(name, name).split())


def _parse_weighted_list(text: str) -> tuple[str, ...]:
    """Return the words of a list, each repeated by its weight: `the*2 -` -> the, the, ""."""
    items = (item.partition("*") for item in text.split())
    return tuple("" if word == "-" else word for word, _, weight in items for _ in range(int(weight or 1)))


def _parse_kinds(text: str) -> tuple[str, ...]:
    return _expand_names(text, _SECTIONS["groups"])


def _parse_adjective(words: str, kinds: str) -> Adjective:
    english, german, stem = words.split()
    return Adjective(english, german, stem, _parse_kinds(kinds))


def _parse_forms(table: str) -> dict[str, tuple[str, str, str, str]]:
    return {row[0]: (row[0], row[1], row[2], row[3]) for row in _iterate_rows(table)}


def _parse_verb(words: str, frame: str, subjects: str, objects: str, places: str, manners: str) -> Verb:
    english, german = words.split(" = ")
    base, _, particle = english.partition(" ")
    infinitive, auxiliary = german.split()
    prefix, _, stem = infinitive.rpartition("-")
    name, *preposition = frame.rstrip("!?").split(":")
    return Verb(
        english=_ENGLISH_FORMS[base],
        german=_GERMAN_FORMS[stem],
        particle=particle.lstrip("~"),
        is_particle_movable=particle.startswith("~"),
        prefix=prefix,
        auxiliary={"h": "haben", "s": "sein"}[auxiliary],
        frame=name,
        is_stative=frame.endswith("!"),
        is_volitional=not frame.endswith("?"),
        preposition=(preposition[0], preposition[1], preposition[2]) if preposition else ("", "", ""),
        subjects=_parse_kinds(subjects),
        objects=_parse_kinds(objects),
        places=_parse_kinds(places),
        manners=tuple(manners.split()),
    )


def _parse_units(phrase: str) -> tuple[tuple[str, int], ...]:
    """Return (word, unit) for each word of an adverbial."""
    units = (unit.partition("@") for unit in phrase.split())
    units_with_targets = ((words, int(target) if target else index) for index, (words, _, target) in enumerate(units))
    return tuple((word, target) for words, target in units_with_targets for word in words.split("+"))


def _parse_adverbials(name: str) -> tuple[Adverbial, ...]:
    return tuple(
        Adverbial(english.replace("+", " "), _parse_units(english), _parse_units(german), tuple(tenses.split()))
        for english, german, tenses in _iterate_rows(_SECTIONS["adverbials"][name], "|")
    )


def _parse_conjunction(english: str, german: str, tenses: str) -> Conjunction:
    pairs = (pair.split("/") for pair in _expand_names(tenses, _SECTIONS["tense_pairs"]))
    return Conjunction(english, german, tuple((main, other) for main, other in pairs))


def _parse_determiners(section: dict[str, Any]) -> DeterminerFrequencies:
    fields: dict[str, Any] = {
        name: _parse_weighted_list(value) if isinstance(value, str) else value for name, value in section.items()
    }
    return DeterminerFrequencies(**fields)


NOUNS = tuple(Noun(kind, *row) for kind, table in _SECTIONS["nouns"].items() for row in _iterate_rows(table))
ADJECTIVES = tuple(_parse_adjective(*row) for row in _iterate_rows(_SECTIONS["adjectives"], "|"))
_ENGLISH_FORMS, _GERMAN_FORMS = (
    _parse_forms(_SECTIONS[f"{language}_verb_forms"]) for language in ("english", "german")
)
VERBS = tuple(_parse_verb(*row) for row in _iterate_rows(_SECTIONS["verbs"], "|"))
TIME, FREQUENCY, MANNER, MEANS = map(_parse_adverbials, ("time", "frequency", "manner", "means"))
WHERE, WHEN, WHY, WHITHER = _parse_adverbials("question")
MODALS = tuple(
    Modal(english, third, base, german, plural, is_past == "yes", is_negatable == "yes")
    for english, third, base, german, plural, is_past, is_negatable in _iterate_rows(_SECTIONS["modals"])
)
*SUBORDINATORS, THAT, WHETHER, AND, BUT = (
    _parse_conjunction(*row) for row in _iterate_rows(_SECTIONS["conjunctions"], "|")
)
LOCATIONS = {noun: (english, german) for noun, english, german in _iterate_rows(_SECTIONS["locations"])}
AROUND = (("behind", "hinter"), ("next to", "neben"), ("in front of", "vor"))
UPON = (("on", "auf"), ("next to", "neben"), ("under", "unter"))
DETERMINERS = {name: _parse_determiners(fields) for name, fields in _SECTIONS["determiners"].items()}
LISTS = {name: _parse_weighted_list(text) for name, text in _SECTIONS["lists"].items()}
_CONTRARIES = tuple(map(set, _iterate_rows(_SECTIONS["contraries"])))

SPEAKER = Pronoun(("I", "me"), ("ich", "mich", "mir"), "1")
HE = Pronoun(("he", "him"), ("er", "ihn", "ihm"), "3")
SHE = Pronoun(("she", "her"), ("sie", "sie", "ihr"), "3")
WE = Pronoun(("we", "us"), ("wir", "uns", "uns"), "p")
THEY = Pronoun(("they", "them"), ("sie", "sie", "ihnen"), "p")
PRONOUNS = (SPEAKER, HE, SHE, WE, THEY)
WHO = Pronoun(("who", "whom"), ("wer", "wen", "wem"), "3")
WHAT = Pronoun(("what", "what"), ("was", "was", "was"), "3")

HUMAN = ("person", "kin", "youth")

_NOUNS_BY_NAME = {noun.english: noun for noun in NOUNS}
_ADJECTIVES_BY_NAME = {adjective.english: adjective for adjective in ADJECTIVES}


def find_noun(name: str) -> Noun:
    """Return the noun with this English singular."""
    return _NOUNS_BY_NAME[name]


def find_adjective(name: str) -> Adjective:
    """Return the adjective with this English word."""
    return _ADJECTIVES_BY_NAME[name]


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


def are_contradictory(one: Adjective, other: Adjective) -> bool:
    """Return True if both adjectives cannot describe the same thing, or are the same."""
    return one == other or any({one.english, other.english} <= group for group in _CONTRARIES)
