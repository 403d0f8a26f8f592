"""Synthetic tagging corpus: the tag of a verb depends on an earlier word and on the final punctuation mark."""

from __future__ import annotations

from pathlib import Path
from random import Random

from regard.data.readers.conll import TaggedSentence
from regard.synthetic.corpus import SyntheticCorpus, load_corpus_words, write_distinct_splits

_WORDS = load_corpus_words()["tagging"]
TIME_WORDS: dict[str, str] = _WORDS["time_words"]  # the first word of a sentence determines the tense of its verbs
_FINAL_MARKS: dict[str, str] = _WORDS["final_marks"]


def write_tagging_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train.conll`, `dev.conll` and `test.conll`, without repeated sentences."""
    random = Random(seed)
    return write_distinct_splits(folder, "tagging", ".conll", lambda: _draw_sentence_columns(random))


def make_tagged_sentence(random: Random) -> TaggedSentence:
    """Draw a sentence of one or two clauses with one time word and one final mark."""
    time_word, mark = random.choice(sorted(TIME_WORDS)), random.choice(sorted(_FINAL_MARKS))
    words = [(time_word, "TIME")]
    for index in range(random.choice((1, 2))):
        words += [("and", "AND")] * (index > 0)
        words += [
            (random.choice(_WORDS["subjects"]), "WHO"),
            (random.choice(_WORDS["verbs"]), f"{TIME_WORDS[time_word]}-{_FINAL_MARKS[mark]}"),
        ]
        words += [("the", "THE"), *_make_noun_phrase(random)]
        if random.random() < 0.2:
            words += [(random.choice(_WORDS["prepositions"]), "WHERE"), ("the", "THE"), *_make_noun_phrase(random)]
    words.append((mark, "MARK"))
    return TaggedSentence(tuple((word,) for word, _ in words), tuple(label for _, label in words))


def _make_noun_phrase(random: Random) -> list[tuple[str, str]]:
    """Draw a noun, with or without an adjective."""
    adjectives = [(random.choice(_WORDS["adjectives"]), "LIKE")] * random.choice((0, 0, 1))
    return [*adjectives, (random.choice(_WORDS["nouns"]), "WHAT")]


def _draw_sentence_columns(random: Random) -> str:
    """Draw a sentence as a line for each word and a blank line after them."""
    sentence = make_tagged_sentence(random)
    return "".join(f"{row[0]} {label}\n" for row, label in zip(*sentence, strict=True)) + "\n"
