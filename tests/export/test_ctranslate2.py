"""Transformers exported to CTranslate2 against the models themselves."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.combinations import each_value
from support.commands import Command
from support.exports import (
    ENDING,
    ENDLESS,
    EXPORTED_MODELS,
    export_and_load,
    make_biased_transformer,
    make_vocabularies,
)
from support.training import copy_run, corpus_files
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.errors import UserError
from regard.export.ctranslate2 import export, make_unique
from regard.models import Seq2Seq, build
from regard.runs import Run
from regard.search import Hypothesis, SearchOptions, score_targets, search
from regard.special_tokens import BOS, EOS, PAD
from regard.translate import load
from regard.translate.backends.ctranslate2 import (
    MAX_BATCH_TOKENS,
    CTranslate2Backend,
    CTranslate2Model,
    choose_batch_tokens,
)


def make_source_ids(lengths: Sequence[int] = (1, 3, 5, 8, 4, 7, 2, 9)) -> list[list[int]]:
    random = torch.Generator().manual_seed(2)
    return [[*torch.randint(4, 19, (length,), generator=random).tolist(), EOS] for length in lengths]


def pad_batch(given: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    rows = [torch.tensor(source) for source in given]
    return pad_sequence(rows, True, PAD), torch.tensor([len(row) for row in rows])


def assert_scores_of_the_model(model: Seq2Seq, given: Sequence[Sequence[int]], found: Sequence[Hypothesis]) -> None:
    """Check that the model itself gives the hypotheses the same scores and attention."""
    for judged, one in zip(score_targets(model, *pad_batch(given), [one.tokens for one in found]), found, strict=True):
        assert one.log_prob == pytest.approx(judged.hypothesis.log_prob, abs=1e-4)
        assert one.score == pytest.approx(judged.hypothesis.score, abs=1e-4)
        assert one.attention == pytest.approx(judged.hypothesis.attention, abs=1e-5)


@pytest.mark.parametrize("name", EXPORTED_MODELS)
def test_export_gives_a_target_the_log_probabilities_of_the_model(name: str, tmp_path: Path) -> None:
    model, given = make_biased_transformer(name, {}), make_source_ids()
    runtime = export_and_load(model, tmp_path / "model")
    targets = [[*reversed(source[:-1]), 1, 22, EOS] for source in given]
    spelt = [[runtime.source_vocabulary[id] for id in source] for source in given]
    scored = runtime.translator.score_batch(
        spelt, [[runtime.target_vocabulary[id] for id in row[:-1]] for row in targets]
    )
    for judged, one in zip(score_targets(model, *pad_batch(given), targets), scored, strict=True):
        assert one.log_probs == pytest.approx(judged.log_probs, abs=1e-4)


@pytest.mark.parametrize(("name", "beam"), each_value(list(EXPORTED_MODELS), [1, 5]))
def test_search_in_an_export_finds_the_hypotheses_of_the_model(name: str, beam: int, tmp_path: Path) -> None:
    model, given = make_biased_transformer(name, ENDING), make_source_ids()
    ours = search(model, *pad_batch(given), beam=beam)
    found = export_and_load(model, tmp_path / "model").search(given, SearchOptions(beam=beam))
    assert [some[0].tokens for some in found] == [some[0].tokens for some in ours]
    assert_scores_of_the_model(model, given, [some[0] for some in found])


def test_export_returns_n_best_sorted(tmp_path: Path) -> None:
    model, given = make_biased_transformer("one-head", {**ENDING, EOS: 3.0}), make_source_ids()
    runtime = export_and_load(model, tmp_path / "model")
    found = runtime.search(given, SearchOptions(n_best=4))
    assert all(len({tuple(one.tokens) for one in some}) == 4 for some in found)
    assert all(some == sorted(some, key=lambda one: -one.score) for some in found)
    for rank in range(4):
        assert_scores_of_the_model(model, given, [some[rank] for some in found])


def test_an_empty_hypothesis_does_not_end_the_search_in_an_export(tmp_path: Path) -> None:
    model = make_biased_transformer("no-positions", {PAD: -50.0, BOS: -50.0, EOS: 4.0}, scale=7.0, seed=8)
    given = [make_source_ids([1 + place % 9 for place in range(10)])[place] for place in (5, 6, 9)]
    runtime = export_and_load(model, tmp_path / "model")
    greedy = [some[0] for some in runtime.search(given, SearchOptions(beam=1, attention=False))]
    found = runtime.search(given, SearchOptions(beam=2, n_best=2))
    assert [some[0].tokens for some in found] == [one.tokens for one in greedy]
    assert any(some[1].tokens == [EOS] for some in found)
    for rank in range(2):
        assert_scores_of_the_model(model, given, [some[rank] for some in found])


def test_an_empty_translation_is_found_where_it_is_the_best(tmp_path: Path) -> None:
    model, given = make_biased_transformer("learned-positions", {**ENDING, EOS: 3.0}), make_source_ids()
    found = export_and_load(model, tmp_path / "model").search(given, SearchOptions(n_best=2))
    assert [some[0].tokens for some in found] == [[EOS]] * len(given)
    assert_scores_of_the_model(model, given, [some[1] for some in found])


@pytest.mark.parametrize("beam", [1, 5])
def test_each_target_is_truncated_at_its_own_limit(beam: int, tmp_path: Path) -> None:
    model, given = make_biased_transformer("post-norm-tied", ENDLESS), make_source_ids((1, 4, 4, 2))
    found = export_and_load(model, tmp_path / "model").search(given, SearchOptions(beam=beam))
    assert [len(some[0].tokens) for some in found] == [14, 20, 20, 16]
    assert [some[0].tokens for some in found] == [
        some[0].tokens for some in search(model, *pad_batch(given), beam=beam)
    ]
    assert_scores_of_the_model(model, given, [some[0] for some in found])


def test_truncated_targets_are_returned_only_where_none_ended(tmp_path: Path) -> None:
    runtime = export_and_load(make_biased_transformer("post-norm-tied", ENDING), tmp_path / "model")
    found = runtime.search_within_limit(make_source_ids(), 2, SearchOptions(attention=False))
    ended = [{one.tokens[-1] == EOS for one in some} for some in found]
    assert {True} in ended
    assert {True, False} not in ended


def test_export_never_writes_padding_or_bos(tmp_path: Path) -> None:
    model, given = make_biased_transformer("pre-norm-tied", {PAD: 9.0, BOS: 9.0, EOS: 1.5}), make_source_ids()
    found = export_and_load(model, tmp_path / "model").search(given, SearchOptions(beam=1, attention=False))
    assert [some[0].tokens for some in found] == [some[0].tokens for some in search(model, *pad_batch(given), beam=1)]


def test_long_source_is_read_to_its_end(tmp_path: Path) -> None:
    model, given = (
        make_biased_transformer("post-norm-untied-odd", {PAD: -50.0, BOS: -50.0, EOS: 9.0}),
        make_source_ids((1500,)),
    )
    found = export_and_load(model, tmp_path / "model").search(given, SearchOptions(beam=1))
    assert found[0][0].tokens == [EOS]
    assert_scores_of_the_model(model, given, [found[0][0]])
    with pytest.raises(UserError, match="a source has 4097 tokens, but an exported model reads at most 4096"):
        CTranslate2Model(tmp_path / "model").search([[4] * 4097], SearchOptions())


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_few_sources_are_split_among_all_workers(workers: int) -> None:
    sizes = [len(source) for source in make_source_ids()]
    tokens = choose_batch_tokens(make_source_ids(), workers)
    assert tokens * workers >= sum(sizes), "more batches than workers"
    assert workers == 1 or tokens < sum(sizes), "all in one batch"
    assert choose_batch_tokens(make_source_ids() * 1000, workers) == MAX_BATCH_TOKENS
    assert choose_batch_tokens([], workers) > 0


def test_export_translates_an_empty_batch(tmp_path: Path) -> None:
    assert (
        export_and_load(make_biased_transformer("post-norm-tied", ENDING), tmp_path / "model").search(
            [], SearchOptions()
        )
        == []
    )


def adds_int8_exactly() -> bool:
    """Without VNNI, x86 processors saturate sums of int8 products, which so small a model feels: 0.3 on average."""
    cpuinfo = Path("/proc/cpuinfo")
    return platform.machine() not in ("x86_64", "AMD64") or (cpuinfo.exists() and "vnni" in cpuinfo.read_text("utf-8"))


@pytest.mark.parametrize("name", ["post-norm-tied", "post-norm-untied-odd"])
def test_int8_export_is_near_and_leaves_the_model_unchanged(name: str, tmp_path: Path) -> None:
    model, given = make_biased_transformer(name, ENDING), make_source_ids()
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    runtime = export_and_load(model, tmp_path / "model", "int8")
    assert all(torch.equal(weights, before[name]) for name, weights in model.state_dict().items())
    assert runtime.translator.compute_type.startswith("int8")
    found = [some[0] for some in runtime.search(given, SearchOptions(length_penalty=0.0, attention=False))]
    judged = score_targets(model, *pad_batch(given), [one.tokens for one in found])
    pairs = zip(found, judged, strict=True)
    errors = [abs(one.log_prob - each.hypothesis.log_prob) / len(one.tokens) for one, each in pairs]
    if adds_int8_exactly():
        assert max(errors) < 0.2
    assert sum(errors) / len(errors) < 0.5


def test_shared_vocabulary_is_written_once(tmp_path: Path) -> None:
    export_and_load(make_biased_transformer("post-norm-tied", ENDING), tmp_path / "one")
    export_and_load(make_biased_transformer("post-norm-untied-odd", ENDING), tmp_path / "two")
    names = [sorted(path.name for path in folder.glob("*_vocabulary.json")) for folder in sorted(tmp_path.iterdir())]
    assert names == [["shared_vocabulary.json"], ["source_vocabulary.json", "target_vocabulary.json"]]


def test_words_with_equal_spelling_stay_distinct(tmp_path: Path) -> None:
    model, given = make_biased_transformer("post-norm-untied-odd", ENDING), make_source_ids()
    export(model, ["x"] * 19, [*"abcd", "<s>", "</s>", "", "\n", "<unk>", "<blank>", *["y"] * 13], tmp_path / "model")
    runtime = CTranslate2Model(tmp_path / "model")
    assert runtime.target_vocabulary[:11] == [
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
    assert [some[0].tokens for some in runtime.search(given, SearchOptions(beam=1, attention=False))] == [
        some[0].tokens for some in search(model, *pad_batch(given), beam=1)
    ]


@given(st.lists(st.text("ab#12", max_size=4)))
def test_distinct_keeps_the_first_of_equal_spellings(spelt: list[str]) -> None:
    names = make_unique(spelt)
    assert len(set(names)) == len(names) == len(spelt)
    assert all(names[spelt.index(piece)] == piece for piece in spelt)


@pytest.mark.parametrize(
    ("recipe", "named"),
    [("bahdanau2015", "BahdanauDecoder"), ("luong2015-global", "LuongDecoder"), ("sutskever2014", "Sutskever")],
)
def test_export_of_another_model_is_refused_by_name(recipe: str, named: str, tmp_path: Path) -> None:
    model = build(recipe, 9, 9, size=4)
    with pytest.raises(UserError, match=f"CTranslate2 supports Transformers only, and this is a .*{named}"):
        export(model, ["a"] * 9, ["b"] * 9, tmp_path / "model")
    with pytest.raises(UserError, match="and this is a Linear"):
        export(nn.Linear(1, 1), [], [], tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_export_with_invalid_arguments_is_refused(tmp_path: Path) -> None:
    model = make_biased_transformer("post-norm-untied-odd", ENDING)
    source, target = make_vocabularies(model)
    with pytest.raises(UserError, match="the source vocabulary has 18 pieces, but the model has 19"):
        export(model, source[:-1], target, tmp_path / "model")
    with pytest.raises(UserError, match="the target vocabulary has 24 pieces, but the model has 23"):
        export(model, source, [*target, "more"], tmp_path / "model")
    with pytest.raises(UserError, match="no quantization 'int9'; did you mean 'int8'"):
        export(model, source, target, tmp_path / "model", "int9")
    with pytest.raises(UserError, match=r"no model\.bin"):
        CTranslate2Model(tmp_path / "model")
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(UserError, match="export to a new folder"):
        export(model, source, target, tmp_path)


def test_exported_run_translates_like_pytorch_with_all_options(
    transformer_run: Run, corpus: Path, regard: Command, tmp_path: Path
) -> None:
    run = copy_run(transformer_run, tmp_path / "run").folder
    texts = corpus_files(corpus, "test")[0].read_text(encoding="utf-8").splitlines()[:20]
    done = regard("export", run, "--to", "ctranslate2")
    assert done.returncode == 0, done.stderr
    by_torch, by_ctranslate2 = (load(run, engine=engine) for engine in ("torch", "ctranslate2"))
    options_of: list[dict[str, Any]] = [
        {"beam": 1},
        {"prefix": "Der"},
        {"no_repeat": 2},
        {"sample": True},
        {"glossary": {"dog": "Hund"}},
    ]
    for options in options_of:
        found, expected = (one.translate(texts, **options) for one in (by_ctranslate2, by_torch))
        assert [one.text for one in found] == [one.text for one in expected]
        assert [one.alignment.pairs for one in found if one.alignment] == [
            one.alignment.pairs for one in expected if one.alignment
        ]
    done = regard("translate", run, "--engine", "ctranslate2", "--precision", "int8", input=texts[0] + "\n")
    assert len(done.stdout.splitlines()) == 1
    assert "ctranslate2-int8: exported in" in done.stderr
    automatic = regard("translate", run, input=texts[0] + "\n")
    assert automatic.stderr.count("decoding with") == 1
    assert "ctranslate2-int8" in automatic.stderr
    assert isinstance(load(run, engine="auto").backend, CTranslate2Backend)
    assert not isinstance(load(run).backend, CTranslate2Backend)


def test_ensembles_and_recurrent_models_are_refused(transformer_run: Run, run: Run) -> None:
    with pytest.raises(UserError, match="one model at a time, not an ensemble of 2"):
        load(transformer_run.folder, transformer_run.folder, engine="ctranslate2")
    with pytest.raises(UserError, match="CTranslate2 supports Transformers only, and this is a"):
        load(run.folder, engine="ctranslate2")
