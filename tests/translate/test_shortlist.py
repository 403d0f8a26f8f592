"""Lexical shortlists: learnt from attention, and no other target tokens are written."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.commands import Command
from support.exports import ENDING, export_and_load, make_biased_transformer, make_vocabularies
from support.training import copy_run, corpus_files

from regard.cli.export import export
from regard.cli.options import EngineOptions
from regard.data.readers.dispatch import read_all_pairs
from regard.data.readers.text import Pair
from regard.errors import UserError
from regard.export.ctranslate2 import VMAP, token_names
from regard.models.bahdanau2015 import BahdanauDecoder
from regard.models.base import Decoder
from regard.runs import Run
from regard.search import SearchOptions
from regard.special_tokens import EOS, SPECIAL_TOKENS, UNK
from regard.translate import Translator, load
from regard.translate.backends import exports
from regard.translate.backends.base import TorchBackend
from regard.translate.backends.ctranslate2 import CTranslate2Model
from regard.translate.shortlist import SHORTLIST_FILE, Shortlist, learn_shortlist

SOURCES = [[5, 7, EOS], [9, EOS], [11, 12, 13, EOS]]


def get_shortlist(translator: Translator) -> Shortlist | None:
    assert isinstance(translator.backend, TorchBackend)
    return translator.backend.shortlist


@pytest.fixture(scope="module")
def transformer_copy(transformer_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Copy a run, so that exports can be written to it."""
    return copy_run(transformer_run, tmp_path_factory.mktemp("runs") / "transformer")


def test_shortlist_holds_the_tokens_written_while_attending_to_a_word(fluent_run: Run, corpus: Path) -> None:
    translator, some = load(fluent_run.folder), read_all_pairs(corpus_files(corpus, "train"))[:40]
    found = learn_shortlist(translator, some)
    counts: dict[int, Counter[int]] = {}
    for pair in some:
        (judged,) = translator.score_pairs([(pair.source, pair.target)])
        source = [*translator.tokenizers.source.encode(pair.source), EOS]
        assert judged.hypothesis.attention is not None
        for token, weights in zip(judged.hypothesis.tokens, judged.hypothesis.attention.tolist(), strict=True):
            counts.setdefault(source[weights.index(max(weights))], Counter())[token] += 1
    assert set(range(len(SPECIAL_TOKENS))) <= set(found.common)
    assert {id for some in counts.values() for id in some} <= found.find_allowed_targets(counts)
    assert all(set(ids) <= set(counts[source]) for source, ids in found.by_source.items())


def test_shortlist_keeps_the_most_frequent_tokens(
    fluent_run: Run, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.translate.shortlist.COMMON_TARGETS", 3)
    monkeypatch.setattr("regard.translate.shortlist.TARGETS_PER_SOURCE", 2)
    found = learn_shortlist(load(fluent_run.folder), read_all_pairs(corpus_files(corpus, "train"))[:60])
    assert len(found.common) <= len(SPECIAL_TOKENS) + 3
    assert 0 < max(map(len, found.by_source.values())) <= 2


def test_shortlist_without_sentences_is_an_error(fluent_run: Run) -> None:
    with pytest.raises(UserError, match="with words on both sides"):
        learn_shortlist(load(fluent_run.folder), [Pair(" ", "x")])


def test_exported_model_writes_only_tokens_of_its_shortlist(tmp_path: Path) -> None:
    model: Any = make_biased_transformer("post-norm-untied-odd", ENDING)
    options = SearchOptions(beam=3, length_penalty=0.0, attention=False)
    free, (source, target) = export_and_load(model, tmp_path / "free"), make_vocabularies(model)
    for name, shortlist in {
        "all": Shortlist(list(range(23)), {}),
        "few": Shortlist(list(range(4)), {5: [6, 8], 7: [10], 9: [12, 14], 11: [16], 12: [17, 18]}),
    }.items():
        shutil.copytree(tmp_path / "free", tmp_path / name)
        (tmp_path / name / VMAP).write_text(shortlist.format_vmap(token_names(source), token_names(target)))
        for one in SOURCES:  # one at a time: sources of a batch share their lists
            for found, expected in zip(
                CTranslate2Model(tmp_path / name).search([one], options), free.search([one], options), strict=True
            ):
                assert set(found[0].tokens) <= shortlist.find_allowed_targets(one)
                assert name == "few" or found[0].tokens == expected[0].tokens


def test_run_is_exported_to_ctranslate2_with_a_shortlist(transformer_copy: Run, corpus: Path, regard: Command) -> None:
    done = regard("export", transformer_copy.folder, "--to", "ctranslate2", "--shortlist")
    assert done.returncode == 0, done.stderr
    assert (transformer_copy.folder / "engines" / "ctranslate2-fp32" / VMAP).is_file()
    text = (corpus / "test.en").read_text().splitlines()[0]
    translated = regard("translate", transformer_copy.folder, "--engine", "ctranslate2", input=f"{text}\n")
    assert (translated.returncode, translated.stdout.count("\n")) == (0, 1), translated.stderr


def test_shortlist_is_learnt_from_every_corpus_in_turn(
    transformer_run: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Pair] = []

    def learn(translator: Any, some: Any) -> Shortlist:
        seen.extend(some)
        return Shortlist([0], {})

    monkeypatch.setattr("regard.translate.shortlist.learn_shortlist", learn)
    monkeypatch.setattr("regard.translate.shortlist.MAX_TRAINING_PAIRS", 6)
    (tmp_path / "more.tsv").write_text("".join(f"a{number}\tb{number}\n" for number in range(9)))
    named = [tmp_path / "more.tsv", *corpus_files(corpus, "dev")]
    export(transformer_run.folder, to="ctranslate2", shortlist=True, data=named, out=tmp_path / "out")
    assert [pair.source for pair in seen[:3]] == ["a0", "a1", "a2"]
    assert [pair.source for pair in seen[3:]] == [
        pair.source for pair in read_all_pairs(corpus_files(corpus, "dev"))[:3]
    ]


def test_export_with_invalid_shortlist_options_is_refused(transformer_copy: Run) -> None:
    with pytest.raises(UserError, match="--shortlist is for --to ctranslate2, not onnx"):
        export(transformer_copy.folder, to="onnx", shortlist=True)
    with pytest.raises(UserError, match="--data is for learning a shortlist: it needs --shortlist"):
        export(transformer_copy.folder, to="ctranslate2", data=[Path("x.tsv")])
    with pytest.raises(UserError, match=r"x\.tsv"):
        export(transformer_copy.folder, to="ctranslate2", shortlist=True, data=[Path("x.tsv")])
    with pytest.raises(UserError, match="white space in them, like 'a b'"):
        Shortlist([0], {}).format_vmap(["x"], ["a b"])


@pytest.fixture(scope="module")
def shortlisted_run(fluent_run: Run, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Copy a run and export a shortlist to it."""
    run = copy_run(fluent_run, tmp_path_factory.mktemp("shortlisted") / "run")
    export(run.folder, to="shortlist", data=corpus_files(corpus, "dev"))
    return run


def test_run_translates_with_its_shortlist(shortlisted_run: Run, corpus: Path, regard: Command) -> None:
    texts = (corpus / "test.en").read_text().splitlines()[:3]
    done = regard(
        "translate", shortlisted_run.folder, "--shortlist", "--json", input="".join(f"{text}\n" for text in texts)
    )
    assert done.returncode == 0, done.stderr
    assert f"decoding with {shortlisted_run.folder / 'engines' / 'shortlist'}" in done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    with_list, free = (
        load(shortlisted_run.folder, device="cpu", shortlist=True),
        load(shortlisted_run.folder, device="cpu"),
    )
    assert get_shortlist(with_list) == learn_shortlist(free, read_all_pairs(corpus_files(corpus, "dev")))
    assert [one["tokens"] for one in found] == [one.tokens for one in with_list.translate(texts)]
    first_word = with_list.translate(texts[:1])[0].tokens[0]
    (without,) = with_list.translate(texts[:1], forbid=[first_word])
    assert first_word.casefold() not in map(str.casefold, without.tokens)
    scored = [each.score_pairs([(texts[0], "die Katze .")])[0].hypothesis.log_prob for each in (with_list, free)]
    assert scored[0] == scored[1]


def test_only_tokens_of_the_batch_are_written(shortlisted_run: Run, corpus: Path) -> None:
    translator, texts = load(shortlisted_run.folder, device="cpu"), (corpus / "test.en").read_text().splitlines()[:4]
    words = [translator.tokenizers.target.encode(word) for word in ("Hund", "Katze")]
    (dog,), (cat,) = words
    sources = {id: [dog] for text in texts for id in translator.tokenizers.source.encode(text)}
    translator.backend = TorchBackend(translator.models, translator.device, shortlist=Shortlist([0, 1, 2, 3], sources))
    for translation in translator.translate(texts, max_length=6):
        assert set(translator.tokenizers.target.encode(translation.text)) <= {UNK, dog}
    for translation in translator.translate(texts, max_length=6, force=["Katze"]):
        assert set(translator.tokenizers.target.encode(translation.text)) <= {UNK, dog, cat}
        assert "Katze" in translation.text
    free = load(shortlisted_run.folder, device="cpu")
    samples = [[one.text for one in each.translate(texts, sample=True)] for each in (translator, free)]
    assert samples[0] == samples[1]  # samples do not depend on the batch


def test_damaged_or_stale_shortlist_is_named(
    shortlisted_run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    copy_run(shortlisted_run, run)
    file = run / "engines" / "shortlist" / SHORTLIST_FILE
    size, whole = file.stat().st_size, file.read_text()
    other = {"common": [600_000], "each": {}}
    for harm, message in {
        "[": "is outdated or damaged",
        "x" * size: "shortlist is damaged",
        json.dumps({"common": 1}).ljust(size): "not a shortlist",
        json.dumps(other).ljust(size): "an id that is not in the vocabulary",
    }.items():
        file.write_text(harm)
        with pytest.raises(UserError, match=rf"{message}.*; run: regard export \S+ --to shortlist"):
            load(run, device="cpu", shortlist=True)
    file.write_text(whole)
    config = Run(run).read_config()
    Run(run).write_config({**config, "model": {**config["model"], "dropout": 0.5}})
    with pytest.raises(UserError, match="is outdated or damaged"):
        load(run, device="cpu", shortlist=True)
    shutil.rmtree(run / "engines")
    with pytest.raises(UserError, match="has no shortlist of target tokens; run: regard export"):
        load(run, device="cpu", shortlist=True)
    assert "decoding with" not in capfd.readouterr().err


def test_shortlist_is_not_used_without_support_of_the_model_or_on_a_gpu(
    shortlisted_run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(BahdanauDecoder, "vocabulary_layers", Decoder.vocabulary_layers)
    assert get_shortlist(load(shortlisted_run.folder, device="cpu", shortlist=True)) is None
    assert (
        f"decoding without a shortlist: the model of {shortlisted_run.folder} does not support"
        in capfd.readouterr().err
    )
    monkeypatch.undo()
    monkeypatch.setattr(exports.LoadedRun, "device", "cuda")
    assert get_shortlist(load(shortlisted_run.folder, device="cpu", shortlist=True)) is None
    assert "decoding without a shortlist: it is for the CPU" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("ctranslate2", "a shortlist works with torch and onnx; for ctranslate2 export it with the model"),
        ("ray", "--shortlist is not for --engine ray"),
    ],
)
def test_engines_without_shortlists_say_so(engine: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        EngineOptions(engine=engine, shortlist=True).check()
