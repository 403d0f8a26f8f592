"""Exported Transformers, run by CTranslate2, against the models that they were."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.commands import Command
from support.training import corpus_files
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.errors import UserError
from regard.fast.ctranslate2 import distinct, export
from regard.models import Seq2Seq, build
from regard.runs import Run
from regard.search import Hypothesis, Ranking, forced, search
from regard.symbols import BOS, EOS, PAD
from regard.translate import load
from regard.translate.runtime import BATCH_TOKENS, Runtime, share

FORMS: dict[str, dict[str, Any]] = {
    "post-norm, one matrix": {"norm": "post", "tie": "all", "size": 12, "heads": 3},
    "pre-norm, one matrix": {"norm": "pre", "tie": "all", "size": 16, "heads": 1},
    "pre-norm, decoder tied, odd": {"norm": "pre", "tie": "decoder", "size": 15, "heads": 5},
    "post-norm, none tied, odd": {"norm": "post", "tie": "none", "size": 21, "heads": 3},
    "pre-norm, first layer": {"norm": "pre", "tie": "none", "size": 12, "heads": 2, "align_layer": 1},
    "post-norm, one head": {
        "norm": "post",
        "tie": "decoder",
        "size": 12,
        "heads": 3,
        "align_layer": 1,
        "align_head": 2,
    },
    "pre-norm, last head": {"norm": "pre", "tie": "all", "size": 12, "heads": 4, "align_head": 4},
    "learnt positions": {
        "norm": "pre",
        "tie": "none",
        "size": 12,
        "heads": 2,
        "positions": "learned",
        "max_positions": 5,
    },
    "no positions": {"norm": "post", "tie": "decoder", "size": 12, "heads": 2, "positions": "none"},
}
RANKING = Ranking()

every_form = pytest.mark.parametrize("form", FORMS)


def small(form: str, likes: dict[int, float], seed: int = 3) -> Any:
    """A random model that adds so much to the logits of some ids, whatever it reads."""
    torch.manual_seed(seed)
    settings = FORMS[form]
    sizes = (23, 23) if settings["tie"] == "all" else (19, 23)
    model = build("vaswani2017-base", *sizes, layers=2, feedforward=20, dropout=0.0, **settings)
    for module in model.modules():
        for weights in module.parameters(recurse=False):
            nn.init.normal_(weights, 1.0 if isinstance(module, nn.LayerNorm) and weights is module.weight else 0.0, 0.3)
    decoder = model.decoder
    last = decoder.norm if settings["norm"] == "pre" else decoder.layers[-1].around_feedforward.norm
    with torch.no_grad():  # the first number that the output layer reads is always 10
        last.weight[0], last.bias[0] = 0.0, 10.0
        decoder.output.weight[:, 0] = 0.0
        for id, much in likes.items():
            decoder.output.weight[id, 0] = much / 10
    return model.eval()


ENDS = {PAD: -50.0, BOS: -50.0, EOS: 1.5}
ENDLESS = {PAD: -50.0, BOS: -50.0, EOS: -50.0}


def pieces(model: Any) -> tuple[list[str], list[str]]:
    sizes = (model.encoder.embedding.words.num_embeddings, model.decoder.embedding.words.num_embeddings)
    source, target = ([f"{size}-{id}" for id in range(size)] for size in sizes)
    return source, target


def exported(model: Any, folder: Path, quantization: str | None = None) -> Runtime:
    export(model, *pieces(model), folder, quantization)
    return Runtime(folder)


def sources(lengths: Sequence[int] = (1, 3, 5, 8, 4, 7, 2, 9)) -> list[list[int]]:
    random = torch.Generator().manual_seed(2)
    return [[*torch.randint(4, 19, (length,), generator=random).tolist(), EOS] for length in lengths]


def batch(given: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    rows = [torch.tensor(source) for source in given]
    return pad_sequence(rows, True, PAD), torch.tensor([len(row) for row in rows])


def agree(model: Seq2Seq, given: Sequence[Sequence[int]], found: Sequence[Hypothesis]) -> None:
    """What was found is what the model itself says of it."""
    for judged, one in zip(forced(model, *batch(given), [one.tokens for one in found]), found, strict=True):
        assert one.log_prob == pytest.approx(judged.hypothesis.log_prob, abs=1e-4)
        assert one.score == pytest.approx(judged.hypothesis.score, abs=1e-4)
        assert one.attention == pytest.approx(judged.hypothesis.attention, abs=1e-5)


@every_form
def test_every_token_of_a_given_target_is_as_likely(form: str, tmp_path: Path) -> None:
    model, given = small(form, {}), sources()
    runtime = exported(model, tmp_path / "model")
    targets = [[*reversed(source[:-1]), 1, 22, EOS] for source in given]
    spelt = [[runtime.source[id] for id in source] for source in given]
    scored = runtime.translator.score_batch(spelt, [[runtime.target[id] for id in row[:-1]] for row in targets])
    for judged, one in zip(forced(model, *batch(given), targets), scored, strict=True):
        assert one.log_probs == pytest.approx(judged.log_probs, abs=1e-4)


@pytest.mark.parametrize("beam", [1, 5])
@every_form
def test_search_finds_the_same(form: str, beam: int, tmp_path: Path) -> None:
    model, given = small(form, ENDS), sources()
    ours = search(model, *batch(given), beam=beam)
    found = exported(model, tmp_path / "model").search(given, beam, ranking=RANKING, attention=True)
    assert [some[0].tokens for some in found] == [some[0].tokens for some in ours]
    agree(model, given, [some[0] for some in found])


def test_a_beam_gives_several_targets_the_best_first(tmp_path: Path) -> None:
    model, given = small("post-norm, one head", {**ENDS, EOS: 3.0}), sources()
    runtime = exported(model, tmp_path / "model")
    found = runtime.search(given, 5, n_best=4, ranking=RANKING, attention=True)
    assert all(len({tuple(one.tokens) for one in some}) == 4 for some in found)
    assert all(some == sorted(some, key=lambda one: -one.score) for some in found)
    for place in range(4):
        agree(model, given, [some[place] for some in found])
    with pytest.raises(ValueError, match="n_best 6, beam 5"):
        runtime.search(given, 5, n_best=6)


@pytest.mark.parametrize("beam", [1, 5])
def test_each_target_is_cut_at_its_own_limit(beam: int, tmp_path: Path) -> None:
    model, given = small("post-norm, one matrix", ENDLESS), sources((1, 4, 4, 2))
    found = exported(model, tmp_path / "model").search(given, beam, ranking=RANKING, attention=True)
    assert [len(some[0].tokens) for some in found] == [14, 20, 20, 16]
    assert [some[0].tokens for some in found] == [some[0].tokens for some in search(model, *batch(given), beam=beam)]
    agree(model, given, [some[0] for some in found])


def test_what_was_cut_off_is_given_out_only_where_nothing_ended(tmp_path: Path) -> None:
    runtime = exported(small("post-norm, one matrix", ENDS), tmp_path / "model")
    found = runtime.within(2, sources(), 5, RANKING, False)
    ended = [{one.tokens[-1] == EOS for one in some} for some in found]
    assert {True} in ended
    assert {True, False} not in ended


def test_what_the_model_likes_but_may_not_write_is_not_written(tmp_path: Path) -> None:
    model, given = small("pre-norm, one matrix", {PAD: 9.0, BOS: 9.0, EOS: 1.5}), sources()
    found = exported(model, tmp_path / "model").search(given, 1)
    assert [some[0].tokens for some in found] == [some[0].tokens for some in search(model, *batch(given), beam=1)]


def test_a_long_source_is_read_to_its_end(tmp_path: Path) -> None:
    model, given = small("post-norm, none tied, odd", {PAD: -50.0, BOS: -50.0, EOS: 9.0}), sources((1500,))
    found = exported(model, tmp_path / "model").search(given, 1, attention=True)
    assert found[0][0].tokens == [EOS]
    agree(model, given, [found[0][0]._replace(score=RANKING.by_length(found[0][0].log_prob, 1))])
    with pytest.raises(UserError, match="a source of 4097 tokens is longer than an exported model reads: 4096"):
        Runtime(tmp_path / "model").search([[4] * 4097])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_few_sources_are_shared_by_all_workers(workers: int) -> None:
    sizes = [len(source) for source in sources()]
    tokens = share(sources(), workers)
    assert tokens * workers >= sum(sizes), "more batches than workers"
    assert workers == 1 or tokens < sum(sizes), "all in one batch"
    assert share(sources() * 1000, workers) == BATCH_TOKENS
    assert share([], workers) > 0


def test_nothing_to_translate_is_no_trouble(tmp_path: Path) -> None:
    assert exported(small("post-norm, one matrix", ENDS), tmp_path / "model").search([]) == []


def adds_bytes_exactly() -> bool:
    """An x86 processor without VNNI cuts sums of bytes off, which a model of 16 numbers feels: 0.3 on the mean."""
    told = Path("/proc/cpuinfo")
    return platform.machine() not in ("x86_64", "AMD64") or (told.exists() and "vnni" in told.read_text("utf-8"))


@pytest.mark.parametrize("form", ["post-norm, one matrix", "post-norm, none tied, odd"])
def test_eight_bits_are_near_and_leave_the_model_as_it_was(form: str, tmp_path: Path) -> None:
    model, given = small(form, ENDS), sources()
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    runtime = exported(model, tmp_path / "model", "int8")
    assert all(torch.equal(weights, before[name]) for name, weights in model.state_dict().items())
    assert runtime.translator.compute_type.startswith("int8")
    found = [some[0] for some in runtime.search(given, 5)]
    judged = forced(model, *batch(given), [one.tokens for one in found])
    pairs = zip(found, judged, strict=True)
    off = [abs(one.log_prob - each.hypothesis.log_prob) / len(one.tokens) for one, each in pairs]
    if adds_bytes_exactly():
        assert max(off) < 0.2
    assert sum(off) / len(off) < 0.5


def test_one_vocabulary_is_written_once_and_two_apart(tmp_path: Path) -> None:
    exported(small("post-norm, one matrix", ENDS), tmp_path / "one")
    exported(small("post-norm, none tied, odd", ENDS), tmp_path / "two")
    names = [sorted(path.name for path in folder.glob("*_vocabulary.json")) for folder in sorted(tmp_path.iterdir())]
    assert names == [["shared_vocabulary.json"], ["source_vocabulary.json", "target_vocabulary.json"]]


def test_words_that_are_spelt_alike_stay_apart(tmp_path: Path) -> None:
    model, given = small("post-norm, none tied, odd", ENDS), sources()
    export(model, ["x"] * 19, [*"abcd", "<s>", "</s>", "", "\n", "<unk>", "<blank>", *["y"] * 13], tmp_path / "model")
    runtime = Runtime(tmp_path / "model")
    assert runtime.target[:11] == [
        "<pad>",
        "<unk>",
        "<s>",
        "</s>",
        "<s>#4",
        "</s>#5",
        "",
        "\n",
        "<unk>#8",
        "<blank>",
        "y",
    ]
    assert [some[0].tokens for some in runtime.search(given, 1)] == [
        some[0].tokens for some in search(model, *batch(given), beam=1)
    ]


@given(st.lists(st.text("ab#12", max_size=4)))
def test_every_spelling_is_its_own_and_the_first_stays(spelt: list[str]) -> None:
    names = distinct(spelt)
    assert len(set(names)) == len(names) == len(spelt)
    assert all(names[spelt.index(piece)] == piece for piece in spelt)


@pytest.mark.parametrize(
    ("recipe", "named"),
    [("bahdanau2015", "BahdanauDecoder"), ("luong2015-global", "LuongDecoder"), ("sutskever2014", "Sutskever")],
)
def test_another_kind_of_model_is_refused_by_name(recipe: str, named: str, tmp_path: Path) -> None:
    model = build(recipe, 9, 9, size=4)
    with pytest.raises(UserError, match=f"CTranslate2 runs Transformers alone, and this is a .*{named}"):
        export(model, ["a"] * 9, ["b"] * 9, tmp_path / "model")
    with pytest.raises(UserError, match="and this is a Linear"):
        export(nn.Linear(1, 1), [], [], tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_what_does_not_fit_is_refused_with_its_values(tmp_path: Path) -> None:
    model = small("post-norm, none tied, odd", ENDS)
    source, target = pieces(model)
    with pytest.raises(UserError, match="the source vocabulary has 18 pieces, but the model has 19"):
        export(model, source[:-1], target, tmp_path / "model")
    with pytest.raises(UserError, match="the target vocabulary has 24 pieces, but the model has 23"):
        export(model, source, [*target, "more"], tmp_path / "model")
    with pytest.raises(UserError, match="no quantization 'int9'; did you mean 'int8'"):
        export(model, source, target, tmp_path / "model", "int9")
    with pytest.raises(UserError, match=r"no model\.bin"):
        Runtime(tmp_path / "model")
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(UserError, match="this one holds something"):
        export(model, source, target, tmp_path)


def test_a_run_translates_by_it_and_by_pytorch_what_it_cannot(
    transformer_run: Run, corpus: Path, regard: Command
) -> None:
    texts = corpus_files(corpus, "test")[0].read_text(encoding="utf-8").splitlines()[:20]
    done = regard("export", transformer_run.folder, "--to", "ctranslate2")
    assert done.returncode == 0, done.stderr
    by_torch, by_ctranslate2 = (load(transformer_run.folder, engine=engine) for engine in ("torch", "ctranslate2"))
    wishes: list[dict[str, Any]] = [
        {"beam": 1},
        {"prefix": "Der"},
        {"no_repeat": 2},
        {"sample": True},
        {"glossary": {"dog": "Hund"}},
    ]
    for options in wishes:
        found, expected = (one.translate(texts, **options) for one in (by_ctranslate2, by_torch))
        assert [one.text for one in found] == [one.text for one in expected]
        assert [one.alignment.pairs for one in found if one.alignment] == [
            one.alignment.pairs for one in expected if one.alignment
        ]
    said = regard(
        "translate", transformer_run.folder, "--engine", "ctranslate2", "--precision", "int8", input=texts[0] + "\n"
    )
    assert len(said.stdout.splitlines()) == 1
    assert "ctranslate2-int8: made in" in said.stderr
    by_itself = regard("translate", transformer_run.folder, input=texts[0] + "\n")
    assert by_itself.stderr.count("decoding by") == 1
    assert "ctranslate2-int8" in by_itself.stderr
    assert load(transformer_run.folder, engine="auto").runtime is not None
    assert load(transformer_run.folder).runtime is None


def test_what_it_cannot_run_is_refused(transformer_run: Run, run: Run) -> None:
    with pytest.raises(UserError, match="one model at a time, not an ensemble of 2"):
        load(transformer_run.folder, transformer_run.folder, engine="ctranslate2")
    with pytest.raises(UserError, match="CTranslate2 runs Transformers alone, and this is a"):
        load(run.folder, engine="ctranslate2")
