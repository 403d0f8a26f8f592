"""Random generation of noun phrases: subjects, objects, locations and destinations."""

from random import Random

from regard.synthetic.grammar import lexicon as lx
from regard.synthetic.grammar.lexicon import DeterminerFrequencies, Noun, Pronoun
from regard.synthetic.grammar.syntax import CoordinatedPhrase, Nominal, NounPhrase, PrepositionalPhrase

_POSSESSIVES = ("my", "his", "her", "our", "their")
_POSSESSIVE_BY_PRONOUN = {pronoun.english: word for pronoun, word in zip(lx.PRONOUNS, _POSSESSIVES, strict=True)}
_COORDINATED_KINDS = ("person", "youth")


class NounPhraseGenerator:
    """Draw noun phrases that fit a verb, avoiding the same noun twice in a sentence."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.used_nouns: list[str] = []

    def start_sentence(self) -> None:
        """Forget the nouns of the previous sentence."""
        self.used_nouns.clear()

    def draw_bool(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.random.random() < probability

    def draw_noun(self, kinds: tuple[str, ...]) -> Noun:
        """Draw a noun of the kinds, if possible one that is not in the sentence yet."""
        pool = lx.find_nouns(kinds)
        word = self.random.choice(pool)
        for _ in range(4):
            if word.english not in self.used_nouns:
                break
            word = self.random.choice(pool)
        self.used_nouns.append(word.english)
        return word

    def draw_subject(self, kinds: tuple[str, ...], speaker_weight: int = 1) -> Nominal:
        """Draw a subject; `speaker_weight` is how many times more frequent "I" is than any other pronoun."""
        is_human = "person" in kinds
        if is_human and self.draw_bool(0.36 if speaker_weight > 1 else 0.28):
            return self.random.choice((*(lx.SPEAKER,) * speaker_weight, *lx.PRONOUNS[1:]))
        if is_human and self.draw_bool(0.04):
            return CoordinatedPhrase(*(NounPhrase(self.draw_noun(_COORDINATED_KINDS)) for _ in range(2)))
        # Drawn more often: these are few nouns, but some of them are neuter words for people.
        word = self.draw_noun(("youth",) if is_human and "youth" in kinds and self.draw_bool(0.15) else kinds)
        frequencies = lx.DETERMINERS["subject" if word.kind in lx.LISTS["animate_kinds"] else "inanimate"]
        phrase = self._draw_phrase(word, _POSSESSIVES, frequencies)
        if word.kind == "person" and phrase.determiner in {"the", "a"} and not phrase.plural and self.draw_bool(0.08):
            load = NounPhrase(self.draw_noun(lx.LISTS["carried_nouns"]), phrase.determiner)
            companion = PrepositionalPhrase("with", "mit", "dat", self._add_adjectives(load, 0.3))
            return phrase._replace(companion=companion)
        return phrase

    def draw_object(self, kinds: tuple[str, ...], subject: Nominal, negated: bool = False) -> Nominal:
        """Draw an object; in a negation it must suit kein or nicht."""
        if "person" in kinds and self.draw_bool(0.22):
            return self._draw_other_pronoun(subject)
        return self._draw_owned_phrase(kinds, subject, lx.DETERMINERS["negated_object" if negated else "object"])

    def draw_definite_object(self, kinds: tuple[str, ...], subject: Nominal) -> Nominal:
        """Draw a definite phrase or a pronoun: for recipients, and after a preposition in a negation."""
        if "person" in kinds and self.draw_bool(0.3):
            return self._draw_other_pronoun(subject)
        return self._draw_owned_phrase(kinds, subject, lx.DETERMINERS["definite"])

    def draw_which_phrase(self, kinds: tuple[str, ...]) -> NounPhrase:
        """Draw the phrase that a question with "which" asks for."""
        word = self.draw_noun(kinds)
        plural = not (word.is_mass or lx.is_of_kind(word, lx.LISTS["never_plural"])) and self.draw_bool(0.3)
        return self._add_adjectives(NounPhrase(word, "which", plural), 0.2)

    def draw_location(self, kinds: tuple[str, ...]) -> PrepositionalPhrase:
        """Draw the location of an event."""
        phrase = self._draw_place(kinds)
        preposition = lx.LOCATIONS.get(phrase.noun.english, ("in", "in"))
        if phrase.noun.kind == "building" and self.draw_bool(0.3):
            preposition = self.random.choice(lx.AROUND)
        return PrepositionalPhrase(*preposition, "dat", phrase)

    def draw_furniture_location(self, kinds: tuple[str, ...], case: str, seated: bool) -> PrepositionalPhrase:
        """Draw a location on, next to or under a piece of furniture; nobody sits under it."""
        phrase = self._draw_place(kinds)
        return PrepositionalPhrase(*self.random.choice(lx.UPON[:2] if seated else lx.UPON), case, phrase)

    def draw_destination(self, kinds: tuple[str, ...], on_foot: bool) -> PrepositionalPhrase:
        """Draw the destination of a motion: to or into a place."""
        phrase = self._draw_place(kinds)
        can_be_entered = on_foot and phrase.noun.english not in lx.LOCATIONS and self.draw_bool(0.4)
        if can_be_entered or phrase.noun.english in lx.LISTS["only_into"]:
            return PrepositionalPhrase("into", "in", "acc", phrase)
        return PrepositionalPhrase("to", "zu", "dat", phrase)

    def _draw_place(self, kinds: tuple[str, ...]) -> NounPhrase:
        place = NounPhrase(self.draw_noun(kinds), self.random.choice(lx.LISTS["location_determiners"]))
        return self._add_adjectives(place, 0.22)

    def _draw_other_pronoun(self, subject: Nominal) -> Pronoun:
        speakers = (lx.SPEAKER, lx.WE) if subject in (lx.SPEAKER, lx.WE) else ()
        return self.random.choice([pronoun for pronoun in lx.PRONOUNS if pronoun not in speakers])

    def _draw_owned_phrase(
        self, kinds: tuple[str, ...], subject: Nominal, frequencies: DeterminerFrequencies
    ) -> NounPhrase:
        word = self.draw_noun(kinds)
        is_young = isinstance(subject, NounPhrase) and subject.noun.kind == "youth"
        is_implausible = is_young and word.english in {"son", "daughter"}
        return self._draw_phrase(word, ("my", "our") if is_implausible else _choose_possessives(subject), frequencies)

    def _draw_phrase(self, word: Noun, possessives: tuple[str, ...], frequencies: DeterminerFrequencies) -> NounPhrase:
        if word.is_mass:
            return self._add_adjectives(NounPhrase(word, self.random.choice(frequencies.mass_nouns)), 0.3)
        is_kin, is_clothing = word.kind == "kin", word.kind == "clothing"
        plural_probability = 0.12 if is_clothing else frequencies.plural_probability
        plural = not lx.is_of_kind(word, lx.LISTS["never_plural"]) and self.draw_bool(plural_probability)
        plural = plural or (is_clothing and possessives == ("their",))
        possessive_probability = 0.7 if is_kin else frequencies.possessive_probability
        if lx.is_of_kind(word, lx.LISTS["nouns_with_possessive"]) and self.draw_bool(possessive_probability):
            phrase = NounPhrase(word, self.random.choice(possessives), plural)
            return self._add_adjectives(phrase, 0.42 if is_kin else frequencies.adjective_probability)
        plural_determiners = frequencies.plural_people if word.kind in lx.HUMAN else frequencies.plural
        determiners = plural_determiners if plural else frequencies.singular
        phrase = NounPhrase(word, "the" if is_kin else self.random.choice(determiners), plural)
        can_be_owned = phrase.determiner == "the" and lx.is_of_kind(word, lx.LISTS["nouns_with_owner"])
        if can_be_owned and (is_kin or self.draw_bool(0.16)):
            phrase = phrase._replace(owner=self._draw_owner(is_kin))
        return self._add_adjectives(phrase, frequencies.adjective_probability if phrase.determiner == "a" else 0.24)

    def _draw_owner(self, of_kin: bool) -> NounPhrase:
        word = self.draw_noun(("person",) if of_kin else (self.random.choice(lx.HUMAN),))
        if word.kind == "kin":
            return NounPhrase(word, self.random.choice(_POSSESSIVES))
        return self._add_adjectives(NounPhrase(word, "the", self.draw_bool(0.25)), 0.15)

    def _add_adjectives(self, phrase: NounPhrase, probability: float) -> NounPhrase:
        if not self.draw_bool(probability):
            return phrase
        candidates = lx.find_adjectives(phrase.noun)
        word = self.random.choice(candidates)
        inner = [other for other in candidates if other.english in lx.LISTS["inner_adjectives"] and other != word]
        if word.english in lx.LISTS["outer_adjectives"] and inner and self.draw_bool(0.3):
            return phrase._replace(adjectives=(word, self.random.choice(inner)))
        is_gradable = phrase.determiner in {"the", "a", ""} and word.english not in lx.LISTS["ungraded_adjectives"]
        return phrase._replace(adjectives=(word,), very=is_gradable and self.draw_bool(0.12))


def _choose_possessives(subject: Nominal) -> tuple[str, ...]:
    if isinstance(subject, Pronoun) and subject.english in _POSSESSIVE_BY_PRONOUN:
        return (_POSSESSIVE_BY_PRONOUN[subject.english],)
    if subject.person == "p" and not isinstance(subject, Pronoun):
        return ("their",)
    if isinstance(subject, NounPhrase) and subject.noun.kind in lx.HUMAN:
        return {"m": ("his",), "f": ("her",)}.get(subject.noun.gender, ("my", "our"))
    return ("my", "our")
