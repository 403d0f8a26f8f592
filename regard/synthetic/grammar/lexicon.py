"""Lexicon: a record for each part of speech, the words of `lexicon.yaml`, and lookup by name and by combination."""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from regard.paths import read_package_yaml


class Noun(NamedTuple):
    """A noun in both languages; a mass noun has no plural ("")."""

    kind: str
    english: str
    english_plural: str
    gender: str
    german: str
    genitive: str
    german_plural: str

    @property
    def is_weak(self) -> bool:
        """True if every singular form but the nominative takes the genitive's -n (der Junge, den Jungen)."""
        return self.gender == "m" and self.genitive.endswith("n")

    @property
    def is_mass(self) -> bool:
        """True if the noun cannot be counted."""
        return not self.english_plural


class Adjective(NamedTuple):
    """An adjective: the German word, the stem that takes its endings, and the kinds of noun that it suits."""

    english: str
    german: str
    stem: str
    kinds: tuple[str, ...]


class Verb(NamedTuple):
    """A verb: its principal parts in both languages and its arguments.

    The parts are base, third person, past and participle, the German ones without the separable `prefix`.
    `frame` names the arguments (see `verbs`); `subjects`, `objects` and `places` are kinds of noun or single nouns.
    `particle` is the English word that belongs to the verb ("up", "for"); a movable one follows an object pronoun.
    `preposition` is (English, German, case) if the object is a prepositional one.
    """

    english: tuple[str, str, str, str]
    german: tuple[str, str, str, str]
    particle: str
    is_particle_movable: bool
    prefix: str
    auxiliary: str
    frame: str
    is_stative: bool
    is_volitional: bool
    preposition: tuple[str, str, str]
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    places: tuple[str, ...]
    manners: tuple[str, ...]

    @property
    def lemma(self) -> str:
        """English verb with its particle or preposition: "look for"."""
        return " ".join(filter(None, (self.english[0], self.particle, self.preposition[0])))


class Modal(NamedTuple):
    """A modal in one tense; `base` is empty for true auxiliaries, and "want" or "have" if English adds "to"."""

    english: str
    english_third: str
    base: str
    german: str
    german_plural: str
    is_past: bool
    is_negatable: bool


class Adverbial(NamedTuple):
    """A fixed phrase: (word, unit) in both languages; words with the same unit translate each other."""

    name: str
    english: tuple[tuple[str, int], ...]
    german: tuple[tuple[str, int], ...]
    tenses: tuple[str, ...]


class Conjunction(NamedTuple):
    """A word between two clauses, and the pairs of tenses (main clause, other clause) that it joins."""

    english: str
    german: str
    tenses: tuple[tuple[str, str], ...]


class DeterminerFrequencies(NamedTuple):
    """Determiners of a kind of phrase, each repeated by its frequency, and probabilities of other parts.

    `adjective_probability` is that after an ein-word: adjective endings vary most there, so they are shown often.
    """

    singular: tuple[str, ...]
    plural: tuple[str, ...]
    plural_people: tuple[str, ...]
    mass_nouns: tuple[str, ...]
    plural_probability: float
    possessive_probability: float
    adjective_probability: float
    pronoun_probability: float = 0.0  # of an object that can be a person


class Pronoun(NamedTuple):
    """A pronoun of any kind: (subject, object) in English, (nominative, accusative, dative) in German.

    `person` is "1", "3" or "p"; `noun` is the noun that a relative or interrogative pronoun stands for.
    """

    english: tuple[str, str]
    german: tuple[str, str, str]
    person: str
    noun: Noun | None = None

    def inflect_german(self, case: str) -> str:
        """Return the German pronoun in its case."""
        return self.german[("nom", "acc", "dat").index(case)]


SECTIONS: dict[str, Any] = read_package_yaml("regard.synthetic.grammar", "lexicon.yaml")


def iterate_rows(table: str, separator: str | None = None) -> Iterator[list[str]]:
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
    return _expand_names(text, SECTIONS["groups"])


def _parse_adjective(words: str, kinds: str) -> Adjective:
    english, german, stem = words.split()
    return Adjective(english, german, stem, _parse_kinds(kinds))


def _parse_forms(table: str) -> dict[str, tuple[str, str, str, str]]:
    return {row[0]: (row[0], row[1], row[2], row[3]) for row in iterate_rows(table)}


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
    units = enumerate(unit.partition("@") for unit in phrase.split())
    return tuple((word, int(number or index)) for index, (words, _, number) in units for word in words.split("+"))


def _parse_adverbials(name: str) -> tuple[Adverbial, ...]:
    return tuple(
        Adverbial(english.replace("+", " "), _parse_units(english), _parse_units(german), tuple(tenses.split()))
        for english, german, tenses in iterate_rows(SECTIONS["adverbials"][name], "|")
    )


def _parse_conjunction(english: str, german: str, tenses: str) -> Conjunction:
    pairs = (pair.partition("/") for pair in _expand_names(tenses, SECTIONS["tense_pairs"]))
    return Conjunction(english, german, tuple((main, other) for main, _, other in pairs))


def _parse_determiners(section: dict[str, Any]) -> DeterminerFrequencies:
    lists = {name: _parse_weighted_list(text) for name, text in section.items() if isinstance(text, str)}
    return DeterminerFrequencies(**{**section, **lists})


NOUNS = tuple(Noun(kind, *row) for kind, table in SECTIONS["nouns"].items() for row in iterate_rows(table))
ADJECTIVES = tuple(_parse_adjective(*row) for row in iterate_rows(SECTIONS["adjectives"], "|"))
_ENGLISH_FORMS, _GERMAN_FORMS = map(_parse_forms, (SECTIONS["english_verb_forms"], SECTIONS["german_verb_forms"]))
VERBS = tuple(_parse_verb(*row) for row in iterate_rows(SECTIONS["verbs"], "|"))
TIME, FREQUENCY, MANNER, MEANS = map(_parse_adverbials, ("time", "frequency", "manner", "means"))
WHERE, WHEN, WHY, WHITHER = _parse_adverbials("question")
MODALS = tuple(
    Modal(english, third, base, german, plural, is_past == "yes", is_negatable == "yes")
    for english, third, base, german, plural, is_past, is_negatable in iterate_rows(SECTIONS["modals"])
)
*SUBORDINATORS, THAT, WHETHER, AND, BUT = (
    _parse_conjunction(*row) for row in iterate_rows(SECTIONS["conjunctions"], "|")
)
LOCATIONS = {noun: (english, german) for noun, english, german in iterate_rows(SECTIONS["locations"])}
AROUND = (("behind", "hinter"), ("next to", "neben"), ("in front of", "vor"))
UPON = (("on", "auf"), ("next to", "neben"), ("under", "unter"))
DETERMINERS = {name: _parse_determiners(fields) for name, fields in SECTIONS["determiners"].items()}
LISTS = {name: _parse_weighted_list(text) for name, text in SECTIONS["lists"].items()}
_CONTRARIES = tuple(map(set, iterate_rows(SECTIONS["contraries"])))

SPEAKER, HE, SHE, WE, THEY, WHO, WHAT = (
    Pronoun((subject, object), (nominative, accusative, dative), person)
    for subject, object, nominative, accusative, dative, person in iterate_rows(SECTIONS["pronouns"])
)
PRONOUNS = (SPEAKER, HE, SHE, WE, THEY)

HUMAN = ("person", "kin", "youth")


@cache
def find_noun(name: str) -> Noun:
    """Return the noun with this English singular."""
    return next(noun for noun in NOUNS if noun.english == name)


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
    return tuple(verb for verb in VERBS if is_of_kind(word, verb.subjects) and verb.frame not in {"that", "whether"})


@cache
def find_verbs_with_object(word: Noun) -> tuple[Verb, ...]:
    """Return the verbs with one object that the noun can be the object of."""
    verbs = find_verbs("acc", "dat")
    return tuple(verb for verb in verbs if is_of_kind(word, verb.objects) and verb.particle != "to")


def are_contradictory(one: Adjective, other: Adjective) -> bool:
    """Return True if both adjectives cannot describe the same thing, or are the same."""
    return one == other or any({one.english, other.english} <= group for group in _CONTRARIES)
