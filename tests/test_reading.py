"""Reading: files of questions, candidates and their places, the model's equations, a run from its files to answers."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.commands import Command
from torch import Tensor

import regard
from regard.config import parse
from regard.errors import UserError
from regard.models import build
from regard.nn import prefix_mask
from regard.recipes import override, read
from regard.runs import Run
from regard.symbols import PAD, UNK
from regard.tasks import TASKS
from regard.tasks.reading import embedded, files
from regard.tasks.reading.answer import Answer, answers
from regard.tasks.reading.cloze import Cloze, cloze, ids, most_frequent
from regard.tasks.reading.embedded import PEOPLE, THINGS
from regard.tasks.reading.embedded import question as tale
from regard.tasks.reading.examples import Batch, Examples
from regard.tasks.reading.preparation import split
from regard.tasks.reading.question import Question, question
from regard.tasks.reading.settings import ClozeSettings, WordSettings
from regard.tasks.reading.validation import Validator, accuracy
from regard.text import Words
from regard.training import train

STORY = "1 Anna has a red lamp .\n2 Ben has a blue cup .\n"
TOLD = {"document": "Anna has a red lamp.\nBen has a blue cup.", "query": "Ben has a blue XXXXX."}
CBT = f"{STORY}3 Ben has a blue XXXXX .\tcup\t\tlamp|cup|tree\n\n{STORY}3 XXXXX has a red lamp .\tAnna\t\tBen|Anna\n\n"
SMALL: dict[str, Any] = {
    "model.size": 12,
    "model.embedding": 10,
    "model.dropout": 0.2,
    "training.steps": 6,
    "training.batch_tokens": 400,
    "training.learning_rate": 0.01,
    "training.validate_every": 3,
    "training.checkpoint_every": 3,
    "training.validate_pairs": 20,
    "training.log_every": 1,
    "training.tensorboard": False,
}
V, B, S, Q = 11, 3, 7, 5
LENGTHS, QUERIES = torch.tensor([7, 4, 1]), torch.tensor([3, 5, 2])
Floats = npt.NDArray[np.float64]


def asked(text: str, blank: str = "XXXXX") -> list[Question]:
    return list(files.read(text.split("\n"), blank, "here"))


def complaint(text: str) -> str:
    """What is said of a file, when its questions are read and taken apart."""
    with pytest.raises(UserError) as caught:
        [cloze(one, "XXXXX", False) for one in asked(text)]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def of(given: Mapping[str, Any], lowercase: bool = False) -> Cloze:
    return cloze(question(given, "XXXXX"), "XXXXX", lowercase)


# Files


def test_a_story_has_numbered_lines_and_a_query_with_answer_and_candidates() -> None:
    first, second = asked(CBT)
    assert first.document == ("Anna has a red lamp .", "Ben has a blue cup .")
    assert (first.query, first.answer) == ("Ben has a blue XXXXX .", "cup")
    assert first.candidates == ("lamp", "cup", "tree")
    assert (second.answer, second.candidates, second.where) == ("Anna", ("Ben", "Anna"), "here:7")


def test_a_question_is_there_as_soon_as_its_query_is() -> None:
    came = []

    def lines() -> Any:
        for line in CBT.split("\n"):
            came.append(line)
            yield line

    next(files.read(lines(), "XXXXX"))
    assert len(came) == 3


def test_answer_and_candidates_may_be_missing() -> None:
    for line, answer, candidates in (
        ("3 a XXXXX", None, None),
        ("3 a XXXXX\tcup", "cup", None),
        ("3 a XXXXX\t\t\tcup|lamp", None, ("cup", "lamp")),
    ):
        (one,) = asked(STORY + line)
        assert (one.answer, one.candidates) == (answer, candidates)


def test_json_lines_are_questions_too() -> None:
    lines = [TOLD, {**TOLD, "document": ["a cup", "a lamp"], "candidates": ["cup", "lamp"], "answer": "cup", "id": 7}]
    first, second = asked("\n".join(map(json.dumps, lines)) + "\n\n")
    assert first.document == ("Anna has a red lamp.", "Ben has a blue cup.")
    assert (first.candidates, first.answer) == (None, None)
    assert (second.document, second.candidates, second.answer) == (("a cup", "a lamp"), ("cup", "lamp"), "cup")


@pytest.mark.parametrize(
    ("name", "packed"), [("a.txt", bytes), ("a.txt.gz", gzip.compress), ("a.jsonl.xz", lzma.compress)]
)
def test_files_are_plain_or_compressed_and_several(name: str, packed: Any, tmp_path: Path) -> None:
    content = CBT if ".txt" in name else json.dumps(TOLD) + "\n"
    (tmp_path / name).write_bytes(packed(content.encode()))
    (tmp_path / "other.txt").write_text(CBT, encoding="utf-8")
    found = files.questions([tmp_path / name, tmp_path / "other.txt"], "XXXXX")
    assert len(found) == content.count("XXXXX") + 2
    assert found[-1].where == f"{tmp_path / 'other.txt'}:7"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{STORY}3 no gap\tcup\t\tcup", "here:3: there is no blank in the query, which XXXXX (data.blank) stands for"),
        (f"{STORY}3 XXXXX\tsun\t\tcup|lamp", "here:3: the answer 'sun' is not among the candidates"),
        (f"{STORY}3 XXXXX\tsun", "here:3: the answer 'sun' is not among the words of the document"),
        (f"{STORY}3 XXXXX\tcup\t\t", "here:3: there are no candidates"),
        (f"{STORY}3 XXXXX\tcup\t\t | ", "here:3: there are no candidates"),
        (f"{STORY}3 XXXXX\tcup\ta|b\tc|d", "here:3: behind a query are its answer and one list of candidates, not"),
        (f"{STORY}\n", "here:3: the story ends here without a query"),
        (STORY, "here:3: the story ends here without a query"),
        ("Anna has\n", "here:1: a line of a story begins with its number, 1 here: 'Anna has'"),
        ("1 a\n3 b\n", "here:2: this is line 3 of a story, and line 2 was to come"),
        ("1 XXXXX\ta\t\ta|b", "here:1: there is no word in the document"),
        ("{\n", "here:1: not JSON"),
        ('{"a": 1}\n[]\n', 'here:1: "document" cannot be None'),
        (json.dumps(TOLD) + "\n[]\n", "here:2: not a question, which is {"),
        (json.dumps({**TOLD, "query": "no gap"}), "here:1: there is no blank in the query"),
        (json.dumps({**TOLD, "query": 7}), 'here:1: "query" cannot be 7'),
        (json.dumps({**TOLD, "candidates": []}), "here:1: there are no candidates"),
        (json.dumps({**TOLD, "candidates": "cup"}), "here:1: \"candidates\" cannot be 'cup'"),
        (json.dumps({**TOLD, "answer": "sun", "candidates": ["cup"]}), "here:1: the answer 'sun' is not among"),
        (json.dumps({**TOLD, "answer": ["cup"]}), "here:1: \"answer\" cannot be ['cup']"),
        (json.dumps({**TOLD, "query": "XXXXX \ud800"}), "here:1: half a character"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(text: str, said: str) -> None:
    assert complaint(text).startswith(said)


def test_a_file_without_questions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"empty\.txt: no questions in there"):
        files.questions([tmp_path / "empty.txt"], "XXXXX")


PIECES = [
    "1 ",
    "2 ",
    "3 ",
    "\t",
    "|",
    "XXXXX",
    "a",
    " cup",
    "\n",
    '{"document": "a cup", ',
    '"query": "XXXXX"',
    "}",
    "İ",
]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=40), st.booleans())
def test_whatever_a_file_holds_is_read_or_refused(pieces: list[str], lowercase: bool) -> None:
    said = ""
    try:
        for one in asked("".join(pieces)):
            found = cloze(one, "XXXXX", lowercase)
            assert len(found.places) == len(found.document) > 0
            assert all(-1 <= place < len(found.candidates) for place in found.places)
            assert "XXXXX" in found.query
    except UserError as error:
        said = str(error)
    assert "\n" not in said


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("document", "query", "candidates", "answer"), JSON)))
def test_whatever_json_holds_is_read_or_refused(given_: dict[str, Any]) -> None:
    for one in (given_, {**TOLD, **given_}):
        said = ""
        try:
            found = of(one)
            assert len(found.places) == len(found.document)
        except UserError as error:
            said = str(error)
        assert "\n" not in said


# Candidates


def test_candidates_are_found_by_how_they_are_written() -> None:
    found = of({**TOLD, "candidates": ["cup", "Ben", "tree", "a"], "answer": "Ben"})
    assert found.document == ["Anna", "has", "a", "red", "lamp", ".", "Ben", "has", "a", "blue", "cup", "."]
    assert found.places == [-1, -1, 3, -1, -1, -1, 1, -1, 3, -1, 0, -1]
    assert (found.answer, found.query) == (1, ["Ben", "has", "a", "blue", "XXXXX", "."])
    words = Words.learn(["has a"], 8, tags=("blank",))
    assert [one for one in ids(found.document, words) if one != UNK] == [words.ids[w] for w in ("has", "a") * 2]
    assert ids(found.query, words, "XXXXX")[4] == words.tag("blank")


def test_case_counts_unless_text_is_lower_cased() -> None:
    given = {"document": "The king saw the King", "query": "XXXXX", "candidates": ["King", "king"], "answer": "king"}
    apart, together = of(given), of(given, lowercase=True)
    assert (apart.candidates, apart.places, apart.answer) == (["King", "king"], [-1, 1, -1, -1, 0], 1)
    assert (together.candidates, together.places, together.answer) == (["King"], [-1, 0, -1, -1, 0], 0)


def test_a_candidate_may_have_several_words_and_the_longer_one_wins() -> None:
    given = {"document": "New York is not York", "query": "XXXXX?", "candidates": ["York", "New York", "New"]}
    assert of(given).places == [1, 1, -1, -1, 0]


def test_without_candidates_every_word_of_the_document_is_one() -> None:
    found = of({"document": "a cup, a lamp.", "query": "(XXXXX's)"})
    assert found.candidates == ["a", "cup", "lamp"]
    assert found.places == [0, 1, -1, 0, 2, -1]
    assert found.query == ["(", "XXXXX", "'", "s", ")"]


def test_a_candidate_that_the_document_lacks_has_no_probability() -> None:
    found = of({**TOLD, "candidates": ["tree", "cup"], "answer": "tree"})
    assert not found.answerable
    one = answered([found])[0]
    assert one.probabilities[0] == 0.0
    assert one.right is None
    assert one.text == "cup"


def test_the_most_frequent_candidate_is_what_to_beat() -> None:
    assert most_frequent(of({"document": "a b b c c", "query": "XXXXX", "candidates": ["x", "a", "c", "b"]})) == 2
    assert most_frequent(of({"document": "a", "query": "XXXXX", "candidates": ["x", "y"]})) == 0


# The model


def made(attention: str = "over", **overrides: Any) -> Any:
    """A small reader in double precision, with weights that tell one word from another."""
    small = {"size": 6, "embedding": 4, "dropout": 0.0, "penalty": 0.0, **overrides}
    torch.manual_seed(3)
    model = build("cui2017", V, V, attention=attention, **small).double().eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
        model.embedding.weight[PAD] = 0.0
    return model


def batch() -> Batch:
    generator = torch.Generator().manual_seed(4)
    document = torch.randint(4, V, (B, S), generator=generator).masked_fill(~prefix_mask(LENGTHS, S), PAD)
    query = torch.randint(4, V, (B, Q), generator=generator).masked_fill(~prefix_mask(QUERIES, Q), PAD)
    places = torch.tensor([[0, -1, 1, 0, 2, -1, 1], [1, 0, -1, 1, -1, -1, -1], [0, -1, -1, -1, -1, -1, -1]])
    return Batch(document, LENGTHS, query, QUERIES, places, torch.tensor([1, 1, 0]))


both = pytest.mark.parametrize("attention", ["over", "single"])


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def softmax(x: Floats, axis: int) -> Floats:
    e = np.exp(x - x.max(axis, keepdims=True))
    found: Floats = e / e.sum(axis, keepdims=True)
    return found


def gru(cell: Any, words: Floats) -> Floats:
    """r, z = σ(W x + U h + b); h̃ = tanh(W x + U(r⊙h) + b); h = (1−z)⊙h + z⊙h̃, from the first word on."""
    W_r, W_z, W = np.split(cell.weight_ih.detach().numpy(), 3)
    U_r, U_z, U = np.split(cell.weight_hh.detach().numpy(), 3)
    b_r, b_z, b = np.split((cell.bias_ih + cell.bias_hh).detach().numpy(), 3)
    h, states = np.zeros(len(U)), []
    for x in words:
        r, z = sigmoid(W_r @ x + U_r @ h + b_r), sigmoid(W_z @ x + U_z @ h + b_z)
        h = (1 - z) * h + z * np.tanh(W @ x + U @ (r * h) + b)
        states.append(h)
    return np.array(states)


def directions(stack: Any, words: Floats) -> tuple[Floats, Floats]:
    """The states of both directions side by side, and the last of each."""
    ahead, behind = gru(stack.forwards[0], words), gru(stack.backwards[0], words[::-1])
    return np.hstack([ahead, behind[::-1]]), np.hstack([ahead[-1], behind[-1]])


@both
def test_the_papers_equations(attention: str) -> None:
    model, given = made(attention), batch()
    looked = model(*given[:4])
    E, losses = model.embedding.weight.detach().numpy(), []
    for row in range(B):
        document = E[given.document[row, : LENGTHS[row]].numpy()]
        query = E[given.query[row, : QUERIES[row]].numpy()]
        h_doc, _ = directions(model.document, document)
        h_query, q = directions(model.query, query)
        if attention == "over":
            M = h_doc @ h_query.T  # eq. 5
            alpha, beta = softmax(M, 0), softmax(M, 1).mean(0)  # eq. 6 to 9
            s = alpha @ beta  # eq. 10
            np.testing.assert_allclose(looked.query[row, : QUERIES[row]].detach().numpy(), beta, atol=1e-12)
        else:
            s = softmax(h_doc @ q, 0)
        np.testing.assert_allclose(looked.document[row, : LENGTHS[row]].detach().numpy(), s, atol=1e-12)
        mine = [s[i] for i in range(len(s)) if given.places[row, i] == given.answer[row]]
        losses.append(-np.log(sum(mine)))  # eq. 11 and 12
    np.testing.assert_allclose(float(model.summed(*given).detach()), sum(losses), atol=1e-10)
    assert int(model.count(*given)) == B


@both
def test_padding_and_batch_mates_never_matter(attention: str) -> None:
    model, given = made(attention), batch()
    together = model(*given[:4])
    for row in range(B):
        alone = model(
            given.document[row : row + 1, : LENGTHS[row]],
            LENGTHS[row : row + 1],
            given.query[row : row + 1, : QUERIES[row]],
            QUERIES[row : row + 1],
        )
        torch.testing.assert_close(alone.document[0], together.document[row, : LENGTHS[row]])
    assert torch.equal(together.document[~prefix_mask(LENGTHS, S)], torch.zeros(int(S * B - LENGTHS.sum())).double())
    if together.query is not None:
        assert not together.query[~prefix_mask(QUERIES, Q)].any()
        torch.testing.assert_close(together.query.sum(1), torch.ones(B).double())
    torch.testing.assert_close(together.document.sum(1), torch.ones(B).double())


@both
def test_an_empty_row_has_no_weight_and_no_nan(attention: str) -> None:
    model, given = made(attention), batch()
    looked = model(given.document, torch.tensor([0, 4, 1]), given.query, torch.tensor([3, 0, 2]))
    assert not looked.document[0].any()
    assert torch.isfinite(looked.document).all()
    loss = model.summed(*given._replace(lengths=torch.tensor([0, 4, 1])))
    loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@both
def test_every_parameter_gets_a_gradient(attention: str) -> None:
    model = made(attention, layers=2)
    model.summed(*batch()).backward()
    assert all(parameter.grad.any() for parameter in model.parameters())


def test_pieces_of_a_batch_add_up_to_it() -> None:
    model, given = made(penalty=0.01), batch()
    parts = given.pieces(2)
    assert [part.rows for part in parts] == [1, 2]
    torch.testing.assert_close(sum(model.summed(*part) for part in parts), model.summed(*given))
    assert (given.targets, given.tokens) == (B, int(LENGTHS.sum() + QUERIES.sum()))


def test_the_first_weights_are_the_papers() -> None:
    torch.manual_seed(1)
    model = build("cui2017", 500, 500, size=16, embedding=16)
    words = model.embedding.weight[1:].detach()
    assert 0.049 < float(words.max()) <= 0.05
    assert -0.05 <= float(words.min()) < -0.049
    further = build("cui2017", 500, 500, size=16, reach=2.0).embedding.weight.detach()
    assert 1.9 < float(further.max()) <= 2
    for stack in (model.document, model.query):
        for name, parameter in stack.named_parameters():
            if "bias" in name:
                assert not parameter.any()
            else:
                for gate in parameter.chunk(3):
                    torch.testing.assert_close(gate @ gate.T, torch.eye(16), atol=1e-5, rtol=0)


# What each key of the model changes


def test_size_embedding_and_layers_are_those_of_the_model() -> None:
    model = made(size=5, embedding=3, layers=2)
    assert (model.document.output_size, model.embedding.embedding_dim) == (10, 3)
    assert len(model.query.forwards) == len(model.document.forwards) == 2
    assert build("cui2017", V, V, size=5).embedding.embedding_dim == 5


def test_dropout_is_at_work_in_training_only() -> None:
    model, given = made(dropout=0.5), batch()
    assert torch.equal(model(*given[:4]).document, model(*given[:4]).document)
    model.train()
    assert not torch.equal(model(*given[:4]).document, model(*given[:4]).document)
    calm = made(dropout=0.0).train()
    assert torch.equal(calm(*given[:4]).document, calm(*given[:4]).document)


def test_the_penalty_is_on_the_embeddings_for_each_question() -> None:
    plain, penalised, given = made(), made(penalty=0.25), batch()
    expected = B * 0.25 * float((plain.embedding.weight.detach().numpy() ** 2).sum())
    assert (penalised.summed(*given) - plain.summed(*given)).item() == pytest.approx(expected)


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
def test_what_cannot_be_built_says_why(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        build("cui2017", V, V, **overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("blank", "", "blank is one word"),
        ("blank", "a b", "blank is one word"),
        ("max_length", 0, "max_length and dev_questions are at least 1, not 0 and 1000"),
        ("workers", -1, "workers are not negative"),
    ],
)
def test_data_that_cannot_be_says_why(key: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(ClozeSettings, {key: value}, "data")
    with pytest.raises(UserError, match="one of word, not 'bpe'"):
        parse(WordSettings, {"kind": "bpe"}, "text")


# Examples and answers


def vocabulary(clozes: list[Cloze]) -> Words:
    lines = (" ".join([*one.document, *one.query]) for one in clozes)
    return Words.learn(lines, 30, tags=("blank",))


def answered(clozes: list[Cloze], batch_tokens: int = 1000, attention: str = "over") -> list[Answer]:
    words = vocabulary(clozes)
    torch.manual_seed(2)
    model = build("cui2017", words.size, words.size, size=6, attention=attention).eval()
    return answers(model, clozes, words, "XXXXX", batch_tokens, torch.device("cpu"))


def test_a_batch_holds_what_was_asked() -> None:
    clozes = [cloze(one, "XXXXX", False) for one in asked(CBT)]
    examples = Examples(clozes, vocabulary(clozes), "XXXXX")
    given = examples.batch(np.array([1, 0]))
    assert examples.sizes.tolist() == [18, 18]
    assert given.places.tolist() == [[1, -1, -1, -1, -1, -1, 0, *[-1] * 5], [-1] * 4 + [0, *[-1] * 5, 1, -1]]
    assert given.answer.tolist() == [1, 1]
    assert given.lengths.tolist() == [12, 12]
    assert Examples(clozes[::-1], vocabulary(clozes), "XXXXX").fingerprint != examples.fingerprint
    assert Examples(list(clozes), vocabulary(clozes), "XXXXX").fingerprint == examples.fingerprint


def test_probabilities_are_sums_of_weights_in_the_order_of_the_questions() -> None:
    clozes = [cloze(one, "XXXXX", False) for one in asked(CBT)] + [of({"document": "a b a", "query": "XXXXX b"})]
    together, apart = answered(clozes), answered(clozes, batch_tokens=1)
    for one, other, source in zip(together, apart, clozes, strict=True):
        assert one.asked is source
        np.testing.assert_allclose(one.weights, other.weights, atol=1e-6)
        for number, probability in enumerate(one.probabilities):
            mine = [weight for weight, place in zip(one.weights, source.places, strict=True) if place == number]
            assert probability == pytest.approx(sum(mine))
    assert sum(together[2].probabilities) == pytest.approx(1.0)


@both
def test_an_answer_as_line_document_and_looks(attention: str) -> None:
    long = {"document": ["a cup", " ".join(["word"] * 40)], "query": "XXXXX here", "candidates": ["word", "cup", "sun"]}
    (one,) = answered([of(long)], attention=attention)
    word, probability = one.line().split("\t")
    assert word == one.text
    assert float(probability) == pytest.approx(max(one.probabilities), abs=1e-4)
    told = json.loads(json.dumps(one.document()))
    assert [row["word"] for row in told["candidates"]] == ["word", "cup", "sun"]
    assert told["document"]["words"][:2] == ["a", "cup"]
    assert sum(told["document"]["weights"]) == pytest.approx(1, abs=1e-4)
    assert told["query"]["words"] == ["XXXXX", "here"]
    assert (told["query"]["weights"] is None) == (attention == "single")
    looks = one.looks()
    assert [line.label for line in looks] == ["1", "2", "", "", "query"]
    assert list(itertools.chain(*(line.words for line in looks[:-1]))) == told["document"]["words"]
    assert looks[1].weight == pytest.approx(sum(one.weights[2:]))


def test_weights_that_are_no_numbers_are_an_error() -> None:
    clozes = [of(TOLD)]
    words = vocabulary(clozes)
    model = build("cui2017", words.size, words.size, size=6).eval()
    with torch.no_grad():
        model.embedding.weight.fill_(float("nan"))
    with pytest.raises(ArithmeticError, match="no numbers"):
        Validator(clozes, words, "XXXXX", 100)(model, torch.device("cpu"))


def test_validation_counts_right_answers_and_leaves_the_model_as_it_was() -> None:
    clozes = [cloze(one, "XXXXX", False) for one in asked(CBT)] + [of({**TOLD, "candidates": ["x"], "answer": "x"})]
    words = vocabulary(clozes)
    torch.manual_seed(2)
    model = build("cui2017", words.size, words.size, size=6, dropout=0.5).train()
    before = torch.get_rng_state()
    found = Validator(clozes, words, "XXXXX", 100)(model, torch.device("cpu"))
    assert model.training
    assert torch.equal(before, torch.get_rng_state())
    made = answers(model.eval(), clozes, words, "XXXXX", 100, torch.device("cpu"))
    right = [one.probabilities[1] for one in made[:2]]
    assert found.loss == pytest.approx(-np.log(right).mean())
    assert found.figures["accuracy"] == accuracy(made) == found.score
    assert found.samples[0].told()["right"] == "cup"
    assert found.samples[0].picture() is not None


# Runs


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded stories, fewer of them."""
    folder = tmp_path_factory.mktemp("stories")
    corpus = embedded(folder)
    for paths in (corpus.train, corpus.dev, corpus.test):
        (path,) = paths
        kept = path.read_text(encoding="utf-8").split("\n\n")[:60]
        path.write_text("\n\n".join(kept) + "\n\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def reader(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "read"
    return regard.train("cui2017", stories / "train.txt", out, dev=stories / "dev.txt", **SMALL)


def weights(run: Run, step: int = 6) -> dict[str, Tensor]:
    found: dict[str, Tensor] = run.model(sizes(run), step).state_dict()
    return found


def sizes(run: Run) -> tuple[int, int]:
    return run.tokenizers().sizes


def test_the_embedded_stories_are_the_same_for_a_seed_and_can_be_answered(tmp_path: Path) -> None:
    first, again, other = (embedded(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert first.test[0].read_bytes() == again.test[0].read_bytes() != other.test[0].read_bytes()
    override(read("cui2017"), first.changes)
    every = [one._replace(where="") for one in files.questions([*first.train, *first.dev, *first.test], "XXXXX")]
    assert len(every) == len(set(every)), "no question is in two places"
    for one in every[-1000:]:
        found = cloze(one, "XXXXX", False)
        assert found.answerable
        assert len(found.candidates) >= 4


def test_an_embedded_answer_is_told_most_often_beside_the_clue_and_seldom_in_the_whole_story() -> None:
    drawn = Random(3)
    clozes = [cloze(one, "XXXXX", False) for one in asked("".join(tale(drawn) for _ in range(500)))]
    repeated = 0
    for one in clozes:
        (clue,) = {*one.query} & {*PEOPLE, *THINGS}
        beside = Counter(word for line in one.lines if clue in line for word in line if word in {*PEOPLE, *THINGS})
        told = [(word, times) for word, times in beside.most_common() if word != clue]
        assert one.candidates[one.answer or 0] == told[0][0]
        assert len(told) == 1 or told[0][1] > told[1][1]
        repeated += len(told) > 1
    assert 100 < repeated < 200
    assert np.mean([most_frequent(one) == one.answer for one in clozes]) < 0.25


def test_a_run_that_was_stopped_ends_as_one_that_was_not(stories: Path, reader: Run, tmp_path: Path) -> None:
    half = {**SMALL, "training.steps": 3}
    run = train("cui2017", stories / "train.txt", tmp_path / "run", dev=stories / "dev.txt", **half)
    more: dict[str, Any] = {"training.steps": 6}
    run = train(None, None, run.folder, resume=True, **more)
    whole, parts = weights(reader), weights(run)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_dev_questions_are_held_out_by_their_documents_and_the_seed(stories: Path) -> None:
    data = ClozeSettings(train=(str(stories / "train.txt"),), dev_questions=4)
    found, again, other = split(data, 1), split(data, 1), split(data, 2)
    assert found == again != other
    assert (len(found.train), len(found.dev)) == (56, 4)
    assert not {one.document for one in found.train} & {one.document for one in found.dev}
    with pytest.raises(UserError, match="nothing to train on"):
        split(ClozeSettings(), 1)


def test_one_document_is_too_little(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(CBT, encoding="utf-8")
    with pytest.raises(UserError, match="all questions are of one document"):
        split(ClozeSettings(train=(str(tmp_path / "a.txt"),)), 1)


def test_empty_documents_are_named_before_any_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"document": " ", "query": "XXXXX", "answer": "a"}\n' * 2, encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.jsonl:1: there is no word in the document"):
        split(ClozeSettings(train=(str(tmp_path / "a.jsonl"),)), 1)


def test_training_begins_with_how_much_of_the_dev_set_cannot_be_answered(stories: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.txt").write_text("1 a cup\n2 XXXXX\tx\t\tx|cup\n\n1 a cup\n2 XXXXX\tcup\n", encoding="utf-8")
    data = {"data.train": [str(stories / "train.txt")], "data.dev": [str(tmp_path / "dev.txt")]}
    job = TASKS["read"].prepared(Run(tmp_path / "run"), override(read("cui2017"), {**SMALL, **data}), False)
    assert "2 dev questions (1 without the answer in the document), a vocabulary" in job.about


def test_the_keys_of_data_and_text_say_what_is_read(stories: Path, tmp_path: Path) -> None:
    text = (stories / "train.txt").read_text(encoding="utf-8").replace("XXXXX", "@gap")
    other = tmp_path / "other.txt"
    other.write_text(text + "1 a cup\n2 @gap\tx\t\tx|cup\n\n1" + " word" * 300 + "\n2 @gap\tword\n", encoding="utf-8")
    changes = {"data.blank": "@gap", "data.max_length": 100, "data.dev_questions": 5, "text.vocabulary": 20}
    recipe = override(read("cui2017"), {**SMALL, **changes, "text.lowercase": True, "data.train": [str(other)]})
    job = TASKS["read"].prepared(Run(tmp_path / "run"), recipe, False)
    assert len(job.source) <= 60 - 5 + 2  # type: ignore[arg-type]
    assert "5 dev questions, a vocabulary of 20" in job.about
    assert job.sizes == (20, 20)
    job.save(tmp_path)
    (saved,) = tmp_path.glob("*.vocab")
    assert saved.read_text(encoding="utf-8").splitlines()[4] == "<blank>"
    assert saved.read_text(encoding="utf-8").islower()


def test_questions_without_an_answer_cannot_be_learnt_from(stories: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{STORY}3 XXXXX\t\t\tcup|lamp\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.txt:3: there is no answer, and nothing to learn from"):
        train("cui2017", tmp_path / "a.txt", tmp_path / "run", **SMALL)
    (tmp_path / "b.txt").write_text("1 cup\n2 XXXXX\tsun\t\tsun|cup\n", encoding="utf-8")
    with pytest.raises(UserError, match="no question is left to train on: of 1 documents 0 have more than 2,000 words"):
        train("cui2017", tmp_path / "b.txt", tmp_path / "run", dev=stories / "dev.txt", **SMALL)


def test_a_run_starts_from_another(stories: Path, reader: Run, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "training.steps": 1,
        "training.init_from": str(reader.folder),
        "training.learning_rate": 0.0,
    }
    run = train(None, stories / "dev.txt", tmp_path / "run", dev=stories / "test.txt", **changes)
    best = reader.model(sizes(reader)).state_dict()
    assert all(torch.equal(best[name], tensor) for name, tensor in weights(run, 1).items())
    assert run.config()["data"]["blank"] == "XXXXX"


def test_a_loaded_run_answers_questions_in_python(reader: Run) -> None:
    model = regard.load(reader.folder, device="cpu")
    lots = [{**TOLD, "candidates": ["lamp", "cup", "tree"]}, TOLD]
    first, second = model.predict(lots)
    assert first.asked.candidates == ["lamp", "cup", "tree"]
    assert len(second.probabilities) == 8
    assert model.predict([]) == []
    with pytest.raises(UserError, match="there is no blank in the query"):
        model.predict([{**TOLD, "query": "no"}])
    with pytest.raises(UserError, match=r"a question is .* not 'which lamp'"):
        model.predict(["which lamp"])
    with pytest.raises(TypeError, match="predict takes a list of questions, not one"):
        model.predict(TOLD)
    with pytest.raises(UserError, match="a model that reads works alone, not beside others"):
        regard.load(reader.folder, reader.folder)


def test_evaluating_needs_answers_and_tells_what_to_beat(reader: Run, stories: Path, tmp_path: Path) -> None:
    model = regard.load(reader.folder)
    found = model.evaluate([stories / "test.txt", stories / "dev.txt"])
    assert found["questions"] == 120
    every = files.questions([stories / "test.txt", stories / "dev.txt"], "XXXXX")
    right = [one.text == asked.answer for one, asked in zip(model.predict(every), every, strict=True)]
    assert found["accuracy"] == pytest.approx(100 * np.mean(right))
    (tmp_path / "a.txt").write_text(f"{STORY}3 XXXXX\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.txt:3: there is no answer, and nothing to hold the model to"):
        model.evaluate([tmp_path / "a.txt"])


def test_the_report_shows_candidates_and_weights(reader: Run) -> None:
    page = (reader.folder / "report.html").read_text(encoding="utf-8")
    assert "<h1>cui2017</h1>" in page
    assert "candidates" in page
    assert "<b>query</b>" in page
    assert '<span style="--w:' in page
    assert (reader.folder / "samples" / "attention-1.png").is_file()


def test_the_command_line_from_training_to_answers(stories: Path, regard: Command, tmp_path: Path) -> None:
    keys = [f"{key}={value}" for key, value in SMALL.items()]
    done = regard("train", stories / "train.txt", "--recipe", "cui2017", "--out", "run", *keys)
    assert done.returncode == 0, done.stderr
    assert "read with: regard predict run FILE" in done.stderr
    lines = regard("predict", "run", input=CBT).stdout.splitlines()
    assert len(lines) == 2
    assert all(float(line.split("\t")[1]) <= 1 for line in lines)
    told = regard("predict", "run", "--json", input=json.dumps(TOLD)).stdout
    assert json.loads(told)["query"]["words"][4] == "XXXXX"
    assert regard("predict", "run", stories / "test.txt").stdout.count("\n") == 60
    scored = json.loads(regard("evaluate", "run", stories / "test.txt", "--json").stdout)
    assert scored["questions"] == 60
    assert "accuracy" in regard("evaluate", "run", stories / "test.txt").stdout
    wrong = regard("predict", "run", input="1 a story\n\n")
    assert wrong.returncode == 2
    assert "line 2: the story ends here without a query" in wrong.stderr
    listed = regard("runs", ".")
    assert listed.returncode == 0
    assert "cui2017" in listed.stdout


@pytest.mark.learn
def test_attention_over_attention_learns_stories_that_one_look_does_not(tmp_path: Path) -> None:
    corpus = embedded(tmp_path / "stories")
    found = {}
    for attention in ("over", "single"):
        changes = {**corpus.changes, "model.attention": attention, "training.seed": 2}
        run = train("cui2017", corpus.train, tmp_path / attention, dev=corpus.dev, **changes)
        found[attention] = regard.load(run.folder).evaluate(corpus.test)
    assert found["over"]["accuracy"] >= 95
    assert found["single"]["accuracy"] < 80
    assert found["over"]["most_frequent"] < 25
