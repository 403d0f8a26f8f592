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

from typing import NamedTuple

from regard.synthetic.grammar.english import realize_english_clause
from regard.synthetic.grammar.german import VERB_FIRST, VERB_LAST, VERB_SECOND, realize_german_clause
from regard.synthetic.grammar.lexicon import Conjunction
from regard.synthetic.grammar.syntax import Clause, Token


class AlignedPair(NamedTuple):
    """An English sentence, its German translation, and the sorted (source index, target index) links of their words."""

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]


class Sentence(NamedTuple):
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
        order = VERB_SECOND if sentence.first.front else VERB_FIRST
        source = realize_english_clause(sentence.first, "0", inverted=question and sentence.first.front != "subject")
        target = realize_german_clause(sentence.first, "0", order)
    else:
        source, target = _realize_two_clauses(sentence.kind, sentence.first, sentence.second, sentence.conjunction)
    return _align_tokens([*source, stop], [*target, stop])


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
    source_indices: dict[str, list[int]] = {}
    for index, (_, names) in enumerate(source):
        for name in names:
            source_indices.setdefault(name, []).append(index)
    target_names = [(name, index) for index, (_, names) in enumerate(target) for name in names]
    links = {(source_index, index) for name, index in target_names for source_index in source_indices.get(name, ())}
    return AlignedPair(_join_words(source), _join_words(target), tuple(sorted(links)))


def _join_words(tokens: list[Token]) -> str:
    text = " ".join(word for word, _ in tokens)
    return text[0].upper() + text[1:]
