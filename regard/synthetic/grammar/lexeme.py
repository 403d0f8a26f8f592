"""Lexical entries: one record for each part of speech."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Noun:
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


@dataclass(frozen=True, slots=True)
class Adjective:
    """An adjective: the German word, the stem that takes its endings, and the kinds of noun that it suits."""

    english: str
    german: str
    stem: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verb:
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


@dataclass(frozen=True, slots=True)
class Modal:
    """A modal in one tense; `base` is empty for true auxiliaries, and "want" or "have" if English adds "to"."""

    english: str
    english_third: str
    base: str
    german: str
    german_plural: str
    is_past: bool
    is_negatable: bool


@dataclass(frozen=True, slots=True)
class Adverbial:
    """A fixed phrase: (word, unit) in both languages; words with the same unit translate each other."""

    name: str
    english: tuple[tuple[str, int], ...]
    german: tuple[tuple[str, int], ...]
    tenses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conjunction:
    """A word between two clauses, and the pairs of tenses (main clause, other clause) that it joins."""

    english: str
    german: str
    tenses: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DeterminerFrequencies:
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
