"""Draws noun phrases: who and what the sentences are about."""

from dataclasses import dataclass, replace
from random import Random

from .lexeme import Noun
from .lexicon import HE, HUMAN, PRONOUNS, SHE, SPEAKER, THEY, WE, adjectives, nouns, suits
from .particles import AROUND, LOCATIONS, UPON
from .phrases import Conjoined, Nominal, NounPhrase, Prepositional, Pronoun


@dataclass(frozen=True, slots=True)
class _Habit:
    """The determiners usual in a place, each as often as it is listed, and what else is usual there.

    `share` is that of plurals, `owned` that of possessives, and `adorned` that of adjectives after an ein-word: their
    endings are the most various, so they are the ones to be shown often.
    """

    one: tuple[str, ...]
    many: tuple[str, ...]
    people: tuple[str, ...]
    mass: tuple[str, ...]
    share: float
    owned: float
    adorned: float


_COUNTED = ("two", "three", "many", "some")
_SUBJECT = _Habit(
    one=("the",) * 10 + ("a",) * 5 + ("this",) * 2 + ("every", "no"),
    many=("the",) * 5 + ("this",) * 2 + _COUNTED,
    people=("the",) * 5 + ("this",) * 2 + _COUNTED,
    mass=("the", "the", "this"),
    share=0.27,
    owned=0.2,
    adorned=0.45,
)
_INANIMATE = _Habit(
    one=("the",) * 5 + ("a",) * 5 + ("this", "every", "no"),
    many=("the",) * 3 + ("this", *_COUNTED),
    people=(),
    mass=("the", "the", "this"),
    share=0.2,
    owned=0.4,
    adorned=0.85,
)
_OBJECT = _Habit(
    one=("the",) * 8 + ("a",) * 8 + ("this",) * 2,
    many=("the",) * 5 + ("",) * 4 + ("this", *_COUNTED),
    people=("the",) * 5 + ("this", *_COUNTED),
    mass=("the", "", ""),
    share=0.3,
    owned=0.16,
    adorned=0.5,
)
_DENIED = _Habit(
    one=("the",) * 3 + ("a",) * 4 + ("this",),
    many=("the", "the", "", "", "this"),
    people=("the", "the", "this"),
    mass=("the", "", ""),
    share=0.3,
    owned=0.16,
    adorned=0.5,
)
_KNOWN = _Habit(
    one=("the",) * 5 + ("this",), many=("the",), people=("the",), mass=("the",), share=0.25, owned=0.16, adorned=0.5
)
_PLACE = ("the",) * 12 + ("a",) * 3 + ("this",)

_POSSESSIVES = ("my", "his", "her", "our", "their")
_OF_PRONOUN = {SPEAKER.english: "my", HE.english: "his", SHE.english: "her", WE.english: "our", THEY.english: "their"}
# what a phrase with "of" gives an owner to, and what else people call theirs
_OWNED = ("kin", "pet", "thing", "clothing", "car", "bicycle", "text", "house", "garden", "room", "friend", "neighbor")
_OWNABLE = (*_OWNED, "farm", "furniture", "idea", "teacher", "doctor", "colleague", "guest", "child", "school", "city")
_STRANGERS = ("person", "youth")
_CARRIED = ("coat", "hat", "jacket", "bag", "umbrella", "suitcase", "dog")

_OUTER = ("big", "small", "beautiful", "friendly", "dirty", "cheap")
_INNER = ("red", "blue", "black", "white", "old", "young")
_UNGRADED = (*_INNER[:4], "delicious", "new")
_ANIMATE = (*HUMAN, "pet", "farm", "wild")
# spoken of one at a time
_SINGLE = ("furniture", "building", "room", "nature", "town", "mother", "father", "grandmother")
_ONLY_INTO = ("city", "village", "kitchen", "room", "office", "garden")


class Phraser:
    """Draws phrases that fit a verb, no noun twice in one sentence."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.used: list[str] = []

    def forget(self) -> None:
        """Start a new sentence."""
        self.used.clear()

    def chance(self, share: float) -> bool:
        """True in that share of the calls."""
        return self.random.random() < share

    def noun(self, kinds: tuple[str, ...]) -> Noun:
        """A noun of the kinds, if possible one that the sentence does not have yet."""
        pool = nouns(kinds)
        word = self.random.choice(pool)
        for _ in range(4):
            if word.english not in self.used:
                break
            word = self.random.choice(pool)
        self.used.append(word.english)
        return word

    def subject(self, kinds: tuple[str, ...], speaker: int = 1) -> Nominal:
        """Who does it; `speaker` is how much more often "I" comes than any other pronoun."""
        human = "person" in kinds
        if human and self.chance(0.36 if speaker > 1 else 0.28):
            return self.random.choice((*(SPEAKER,) * speaker, *PRONOUNS[1:]))
        if human and self.chance(0.04):
            return Conjoined(NounPhrase(self.noun(_STRANGERS)), NounPhrase(self.noun(_STRANGERS)))
        # few, but neuter people are among them
        word = self.noun(("youth",) if human and "youth" in kinds and self.chance(0.15) else kinds)
        phrase = self._phrase(word, _POSSESSIVES, _SUBJECT if word.kind in _ANIMATE else _INANIMATE)
        if word.kind == "person" and phrase.determiner in {"the", "a"} and not phrase.plural and self.chance(0.08):
            held = NounPhrase(self.noun(_CARRIED), phrase.determiner)
            return replace(phrase, companion=Prepositional("with", "mit", "dat", self._adorn(held, 0.3)))
        return phrase

    def patient(self, kinds: tuple[str, ...], subject: Nominal, denied: bool = False) -> Nominal:
        """Whom or what it is done to; what is denied must read well with kein or nicht."""
        if "person" in kinds and self.chance(0.22):
            return self._other(subject)
        return self._owned(kinds, subject, _DENIED if denied else _OBJECT)

    def known(self, kinds: tuple[str, ...], subject: Nominal) -> Nominal:
        """A definite phrase or a pronoun: for recipients, and after a preposition in a denial."""
        if "person" in kinds and self.chance(0.3):
            return self._other(subject)
        return self._owned(kinds, subject, _KNOWN)

    def asked(self, kinds: tuple[str, ...]) -> NounPhrase:
        """What a question with "which" asks about."""
        word = self.noun(kinds)
        plural = not (word.mass or suits(word, _SINGLE)) and self.chance(0.3)
        return self._adorn(NounPhrase(word, "which", plural), 0.2)

    def place(self, kinds: tuple[str, ...]) -> Prepositional:
        """Where it happens."""
        word = self.noun(kinds)
        phrase = self._adorn(NounPhrase(word, self.random.choice(_PLACE)), 0.22)
        around = word.kind == "building" and self.chance(0.3)
        preposition = self.random.choice(AROUND) if around else LOCATIONS.get(word.english, ("in", "in"))
        return Prepositional(*preposition, "dat", phrase)

    def spot(self, kinds: tuple[str, ...], case: str, seated: bool) -> Prepositional:
        """On, next to or under a piece of furniture, where nobody sits under it."""
        phrase = self._adorn(NounPhrase(self.noun(kinds), self.random.choice(_PLACE)), 0.22)
        return Prepositional(*self.random.choice(UPON[:2] if seated else UPON), case, phrase)

    def goal(self, kinds: tuple[str, ...], afoot: bool) -> Prepositional:
        """Where the way leads: to a place, or into one."""
        word = self.noun(kinds)
        phrase = self._adorn(NounPhrase(word, self.random.choice(_PLACE)), 0.22)
        enterable = afoot and word.english not in LOCATIONS and self.chance(0.4)
        if enterable or word.english in _ONLY_INTO:
            return Prepositional("into", "in", "acc", phrase)
        return Prepositional("to", "zu", "dat", phrase)

    def _other(self, subject: Nominal) -> Pronoun:
        speakers = (SPEAKER, WE) if subject in (SPEAKER, WE) else ()
        return self.random.choice([pronoun for pronoun in PRONOUNS if pronoun not in speakers])

    def _owned(self, kinds: tuple[str, ...], subject: Nominal, habit: _Habit) -> NounPhrase:
        word = self.noun(kinds)
        childless = isinstance(subject, NounPhrase) and subject.noun.kind == "youth"
        strange = childless and word.english in {"son", "daughter"}
        return self._phrase(word, ("my", "our") if strange else _owners(subject), habit)

    def _phrase(self, word: Noun, owners: tuple[str, ...], habit: _Habit) -> NounPhrase:
        if word.mass:
            return self._adorn(NounPhrase(word, self.random.choice(habit.mass)), 0.3)
        kin = word.kind == "kin"
        plural = not suits(word, _SINGLE) and self.chance(0.12 if word.kind == "clothing" else habit.share)
        if word.kind == "clothing" and owners == ("their",):
            plural = True
        many = habit.people if word.kind in HUMAN else habit.many
        if suits(word, _OWNABLE) and self.chance(0.7 if kin else habit.owned):
            return self._adorn(NounPhrase(word, self.random.choice(owners), plural), 0.42 if kin else habit.adorned)
        phrase = NounPhrase(word, "the" if kin else self.random.choice(many if plural else habit.one), plural)
        if phrase.determiner == "the" and suits(word, _OWNED) and (kin or self.chance(0.16)):
            phrase = replace(phrase, owner=self._owner(kin))
        return self._adorn(phrase, habit.adorned if phrase.determiner == "a" else 0.24)

    def _owner(self, of_kin: bool) -> NounPhrase:
        word = self.noun(("person",) if of_kin else (self.random.choice(HUMAN),))
        if word.kind == "kin":
            return NounPhrase(word, self.random.choice(_POSSESSIVES))
        return self._adorn(NounPhrase(word, "the", self.chance(0.25)), 0.15)

    def _adorn(self, phrase: NounPhrase, share: float) -> NounPhrase:
        if not self.chance(share):
            return phrase
        fitting = adjectives(phrase.noun)
        word = self.random.choice(fitting)
        inner = [other for other in fitting if other.english in _INNER and other.english != word.english]
        if word.english in _OUTER and inner and self.chance(0.3):
            return replace(phrase, adjectives=(word, self.random.choice(inner)))
        very = phrase.determiner in {"the", "a", ""} and word.english not in _UNGRADED and self.chance(0.12)
        return replace(phrase, adjectives=(word,), very=very)


def _owners(subject: Nominal) -> tuple[str, ...]:
    if isinstance(subject, Pronoun):
        return (_OF_PRONOUN[subject.english],) if subject.english in _OF_PRONOUN else ("my", "our")
    if subject.person == "p":
        return ("their",)
    if isinstance(subject, NounPhrase) and subject.noun.kind in HUMAN:
        return {"m": ("his",), "f": ("her",)}.get(subject.noun.gender, ("my", "our"))
    return ("my", "our")
