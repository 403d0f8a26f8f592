"""Sentences of one or two clauses: their realization as an aligned pair of strings, and their random generation.

Rules of alignment:

- content words, articles, auxiliaries, modals and punctuation link to their counterparts;
- "do" and the main verb both link to the German finite verb, and "wants to" with both words to the modal;
- an English verb, with its particle, links to the German stem and to the separated prefix;
- a contraction ("im") links to the preposition and to the article;
- "kein" links to "not" and to "a"; "cannot" links to "kann" and to "nicht" or "kein";
- "of" and "to", if German has a genitive or dative without preposition, link to the first word of that phrase;
- a German comma without an English one links to the conjunction that opens the clause;
- what Japanese or English alone has (particles, endings, articles, relative pronouns) has possible links.

Every word of either language has a link.
"""

from __future__ import annotations

from typing import NamedTuple

from regard.data.readers.text import Link
from regard.synthetic.grammar import lexicon as lx
from regard.synthetic.grammar.clause_generator import VERB_BE, ClauseGenerator
from regard.synthetic.grammar.english import realize_english_clause
from regard.synthetic.grammar.german import VERB_FIRST, VERB_LAST, VERB_SECOND, realize_german_clause
from regard.synthetic.grammar.japanese import realize_japanese_sentence
from regard.synthetic.grammar.lexicon import Conjunction, Pronoun, Verb
from regard.synthetic.grammar.syntax import (
    Clause,
    CoordinatedPhrase,
    Nominal,
    NounPhrase,
    Sentence,
    Token,
    has_determiner,
)


class AlignedPair(NamedTuple):
    """An English sentence, its translation, both with spaces between words, and the sorted links of their words.

    `possible` are links that an alignment may have or lack; German has only sure ones.
    """

    source: str
    target: str
    alignment: tuple[Link, ...]
    possible: tuple[Link, ...] = ()


def realize_sentence_pair(sentence: Sentence, language: str = "de") -> AlignedPair:
    """Return the sentence in English and in German ("de") or Japanese ("ja") with its alignment."""
    question = sentence.kind == "question"
    stop: Token = ("?" if question else ".", ("stop",))
    if sentence.second is None or sentence.conjunction is None:
        order = VERB_SECOND if sentence.first.front else VERB_FIRST
        source = realize_english_clause(sentence.first, "0", inverted=question and sentence.first.front != "subject")
        target = realize_german_clause(sentence.first, "0", order)
    else:
        source, target = _realize_two_clauses(sentence.kind, sentence.first, sentence.second, sentence.conjunction)
    target = realize_japanese_sentence(sentence) if language == "ja" else [*target, stop]
    return _align_tokens([*source, stop], target)


def _realize_two_clauses(
    kind: str, first: Clause, second: Clause, conjunction: Conjunction
) -> tuple[list[Token], list[Token]]:
    """Return the words of both languages; the conjunction opens the second clause."""
    is_shared, is_leading, is_trailing = kind == "shared", kind == "leading", kind == "trailing"
    order = VERB_LAST if is_leading or is_trailing else VERB_FIRST if is_shared else VERB_SECOND
    source = [
        realize_english_clause(first, "0"),
        [(conjunction.english, ("join",)), *realize_english_clause(second, "1", elided=is_shared)],
    ]
    target = [
        realize_german_clause(first, "0", VERB_FIRST if is_leading else VERB_SECOND),
        [(conjunction.german, ("join",)), *realize_german_clause(second, "1", order, elided=is_shared)],
    ]
    if is_leading:
        source.reverse()
        target.reverse()
    comma: list[Token] = [(",", ("comma",))] if is_leading or conjunction.english == "but" else []
    german_comma: list[Token] = [(",", ("join",))] if is_trailing else comma
    return [*source[0], *comma, *source[1]], [*target[0], *german_comma, *target[1]]


def _align_tokens(source: list[Token], target: list[Token]) -> AlignedPair:
    """Link the words that have a name in common; a target name that begins with "?" gives a possible link."""
    source_indices: dict[str, list[int]] = {}
    for index, (_, names) in enumerate(source):
        for name in names:
            source_indices.setdefault(name, []).append(index)
    sure, possible = set[Link](), set[Link]()
    for name, index in [(name, index) for index, (_, names) in enumerate(target) for name in names]:
        links = possible if name.startswith("?") else sure
        links.update((source_index, index) for source_index in source_indices.get(name.lstrip("?"), ()))
    links_of_kinds = (tuple(sorted(links)) for links in (sure, possible - sure))
    return AlignedPair(_join_words(source), _join_words(target), *links_of_kinds)


def _join_words(tokens: list[Token]) -> str:
    text = " ".join(word for word, _ in tokens)
    return text[0].upper() + text[1:]


# Random generation of statements, questions, and sentences of two clauses. "hope" does not take a clause with a modal.
_HOPE_TENSES = tuple(tenses for tenses in lx.THAT.tenses if not tenses[1].startswith("modal"))
_CONTENT_CLAUSE_VERBS = lx.find_verbs("that", "whether")
_ONE_OBJECT_VERBS = tuple(verb for verb in lx.find_verbs("acc", "dat") if "person" in verb.subjects)
_WHAT_QUESTION_VERBS = tuple(verb for verb in _ONE_OBJECT_VERBS if verb.frame == "acc" and "person" not in verb.objects)
_WHOM_QUESTION_VERBS = tuple(verb for verb in _ONE_OBJECT_VERBS if "person" in verb.objects)
_WHERE_QUESTION_VERBS = tuple(verb for verb in lx.find_verbs("none", "acc", "dat", "prep") if verb.places)
_OPENING_VERBS = tuple(map(lx.find_verb, ("sleep", "see", "love", "help", "read", "be", "be")))
_HUMAN_VERBS = lx.find_verbs_with_subject(lx.find_noun("teacher"))
_HUMAN_ACTION_VERBS = tuple(verb for verb in _HUMAN_VERBS if not verb.is_stative and "bus" not in verb.subjects)
_MOTION_VERBS = tuple(verb for verb in lx.find_verbs("goal", "ride") if verb.english[0] != "come")


class SentenceGenerator(ClauseGenerator):
    """Draw sentences from a random stream."""

    def draw_sentence(self) -> Sentence:
        """Draw an unambiguous sentence."""
        while True:
            self.used_nouns.clear()
            sentence = self._draw_any_sentence()
            clauses = (sentence.first, sentence.first.relative, sentence.second)
            if not any(map(_has_unsuitable_verb_form, filter(None, clauses))):
                return sentence

    def _draw_any_sentence(self) -> Sentence:
        draw = self.random.random()
        if draw < 0.5:
            return self._draw_statement()
        if draw < 0.63:
            return self._draw_question()
        if draw < 0.78:
            return self._draw_complex_sentence()
        return self._draw_content_clause_sentence() if draw < 0.86 else self._draw_compound_sentence()

    def _draw_statement(self) -> Sentence:
        clause = self.draw_clause(self.random.choice(lx.LISTS["statement_modes"]))
        if clause.time and self.draw_bool(0.5):
            clause.front = "time"
        elif clause.place and self.draw_bool(0.45):
            clause.front = "place"
        if self.draw_bool(0.24):
            self.add_relative_clause(clause)
        return Sentence("statement", clause)

    def _draw_question(self) -> Sentence:
        mode, draw = self.random.choice(lx.LISTS["question_modes"]), self.random.random()
        if draw < 0.42:
            # The German verb opens the sentence with a capital letter: few verbs, so that each is seen often that way.
            verbs = _OPENING_VERBS if mode in {"present", "past"} else _HUMAN_ACTION_VERBS
            clause = self._draw_question_clause(mode, self.random.choice(verbs), adjunct_factor=0.8)
            clause.front = ""
        elif draw < 0.55:
            clause = self.draw_clause(mode, self.random.choice(_ONE_OBJECT_VERBS), lx.WHO, 0.4, 0.0)
        elif draw < 0.72:
            clause = self._draw_object_question(mode)
        else:
            clause = self._draw_adverbial_question(mode)
        return Sentence("question", clause)

    def _draw_question_clause(self, mode: str, verb: Verb | None = None, adjunct_factor: float = 0.3) -> Clause:
        while True:
            clause = self.draw_clause(mode, verb, adjunct_factor=adjunct_factor, negation_probability=0.0)
            if clause.subject is not lx.SPEAKER and not has_determiner(clause.subject, "no", "every", "some"):
                clause.frequency = None
                return clause

    def _draw_object_question(self, mode: str) -> Clause:
        draw = self.random.random()
        verbs = _WHAT_QUESTION_VERBS if draw < 0.4 else _WHOM_QUESTION_VERBS if draw < 0.65 else _ONE_OBJECT_VERBS
        clause = self._draw_question_clause(mode, self.random.choice(verbs))
        clause.front = "direct"
        if draw < 0.65:
            clause.direct = lx.WHAT if draw < 0.4 else lx.WHO
        else:
            clause.direct = self.draw_which_phrase(clause.verb.objects)
        return clause

    def _draw_adverbial_question(self, mode: str) -> Clause:
        draw = self.random.random()
        if draw < 0.3:
            clause = self._draw_question_clause(mode, self.random.choice(_WHERE_QUESTION_VERBS))
            clause.interrogative, clause.place = lx.WHERE, None
        elif draw < 0.45:
            clause = self._draw_question_clause(mode, self.random.choice(_MOTION_VERBS))
            clause.interrogative, clause.complement = lx.WHITHER, None
        elif draw < 0.7:
            clause = self._draw_question_clause(mode, self.draw_action_verb())
            clause.interrogative, clause.time = lx.WHEN, None
        else:
            clause = self._draw_question_clause(mode)
            clause.interrogative = lx.WHY
        clause.front = "interrogative"
        return clause

    def _draw_complex_sentence(self) -> Sentence:
        conjunction = self.random.choice(lx.SUBORDINATORS)
        main, subordinate = self.random.choice(conjunction.tenses)
        is_at_one_time = conjunction.english in {"while", "when", "before", "after"}
        is_leading = self.draw_bool(0.4)
        first = self._draw_event_clause(subordinate if is_leading else main, is_at_one_time)
        second = self._draw_following_clause(main if is_leading else subordinate, first, is_at_one_time)
        clauses = (second, first) if is_leading else (first, second)
        return Sentence("leading" if is_leading else "trailing", *clauses, conjunction)

    def _draw_content_clause_sentence(self) -> Sentence:
        verb = self.random.choice(_CONTENT_CLAUSE_VERBS)
        is_hope = verb.english[0] == "hope"
        main, subordinate = self.random.choice(_HOPE_TENSES if is_hope else lx.THAT.tenses)
        first = self.draw_clause(main, verb, negation_probability=0.0 if is_hope else 0.14)
        second = self._draw_following_clause(subordinate, first)
        takes_whether = verb.frame == "whether" or (first.negated and verb.english[0] == "know")
        return Sentence("trailing", first, second, lx.WHETHER if takes_whether else lx.THAT)

    def _draw_compound_sentence(self) -> Sentence:
        conjunction = self.random.choice((lx.AND, lx.AND, lx.BUT))
        first_tense, second_tense = self.random.choice(conjunction.tenses)
        first = self.draw_clause(first_tense, adjunct_factor=0.3)
        if conjunction is lx.AND and _is_active(first.subject) and self.draw_bool(0.5):
            verb = self._draw_other_verb(first, is_at_one_time=True)
            second = self.draw_clause(second_tense, verb, first.subject, 0.3, 0.0)
            return Sentence("shared", first, second, conjunction)
        if conjunction is lx.AND:
            second = self.draw_clause(second_tense, adjunct_factor=0.3)
        else:
            second = self._draw_following_clause(second_tense, first)
        return Sentence("joined", first, second, conjunction)

    def _draw_following_clause(self, mode: str, earlier: Clause, is_at_one_time: bool = False) -> Clause:
        """Draw a clause that continues an earlier one, often about the same person."""
        pronoun = _find_pronoun(earlier.subject)
        if pronoun and self.draw_bool(0.5):
            verb = self._draw_other_verb(earlier, is_at_one_time)
            return self._draw_event_clause(mode, is_at_one_time, verb, pronoun)
        return self._draw_event_clause(mode, is_at_one_time)

    def _draw_event_clause(
        self, mode: str, is_at_one_time: bool = False, verb: Verb | None = None, subject: Nominal | None = None
    ) -> Clause:
        """Draw a clause that can be the cause or occasion of another: an action, or somebody's state."""
        if verb is None and not is_at_one_time and self.draw_bool(0.15):
            verb, subject = VERB_BE, self.draw_subject(lx.HUMAN)
        verb_or_action = verb or self.draw_action_verb()
        clause = self.draw_clause(mode, verb_or_action, subject, 0.3, 0.0 if is_at_one_time else 0.14)
        if not is_at_one_time:
            return clause
        # An event at one time has no frequency, and its subject is neither everybody nor nobody.
        if has_determiner(clause.subject, "no", "every"):
            return self._draw_event_clause(mode, is_at_one_time, verb, subject)
        clause.time = clause.frequency = None
        return clause

    def _draw_other_verb(self, earlier: Clause, is_at_one_time: bool = False) -> Verb:
        """Draw another verb for the same subject."""
        subject = earlier.subject
        verbs = lx.find_verbs_with_subject(subject.noun if isinstance(subject, NounPhrase) else lx.find_noun("teacher"))
        others = [verb for verb in verbs if verb.english != earlier.verb.english]
        return self.random.choice([verb for verb in others if not (is_at_one_time and verb.is_stative)])


def _find_pronoun(subject: Nominal) -> Pronoun | None:
    """Return the pronoun that refers to a person again, or None."""
    if isinstance(subject, Pronoun):
        return subject
    if isinstance(subject, NounPhrase) and (subject.noun.kind not in lx.HUMAN or subject.determiner in ("no", "every")):
        return None
    if subject.person == "p" or isinstance(subject, CoordinatedPhrase):
        return lx.THEY
    return {"m": lx.HE, "f": lx.SHE}.get(subject.noun.gender)


def _is_active(subject: Nominal) -> bool:
    if not isinstance(subject, NounPhrase):
        return True
    return subject.noun.kind in (*lx.HUMAN, "pet") and subject.determiner != "no"


def _has_unsuitable_verb_form(clause: Clause) -> bool:
    """Return True for a verb that can be present and past ("they read"), or is too rare to learn ("ich … anrufe")."""
    if clause.modal:
        return False
    if clause.tense == "past":
        return clause.subject.person != "3" and clause.verb.english[0] == clause.verb.english[2]
    return clause.tense == "present" and clause.subject is lx.SPEAKER and bool(clause.verb.prefix)
