"""Synthetic corpora of the tasks, except for translation, and recipe overrides for small models.

The words of the corpora and the overrides are in `corpora.yaml`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.tagging import TaggedSentence
from regard.paths import read_package_yaml
from regard.recipes.recipe import Recipe

# Words, sizes and recipe overrides of each task's corpus.
CORPUS_WORDS: dict[str, dict[str, Any]] = read_package_yaml("regard.synthetic", "corpora.yaml")


class SyntheticCorpus(NamedTuple):
    """Files of a synthetic corpus, and recipe overrides for a small model."""

    train: Sequence[Path]
    dev: Sequence[Path]
    test: Sequence[Path]
    overrides: Mapping[str, Any]  # dotted keys; not every recipe of the task has all of them
    overrides_by_kind: Mapping[str, Mapping[str, Any]] = MappingProxyType({})  # further ones, by `model.kind`
    test_words: Sequence[Path] = ()  # `test` with spaces between words, if it has none

    def select_overrides(self, recipe: Recipe) -> dict[str, Any]:
        """Return the overrides whose keys the recipe has."""
        overrides = {**self.overrides, **self.overrides_by_kind.get(recipe["model"]["kind"], {})}
        dotted = {key: key.split(".", 1) for key in overrides}
        return {key: overrides[key] for key, (section, name) in dotted.items() if name in recipe[section]}


def write_splits(folder: Path, task: str, suffix: str, make_text: Callable[[str, int], str]) -> SyntheticCorpus:
    """Write `train`, `dev` and `test` of a task, each with the text that `make_text(name, size)` returns."""
    folder.mkdir(parents=True, exist_ok=True)
    words = CORPUS_WORDS[task]
    paths = {name: folder / f"{name}{suffix}" for name in words["sizes"]}
    for name, size in words["sizes"].items():
        paths[name].write_text(make_text(name, size), encoding="utf-8")
    return SyntheticCorpus([paths["train"]], [paths["dev"]], [paths["test"]], words["overrides"])


def write_distinct_splits(
    folder: Path, task: str, suffix: str, draw: Callable[[Random], str], seed: int
) -> SyntheticCorpus:
    """Write `train`, `dev` and `test` of a task, without repeated examples."""
    seen, random = set[str](), Random(seed)

    def draw_new() -> str:
        while (example := draw(random)) in seen:
            pass
        seen.add(example)
        return example

    return write_splits(folder, task, suffix, lambda _, size: "".join(draw_new() for _ in range(size)))


# Tagging: the tag of a verb depends on an earlier word and on the final punctuation mark.

_TAGGING = CORPUS_WORDS["tagging"]
TIME_WORDS: dict[str, str] = _TAGGING["time_words"]  # the first word of a sentence determines the tense of its verbs
_FINAL_MARKS: dict[str, str] = _TAGGING["final_marks"]


def write_tagging_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train.conll`, `dev.conll` and `test.conll`, without repeated sentences."""
    return write_distinct_splits(folder, "tagging", ".conll", _draw_sentence_columns, seed)


def make_tagged_sentence(random: Random) -> TaggedSentence:
    """Draw a sentence of one or two clauses with one time word and one final mark."""
    time_word, mark = random.choice(sorted(TIME_WORDS)), random.choice(sorted(_FINAL_MARKS))
    words = [(time_word, "TIME")]
    for index in range(random.choice((1, 2))):
        words += [("and", "AND")] * (index > 0)
        words += [
            (random.choice(_TAGGING["subjects"]), "WHO"),
            (random.choice(_TAGGING["verbs"]), f"{TIME_WORDS[time_word]}-{_FINAL_MARKS[mark]}"),
            *_make_noun_phrase(random),
        ]
        if random.random() < 0.2:
            words += [(random.choice(_TAGGING["prepositions"]), "WHERE"), *_make_noun_phrase(random)]
    words.append((mark, "MARK"))
    return TaggedSentence(tuple((word,) for word, _ in words), tuple(label for _, label in words))


def _make_noun_phrase(random: Random) -> list[tuple[str, str]]:
    """Draw a noun with its article, with or without an adjective."""
    adjectives = [(random.choice(_TAGGING["adjectives"]), "LIKE")] * random.choice((0, 0, 1))
    return [("the", "THE"), *adjectives, (random.choice(_TAGGING["nouns"]), "WHAT")]


def _draw_sentence_columns(random: Random) -> str:
    """Draw a sentence as a line for each word and a blank line after them."""
    sentence = make_tagged_sentence(random)
    return "".join(f"{row[0]} {label}\n" for row, label in zip(*sentence, strict=True)) + "\n"


# Classification: reports of visits, labelled by the one sentence with the writer's opinion. Sentences with opinions of
# other people do not affect the label.

_REPORTS = CORPUS_WORDS["classification"]
POSITIVE_ADJECTIVES: Sequence[str] = _REPORTS["positive"]
NEGATIVE_ADJECTIVES: Sequence[str] = _REPORTS["negative"]


def write_classification_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train.tsv`, `dev.tsv` and `test.tsv`: label, text, and the deciding sentence, which training ignores."""
    return write_distinct_splits(folder, "classification", ".tsv", _make_report_line, seed)


def _make_report_line(random: Random) -> str:
    """Draw a report: neutral sentences, opinions of one or two other people, and the opinion of the writer."""
    place = random.choice(_REPORTS["sights"])
    label = random.choice(("liked", "disliked", "undecided"))
    deciding = _capitalize_sentence(_make_opinion(random, label, place))
    opinions_of_others = [_make_opinion_of_others(random, place) for _ in range(random.randint(1, 2))]
    neutral = [text.format(place=place) for text in random.sample(_REPORTS["neutral_sentences"], random.randint(1, 3))]
    sentences = [_capitalize_sentence(text) for text in (*opinions_of_others, *neutral)]
    random.shuffle(sentences)
    sentences.insert(random.randrange(len(sentences) + 1), deciding)
    return f"{label}\t{' '.join(sentences)}\t{deciding}\n"


def _make_opinion(random: Random, label: str, noun: str) -> str:
    """Return the writer's opinion; half of the time as a negation of the opposite."""
    if label == "undecided":
        found = f"the {noun} {random.choice((*POSITIVE_ADJECTIVES, *NEGATIVE_ADJECTIVES))}"
        return random.choice((f"I can not say whether I found {found}", f"was {found}, I asked myself"))
    adjectives = (POSITIVE_ADJECTIVES, NEGATIVE_ADJECTIVES)
    same, other = adjectives if label == "liked" else reversed(adjectives)
    if random.random() < 0.5:
        return f"I found the {noun} {random.choice(same)}"
    return f"I did not find the {noun} {random.choice(other)} at all"


def _make_opinion_of_others(random: Random, noun: str) -> str:
    """Return the opinion of another person, which does not affect the label."""
    person, word = random.choice(_REPORTS["people"]), random.choice((*POSITIVE_ADJECTIVES, *NEGATIVE_ADJECTIVES))
    return random.choice((f"{person} found the {noun} {word}", f"{person} did not find the {noun} {word} at all"))


def _capitalize_sentence(words: str) -> str:
    """Return a sentence with a capital letter and a full stop."""
    return words[0].upper() + words[1:] + "."


# Cloze: short stories of who did what with which things, and a query with one word left out. One word of the query, a
# person or a thing, says which lines of the story are meant. It is in the middle of a long sentence: attention from
# there finds these lines directly, while the last states of the query's encoder are far from it. In some stories
# several lines are meant, and most of them name the answer: the attention weights of a word that occurs several times
# have to be summed, and another word occurs in the story about as often.

_STORIES = CORPUS_WORDS["cloze"]
PEOPLE: Sequence[str] = _STORIES["people"]
THINGS: Sequence[str] = _STORIES["things"]
_FACT_COUNT_RANGE = (3, 5)  # minimum and maximum, in a story in which every word occurs once
_ANSWER_REPEATS = 3  # of the answer, besides one other word, in a story about what somebody did "most of all"
_REPEATED_STORY_FRACTION = 0.3  # fraction of these stories


class _Fact(NamedTuple):
    """A person and a thing."""

    person: str
    thing: str

    def format_clause(self, random: Random) -> str:
        """Return the fact as a clause with a random verb."""
        return f"{self.person} {random.choice(_STORIES['verbs'])} {self.thing}"


def write_cloze_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train`, `dev` and `test` in the format of the Children's Book Test, without repeated questions."""
    return write_distinct_splits(folder, "cloze", ".txt", make_cloze_question, seed)


def make_cloze_question(random: Random) -> str:
    """Draw a story and its query; candidates are all its words of the blank's kind, and some of the other kind."""
    blank = random.randrange(2)  # 0: person, 1: thing
    has_repeats = random.random() < _REPEATED_STORY_FRACTION
    facts, query_fact = _make_story_with_repeats(random, blank) if has_repeats else _make_story_without_repeats(random)
    same, others = (sorted({fact[kind] for fact in facts}) for kind in (blank, 1 - blank))
    candidates = [*same, *random.sample(others, min(len(same), len(others)))]
    random.shuffle(candidates)
    blanked = _Fact(*("XXXXX" if index == blank else word for index, word in enumerate(query_fact)))
    clauses = (_STORIES["opening_clauses"], _STORIES["closing_clauses"])
    before, after = (" , ".join(random.sample(texts, random.randint(1, 2))) for texts in clauses)
    query = f"{before}{' most of all' if has_repeats else ''} {blanked.format_clause(random)} {after} ."
    lines = [f"{number} {fact.format_clause(random)} .\n" for number, fact in enumerate(facts, 1)]
    return "".join([*lines, f"{len(lines) + 1} {query}\t{query_fact[blank]}\t\t{'|'.join(candidates)}\n\n"])


def _make_story_without_repeats(random: Random) -> tuple[list[_Fact], _Fact]:
    """Draw facts that have no word in common, and the one that the query is about."""
    count = random.randint(*_FACT_COUNT_RANGE)
    facts = [_Fact(*words) for words in zip(random.sample(PEOPLE, count), random.sample(THINGS, count), strict=True)]
    return facts, random.choice(facts)


def _make_story_with_repeats(random: Random, blank_index: int) -> tuple[list[_Fact], _Fact]:
    """Draw facts about two clue words, each occurring several times with one word and once with another.

    The clues are of one kind; the words that occur with them, three in all, are of the other. Also return the fact that
    the query is about.
    """
    kinds = (PEOPLE, THINGS)
    clue, other_clue = random.sample(kinds[1 - blank_index], 2)
    answer, *others = random.sample(kinds[blank_index], 3)
    other, frequent = random.choice(others), random.choice(others)
    rare = random.choice([word for word in (answer, *others) if word != frequent])
    words_by_clue = {clue: (*[answer] * _ANSWER_REPEATS, other), other_clue: (*[frequent] * _ANSWER_REPEATS, rare)}
    facts = [_make_fact(clue_word, word, blank_index) for clue_word, words in words_by_clue.items() for word in words]
    random.shuffle(facts)
    return facts, _make_fact(clue, answer, blank_index)


def _make_fact(clue: str, word: str, blank_index: int) -> _Fact:
    """Build the fact with the queried word at its position."""
    return _Fact(clue, word) if blank_index else _Fact(word, clue)


# Regression: the target at each step is a weighted sum of inputs before and after it. The inputs are random numbers
# from −1 to 1. The sum is over ten steps before and twenty after, with weights that fall off linearly on both sides, as
# in the paper's artificial data (Schuster & Paliwal 1997):
# y_t = Σ_{d=1..10} x_{t-d} (1 − d/10) / 10 + Σ_{d=0..20} x_{t+d} (1 − d/20) / 20. Beyond its ends a series is zeros.

_STEPS_BEFORE, _STEPS_AFTER = 10, 20
_LENGTH_RANGE = (60, 100)  # minimum and maximum length of a series


def write_regression_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train.txt`, `dev.txt` and `test.txt`, each with a column of inputs and a column of targets."""
    random = np.random.default_rng(seed)

    def make_text(name: str, size: int) -> str:
        series = (random.uniform(-1, 1, random.integers(_LENGTH_RANGE[0], _LENGTH_RANGE[1] + 1)) for _ in range(size))
        return "\n".join(map(_format_series_columns, series))

    return write_splits(folder, "regression", ".txt", make_text)


def compute_target(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the weighted sum around each step."""
    offsets = np.arange(-_STEPS_BEFORE, _STEPS_AFTER + 1)
    before, after = (1 + offsets / _STEPS_BEFORE) / _STEPS_BEFORE, (1 - offsets / _STEPS_AFTER) / _STEPS_AFTER
    weights = np.where(offsets < 0, before, after)
    padded = np.concatenate([np.zeros(_STEPS_BEFORE), x, np.zeros(_STEPS_AFTER)])
    return np.convolve(padded, weights[::-1], "valid")


def _format_series_columns(x: npt.NDArray[np.float64]) -> str:
    """Return a line for each step: input and target."""
    return "".join(f"{value:.6f} {target:.6f}\n" for value, target in zip(x, compute_target(x), strict=True))


_Reals = npt.NDArray[np.float64]

GRID_SIDE, CELL_PIXELS = 4, 8  # cells per side of a scene, pixels per side of a cell
_HELD_OUT_INTERVAL = 5  # one in five combinations of objects is held out
COLOURS: dict[str, tuple[int, int, int]] = CORPUS_WORDS["captioning"]["colours"]
_SHAPES: dict[str, Callable[[_Reals, _Reals], npt.NDArray[np.bool_]]] = {  # functions of coordinates from -1 to 1
    "circle": lambda x, y: x**2 + y**2 <= 1,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) <= 1,
    "triangle": lambda x, y: (np.abs(x) <= (y + 1) / 2) & (y <= 0.95),
    "cross": lambda x, y: (np.minimum(np.abs(x), np.abs(y)) <= 0.34) & (np.maximum(np.abs(x), np.abs(y)) <= 1),
}
_RADII = {"small": 2.5, "large": 3.8}  # pixels
BACKGROUND_GREY = 238


class SceneObject(NamedTuple):
    """An object and its grid cell."""

    colour: str
    shape: str
    size: str
    row: int
    column: int


def write_captioning_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train`, `dev` and `test`, each as one array of images and a `.jsonl` file of captions.

    Images are scenes of coloured shapes. A caption names the objects from left to right by colour and shape, and by
    size if they are small; between two objects it says how the first is placed relative to the second. Dev and test
    scenes show combinations of objects that training scenes never contain.
    """
    random = np.random.default_rng(seed)

    def make_text(name: str, size: int) -> str:
        scenes = [make_scene(random, name == "train", seed) for _ in range(size)]
        np.save(folder / f"{name}.npy", np.stack([_draw_scene(scene, random) for scene in scenes]))
        lines = (make_caption_line(scene, f"{name}.npy", row) for row, scene in enumerate(scenes))
        return "".join(f"{json.dumps(line)}\n" for line in lines)

    return write_splits(folder, "captioning", ".jsonl", make_text)


def make_scene(random: np.random.Generator, training: bool, seed: int) -> list[SceneObject]:
    """Draw a scene: one to three objects for training, or two or three that never occur together in training."""
    while True:
        count = int(random.integers(1 if training else 2, 4))
        cells = random.choice(GRID_SIDE * GRID_SIDE, count, replace=False)
        objects = sorted((_make_object(random, int(cell)) for cell in cells), key=attrgetter("column", "row"))
        if is_scene_held_out(objects, seed) != training:
            return objects


def _make_object(random: np.random.Generator, cell: int) -> SceneObject:
    """Draw an object for a cell."""
    colour, shape, size = (str(random.choice(list(names))) for names in (COLOURS, _SHAPES, _RADII))
    return SceneObject(colour, shape, size, *divmod(cell, GRID_SIDE))


def is_scene_held_out(objects: Sequence[SceneObject], seed: int) -> bool:
    """Return True if objects of these colours and shapes never occur together in training; a single object may."""
    kinds = " ".join(sorted(f"{thing.colour} {thing.shape}" for thing in objects))
    digest = hashlib.blake2b(kinds.encode(), digest_size=8, key=str(seed).encode()).digest()
    return len(objects) > 1 and int.from_bytes(digest, "little") % _HELD_OUT_INTERVAL == 0


def make_caption_line(objects: Sequence[SceneObject], image: str, row: int) -> dict[str, Any]:
    """Return the JSON object of a scene: the caption, and the cell of the object that each word describes."""
    words: list[str] = []
    cells: dict[str, list[int]] = {}
    for index, thing in enumerate(objects):
        if index:  # the position of the previous object, which is not further right
            down = thing.row - objects[index - 1].row
            words += ["above"] if down > 0 else ["below"] if down < 0 else ["left", "of"]
        words += ["a", *(["small"] if thing.size == "small" else []), thing.colour, thing.shape]
        cells |= {str(len(words) - offset): [thing.row * GRID_SIDE + thing.column] for offset in (2, 1)}
    return {"image": image, "row": row, "caption": " ".join(words), "grid": [GRID_SIDE, GRID_SIDE], "cells": cells}


def _draw_scene(objects: Sequence[SceneObject], random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return the scene in pixels, with noise; objects are slightly off the centre of their cells."""
    cells = np.full((GRID_SIDE, CELL_PIXELS, GRID_SIDE, CELL_PIXELS, 3), BACKGROUND_GREY, dtype=np.float64)
    for thing in objects:
        center_x, center_y = random.uniform(-0.4, 0.4, 2) + (CELL_PIXELS - 1) / 2
        y, x = np.mgrid[0:CELL_PIXELS, 0:CELL_PIXELS]
        inside = _SHAPES[thing.shape]((x - center_x) / _RADII[thing.size], (y - center_y) / _RADII[thing.size])
        cells[thing.row, :, thing.column][inside] = COLOURS[thing.colour]
    image = cells.reshape(GRID_SIDE * CELL_PIXELS, GRID_SIDE * CELL_PIXELS, 3)
    return np.clip(image + random.normal(0.0, 6.0, image.shape), 0, 255).astype(np.uint8)
