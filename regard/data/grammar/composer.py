"""Draws clauses that make sense: a verb, the company it asks for, and what else may be said."""

from dataclasses import replace
from random import Random

from .clauses import Clause
from .lexeme import Adverbial, Modal, Verb
from .lexicon import HUMAN, SHE, adjectives, doings, noun, sufferings, verb, verbs
from .nouns import NOUNS
from .particles import FREQUENCY, MANNER, MEANS, MODALS, TIME
from .phraser import Phraser
from .phrases import Conjoined, Nominal, NounPhrase, Prepositional, Pronoun, indefinite, relative_pronoun

BE = verb("be")
_ACTIONS = verbs("none", "acc", "dat", "give", "buy", "explain", "prep", "put", "goal", "ride", "spot")
_SEPARABLE = tuple(verb for verb in _ACTIONS if verb.prefix)
# said more often: what has more forms to learn, or few verbs to show a construction
_DONE = (
    *_ACTIONS,
    *_SEPARABLE * 2,
    *verbs("goal", "ride", "spot") * 2,
    *(verb("belong to"),) * 4,
    *map(verb, ("follow", "play with")),
)
_USUAL = (*_DONE, *(BE,) * 18)
_DESCRIBED = tuple(word for word in NOUNS if adjectives(word))
_PASSING = ("tired", "happy", "sad", "hungry", "sick", "hot", "cold", "fresh", "clean", "dirty", "quiet")
# what lasts is not over and done with
_LASTING = {"perfect": "present", "pluperfect": "past"}
_PLACES = ("building", "room", "nature", "town")


class Composer:
    """Draws clauses from a random stream."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.phraser = Phraser(random)

    def clause(
        self,
        mode: str,
        verb: Verb | None = None,
        subject: Nominal | None = None,
        rich: float = 1.0,
        denial: float = 0.14,
    ) -> Clause:
        """A clause in the mode (a tense, "modal" or "modal-past"), with more or fewer adjuncts."""
        verb = verb or (self.deed() if mode in {"perfect", "pluperfect", "future"} else self.random.choice(_USUAL))
        if subject is None:
            kinds = verb.subjects or (self.random.choice(_DESCRIBED).kind,)
            # only the present tense has a form for "I" alone
            subject = self.phraser.subject(kinds, speaker=16 if mode == "present" else 1)
        if verb.frame == "be" or (verb.stative and verb.frame not in {"that", "whether"}):
            mode = _LASTING.get(mode, mode)
        modal = self._modal(verb, subject, past=mode == "modal-past") if mode.startswith("modal") else None
        tense = {"modal": "present", "modal-past": "past"}.get(mode, mode)
        deniable = _definite(subject) and mode != "pluperfect" and (modal is None or modal.deniable)
        negated = deniable and self.phraser.chance(denial)
        clause = self._arguments(Clause(verb, subject, tense, modal, negated))
        return self._adjuncts(clause, mode if modal else tense, rich)

    def deed(self) -> Verb:
        """A verb for what happens at some moment."""
        while (verb := self.random.choice(_DONE)).stative:
            pass
        return verb

    def _modal(self, verb: Verb, subject: Nominal, past: bool) -> Modal | None:
        if verb.stative or verb.frame == "be":
            return None
        if isinstance(subject, NounPhrase) and subject.noun.kind not in (*HUMAN, "pet", "farm", "wild"):
            return None
        able = [modal for modal in MODALS if modal.past == past]
        return self.random.choice(able) if verb.willed else able[0]

    def _arguments(self, clause: Clause) -> Clause:
        frame, kinds, subject = clause.verb.frame, clause.verb.objects, clause.subject
        phraser = self.phraser
        if frame in {"acc", "dat"}:
            return replace(clause, direct=phraser.patient(kinds, subject, clause.negated))
        if frame in {"give", "buy", "explain"}:
            return self._transfer(clause)
        if frame == "prep":
            nominal = phraser.known(kinds, subject) if clause.negated else phraser.patient(kinds, subject)
            return replace(clause, complement=Prepositional(*clause.verb.preposition, nominal))
        if frame == "spot":
            seated = isinstance(subject, Pronoun | Conjoined) or subject.noun.kind in HUMAN
            return replace(clause, complement=phraser.spot(kinds, "dat", seated))
        if frame == "put":
            direct = phraser.patient(kinds, subject, clause.negated)
            return replace(clause, direct=direct, complement=phraser.spot(clause.verb.places, "acc", seated=False))
        if frame in {"goal", "ride"}:
            return replace(clause, complement=phraser.goal(kinds, afoot=frame == "goal"))
        return self._description(clause) if frame == "be" else clause

    def _transfer(self, clause: Clause) -> Clause:
        frame, subject = clause.verb.frame, clause.subject
        last = frame == "explain" or (frame == "give" and self.phraser.chance(0.4))
        direct = self.phraser.patient(clause.verb.objects, subject, clause.negated)
        indirect = self.phraser.known(HUMAN, subject)
        # "buys her flowers" would have two readings
        if indirect is SHE and isinstance(direct, NounPhrase) and not direct.determiner:
            direct = replace(direct, determiner="the")
        return replace(clause, direct=direct, indirect=indirect, recipient_last=last)

    def _description(self, clause: Clause) -> Clause:
        subject = clause.subject
        head = subject.noun if isinstance(subject, NounPhrase | Pronoun) else subject.left.noun
        movable = head is None or head.kind in (*HUMAN, "pet", "farm", "vehicle", "thing")
        if movable and self.phraser.chance(0.3):
            return replace(clause, complement=self.phraser.place(_site(head.kind if head else "", _PLACES)))
        worn = {word.english for word in subject.adjectives} if isinstance(subject, NounPhrase) else set()
        fitting = adjectives(noun("teacher") if head is None or isinstance(subject, Conjoined) else head)
        word = self.random.choice([word for word in fitting if word.english not in worn])
        return replace(clause, predicate=word, very=self.phraser.chance(0.15))

    def _adjuncts(self, clause: Clause, mode: str, rich: float) -> Clause:
        verb, chance, choice = clause.verb, self.phraser.chance, self.random.choice
        if verb.stative or (clause.predicate and clause.predicate.english not in _PASSING):
            return self._manner(clause, 0.3 * rich)
        kind = clause.subject.noun.kind if isinstance(clause.subject, NounPhrase) else ""
        if verb.frame != "put" and verb.places and chance(0.28 * rich):
            clause = replace(clause, place=self.phraser.place(_site(kind, verb.places)))
        clause = self._manner(clause, 0.22 * rich)
        if chance(0.34 * rich) and (times := _fitting(TIME, mode)):
            clause = replace(clause, time=choice(times))
        elif chance(0.2 * rich) and _repeatable(clause) and (often := _fitting(FREQUENCY, mode)):
            clause = replace(clause, frequency=choice(often))
        return clause

    def _manner(self, clause: Clause, share: float) -> Clause:
        vague = clause.negated and clause.direct is not None and indefinite(clause.direct)
        if vague or not self.phraser.chance(share):
            return clause
        if clause.verb.lemma in {"travel", "arrive"} and _human(clause.subject) and self.phraser.chance(0.5):
            return replace(clause, means=self.random.choice(MEANS))
        lonely = "alone" if clause.subject.person == "p" else "together"
        manners = [adverb for adverb in MANNER if adverb.name in clause.verb.manners and adverb.name != lonely]
        return replace(clause, manner=self.random.choice(manners)) if manners else clause

    def related(self, clause: Clause) -> Clause:
        """The clause with a relative clause about its subject or object, if either can have one."""
        subject, direct = clause.subject, clause.direct
        after = ("place", "time", "manner", "complement", "indirect")
        last = not any(getattr(clause, name) for name in after if name != clause.front)
        if isinstance(direct, NounPhrase) and last and not clause.negated and _relatable(direct):
            return replace(clause, relative=self._relative(direct, clause), host="direct")
        if isinstance(subject, NounPhrase) and _relatable(subject) and clause.front == "subject":
            return replace(clause, relative=self._relative(subject, clause), host="subject")
        return clause

    def _relative(self, phrase: NounPhrase, main: Clause) -> Clause:
        pronoun = relative_pronoun(phrase)
        mode = self.random.choice(("past", "past", "pluperfect") if main.past else ("present", "present", "perfect"))
        active = [verb for verb in doings(phrase.noun) if verb.english != main.verb.english]
        passive = [verb for verb in sufferings(phrase.noun) if verb.english != main.verb.english]
        if passive and self.phraser.chance(0.4):
            clause = self.clause(mode, self.random.choice(passive), rich=0.2, denial=0.05)
            return replace(clause, direct=pronoun, front="direct")
        if adjectives(phrase.noun) and (not active or self.phraser.chance(0.25)):
            return self.clause("past" if main.past else "present", BE, pronoun, rich=0.2)
        return self.clause(mode, self.random.choice(active), pronoun, rich=0.3)


def _relatable(phrase: NounPhrase) -> bool:
    return not (phrase.owner or phrase.companion or phrase.determiner in {"every", "no"})


def _human(nominal: Nominal) -> bool:
    return not isinstance(nominal, NounPhrase) or nominal.noun.kind in HUMAN


def _definite(subject: Nominal) -> bool:
    return not indefinite(subject) and not (isinstance(subject, NounPhrase) and subject.determiner == "every")


def _repeatable(clause: Clause) -> bool:
    # one does not often do a thing to two others, and what nobody does nobody does often
    counted = isinstance(clause.direct, NounPhrase) and clause.direct.determiner in {"two", "three", "some"}
    nobody = isinstance(clause.subject, NounPhrase) and clause.subject.determiner == "no"
    return not (clause.negated or clause.manner or counted or nobody)


def _fitting(adverbials: tuple[Adverbial, ...], mode: str) -> list[Adverbial]:
    return [adverbial for adverbial in adverbials if mode in adverbial.tenses]


def _site(kind: str, places: tuple[str, ...]) -> tuple[str, ...]:
    # animals stay where animals live
    return {"wild": ("forest", "meadow"), "farm": ("meadow", "garden", "village")}.get(kind, places)
