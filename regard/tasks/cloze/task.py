"""From files of questions and a recipe to questions that can be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from regard.config import parse_settings
from regard.data.sentence_pair import Pair
from regard.errors import UserError
from regard.recipes import Recipe
from regard.runs import Run
from regard.tasks.base import DevExample, PreparedRun, split_dev_examples
from regard.tasks.cloze.dataset import (
    ClozeDataset,
    TokenizedQuestion,
    learn_cloze_vocabulary,
    load_cloze_vocabulary,
    save_cloze_vocabulary,
    tokenize_question,
)
from regard.tasks.cloze.predictor import ClozeValidator
from regard.tasks.cloze.questions import ClozeSettings, ClozeTextSettings, Question, read_question_files
from regard.tokenizers import WordTokenizer


class _ClozeSplit(NamedTuple):
    """What is trained on, and what is validated on."""

    train: list[Question]
    dev: list[Question]


class _EncodedQuestions(NamedTuple):
    """Encoded questions, and why others are not among them."""

    dataset: ClozeDataset
    too_long: int
    unanswerable: int


def prepare_cloze(run: Run, config: Recipe, resume: bool) -> PreparedRun:
    """Questions and a vocabulary, encoded."""
    data = parse_settings(ClozeSettings, config["data"], "data")
    settings = parse_settings(ClozeTextSettings, config["text"], "text")
    training = config["training"]
    found = split_cloze_data(data, training["seed"])
    start = training["init_from"]
    if resume or start:
        vocabulary = load_cloze_vocabulary(run if resume else Run(Path(start)))
    else:
        vocabulary = learn_cloze_vocabulary(found.train, settings, data.blank)
    ready = _encode_questions(found.train, data, vocabulary)
    dev = [
        tokenize_question(one, data.blank, settings.lowercase, vocabulary.version)
        for one in found.dev[: int(training["validate_pairs"])]
    ]
    return PreparedRun(
        run,
        config,
        ready.dataset,
        ClozeValidator(dev, vocabulary, data.blank, int(training["batch_tokens"])),
        (vocabulary.vocab_size, vocabulary.vocab_size),
        partial(save_cloze_vocabulary, vocabulary),
        _describe_cloze_data(ready, len(found.dev), sum(not one.is_answerable for one in dev), vocabulary),
    )


def load_cloze_dev_set(run: Run) -> list[DevExample]:
    """The questions that a run was validated on."""
    config = run.read_config()
    found = split_cloze_data(parse_settings(ClozeSettings, config["data"], "data"), config["training"]["seed"]).dev
    return [DevExample(one, one.answer or "") for one in found]


def split_cloze_data(data: ClozeSettings, seed: int) -> _ClozeSplit:
    """All questions; where no dev set is named, some are held out, those of a document together."""
    if not data.train:
        raise UserError("nothing to train on: name a file of questions, CBT's layout or JSON lines")
    every = _read_answered_questions(data.train, data.blank)
    if data.dev:
        return _ClozeSplit(every, _read_answered_questions(data.dev, data.blank))
    return _ClozeSplit(
        *split_dev_examples(every, _question_to_pair, seed, data.dev_questions, "all questions are of one document")
    )


def _question_to_pair(one: Question) -> Pair:
    """The document and the query, for what is held out by its document."""
    return Pair("\n".join(one.document), one.query)


def _read_answered_questions(names: Sequence[str], blank: str) -> list[Question]:
    """The questions of some files, each with its answer."""
    found = read_question_files([Path(name) for name in names], blank)
    for one in found:
        if one.answer is None:
            raise one.make_error("there is no answer, and nothing to learn from")
    return found


def _encode_questions(
    questions: Sequence[Question], data: ClozeSettings, vocabulary: WordTokenizer
) -> _EncodedQuestions:
    """The questions that something can be learnt from: their document is not too long, and has the answer in it."""
    left: list[str] = []

    def can_train_on(one: TokenizedQuestion) -> bool:
        reason = "long" if len(one.candidate_ids) > data.max_length else "" if one.is_answerable else "absent"
        left.extend([reason] if reason else [])
        return not reason

    clozes = (tokenize_question(one, data.blank, vocabulary.lowercase, vocabulary.version) for one in questions)
    examples = ClozeDataset(filter(can_train_on, clozes), vocabulary, data.blank)
    if not len(examples):
        raise UserError(
            f"no question is left to train on: of {len(questions):,} documents {left.count('long'):,} have more than "
            f"{data.max_length:,} words (data.max_length), and {left.count('absent'):,} do not have the answer in them"
        )
    return _EncodedQuestions(examples, left.count("long"), left.count("absent"))


def _describe_cloze_data(
    encoded: _EncodedQuestions, num_dev_questions: int, unanswerable: int, vocabulary: WordTokenizer
) -> str:
    """What there is to train on; what of the dev set cannot be answered counts as wrong."""
    reasons = ((encoded.too_long, "too long"), (encoded.unanswerable, "without the answer in the document"))
    left_out = [f"{count:,} {reason}" for count, reason in reasons if count]
    return (
        f"{len(encoded.dataset):,} questions{' (left out: ' + ', '.join(left_out) + ')' if left_out else ''}, "
        f"{num_dev_questions:,} dev questions{f' ({unanswerable:,} without the answer in the document)' if unanswerable else ''}, "
        f"a vocabulary of {vocabulary.vocab_size:,}"
    )
