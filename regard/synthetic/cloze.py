"""Synthetic cloze corpus: short stories of who did what with which things, and a query with one word left out.

One word of the query, a person or a thing, says which lines of the story are meant. It is in the middle of a long
sentence: attention from there finds these lines directly, while the last states of the query's encoder are far from it.
In some stories several lines are meant, and most of them name the answer: the attention weights of a word that occurs
several times have to be summed, and another word occurs in the story about as often.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from regard.synthetic.corpus import SyntheticCorpus, load_corpus_words, write_distinct_splits

_WORDS = load_corpus_words()["cloze"]
PEOPLE: Sequence[str] = _WORDS["people"]
THINGS: Sequence[str] = _WORDS["things"]
_FACT_COUNT_RANGE = (3, 5)  # minimum and maximum, in a story in which every word occurs once
_ANSWER_REPEATS = 3  # of the answer, besides one other word, in a story about what somebody did "most of all"
_REPEATED_STORY_FRACTION = 0.3  # fraction of these stories


class _Fact(NamedTuple):
    """A person and a thing."""

    person: str
    thing: str

    def format_clause(self, random: Random) -> str:
        """Return the fact as a clause with a random verb."""
        return f"{self.person} {random.choice(_WORDS['verbs'])} {self.thing}"


class _Story(NamedTuple):
    """Facts, the one that the query is about, and which of its two words is left out."""

    facts: list[_Fact]
    query_fact: _Fact
    blank_index: int  # 0: person, 1: thing


def write_cloze_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train`, `dev` and `test` in the format of the Children's Book Test, without repeated questions."""
    random = Random(seed)
    return write_distinct_splits(folder, "cloze", ".txt", lambda: make_cloze_question(random))


def make_cloze_question(random: Random) -> str:
    """Draw a story and its query; candidates are all its words of the blank's kind, and some of the other kind."""
    blank = random.randrange(2)
    has_repeats = random.random() < _REPEATED_STORY_FRACTION
    story = _make_story_with_repeats(random, blank) if has_repeats else _make_story_without_repeats(random, blank)
    same, others = (sorted({fact[kind] for fact in story.facts}) for kind in (blank, 1 - blank))
    candidates = [*same, *random.sample(others, min(len(same), len(others)))]
    random.shuffle(candidates)
    blanked = _Fact(*("XXXXX" if index == blank else word for index, word in enumerate(story.query_fact)))
    before, after = (
        " , ".join(random.sample(_WORDS[name], random.randint(1, 2))) for name in ("opening_clauses", "closing_clauses")
    )
    query = f"{before}{' most of all' if has_repeats else ''} {blanked.format_clause(random)} {after} ."
    lines = [f"{number} {fact.format_clause(random)} .\n" for number, fact in enumerate(story.facts, 1)]
    return "".join([*lines, f"{len(lines) + 1} {query}\t{story.query_fact[blank]}\t\t{'|'.join(candidates)}\n\n"])


def _make_story_without_repeats(random: Random, blank_index: int) -> _Story:
    """Draw facts that have no word in common."""
    count = random.randint(*_FACT_COUNT_RANGE)
    facts = [_Fact(*words) for words in zip(random.sample(PEOPLE, count), random.sample(THINGS, count), strict=True)]
    return _Story(facts, random.choice(facts), blank_index)


def _make_story_with_repeats(random: Random, blank_index: int) -> _Story:
    """Draw facts about two clue words, each occurring several times with one word and once with another.

    The clues are of one kind; the words that occur with them, three in all, are of the other.
    """
    kinds = (PEOPLE, THINGS)
    clue, other_clue = random.sample(kinds[1 - blank_index], 2)
    answer, *others = random.sample(kinds[blank_index], 3)
    other, frequent = random.choice(others), random.choice(others)
    rare = random.choice([word for word in (answer, *others) if word != frequent])
    words_by_clue = {clue: (*[answer] * _ANSWER_REPEATS, other), other_clue: (*[frequent] * _ANSWER_REPEATS, rare)}
    facts = [_make_fact(clue_word, word, blank_index) for clue_word, words in words_by_clue.items() for word in words]
    random.shuffle(facts)
    return _Story(facts, _make_fact(clue, answer, blank_index), blank_index)


def _make_fact(clue: str, word: str, blank_index: int) -> _Fact:
    """Build the fact with the queried word at its position."""
    return _Fact(clue, word) if blank_index else _Fact(word, clue)
