"""Cloze reading comprehension: files of questions, candidates, the model's equations, training and answers."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tasks
from support.commands import Command
from support.files import write_file
from support.oracles import Array, sigmoid, softmax
from support.tasks import SIX_STEPS, error_message, prepare_job

import regard
from regard.config import parse_settings
from regard.data.cloze import (
    Question,
    TokenizedQuestion,
    find_most_frequent_candidate,
    parse_question,
    parse_questions,
    read_questions,
    tokenize_question,
)
from regard.errors import UserError
from regard.models import build
from regard.nn import prefix_mask
from regard.runs import Run
from regard.special_tokens import PAD, UNK
from regard.synthetic.corpora import CORPUS_WORDS, PEOPLE, THINGS, write_cloze_corpus
from regard.synthetic.corpora import make_cloze_question as make_story
from regard.tasks.base import Split, Validator
from regard.tasks.cloze import (
    ClozeBatch,
    ClozeDataset,
    ClozePrediction,
    ClozePredictor,
    ClozeSettings,
    ClozeTask,
    ClozeTextSettings,
    ClozeVocabulary,
    compute_cloze_accuracy,
    make_cloze_prediction,
)
from regard.tokenizers.words import WordTokenizer
from regard.training import train

SPLIT_SIZES: dict[str, int] = CORPUS_WORDS["cloze"]["sizes"]
STORY = "1 Anna has a red lamp .\n2 Ben has a blue cup .\n"
QUESTION = {"document": "Anna has a red lamp.\nBen has a blue cup.", "query": "Ben has a blue XXXXX."}
CBT = f"{STORY}3 Ben has a blue XXXXX .\tcup\t\tlamp|cup|tree\n\n{STORY}3 XXXXX has a red lamp .\tAnna\t\tBen|Anna\n\n"
SMALL: dict[str, Any] = {
    **SIX_STEPS,
    "model.size": 12,
    "model.embedding": 10,
    "model.dropout": 0.2,
    "training.batch_tokens": 400,
    "training.validate_pairs": 20,
}
V, B, S, Q = 11, 3, 7, 5
LENGTHS, QUERIES = torch.tensor([7, 4, 1]), torch.tensor([3, 5, 2])


def split_questions(settings: ClozeSettings, seed: int) -> Split[Question]:
    return ClozeTask().split(settings, seed)


def parse_text(text: str) -> list[Question]:
    return list(parse_questions(text.split("\n"), "XXXXX", "here"))


def read_clozes(text: str) -> list[TokenizedQuestion]:
    return [tokenize_question(one, "XXXXX", WordTokenizer(())) for one in parse_text(text)]


def make_cloze(fields: Mapping[str, Any], lowercase: bool = False) -> TokenizedQuestion:
    return tokenize_question(parse_question(fields, "XXXXX"), "XXXXX", WordTokenizer((), lowercase))


# Files


def test_cbt_story_has_numbered_lines_query_answer_and_candidates() -> None:
    first, second = parse_text(CBT)
    assert first.document == ("Anna has a red lamp .", "Ben has a blue cup .")
    assert (first.query, first.answer) == ("Ben has a blue XXXXX .", "cup")
    assert first.candidates == ("lamp", "cup", "tree")
    assert (second.answer, second.candidates, second.where) == ("Anna", ("Ben", "Anna"), "here:7")


def test_question_is_yielded_as_soon_as_its_query_is_read() -> None:
    consumed = []

    def lines() -> Any:
        for line in CBT.split("\n"):
            consumed.append(line)
            yield line

    next(parse_questions(lines(), "XXXXX"))
    assert len(consumed) == 3


def test_answer_and_candidates_may_be_missing() -> None:
    for line, answer, candidates in (
        ("3 a XXXXX", None, None),
        ("3 a XXXXX\tcup", "cup", None),
        ("3 a XXXXX\t\t\tcup|lamp", None, ("cup", "lamp")),
    ):
        (one,) = parse_text(STORY + line)
        assert (one.answer, one.candidates) == (answer, candidates)


def test_each_json_line_is_a_question() -> None:
    lines = [
        QUESTION,
        {**QUESTION, "document": ["a cup", "a lamp"], "candidates": ["cup", "lamp"], "answer": "cup", "id": 7},
    ]
    first, second = parse_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert first.document == ("Anna has a red lamp.", "Ben has a blue cup.")
    assert (first.candidates, first.answer) == (None, None)
    assert (second.document, second.candidates, second.answer) == (("a cup", "a lamp"), ("cup", "lamp"), "cup")


@pytest.mark.parametrize(
    ("name", "compress"), [("a.txt", bytes), ("a.txt.gz", gzip.compress), ("a.jsonl.xz", lzma.compress)]
)
def test_several_files_compressed_or_not_are_read_in_order(name: str, compress: Any, tmp_path: Path) -> None:
    content = CBT if ".txt" in name else json.dumps({**QUESTION, "answer": "cup"}) + "\n"
    first = write_file(tmp_path / name, compress(content.encode()))
    second = write_file(tmp_path / "other.txt", CBT)
    found = list(read_questions([first, second], "XXXXX"))
    assert len(found) == content.count("XXXXX") + 2
    assert found[-1].where == f"{second}:7"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{STORY}3 no gap\tcup\t\tcup", "here:3: there is no blank in the query, marked as XXXXX (data.blank)"),
        (f"{STORY}3 XXXXX\tsun\t\tcup|lamp", "here:3: the answer 'sun' is not among the candidates"),
        (f"{STORY}3 XXXXX\tsun", "here:3: the answer 'sun' is not among the words of the document"),
        (f"{STORY}3 XXXXX\tcup\t\t", "here:3: there are no candidates"),
        (f"{STORY}3 XXXXX\tcup\t\t | ", "here:3: there are no candidates"),
        (f"{STORY}3 XXXXX\tcup\ta|b\tc|d", "here:3: a query has an answer and one list of candidates, not"),
        (f"{STORY}\n", "here:3: the story ends without a query"),
        (STORY, "here:3: the story ends without a query"),
        ("Anna has\n", "here:1: a line of a story must begin with its number, 1 here: 'Anna has'"),
        ("1 a\n3 b\n", "here:2: this is line 3 of a story, but line 2 is expected"),
        ("1 XXXXX\ta\t\ta|b", "here:1: there is no word in the document"),
        ("{\n", "here:1: not JSON"),
        ('{"a": 1}\n[]\n', 'here:1: "document" cannot be None'),
        (json.dumps(QUESTION) + "\n[]\n", "here:2: a question is {"),
        (json.dumps({**QUESTION, "query": "no gap"}), "here:1: there is no blank in the query"),
        (json.dumps({**QUESTION, "query": 7}), 'here:1: "query" cannot be 7'),
        (json.dumps({**QUESTION, "candidates": []}), "here:1: there are no candidates"),
        (json.dumps({**QUESTION, "candidates": "cup"}), "here:1: \"candidates\" cannot be 'cup'"),
        (json.dumps({**QUESTION, "answer": "sun", "candidates": ["cup"]}), "here:1: the answer 'sun' is not among"),
        (json.dumps({**QUESTION, "answer": ["cup"]}), "here:1: \"answer\" cannot be ['cup']"),
        (json.dumps({**QUESTION, "query": "XXXXX \ud800"}), "here:1: 'XXXXX \\ud800' has half a character"),
    ],
)
def test_malformed_question_is_reported_with_file_and_line(text: str, message: str) -> None:
    assert error_message(read_clozes, text).startswith(message)


NUMBERS = ["1 ", "2 ", "3 "]
FRAGMENTS = [*NUMBERS, "\t", "|", "XXXXX", "a", " cup", "\n", '{"document": "a cup", ', '"query": "XXXXX"', "}", "İ"]


@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3)), max_size=40), st.booleans())
def test_arbitrary_text_is_read_or_refused_in_one_line(fragments: list[str], lowercase: bool) -> None:
    refusal = ""
    try:
        for one in parse_text("".join(fragments)):
            found = tokenize_question(one, "XXXXX", WordTokenizer((), lowercase))
            assert len(found.candidate_ids) == len(found.document_words) > 0
            assert all(-1 <= place < len(found.candidates) for place in found.candidate_ids)
            assert "XXXXX" in found.query
    except UserError as error:
        refusal = str(error)
    assert "\n" not in refusal


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("document", "query", "candidates", "answer"), JSON)))
def test_arbitrary_json_is_read_or_refused_in_one_line(fields: dict[str, Any]) -> None:
    for one in (fields, {**QUESTION, **fields}):
        refusal = ""
        try:
            found = make_cloze(one)
            assert len(found.candidate_ids) == len(found.document_words)
        except UserError as error:
            refusal = str(error)
        assert "\n" not in refusal


# Candidates


def test_candidates_are_located_in_the_document_by_spelling() -> None:
    found = make_cloze({**QUESTION, "candidates": ["cup", "Ben", "tree", "a"], "answer": "Ben"})
    assert found.document_words == ["Anna", "has", "a", "red", "lamp", ".", "Ben", "has", "a", "blue", "cup", "."]
    assert found.candidate_ids == [-1, -1, 3, -1, -1, -1, 1, -1, 3, -1, 0, -1]
    assert (found.answer, found.query) == (1, ["Ben", "has", "a", "blue", "XXXXX", "."])
    words = WordTokenizer.train(["has a"], 8, tags=("blank",))
    vocabulary = ClozeVocabulary(words, "XXXXX")
    assert [one for one in vocabulary.encode_document(found.document_words) if one != UNK] == [
        words.ids[w] for w in ("has", "a") * 2
    ]
    assert vocabulary.encode_query(found.query)[4] == words.find_tag_id("blank")


def test_candidates_are_case_sensitive_unless_text_is_lower_cased() -> None:
    fields = {"document": "The king saw the King", "query": "XXXXX", "candidates": ["King", "king"], "answer": "king"}
    cased, lowered = make_cloze(fields), make_cloze(fields, lowercase=True)
    assert (cased.candidates, cased.candidate_ids, cased.answer) == (["King", "king"], [-1, 1, -1, -1, 0], 1)
    assert (lowered.candidates, lowered.candidate_ids, lowered.answer) == (["King"], [-1, 0, -1, -1, 0], 0)


def test_words_with_combining_marks_are_single_candidates() -> None:
    fields = {"document": 'वह हिन्दी बोलता है। "Cafe\u0301" . ( , )', "query": "XXXXX।", "answer": "Caf\u00e9"}
    found = make_cloze(fields)
    assert found.candidates == ["वह", "हिन्दी", "बोलता", "है", "Cafe\u0301"]
    assert found.answer == 4
    vocabulary = ClozeVocabulary.learn([parse_question(fields, "XXXXX")], ClozeTextSettings(vocabulary=30), "XXXXX")
    assert UNK not in vocabulary.encode_query([*found.document_words, *found.query])
    earlier = tokenize_question(
        parse_question({**fields, "answer": "वह"}, "XXXXX"), "XXXXX", WordTokenizer((), version=1)
    )
    assert earlier.document_words[1:4] == ["ह", "ि", "न"]


def test_longest_candidate_of_several_words_matches_first() -> None:
    fields = {"document": "New York is not York", "query": "XXXXX?", "candidates": ["York", "New York", "New"]}
    assert make_cloze(fields).candidate_ids == [1, 1, -1, -1, 0]


def test_without_candidates_every_word_of_the_document_is_one() -> None:
    found = make_cloze({"document": "a cup, a lamp.", "query": "(XXXXX's)"})
    assert found.candidates == ["a", "cup", "lamp"]
    assert found.candidate_ids == [0, 1, -1, 0, 2, -1]
    assert found.query == ["(", "XXXXX", "'", "s", ")"]


def test_candidate_missing_from_the_document_has_probability_zero() -> None:
    found = make_cloze({**QUESTION, "candidates": ["tree", "cup"], "answer": "tree"})
    assert not found.is_answerable
    one = answer_clozes([found])[0]
    assert one.probabilities[0] == 0.0
    assert one.answer_probability is None
    assert one.text == "cup"


def test_most_frequent_baseline_counts_candidates_in_the_document() -> None:
    several = {"document": "a b b c c", "query": "XXXXX", "candidates": ["x", "a", "c", "b"]}
    assert find_most_frequent_candidate(make_cloze(several)) == 2
    assert find_most_frequent_candidate(make_cloze({"document": "a", "query": "XXXXX", "candidates": ["x", "y"]})) == 0


# The model


def make_model(attention: str = "over", **overrides: Any) -> Any:
    """Return a small reader in double precision, with weights large enough for words to differ."""
    small = {"size": 6, "embedding": 4, "dropout": 0.0, "penalty": 0.0, **overrides}
    torch.manual_seed(3)
    model = build("cui2017", V, V, attention=attention, **small).double().eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
        model.embedding.weight[PAD] = 0.0
    return model


def make_batch() -> ClozeBatch:
    generator = torch.Generator().manual_seed(4)
    document = torch.randint(4, V, (B, S), generator=generator).masked_fill(~prefix_mask(LENGTHS, S), PAD)
    query = torch.randint(4, V, (B, Q), generator=generator).masked_fill(~prefix_mask(QUERIES, Q), PAD)
    places = torch.tensor([[0, -1, 1, 0, 2, -1, 1], [1, 0, -1, 1, -1, -1, -1], [0, -1, -1, -1, -1, -1, -1]])
    return ClozeBatch(document, LENGTHS, query, QUERIES, places, torch.tensor([1, 1, 0]))


each_attention = pytest.mark.parametrize("attention", ["over", "single"])


def gru(cell: Any, words: Array) -> Array:
    """Return the states of r, z = σ(W x + U h + b); h̃ = tanh(W x + U(r⊙h) + b); h = (1−z)⊙h + z⊙h̃."""
    W_r, W_z, W = np.split(cell.weight_ih.detach().numpy(), 3)
    U_r, U_z, U = np.split(cell.weight_hh.detach().numpy(), 3)
    b_r, b_z, b = np.split((cell.bias_ih + cell.bias_hh).detach().numpy(), 3)
    h, states = np.zeros(len(U)), []
    for x in words:
        r, z = sigmoid(W_r @ x + U_r @ h + b_r), sigmoid(W_z @ x + U_z @ h + b_z)
        h = (1 - z) * h + z * np.tanh(W @ x + U @ (r * h) + b)
        states.append(h)
    return np.array(states)


def directions(stack: Any, words: Array) -> tuple[Array, Array]:
    """Return the concatenated states of both directions, and the last state of each."""
    ahead, behind = gru(stack.forwards[0], words), gru(stack.backwards[0], words[::-1])
    return np.hstack([ahead, behind[::-1]]), np.hstack([ahead[-1], behind[-1]])


@each_attention
def test_attention_and_loss_match_the_equations_of_the_paper(attention: str) -> None:
    model, batch = make_model(attention), make_batch()
    attended = model(*list(batch)[:4])
    E, losses = model.embedding.weight.detach().numpy(), []
    for row in range(B):
        document = E[batch.document[row, : LENGTHS[row]].numpy()]
        query = E[batch.query[row, : QUERIES[row]].numpy()]
        h_doc, _ = directions(model.document, document)
        h_query, q = directions(model.query, query)
        if attention == "over":
            M = h_doc @ h_query.T  # eq. 5
            alpha, rows = (np.apply_along_axis(softmax, axis, M) for axis in (0, 1))  # eq. 6 and 7
            beta = rows.mean(0)  # eq. 8 and 9
            s = alpha @ beta  # eq. 10
            np.testing.assert_allclose(attended.query[row, : QUERIES[row]].detach().numpy(), beta, atol=1e-12)
        else:
            s = softmax(h_doc @ q)
        np.testing.assert_allclose(attended.document[row, : LENGTHS[row]].detach().numpy(), s, atol=1e-12)
        right = [s[i] for i in range(len(s)) if batch.candidate_ids[row, i] == batch.answer[row]]
        losses.append(-np.log(sum(right)))  # eq. 11 and 12
    np.testing.assert_allclose(float(model.loss_sum(*batch).detach()), sum(losses), atol=1e-10)
    assert int(model.loss_count(*batch)) == B


@each_attention
def test_attention_does_not_depend_on_padding_or_rest_of_the_batch(attention: str) -> None:
    model, batch = make_model(attention), make_batch()
    together = model(*list(batch)[:4])
    for row in range(B):
        alone = model(
            batch.document[row : row + 1, : LENGTHS[row]],
            LENGTHS[row : row + 1],
            batch.query[row : row + 1, : QUERIES[row]],
            QUERIES[row : row + 1],
        )
        torch.testing.assert_close(alone.document[0], together.document[row, : LENGTHS[row]])
    assert torch.equal(together.document[~prefix_mask(LENGTHS, S)], torch.zeros(int(S * B - LENGTHS.sum())).double())
    if together.query is not None:
        assert not together.query[~prefix_mask(QUERIES, Q)].any()
        torch.testing.assert_close(together.query.sum(1), torch.ones(B).double())
    torch.testing.assert_close(together.document.sum(1), torch.ones(B).double())


@each_attention
def test_empty_document_or_query_gives_no_weight_and_no_nan(attention: str) -> None:
    model, batch = make_model(attention), make_batch()
    attended = model(batch.document, torch.tensor([0, 4, 1]), batch.query, torch.tensor([3, 0, 2]))
    assert not attended.document[0].any()
    assert torch.isfinite(attended.document).all()
    loss = model.loss_sum(*replace(batch, lengths=torch.tensor([0, 4, 1])))
    loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@each_attention
def test_every_parameter_gets_a_gradient(attention: str) -> None:
    model = make_model(attention, layers=2)
    model.loss_sum(*make_batch()).backward()
    assert all(parameter.grad.any() for parameter in model.parameters())


def test_losses_of_micro_batches_add_up_to_that_of_the_batch() -> None:
    model, batch = make_model(penalty=0.01), make_batch()
    parts = batch.split_into(2)
    assert [part.num_rows for part in parts] == [1, 2]
    torch.testing.assert_close(sum(model.loss_sum(*part) for part in parts), model.loss_sum(*batch))
    assert (batch.num_targets, batch.num_tokens) == (B, int(LENGTHS.sum() + QUERIES.sum()))


def test_initial_weights_are_uniform_embeddings_and_orthogonal_gates() -> None:
    torch.manual_seed(1)
    model = build("cui2017", 500, 500, size=16, embedding=16)
    words = model.embedding.weight[1:].detach()
    assert 0.049 < float(words.max()) <= 0.05
    assert -0.05 <= float(words.min()) < -0.049
    wider = build("cui2017", 500, 500, size=16, reach=2.0).embedding.weight.detach()
    assert 1.9 < float(wider.max()) <= 2
    for stack in (model.document, model.query):
        for name, parameter in stack.named_parameters():
            if "bias" in name:
                assert not parameter.any()
            else:
                for gate in parameter.chunk(3):
                    torch.testing.assert_close(gate @ gate.T, torch.eye(16), atol=1e-5, rtol=0)


# Model settings


def test_size_embedding_and_layers_set_the_dimensions() -> None:
    model = make_model(size=5, embedding=3, layers=2)
    assert (model.document.output_size, model.embedding.embedding_dim) == (10, 3)
    assert len(model.query.forwards) == len(model.document.forwards) == 2
    assert build("cui2017", V, V, size=5).embedding.embedding_dim == 5


def test_dropout_is_active_in_training_only() -> None:
    model, batch = make_model(dropout=0.5), make_batch()
    assert torch.equal(model(*list(batch)[:4]).document, model(*list(batch)[:4]).document)
    model.train()
    assert not torch.equal(model(*list(batch)[:4]).document, model(*list(batch)[:4]).document)
    plain = make_model(dropout=0.0).train()
    assert torch.equal(plain(*list(batch)[:4]).document, plain(*list(batch)[:4]).document)


def test_penalty_adds_squared_embeddings_for_each_question() -> None:
    plain, penalised, batch = make_model(), make_model(penalty=0.25), make_batch()
    expected = B * 0.25 * float((plain.embedding.weight.detach().numpy() ** 2).sum())
    assert (penalised.loss_sum(*batch) - plain.loss_sum(*batch)).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"size": 0}, "size must be at least 1, not 0"),
        ({"penalty": -1.0}, "penalty must be at least 0, not -1.0"),
        ({"reach": -1.0}, "reach must be at least 0, not -1.0"),
        ({"attention": "double"}, "one of over, single, not 'double'"),
    ],
)
def test_invalid_model_settings_are_refused(overrides: dict[str, Any], message: str) -> None:
    assert message in error_message(build, "cui2017", V, V, **overrides)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("blank", "", "blank must be one word"),
        ("blank", "a b", "blank must be one word"),
        ("max_length", 0, "max_length must be at least 1, not 0"),
        ("dev_questions", 0, "dev_questions must be at least 1, not 0"),
        ("workers", -1, "workers must be at least 0, not -1"),
    ],
)
def test_invalid_data_and_text_settings_are_refused(key: str, value: Any, message: str) -> None:
    assert message in error_message(parse_settings, ClozeSettings, {key: value}, "data")
    assert "vocabulary must be at least 6, not 5" in error_message(
        parse_settings, ClozeTextSettings, {"vocabulary": 5}, "text"
    )
    assert "one of word, not 'bpe'" in error_message(parse_settings, ClozeTextSettings, {"kind": "bpe"}, "text")


# Examples and answers


def learn_vocabulary(clozes: list[TokenizedQuestion]) -> ClozeVocabulary:
    lines = (" ".join([*one.document_words, *one.query]) for one in clozes)
    return ClozeVocabulary(WordTokenizer.train(lines, 30, tags=("blank",)), "XXXXX")


def make_predictor(vocabulary: ClozeVocabulary, model: Any, batch_tokens: int = 100) -> ClozePredictor:
    return ClozePredictor(model, vocabulary, ClozeSettings(), torch.device("cpu"), batch_tokens)


def make_predictions(predictor: ClozePredictor, clozes: list[TokenizedQuestion]) -> list[ClozePrediction]:
    return list(map(make_cloze_prediction, clozes, predictor.run_model(ClozeDataset(clozes, predictor.vocabulary))))


def make_validator(clozes: list[TokenizedQuestion], vocabulary: ClozeVocabulary) -> Validator:
    return Validator(lambda model, _: make_predictor(vocabulary, model), clozes, ClozeDataset(clozes, vocabulary), 99)


def answer_clozes(
    clozes: list[TokenizedQuestion], batch_tokens: int = 1000, attention: str = "over"
) -> list[ClozePrediction]:
    vocabulary = learn_vocabulary(clozes)
    torch.manual_seed(2)
    model = build("cui2017", *vocabulary.sizes, size=6, attention=attention).eval()
    return make_predictions(make_predictor(vocabulary, model, batch_tokens), clozes)


def test_batch_holds_candidate_indices_answers_and_lengths() -> None:
    clozes = read_clozes(CBT)
    examples = ClozeDataset(clozes, learn_vocabulary(clozes))
    batch = examples.make_batch(np.array([1, 0]))
    assert examples.sizes.tolist() == [18, 18]
    assert batch.candidate_ids.tolist() == [[1, -1, -1, -1, -1, -1, 0, *[-1] * 5], [-1] * 4 + [0, *[-1] * 5, 1, -1]]
    assert batch.answer.tolist() == [1, 1]
    assert batch.lengths.tolist() == [12, 12]
    assert ClozeDataset(clozes[::-1], learn_vocabulary(clozes)).fingerprint != examples.fingerprint
    assert ClozeDataset(list(clozes), learn_vocabulary(clozes)).fingerprint == examples.fingerprint


def test_probability_of_a_candidate_sums_the_weights_of_its_positions() -> None:
    clozes = [*read_clozes(CBT), make_cloze({"document": "a b a", "query": "XXXXX b"})]
    together, apart = answer_clozes(clozes), answer_clozes(clozes, batch_tokens=1)
    for one, other, source in zip(together, apart, clozes, strict=True):
        assert one.question is source
        np.testing.assert_allclose(one.weights, other.weights, atol=1e-6)
        for number, probability in enumerate(one.probabilities):
            weights = [
                weight for weight, index in zip(one.weights, source.candidate_ids, strict=True) if index == number
            ]
            assert probability == pytest.approx(sum(weights))
    assert sum(together[2].probabilities) == pytest.approx(1.0)


@each_attention
def test_answer_is_given_as_line_json_document_and_attention_lines(attention: str) -> None:
    long = {"document": ["a cup", " ".join(["word"] * 40)], "query": "XXXXX here", "candidates": ["word", "cup", "sun"]}
    (one,) = answer_clozes([make_cloze(long)], attention=attention)
    word, probability = one.to_text().split("\t")
    assert word == one.text
    assert float(probability) == pytest.approx(max(one.probabilities), abs=1e-4)
    document = json.loads(json.dumps(one.to_dict()))
    assert [row["word"] for row in document["candidates"]] == ["word", "cup", "sun"]
    assert document["document"]["words"][:2] == ["a", "cup"]
    assert sum(document["document"]["weights"]) == pytest.approx(1, abs=1e-4)
    assert document["query"]["words"] == ["XXXXX", "here"]
    assert (document["query"]["weights"] is None) == (attention == "single")
    lines = one.make_attention_lines()
    assert [line.label for line in lines] == ["1", "2", "", "", "query"]
    assert list(itertools.chain(*(line.words for line in lines[:-1]))) == document["document"]["words"]
    assert lines[1].weight == pytest.approx(sum(one.weights[2:]))


def test_validation_and_prediction_of_a_model_with_nan_weights_raise() -> None:
    clozes = [make_cloze(QUESTION)]
    vocabulary = learn_vocabulary(clozes)
    model = build("cui2017", *vocabulary.sizes, size=6).eval()
    with torch.no_grad():
        model.embedding.weight.fill_(float("nan"))
    with pytest.raises(ArithmeticError, match="NaN or inf"):
        make_validator(clozes, vocabulary)(model, torch.device("cpu"))
    with pytest.raises(ArithmeticError, match="NaN or inf"):
        make_predictor(vocabulary, model).predict([QUESTION])


def test_validation_agrees_with_answers_and_restores_mode_and_rng_state() -> None:
    clozes = [*read_clozes(CBT), make_cloze({**QUESTION, "candidates": ["x"], "answer": "x"})]
    vocabulary = learn_vocabulary(clozes)
    torch.manual_seed(2)
    model = build("cui2017", *vocabulary.sizes, size=6, dropout=0.5).train()
    before = torch.get_rng_state()
    found = make_validator(clozes, vocabulary)(model, torch.device("cpu"))
    assert model.training
    assert torch.equal(before, torch.get_rng_state())
    answered = make_predictions(make_predictor(vocabulary, model), clozes)
    right = [one.probabilities[1] for one in answered[:2]]
    assert found.loss == pytest.approx(-np.log(right).mean())
    assert found.metrics["accuracy"] == compute_cloze_accuracy(answered) == found.score
    assert found.samples[0].texts["right"] == "cup"
    assert found.samples[0].plot() is not None


# Runs


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write train, dev and test of 60 questions each; read-only."""
    folder = tmp_path_factory.mktemp("stories")
    generator = Random(1)
    for name in ("train", "dev", "test"):
        write_file(folder / f"{name}.txt", "".join(make_story(generator) for _ in range(60)))
    return folder


@pytest.fixture(scope="module")
def reader(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train for 6 updates, with a report; read-only."""
    out = tmp_path_factory.mktemp("runs") / "read"
    return regard.train("cui2017", stories / "train.txt", out, dev=stories / "dev.txt", **SMALL)


@pytest.mark.parametrize(
    "sizes",
    [{"train": 60, "dev": 20, "test": 20}, pytest.param(dict(SPLIT_SIZES), marks=pytest.mark.slow)],
    ids=["small", "full"],
)
def test_synthetic_corpus_depends_on_the_seed_and_is_answerable(
    sizes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, count in sizes.items():
        monkeypatch.setitem(SPLIT_SIZES, name, count)
    first = tasks.assert_synthetic_corpus_depends_on_seed(write_cloze_corpus, tmp_path, "cui2017")
    every = [one._replace(where="") for one in read_questions([*first.train, *first.dev, *first.test], "XXXXX")]
    assert len(every) == len(set(every)) == sum(sizes.values()), "a question occurs twice"
    for one in every[-1000:]:
        found = tokenize_question(one, "XXXXX", WordTokenizer(()))
        assert found.is_answerable
        assert len(found.candidates) >= 4


def test_synthetic_answer_is_most_frequent_beside_the_clue_only() -> None:
    generator = Random(3)
    clozes = read_clozes("".join(make_story(generator) for _ in range(500)))
    repeated = 0
    for one in clozes:
        (clue,) = {*one.query} & {*PEOPLE, *THINGS}
        beside = Counter(word for line in one.lines if clue in line for word in line if word in {*PEOPLE, *THINGS})
        counts = [(word, times) for word, times in beside.most_common() if word != clue]
        assert one.candidates[one.answer or 0] == counts[0][0]
        assert len(counts) == 1 or counts[0][1] > counts[1][1]
        repeated += len(counts) > 1
    assert 100 < repeated < 200
    assert np.mean([find_most_frequent_candidate(one) == one.answer for one in clozes]) < 0.25


def test_resume_is_bit_identical_to_an_uninterrupted_run(reader: Run, tmp_path: Path) -> None:
    tasks.assert_resume_is_bit_identical(reader, tmp_path / "run")


def test_dev_split_is_by_document_and_depends_on_the_seed(stories: Path) -> None:
    data = ClozeSettings(train=(str(stories / "train.txt"),), dev_questions=4)
    found, again, other = split_questions(data, 1), split_questions(data, 1), split_questions(data, 2)
    assert found == again != other
    assert (len(found.train), len(found.dev)) == (56, 4)
    assert not {one.document for one in found.train} & {one.document for one in found.dev}
    assert "nothing to train on" in error_message(split_questions, ClozeSettings(), 1)


def test_single_document_is_too_little_to_train_on(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", CBT)
    assert "all questions are of one document" in error_message(split_questions, ClozeSettings(train=(str(path),)), 1)


def test_empty_document_is_reported_before_the_split(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.jsonl", '{"document": " ", "query": "XXXXX", "answer": "a"}\n' * 2)
    message = error_message(split_questions, ClozeSettings(train=(str(path),)), 1)
    assert "a.jsonl:1: there is no word in the document" in message


def test_training_reports_unanswerable_dev_questions(stories: Path, tmp_path: Path) -> None:
    dev = write_file(tmp_path / "dev.txt", "1 a cup\n2 XXXXX\tx\t\tx|cup\n\n1 a cup\n2 XXXXX\tcup\n")
    job = prepare_job("cui2017", stories / "train.txt", tmp_path / "run", **SMALL, **{"data.dev": [str(dev)]})
    assert "2 dev questions (1 without the answer in the document), a vocabulary" in job.description


def test_data_and_text_settings_take_effect(stories: Path, tmp_path: Path) -> None:
    text = (stories / "train.txt").read_text(encoding="utf-8").replace("XXXXX", "@gap")
    text += "1 a cup\n2 @gap\tx\t\tx|cup\n\n1" + " word" * 300 + "\n2 @gap\tword\n"
    changes = {"data.blank": "@gap", "data.max_length": 100, "data.dev_questions": 5, "text.vocabulary": 20}
    overrides = {**SMALL, **changes, "text.lowercase": True}
    job = prepare_job("cui2017", write_file(tmp_path / "other.txt", text), tmp_path / "run", **overrides)
    assert len(job.dataset) <= 60 - 5 + 2
    assert "5 dev questions, a vocabulary of 20" in job.description
    assert job.vocabulary_sizes == (20, 20)
    job.save_vocabularies(tmp_path)
    (saved,) = tmp_path.glob("*.vocab")
    assert saved.read_text(encoding="utf-8").splitlines()[4] == "<blank>"
    assert saved.read_text(encoding="utf-8").islower()


def test_training_on_questions_without_answer_is_refused(stories: Path, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", f"{STORY}3 XXXXX\t\t\tcup|lamp\n")
    message = error_message(train, "cui2017", path, tmp_path / "run", **SMALL)
    assert "a.txt:3: there is no answer" in message
    path = write_file(tmp_path / "b.txt", "1 cup\n2 XXXXX\tsun\t\tsun|cup\n")
    message = error_message(train, "cui2017", path, tmp_path / "run", dev=stories / "dev.txt", **SMALL)
    assert "no question is left to train on: of 1 documents 0 have more than 2,000 words" in message


def test_init_from_copies_weights_and_data_settings(stories: Path, reader: Run, tmp_path: Path) -> None:
    sizes = reader.load_tokenizers().vocab_sizes
    run = tasks.assert_init_from_copies_weights(
        reader, sizes, stories / "dev.txt", stories / "test.txt", tmp_path / "run"
    )
    assert run.read_config()["data"]["blank"] == "XXXXX"


def test_predictor_answers_questions_and_refuses_other_input(reader: Run) -> None:
    model = regard.load(reader.folder, device="cpu")
    first, second = model.predict([{**QUESTION, "candidates": ["lamp", "cup", "tree"]}, QUESTION])
    assert first.question.candidates == ["lamp", "cup", "tree"]
    assert len(second.probabilities) == 8
    assert model.predict([]) == []
    assert "there is no blank in the query" in error_message(model.predict, [{**QUESTION, "query": "no"}])
    with pytest.raises(UserError, match=r"a question must be .* not 'which lamp'"):
        model.predict(["which lamp"])
    with pytest.raises(TypeError, match="predict takes a list of questions, not one"):
        model.predict(QUESTION)
    message = error_message(regard.load, reader.folder, reader.folder)
    assert "a model that reads cannot join an ensemble" in message


def test_evaluation_agrees_with_predictions_and_needs_answers(reader: Run, stories: Path, tmp_path: Path) -> None:
    model = regard.load(reader.folder)
    found = model.evaluate([stories / "test.txt", stories / "dev.txt"])
    assert found["questions"] == 120
    every = list(read_questions([stories / "test.txt", stories / "dev.txt"], "XXXXX"))
    right = [one.text == gold.answer for one, gold in zip(model.predict(every), every, strict=True)]
    assert found["accuracy"] == pytest.approx(100 * np.mean(right))
    path = write_file(tmp_path / "a.txt", f"{STORY}3 XXXXX\n")
    assert "a.txt:3: there is no answer" in error_message(model.evaluate, [path])


def test_report_shows_candidates_and_attention_weights(reader: Run) -> None:
    page = (reader.folder / "report.html").read_text(encoding="utf-8")
    assert "<h1>cui2017</h1>" in page
    assert "candidates" in page
    assert "<b>query</b>" in page
    assert '<span style="--w:' in page
    assert (reader.folder / "samples" / "attention-1.png").is_file()


@pytest.mark.slow
def test_train_command_says_how_to_predict_and_lists_the_run(stories: Path, regard: Command) -> None:
    tasks.check_train_command(regard, "cui2017", stories / "train.txt", SMALL, "read")
    listed = regard("runs", ".")
    assert listed.returncode == 0
    assert "cui2017" in listed.stdout


def test_predict_command_prints_answer_and_probability(reader: Run, regard: Command) -> None:
    message = "line 2: the story ends without a query"
    lines, documents = tasks.check_predict_command(regard, reader.folder, CBT, "1 a story\n\n", message)
    assert len(lines) == 2
    assert all(float(line.split("\t")[1]) <= 1 for line in lines)
    assert documents[0]["query"]["words"][4] == "XXXXX"


@pytest.mark.slow
def test_evaluate_command_prints_accuracy(stories: Path, reader: Run, regard: Command) -> None:
    metrics = tasks.check_evaluate_command(regard, reader.folder, stories / "test.txt", {"accuracy"})
    assert metrics["questions"] == 60


@pytest.mark.slow
def test_predict_command_reads_json_lines_and_files(stories: Path, reader: Run, regard: Command) -> None:
    done = regard("predict", reader.folder, "--json", input=json.dumps(QUESTION))
    assert json.loads(done.stdout)["query"]["words"][4] == "XXXXX"
    assert regard("predict", reader.folder, stories / "test.txt").stdout.count("\n") == 60


@pytest.mark.learn
def test_attention_over_attention_learns_what_single_attention_cannot(tmp_path: Path) -> None:
    corpus = write_cloze_corpus(tmp_path / "stories")
    found = {}
    for attention in ("over", "single"):
        changes = {**corpus.overrides, "model.attention": attention, "training.seed": 2}
        run = train("cui2017", corpus.train, tmp_path / attention, dev=corpus.dev, **changes)
        found[attention] = regard.load(run.folder).evaluate(corpus.test)
    assert found["over"]["accuracy"] >= 95
    assert found["single"]["accuracy"] < 80
    assert found["over"]["most_frequent"] < 25
