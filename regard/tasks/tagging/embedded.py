"""Sentences that come with regard: the tag of a verb depends on a word before it and on the mark behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from regard.tasks.tagging.columns import Tagged
from regard.tasks.task import Corpus

# Verbs that are spelled alike in the present and in the past: when it was, the first word says; whether somebody asks,
# the last mark. Each is a fair coin, so that what reads from one side alone has nothing better than to guess the other.
WHEN = {"today": "PRESENT", "now": "PRESENT", "yesterday": "PAST", "once": "PAST"}
MARK = {".": "SAID", "?": "ASKED"}
VERBS = ("put", "cut", "hit", "set", "let", "shut", "cast", "split", "spread", "hurt")
WHO = ("they", "we", "you", "people", "children", "friends")
WHAT = ("bread", "box", "door", "wood", "rope", "letter", "table", "net", "stone", "coat")
LIKE = ("old", "small", "heavy", "red", "broken", "good")
WHERE = ("in", "near", "behind")
SIZES = {"train": 2000, "dev": 200, "test": 400}
SMALL = {
    "model.size": 32,
    "model.dropout": 0.1,
    "training.steps": 300,
    "training.batch_tokens": 500,
    "training.learning_rate": 0.01,
    "training.validate_every": 50,
    "training.checkpoint_every": 100,
}


def write(folder: Path, seed: int = 1) -> Corpus:
    """`train.conll`, `dev.conll` and `test.conll`, with no sentence in two places, and what makes a recipe small."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = distinct(Random(seed))
    paths = {}
    for name, size in SIZES.items():
        paths[name] = folder / f"{name}.conll"
        paths[name].write_text("".join(in_columns(next(drawn)) for _ in range(size)), encoding="utf-8")
    return Corpus([paths["train"]], [paths["dev"]], [paths["test"]], SMALL)


def distinct(random: Random) -> Iterator[Tagged]:
    """Sentences without end, each once."""
    known: set[Tagged] = set()
    while True:
        made = sentence(random)
        if made not in known:
            known.add(made)
            yield made


def sentence(random: Random) -> Tagged:
    """One clause or two under one time and one mark."""
    when, mark = random.choice(sorted(WHEN)), random.choice(sorted(MARK))
    words = [(when, "TIME")]
    for number in range(random.choice((1, 2))):
        words += [("and", "AND")] * (number > 0)
        words += [(random.choice(WHO), "WHO"), (random.choice(VERBS), f"{WHEN[when]}-{MARK[mark]}")]
        words += [("the", "THE"), *described(random)]
        if random.random() < 0.2:
            words += [(random.choice(WHERE), "WHERE"), ("the", "THE"), *described(random)]
    words.append((mark, "MARK"))
    return Tagged(tuple((word,) for word, _ in words), tuple(label for _, label in words))


def described(random: Random) -> list[tuple[str, str]]:
    """A thing, with a word about it or none."""
    like = [(random.choice(LIKE), "LIKE")] * random.choice((0, 0, 1))
    return [*like, (random.choice(WHAT), "WHAT")]


def in_columns(made: Tagged) -> str:
    """A line for each word, and a blank one behind them."""
    return "".join(f"{row[0]} {label}\n" for row, label in zip(made.rows, made.labels, strict=True)) + "\n"
