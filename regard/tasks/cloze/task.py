"""The cloze task: reading, splitting and encoding questions for training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from regard.data.sentence_pair import Pair
from regard.errors import UserError
from regard.recipes import RunConfig
from regard.runs import Run
from regard.tasks.base import DevExample, PreparedRun, find_vocabulary_run, split_dev_examples
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
    """Training and dev questions."""

    train: list[Question]
    dev: list[Question]


class _EncodedQuestions(NamedTuple):
    """Encoded training questions, and how many were left out."""

    dataset: ClozeDataset
    too_long: int
    unanswerable: int


def prepare_cloze(run: Run, config: RunConfig, resume: bool) -> PreparedRun:
    """Split and encode questions, and build or load the vocabulary."""
    data: ClozeSettings = config.data
    settings: ClozeTextSettings = config.text
    training, parent = config.training, find_vocabulary_run(run, config, resume)
    split = split_cloze_data(data, training.seed)
    vocabulary = load_cloze_vocabulary(parent) if parent else learn_cloze_vocabulary(split.train, settings, data.blank)
    encoded = _encode_questions(split.train, data, vocabulary)
    dev = [
        tokenize_question(question, data.blank, settings.lowercase, vocabulary.version)
        for question in split.dev[: training.validate_pairs]
    ]
    return PreparedRun(
        run,
        config,
        encoded.dataset,
        ClozeValidator(dev, vocabulary, data.blank, training.batch_tokens),
        (vocabulary.vocab_size, vocabulary.vocab_size),
        partial(save_cloze_vocabulary, vocabulary),
        _describe_cloze_data(encoded, len(split.dev), sum(not question.is_answerable for question in dev), vocabulary),
    )


def load_cloze_dev_set(config: RunConfig) -> list[DevExample]:
    """Return the dev questions of a run."""
    dev_questions = split_cloze_data(config.data, config.training.seed).dev
    return [DevExample(question, question.answer or "") for question in dev_questions]


def split_cloze_data(data: ClozeSettings, seed: int) -> _ClozeSplit:
    """Read the questions; without a dev set, hold out documents with all their questions."""
    if not data.train:
        raise UserError("nothing to train on: name a file of questions, in CBT format or JSON lines")
    questions = _read_answered_questions(data.train, data.blank)
    if data.dev:
        return _ClozeSplit(questions, _read_answered_questions(data.dev, data.blank))
    return _ClozeSplit(
        *split_dev_examples(questions, _question_to_pair, seed, data.dev_questions, "all questions are of one document")
    )


def _question_to_pair(one: Question) -> Pair:
    """Return (document, query), so that the dev set is split by document."""
    return Pair("\n".join(one.document), one.query)


def _read_answered_questions(names: Sequence[str], blank: str) -> list[Question]:
    """Read questions; raise UserError for one without an answer."""
    questions = read_question_files([Path(name) for name in names], blank)
    for question in questions:
        if question.answer is None:
            raise question.make_error("there is no answer to train on")
    return questions


def _encode_questions(
    questions: Sequence[Question], data: ClozeSettings, vocabulary: WordTokenizer
) -> _EncodedQuestions:
    """Encode the questions whose document is short enough and contains the answer."""
    skip_reasons: list[str] = []

    def can_train_on(one: TokenizedQuestion) -> bool:
        reason = "long" if len(one.candidate_ids) > data.max_length else "" if one.is_answerable else "absent"
        skip_reasons.extend([reason] if reason else [])
        return not reason

    tokenized = (tokenize_question(one, data.blank, vocabulary.lowercase, vocabulary.version) for one in questions)
    dataset = ClozeDataset(filter(can_train_on, tokenized), vocabulary, data.blank)
    if not len(dataset):
        raise UserError(
            f"no question is left to train on: of {len(questions):,} documents "
            f"{skip_reasons.count('long'):,} have more than {data.max_length:,} words (data.max_length), "
            f"and {skip_reasons.count('absent'):,} do not contain the answer"
        )
    return _EncodedQuestions(dataset, skip_reasons.count("long"), skip_reasons.count("absent"))


def _describe_cloze_data(
    encoded: _EncodedQuestions, num_dev_questions: int, unanswerable: int, vocabulary: WordTokenizer
) -> str:
    """Describe the data for the log; unanswerable dev questions count as wrong."""
    reasons = ((encoded.too_long, "too long"), (encoded.unanswerable, "without the answer in the document"))
    left_out = [f"{count:,} {reason}" for count, reason in reasons if count]
    dev_note = f" ({unanswerable:,} without the answer in the document)" if unanswerable else ""
    return (
        f"{len(encoded.dataset):,} questions{' (left out: ' + ', '.join(left_out) + ')' if left_out else ''}, "
        f"{num_dev_questions:,} dev questions{dev_note}, a vocabulary of {vocabulary.vocab_size:,}"
    )
