"""Draws clauses that make sense: a verb, the company it asks for, and what else may be said."""

from dataclasses import replace
from random import Random

from .adjectives import contrary
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
    *map(verb, ("follow", "play with", "explain", "understand")),
)
_USUAL = (*_DONE, *(BE,) * 18)
_PASSING = ("tired", "happy", "sad", "hungry", "sick", "hot", "cold", "fresh", "clean", "dirty", "quiet")
# what lasts is not over and done with
_LASTING = {"perfect": "present", "pluperfect": "past"}
_SINGLE_TIME = tuple(time for time in TIME if not time.name.startswith("every"))
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
            kinds = verb.subjects or (self.random.choice(NOUNS).kind,)
            # only the present tense has a form for "I" alone
            subject = self.phraser.subject(kinds, speaker=16 if mode == "present" else 1)
        if verb.frame == "be" or (verb.stative and verb.frame not in {"that", "whether"}):
            mode = _LASTING.get(mode, mode)
        modal = self._modal(verb, subject, past=mode == "modal-past") if mode.startswith("modal") else None
        tense = {"modal": "present", "modal-past": "past"}.get(mode, mode)
        deniable = _definite(subject) and mode != "pluperfect" and (modal is None or modal.deniable)
        negated = deniable and self.phraser.chance(denial)
        clause = Clause(verb, subject, tense, modal, negated)
        self._arguments(clause)
        self._adjuncts(clause, mode if modal else tense, rich)
        return clause

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

    def _arguments(self, clause: Clause) -> None:
        frame, kinds, subject = clause.verb.frame, clause.verb.objects, clause.subject
        phraser = self.phraser
        if frame in {"acc", "dat", "put"}:
            clause.direct = phraser.patient(kinds, subject, clause.negated)
        if frame in {"give", "buy", "explain"}:
            self._transfer(clause)
        elif frame == "prep":
            nominal = phraser.known(kinds, subject) if clause.negated else phraser.patient(kinds, subject)
            clause.complement = Prepositional(*clause.verb.preposition, nominal)
        elif frame == "spot":
            seated = isinstance(subject, Pronoun | Conjoined) or subject.noun.kind in HUMAN
            clause.complement = phraser.spot(kinds, "dat", seated)
        elif frame == "put":
            clause.complement = phraser.spot(clause.verb.places, "acc", seated=False)
        elif frame in {"goal", "ride"}:
            clause.complement = phraser.goal(kinds, afoot=frame == "goal")
        elif frame == "be":
            self._describe(clause)

    def _transfer(self, clause: Clause) -> None:
        frame, subject = clause.verb.frame, clause.subject
        clause.recipient_last = frame == "explain" or (frame == "give" and self.phraser.chance(0.4))
        direct = self.phraser.patient(clause.verb.objects, subject, clause.negated)
        clause.indirect = self.phraser.known(HUMAN, subject)
        # "buys her flowers" would have two readings
        if clause.indirect is SHE and isinstance(direct, NounPhrase) and not direct.determiner:
            direct = replace(direct, determiner="the")
        clause.direct = direct

    def _describe(self, clause: Clause) -> None:
        subject = clause.subject
        head = subject.noun if isinstance(subject, NounPhrase | Pronoun) else subject.left.noun
        movable = head is None or head.kind in (*HUMAN, "pet", "farm", "vehicle", "thing")
        if movable and self.phraser.chance(0.3):
            clause.complement = self.phraser.place(_site(head.kind if head else "", _PLACES))
            return
        worn = subject.adjectives if isinstance(subject, NounPhrase) else ()
        fitting = adjectives(noun("teacher") if head is None or isinstance(subject, Conjoined) else head)
        clause.predicate = self.random.choice(
            [word for word in fitting if not any(contrary(word, other) for other in worn)]
        )
        clause.very = self.phraser.chance(0.15)

    def _adjuncts(self, clause: Clause, mode: str, rich: float) -> None:
        verb, chance = clause.verb, self.phraser.chance
        if verb.stative or (clause.predicate and clause.predicate.english not in _PASSING):
            clause.manner = self._manner(clause) if chance(0.3 * rich) else None
            return
        if verb.frame != "put" and verb.places and chance(0.28 * rich):
            kind = clause.subject.noun.kind if isinstance(clause.subject, NounPhrase) else ""
            clause.place = self.phraser.place(_site(kind, verb.places))
        if chance(0.22 * rich):
            if verb.lemma in {"travel", "arrive"} and _human(clause.subject) and chance(0.5):
                clause.means = self.random.choice(MEANS)
            else:
                clause.manner = self._manner(clause)
        if chance(0.34 * rich):
            clause.time = self._fitting(_SINGLE_TIME if clause.negated else TIME, mode)
        elif chance(0.2 * rich) and not clause.manner and _repeatable(clause):
            clause.frequency = self._fitting(FREQUENCY, mode)

    def _fitting(self, adverbials: tuple[Adverbial, ...], mode: str) -> Adverbial | None:
        fitting = [adverbial for adverbial in adverbials if mode in adverbial.tenses]
        return self.random.choice(fitting) if fitting else None

    def _manner(self, clause: Clause) -> Adverbial | None:
        new = clause.direct is not None and indefinite(clause.direct)
        vague = new and (clause.negated or "well" in clause.verb.manners)
        lonely = "alone" if clause.subject.person == "p" else "together"
        manners = [adverb for adverb in MANNER if adverb.name in clause.verb.manners and adverb.name != lonely]
        return self.random.choice(manners) if manners and not vague else None

    def relate(self, clause: Clause) -> None:
        """Give the clause a relative clause about its object or its subject, if either can have one."""
        subject, direct = clause.subject, clause.direct
        after = ("place", "time", "manner", "complement", "indirect")
        last = not any(getattr(clause, name) for name in after if name != clause.front)
        if isinstance(direct, NounPhrase) and last and not clause.negated and _relatable(direct):
            clause.relative, clause.host = self._relative(direct, clause), "direct"
        elif isinstance(subject, NounPhrase) and _relatable(subject) and clause.front == "subject":
            clause.relative, clause.host = self._relative(subject, clause), "subject"

    def _relative(self, phrase: NounPhrase, main: Clause) -> Clause:
        pronoun = relative_pronoun(phrase)
        mode = self.random.choice(("past", "past", "pluperfect") if main.past else ("present", "present", "perfect"))
        active = [verb for verb in doings(phrase.noun) if verb.english != main.verb.english]
        passive = [verb for verb in sufferings(phrase.noun) if verb.english != main.verb.english]
        if passive and self.phraser.chance(0.4):
            clause = self.clause(mode, self.random.choice(passive), rich=0.2, denial=0.05)
            clause.direct, clause.front = pronoun, "direct"
            return clause
        if not active or self.phraser.chance(0.25):
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
    return not (clause.negated or counted or nobody)


def _site(kind: str, places: tuple[str, ...]) -> tuple[str, ...]:
    # animals stay where animals live
    return {"wild": ("forest", "meadow"), "farm": ("meadow", "garden", "village")}.get(kind, places)
