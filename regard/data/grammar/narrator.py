"""Draws sentences: statements, questions, and two clauses joined in every way the grammar knows."""

from random import Random

from .clauses import Clause
from .composer import BE, Composer
from .lexeme import Verb
from .lexicon import HE, HUMAN, SHE, SPEAKER, THEY, WHAT, WHO, doings, noun, verb, verbs
from .particles import AND, BUT, SUBORDINATORS, THAT, WHEN, WHERE, WHETHER, WHITHER, WHY
from .phrases import Conjoined, Nominal, NounPhrase, Pronoun
from .sentences import Sentence

_MODES = ("present",) * 9 + ("past",) * 6 + ("perfect",) * 4 + ("future",) * 3 + ("modal",) * 5 + ("modal-past",)
_ASKED_MODES = ("present",) * 4 + ("past",) * 3 + ("perfect",) * 2 + ("future",) + ("modal",) * 3
# one does not hope that somebody must do something
_HOPED = tuple(tenses for tenses in THAT.tenses if not tenses[1].startswith("modal"))
_MATRIX = verbs("that", "whether")
_ONE_OBJECT = tuple(verb for verb in verbs("acc", "dat") if "person" in verb.subjects)
_ABOUT_THINGS = tuple(verb for verb in _ONE_OBJECT if verb.frame == "acc" and "person" not in verb.objects)
_ABOUT_PEOPLE = tuple(verb for verb in _ONE_OBJECT if "person" in verb.objects)
_PLACED = tuple(verb for verb in verbs("none", "acc", "dat", "prep") if verb.places)
_OPENING = tuple(map(verb, ("sleep", "see", "love", "help", "read", "be", "be")))
_HUMAN_DEEDS = tuple(verb for verb in doings(noun("teacher")) if not verb.stative and "bus" not in verb.subjects)
_LED = tuple(verb for verb in verbs("goal", "ride") if verb.english[0] != "come")


class Narrator:
    """Draws sentences from a random stream."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.composer = Composer(random)

    def sentence(self) -> Sentence:
        """One sentence that can be read in one way only."""
        while True:
            self.composer.phraser.forget()
            sentence = self._draw()
            clauses = (sentence.first, sentence.first.relative, sentence.second)
            if not any(_ambiguous(clause) or _scarce(clause) for clause in clauses):
                return sentence

    def _draw(self) -> Sentence:
        draw = self.random.random()
        if draw < 0.5:
            return self._statement()
        if draw < 0.63:
            return self._question()
        if draw < 0.78:
            return self._complex()
        return self._content() if draw < 0.86 else self._joined()

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _statement(self) -> Sentence:
        clause = self.composer.clause(self.random.choice(_MODES))
        if clause.time and self._chance(0.5):
            clause.front = "time"
        elif clause.place and self._chance(0.45):
            clause.front = "place"
        if self._chance(0.24):
            self.composer.relate(clause)
        return Sentence("statement", clause)

    def _question(self) -> Sentence:
        mode, draw = self.random.choice(_ASKED_MODES), self.random.random()
        if draw < 0.42:
            # the German verb opens the sentence, so that only a few verbs get to be seen with a capital
            verb = self.random.choice(_OPENING) if mode in {"present", "past"} else self.random.choice(_HUMAN_DEEDS)
            clause = self._ask(mode, verb, rich=0.8)
            clause.front = ""
            return Sentence("question", clause)
        if draw < 0.55:
            return Sentence("question", self.composer.clause(mode, self.random.choice(_ONE_OBJECT), WHO, 0.4, 0.0))
        if draw < 0.72:
            return Sentence("question", self._ask_object(mode))
        return Sentence("question", self._ask_circumstance(mode))

    def _ask(self, mode: str, verb: Verb | None = None, rich: float = 0.3) -> Clause:
        while True:
            clause = self.composer.clause(mode, verb, rich=rich, denial=0.0)
            if clause.subject is not SPEAKER and not _quantified(clause.subject, ("no", "every", "some")):
                clause.frequency = None
                return clause

    def _ask_object(self, mode: str) -> Clause:
        draw = self.random.random()
        pool = _ABOUT_THINGS if draw < 0.4 else _ABOUT_PEOPLE if draw < 0.65 else _ONE_OBJECT
        clause = self._ask(mode, self.random.choice(pool))
        clause.front = "direct"
        clause.direct = WHAT if draw < 0.4 else WHO if draw < 0.65 else self.composer.phraser.asked(clause.verb.objects)
        return clause

    def _ask_circumstance(self, mode: str) -> Clause:
        draw = self.random.random()
        if draw < 0.3:
            clause = self._ask(mode, self.random.choice(_PLACED))
            clause.asked, clause.place = WHERE, None
        elif draw < 0.45:
            clause = self._ask(mode, self.random.choice(_LED))
            clause.asked, clause.complement = WHITHER, None
        elif draw < 0.7:
            clause = self._ask(mode, self.composer.deed())
            clause.asked, clause.time = WHEN, None
        else:
            clause = self._ask(mode)
            clause.asked = WHY
        clause.front = "asked"
        return clause

    def _complex(self) -> Sentence:
        conjunction = self.random.choice(SUBORDINATORS)
        main, subordinate = self.random.choice(conjunction.tenses)
        timely = conjunction.english in {"while", "when", "before", "after"}
        leading = self._chance(0.4)
        early, late = (subordinate, main) if leading else (main, subordinate)
        first = self._scene(early, timely)
        second = self._next(late, first, timely)
        if leading:
            return Sentence("leading", second, first, conjunction)
        return Sentence("trailing", first, second, conjunction)

    def _content(self) -> Sentence:
        verb = self.random.choice(_MATRIX)
        hopeful = verb.english[0] == "hope"
        main, subordinate = self.random.choice(_HOPED if hopeful else THAT.tenses)
        first = self.composer.clause(main, verb, denial=0.0 if hopeful else 0.14)
        doubtful = verb.frame == "whether" or (first.negated and verb.english[0] == "know")
        return Sentence("trailing", first, self._next(subordinate, first), WHETHER if doubtful else THAT)

    def _joined(self) -> Sentence:
        conjunction = self.random.choice((AND, AND, BUT))
        one, other = self.random.choice(conjunction.tenses)
        first = self.composer.clause(one, rich=0.3)
        if conjunction is AND and _active(first.subject) and self._chance(0.5):
            verb = self._verb(first, timely=True)
            return Sentence("shared", first, self.composer.clause(other, verb, first.subject, 0.3, 0.0), conjunction)
        second = self.composer.clause(other, rich=0.3) if conjunction is AND else self._next(other, first)
        return Sentence("joined", first, second, conjunction)

    def _next(self, mode: str, earlier: Clause, timely: bool = False) -> Clause:
        """A clause that goes on from an earlier one, often about the same person."""
        pronoun = _pronoun(earlier.subject)
        if pronoun and self._chance(0.5):
            return self._scene(mode, timely, self._verb(earlier, timely), pronoun)
        return self._scene(mode, timely)

    def _scene(
        self, mode: str, timely: bool = False, verb: Verb | None = None, subject: Nominal | None = None
    ) -> Clause:
        """What may be the cause or the occasion of something else: a deed, or how somebody is."""
        if verb is None and not timely and self._chance(0.15):
            verb, subject = BE, self.composer.phraser.subject(HUMAN)
        clause = self.composer.clause(mode, verb or self.composer.deed(), subject, 0.3, 0.0 if timely else 0.14)
        if not timely:
            return clause
        # a moment is neither every day nor about everybody or nobody
        if _quantified(clause.subject, ("no", "every")):
            return self._scene(mode, timely, verb, subject)
        clause.time = clause.frequency = None
        return clause

    def _verb(self, earlier: Clause, timely: bool = False) -> Verb:
        """Something else that the subject can do or be."""
        subject = earlier.subject
        word = subject.noun if isinstance(subject, NounPhrase) else None
        pool = doings(word or noun("teacher"))
        taken = earlier.verb.english
        return self.random.choice([verb for verb in pool if verb.english != taken and not (timely and verb.stative)])


def _pronoun(subject: Nominal) -> Pronoun | None:
    """The pronoun that takes a person up again."""
    if isinstance(subject, Pronoun):
        return subject
    if isinstance(subject, NounPhrase) and subject.noun.kind not in HUMAN:
        return None
    if _quantified(subject, ("no", "every")):
        return None
    if subject.person == "p" or isinstance(subject, Conjoined):
        return THEY
    return {"m": HE, "f": SHE}.get(subject.noun.gender)


def _quantified(subject: Nominal, determiners: tuple[str, ...]) -> bool:
    return isinstance(subject, NounPhrase) and subject.determiner in determiners


def _active(subject: Nominal) -> bool:
    return not isinstance(subject, NounPhrase) or (subject.noun.kind in (*HUMAN, "pet") and subject.determiner != "no")


def _ambiguous(clause: Clause | None) -> bool:
    """Whether the clause reads as present and as past: "they read"."""
    if clause is None or clause.modal or clause.tense != "past" or clause.subject.person == "3":
        return False
    return clause.verb.english[0] == clause.verb.english[2]


def _scarce(clause: Clause | None) -> bool:
    """Whether the German verb would be a form too rare to learn: "ich … anrufe"."""
    if clause is None or clause.modal or clause.tense != "present":
        return False
    return clause.subject is SPEAKER and bool(clause.verb.prefix)
