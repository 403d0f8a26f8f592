"""Synthetic tagging corpus: the tag of a verb depends on an earlier word and on the final punctuation mark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from regard.synthetic.corpus import SyntheticCorpus

# Verbs that are spelled alike in the present and in the past. The first word determines the tense, the last mark if it
# is a question. Each is a fair coin, so that a model that reads in one direction only has to guess one of the two.
TIME_WORDS = {"today": "PRESENT", "now": "PRESENT", "yesterday": "PAST", "once": "PAST"}
_FINAL_MARKS = {".": "SAID", "?": "ASKED"}
_VERBS = ("put", "cut", "hit", "set", "let", "shut", "cast", "split", "spread", "hurt")
_SUBJECTS = ("they", "we", "you", "people", "children", "friends")
_NOUNS = ("bread", "box", "door", "wood", "rope", "letter", "table", "net", "stone", "coat")
_ADJECTIVES = ("old", "small", "heavy", "red", "broken", "good")
_PREPOSITIONS = ("in", "near", "behind")
SPLIT_SIZES = {"train": 2000, "dev": 200, "test": 400}
SMALL_MODEL_OVERRIDES = {
    "model.size": 32,
    "model.dropout": 0.1,
    "training.steps": 300,
    "training.batch_tokens": 500,
    "training.learning_rate": 0.01,
    "training.validate_every": 50,
    "training.checkpoint_every": 100,
}


class LabelledWords(NamedTuple):
    """A sentence: one row of columns for each word, and the words' labels."""

    rows: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]


def write_tagging_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train.conll`, `dev.conll` and `test.conll`, without repeated sentences."""
    folder.mkdir(parents=True, exist_ok=True)
    sentences = _iterate_distinct_sentences(Random(seed))
    paths = {}
    for name, size in SPLIT_SIZES.items():
        paths[name] = folder / f"{name}.conll"
        paths[name].write_text(
            "".join(_format_sentence_columns(next(sentences)) for _ in range(size)), encoding="utf-8"
        )
    return SyntheticCorpus([paths["train"]], [paths["dev"]], [paths["test"]], SMALL_MODEL_OVERRIDES)


def _iterate_distinct_sentences(random: Random) -> Iterator[LabelledWords]:
    """Yield distinct sentences without end."""
    seen: set[LabelledWords] = set()
    while True:
        sentence = make_tagged_sentence(random)
        if sentence not in seen:
            seen.add(sentence)
            yield sentence


def make_tagged_sentence(random: Random) -> LabelledWords:
    """Draw a sentence of one or two clauses with one time word and one final mark."""
    time_word, mark = random.choice(sorted(TIME_WORDS)), random.choice(sorted(_FINAL_MARKS))
    words = [(time_word, "TIME")]
    for index in range(random.choice((1, 2))):
        words += [("and", "AND")] * (index > 0)
        words += [
            (random.choice(_SUBJECTS), "WHO"),
            (random.choice(_VERBS), f"{TIME_WORDS[time_word]}-{_FINAL_MARKS[mark]}"),
        ]
        words += [("the", "THE"), *_make_noun_phrase(random)]
        if random.random() < 0.2:
            words += [(random.choice(_PREPOSITIONS), "WHERE"), ("the", "THE"), *_make_noun_phrase(random)]
    words.append((mark, "MARK"))
    return LabelledWords(tuple((word,) for word, _ in words), tuple(label for _, label in words))


def _make_noun_phrase(random: Random) -> list[tuple[str, str]]:
    """Draw a noun, with or without an adjective."""
    adjectives = [(random.choice(_ADJECTIVES), "LIKE")] * random.choice((0, 0, 1))
    return [*adjectives, (random.choice(_NOUNS), "WHAT")]


def _format_sentence_columns(sentence: LabelledWords) -> str:
    """Return a line for each word and a blank line after them."""
    return "".join(f"{row[0]} {label}\n" for row, label in zip(*sentence, strict=True)) + "\n"
