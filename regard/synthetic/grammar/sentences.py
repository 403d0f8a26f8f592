"""Sentences of one or two clauses, and their realization as an aligned pair of strings.

Rules of alignment:

- content words, articles, auxiliaries, modals and punctuation link to their counterparts;
- "do" and the main verb both link to the German finite verb, and "wants to" with both words to the modal;
- an English verb, with its particle, links to the German stem and to the separated prefix;
- a contraction ("im") links to the preposition and to the article;
- "kein" links to "not" and to "a"; "cannot" links to "kann" and to "nicht" or "kein";
- "of" and "to", if German has a genitive or dative without preposition, link to the first word of that phrase;
- a German comma without an English one links to the conjunction that opens the clause.

Every word of either language has a link.
"""

from dataclasses import dataclass

from regard.synthetic.grammar.clauses import (
    VERB_FIRST,
    VERB_LAST,
    VERB_SECOND,
    Clause,
    realize_english_clause,
    realize_german_clause,
)
from regard.synthetic.grammar.lexeme import Conjunction
from regard.synthetic.grammar.phrases import Token


@dataclass(frozen=True, slots=True)
class AlignedPair:
    """An English sentence, its German translation, and the sorted (source index, target index) links of their words."""

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One clause, or two joined by a conjunction.

    `kind` is "statement", "question"; or with two clauses: "trailing" (main clause, conjunction, subordinate clause),
    "leading" (conjunction, subordinate clause, main clause), "joined" (two main clauses) or "shared" (the second main
    clause has the first one's subject). The main clause is always `first`.
    """

    kind: str
    first: Clause
    second: Clause | None = None
    conjunction: Conjunction | None = None


def realize_sentence_pair(sentence: Sentence) -> AlignedPair:
    """Return the sentence in both languages with its alignment."""
    question = sentence.kind == "question"
    stop: Token = ("?" if question else ".", ("stop",))
    if sentence.second is None or sentence.conjunction is None:
        inverted = question and sentence.first.front != "subject"
        order = VERB_SECOND if sentence.first.front else VERB_FIRST
        source, target = (
            realize_english_clause(sentence.first, "0", inverted=inverted),
            realize_german_clause(sentence.first, "0", order),
        )
    else:
        source, target = _realize_two_clauses(sentence.kind, sentence.first, sentence.second, sentence.conjunction)
    return _align_tokens([*source, stop], [*target, stop])


def _realize_two_clauses(
    kind: str, first: Clause, second: Clause, conjunction: Conjunction
) -> tuple[list[Token], list[Token]]:
    english_word: Token = (conjunction.english, ("join",))
    german_word: Token = (conjunction.german, ("join",))
    comma: Token = (",", ("comma",))
    if kind == "leading":
        return (
            [english_word, *realize_english_clause(second, "1"), comma, *realize_english_clause(first, "0")],
            [
                german_word,
                *realize_german_clause(second, "1", VERB_LAST),
                comma,
                *realize_german_clause(first, "0", VERB_FIRST),
            ],
        )
    if kind == "trailing":
        return (
            [*realize_english_clause(first, "0"), english_word, *realize_english_clause(second, "1")],
            [
                *realize_german_clause(first, "0"),
                (",", ("join",)),
                german_word,
                *realize_german_clause(second, "1", VERB_LAST),
            ],
        )
    pause = [comma] if conjunction.english == "but" else []
    shared = kind == "shared"
    order = VERB_FIRST if shared else VERB_SECOND
    return (
        [
            *realize_english_clause(first, "0"),
            *pause,
            english_word,
            *realize_english_clause(second, "1", elided=shared),
        ],
        [
            *realize_german_clause(first, "0"),
            *pause,
            german_word,
            *realize_german_clause(second, "1", order, elided=shared),
        ],
    )


def _align_tokens(source: list[Token], target: list[Token]) -> AlignedPair:
    source_indices: dict[str, list[int]] = {}
    for index, (_, names) in enumerate(source):
        for name in names:
            source_indices.setdefault(name, []).append(index)
    links = {
        (source_index, index)
        for index, (_, names) in enumerate(target)
        for name in names
        for source_index in source_indices.get(name, ())
    }
    return AlignedPair(_join_words(source), _join_words(target), tuple(sorted(links)))


def _join_words(tokens: list[Token]) -> str:
    text = " ".join(word for word, _ in tokens)
    return text[0].upper() + text[1:]
