"""Random generation of meaningful noun phrases and clauses: a verb, its arguments and adjuncts, relative clauses."""

from random import Random

from regard.synthetic.grammar import lexicon as lx
from regard.synthetic.grammar.lexicon import Adverbial, DeterminerFrequencies, Modal, Noun, Pronoun, Verb
from regard.synthetic.grammar.syntax import (
    Clause,
    CoordinatedPhrase,
    Nominal,
    NounPhrase,
    PrepositionalPhrase,
    has_determiner,
    is_indefinite,
    make_relative_pronoun,
)

_POSSESSIVES = ("my", "his", "her", "our", "their")
_POSSESSIVE_BY_PRONOUN = {pronoun.english: word for pronoun, word in zip(lx.PRONOUNS, _POSSESSIVES, strict=True)}
_COORDINATED_KINDS = ("person", "youth")


class NounPhraseGenerator:
    """Draw noun phrases that fit a verb, avoiding the same noun twice in a sentence."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.used_nouns: list[str] = []  # of this sentence

    def draw_bool(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.random.random() < probability

    def draw_noun(self, kinds: tuple[str, ...]) -> Noun:
        """Draw a noun of the kinds, if possible one that is not in the sentence yet."""
        pool = lx.find_nouns(kinds)
        for _ in range(5):
            word = self.random.choice(pool)
            if word.english not in self.used_nouns:
                break
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

    def draw_object(self, kinds: tuple[str, ...], subject: Nominal, determiners: str) -> Nominal:
        """Draw an object, a phrase with one of these determiners or a pronoun.

        Determiners are those of an "object", of a "negated_object", which suit kein or nicht, or "definite": for
        recipients, and after a preposition in a negation.
        """
        frequencies = lx.DETERMINERS[determiners]
        if "person" in kinds and self.draw_bool(frequencies.pronoun_probability):
            speakers = (lx.SPEAKER, lx.WE) if subject in (lx.SPEAKER, lx.WE) else ()
            return self.random.choice([pronoun for pronoun in lx.PRONOUNS if pronoun not in speakers])
        word = self.draw_noun(kinds)
        is_young = isinstance(subject, NounPhrase) and subject.noun.kind == "youth"
        is_implausible = is_young and word.english in {"son", "daughter"}
        return self._draw_phrase(word, ("my", "our") if is_implausible else _choose_possessives(subject), frequencies)

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


VERB_BE = lx.find_verb("be")
_ACTION_VERBS = lx.find_verbs("none", "acc", "dat", "give", "buy", "explain", "prep", "put", "goal", "ride", "spot")
_SEPARABLE_VERBS = tuple(verb for verb in _ACTION_VERBS if verb.prefix)
# More frequent: verbs with more forms to learn, and those of constructions with few verbs.
_WEIGHTED_ACTION_VERBS = (
    *_ACTION_VERBS,
    *_SEPARABLE_VERBS * 2,
    *lx.find_verbs("goal", "ride", "spot") * 2,
    *(lx.find_verb("belong to"),) * 4,
    *map(lx.find_verb, ("follow", "play with", "explain", "understand")),
)
_WEIGHTED_VERBS = (*_WEIGHTED_ACTION_VERBS, *(VERB_BE,) * 18)
# States are not in the perfect.
_STATIVE_TENSES = {"perfect": "present", "pluperfect": "past"}
_SINGLE_TIME = tuple(time for time in lx.TIME if not time.name.startswith("every"))
_LOCATION_KINDS = ("building", "room", "nature", "town")


class ClauseGenerator(NounPhraseGenerator):
    """Draw clauses from a random stream."""

    def draw_clause(
        self,
        mode: str,
        verb: Verb | None = None,
        subject: Nominal | None = None,
        adjunct_factor: float = 1.0,
        negation_probability: float = 0.14,
    ) -> Clause:
        """Draw a clause in a mode (a tense, "modal" or "modal-past"); `adjunct_factor` scales the rate of adjuncts."""
        if verb is None:
            is_event = mode in {"perfect", "pluperfect", "future"}
            verb = self.draw_action_verb() if is_event else self.random.choice(_WEIGHTED_VERBS)
        if subject is None:
            kinds = verb.subjects or (self.random.choice(lx.NOUNS).kind,)
            # Only the present tense has a separate verb form for "I".
            subject = self.draw_subject(kinds, speaker_weight=16 if mode == "present" else 1)
        if verb.frame == "be" or (verb.is_stative and verb.frame not in {"that", "whether"}):
            mode = _STATIVE_TENSES.get(mode, mode)
        modal = self._draw_modal(verb, subject, past=mode == "modal-past") if mode.startswith("modal") else None
        tense = {"modal": "present", "modal-past": "past"}.get(mode, mode)
        is_definite = not is_indefinite(subject) and not has_determiner(subject, "every")
        can_be_negated = is_definite and mode != "pluperfect" and (modal is None or modal.is_negatable)
        negated = can_be_negated and self.draw_bool(negation_probability)
        clause = Clause(verb, subject, tense, modal, negated)
        self._add_arguments(clause)
        self._add_adjuncts(clause, mode if modal else tense, adjunct_factor)
        return clause

    def draw_action_verb(self) -> Verb:
        """Draw a verb for an event, not for a state."""
        while (verb := self.random.choice(_WEIGHTED_ACTION_VERBS)).is_stative:
            pass
        return verb

    def _draw_modal(self, verb: Verb, subject: Nominal, past: bool) -> Modal | None:
        is_inanimate = isinstance(subject, NounPhrase) and subject.noun.kind not in lx.LISTS["animate_kinds"]
        if verb.is_stative or verb.frame == "be" or is_inanimate:
            return None
        candidates = [modal for modal in lx.MODALS if modal.is_past == past]
        return self.random.choice(candidates) if verb.is_volitional else candidates[0]

    def _add_arguments(self, clause: Clause) -> None:
        frame, kinds, subject = clause.verb.frame, clause.verb.objects, clause.subject
        if frame in {"acc", "dat", "put", "give", "buy", "explain"}:
            clause.recipient_last = frame == "explain" or (frame == "give" and self.draw_bool(0.4))
            clause.direct = self.draw_object(kinds, subject, "negated_object" if clause.negated else "object")
        if frame in {"give", "buy", "explain"}:
            clause.indirect = self.draw_object(lx.HUMAN, subject, "definite")
            # "buys her flowers" would be ambiguous.
            if clause.indirect is lx.SHE and isinstance(clause.direct, NounPhrase) and not clause.direct.determiner:
                clause.direct = clause.direct._replace(determiner="the")
        elif frame == "prep":
            nominal = self.draw_object(kinds, subject, "definite" if clause.negated else "object")
            clause.complement = PrepositionalPhrase(*clause.verb.preposition, nominal)
        elif frame == "spot":
            clause.complement = self.draw_furniture_location(kinds, "dat", seated=_is_human(subject))
        elif frame == "put":
            clause.complement = self.draw_furniture_location(clause.verb.places, "acc", seated=False)
        elif frame in {"goal", "ride"}:
            clause.complement = self.draw_destination(kinds, on_foot=frame == "goal")
        elif frame == "be":
            self._add_predicate(clause)

    def _add_predicate(self, clause: Clause) -> None:
        subject = clause.subject
        head = subject.noun if isinstance(subject, NounPhrase | Pronoun) else subject.left.noun
        can_be_located = head is None or head.kind in (*lx.HUMAN, "pet", "farm", "vehicle", "thing")
        if can_be_located and self.draw_bool(0.3):
            kinds = _choose_location_kinds(head.kind if head else "", _LOCATION_KINDS)
            clause.complement = self.draw_location(kinds)
            return
        known = subject.adjectives if isinstance(subject, NounPhrase) else ()
        is_person = head is None or isinstance(subject, CoordinatedPhrase)
        suitable = lx.find_adjectives(lx.find_noun("teacher") if is_person else head)
        candidates = [word for word in suitable if not any(lx.are_contradictory(word, other) for other in known)]
        clause.predicate = self.random.choice(candidates)
        clause.very = self.draw_bool(0.15)

    def _add_adjuncts(self, clause: Clause, mode: str, adjunct_factor: float) -> None:
        verb, draw_bool = clause.verb, self.draw_bool
        if verb.is_stative or (clause.predicate and clause.predicate.english not in lx.LISTS["temporary_adjectives"]):
            clause.manner = self._draw_manner(clause) if draw_bool(0.3 * adjunct_factor) else None
            return
        if verb.frame != "put" and verb.places and draw_bool(0.28 * adjunct_factor):
            kind = clause.subject.noun.kind if isinstance(clause.subject, NounPhrase) else ""
            clause.place = self.draw_location(_choose_location_kinds(kind, verb.places))
        if draw_bool(0.22 * adjunct_factor):
            if verb.lemma in {"travel", "arrive"} and _is_human(clause.subject) and draw_bool(0.5):
                clause.means = self.random.choice(lx.MEANS)
            else:
                clause.manner = self._draw_manner(clause)
        if draw_bool(0.34 * adjunct_factor):
            clause.time = self._draw_adverbial(_SINGLE_TIME if clause.negated else lx.TIME, mode)
        elif draw_bool(0.2 * adjunct_factor) and not clause.manner and _is_repeatable(clause):
            clause.frequency = self._draw_adverbial(lx.FREQUENCY, mode)

    def _draw_adverbial(self, adverbials: tuple[Adverbial, ...], mode: str) -> Adverbial | None:
        candidates = [adverbial for adverbial in adverbials if mode in adverbial.tenses]
        return self.random.choice(candidates) if candidates else None

    def _draw_manner(self, clause: Clause) -> Adverbial | None:
        is_unsuitable = is_indefinite(clause.direct) and (clause.negated or "well" in clause.verb.manners)
        excluded = "alone" if clause.subject.person == "p" else "together"
        manners = [adverb for adverb in lx.MANNER if adverb.name in clause.verb.manners and adverb.name != excluded]
        return self.random.choice(manners) if manners and not is_unsuitable else None

    def add_relative_clause(self, clause: Clause) -> None:
        """Add a relative clause about the object or the subject, if either can have one."""
        subject, direct = clause.subject, clause.direct
        after = ("place", "time", "manner", "complement", "indirect")
        is_last = not any(getattr(clause, name) for name in after if name != clause.front)
        if isinstance(direct, NounPhrase) and is_last and not clause.negated and _can_have_relative_clause(direct):
            clause.relative, clause.host = self._draw_relative_clause(direct, clause), "direct"
        elif isinstance(subject, NounPhrase) and _can_have_relative_clause(subject) and clause.front == "subject":
            clause.relative, clause.host = self._draw_relative_clause(subject, clause), "subject"

    def _draw_relative_clause(self, phrase: NounPhrase, main: Clause) -> Clause:
        pronoun = make_relative_pronoun(phrase)
        mode = self.random.choice(("past", "past", "pluperfect") if main.is_past else ("present", "present", "perfect"))
        subject_verbs, object_verbs = (
            [verb for verb in find(phrase.noun) if verb.english != main.verb.english]
            for find in (lx.find_verbs_with_subject, lx.find_verbs_with_object)
        )
        if object_verbs and self.draw_bool(0.4):
            verb = self.random.choice(object_verbs)
            clause = self.draw_clause(mode, verb, adjunct_factor=0.2, negation_probability=0.05)
            clause.direct, clause.front = pronoun, "direct"
            return clause
        if not subject_verbs or self.draw_bool(0.25):
            return self.draw_clause("past" if main.is_past else "present", VERB_BE, pronoun, adjunct_factor=0.2)
        return self.draw_clause(mode, self.random.choice(subject_verbs), pronoun, adjunct_factor=0.3)


def _can_have_relative_clause(phrase: NounPhrase) -> bool:
    return not (phrase.owner or phrase.companion or phrase.determiner in {"every", "no"})


def _is_human(nominal: Nominal) -> bool:
    return not isinstance(nominal, NounPhrase) or nominal.noun.kind in lx.HUMAN


def _is_repeatable(clause: Clause) -> bool:
    # No "often" in a negation, with a counted object ("two", "some") or with a negated subject ("no man").
    has_counted_object = has_determiner(clause.direct, "two", "three", "some")
    return not (clause.negated or has_counted_object or has_determiner(clause.subject, "no"))


def _choose_location_kinds(kind: str, places: tuple[str, ...]) -> tuple[str, ...]:
    # Animals are only where animals live.
    return {"wild": ("forest", "meadow"), "farm": ("meadow", "garden", "village")}.get(kind, places)
