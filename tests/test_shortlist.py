"""A shortlist of target tokens: learnt where the model looked, and nothing else is written."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.commands import Command
from support.training import TINY, corpus_files
from test_ctranslate2 import ENDS, exported, pieces, small

from regard.cli.engine import Engine
from regard.cli.export import export
from regard.data.corpus import Pair, pairs
from regard.errors import UserError
from regard.fast.ctranslate2 import VMAP, spelt
from regard.models.bahdanau import BahdanauDecoder
from regard.models.seq2seq import Decoder
from regard.runs import Run
from regard.symbols import EOS, NAMES
from regard.training import train
from regard.translate import engines, load
from regard.translate.runtime import Runtime
from regard.translate.shortlist import FILE, Shortlist, learned

SOURCES = [[5, 7, EOS], [9, EOS], [11, 12, 13, EOS]]


@pytest.fixture(scope="module")
def transformer(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out, more = tmp_path_factory.mktemp("runs") / "transformer", {"model.heads": 2, "training.steps": 60}
    return train("default", corpus_files(corpus, "train"), out, dev=corpus_files(corpus, "dev"), **{**TINY, **more})


def test_each_token_has_what_was_written_looking_at_it(fluent_run: Run, corpus: Path) -> None:
    translator, some = load(fluent_run.folder), pairs(corpus_files(corpus, "train"))[:40]
    found = learned(translator, some)
    counts: dict[int, Counter[int]] = {}
    for pair in some:
        (judged,) = translator.judge([(pair.source, pair.target)])
        source = [*translator.tokenizers.source.encode(pair.source), EOS]
        assert judged.hypothesis.attention is not None
        for token, look in zip(judged.hypothesis.tokens, judged.hypothesis.attention.tolist(), strict=True):
            counts.setdefault(source[look.index(max(look))], Counter())[token] += 1
    assert set(range(len(NAMES))) <= set(found.common)
    assert {id for some in counts.values() for id in some} <= found.allowed(counts)
    assert all(set(ids) <= set(counts[source]) for source, ids in found.each.items())


def test_the_most_frequent_are_kept(fluent_run: Run, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.translate.shortlist.COMMON", 3)
    monkeypatch.setattr("regard.translate.shortlist.EACH", 2)
    found = learned(load(fluent_run.folder), pairs(corpus_files(corpus, "train"))[:60])
    assert len(found.common) <= len(NAMES) + 3
    assert 0 < max(map(len, found.each.values())) <= 2


def test_nothing_to_learn_from_is_said(fluent_run: Run) -> None:
    with pytest.raises(UserError, match="there is none"):
        learned(load(fluent_run.folder), [Pair(" ", "x")])


def test_nothing_else_is_written_and_what_everybody_may_write_changes_nothing(tmp_path: Path) -> None:
    model: Any = small("post-norm, none tied, odd", ENDS)
    free, (source, target) = exported(model, tmp_path / "free"), pieces(model)
    for name, shortlist in {
        "all": Shortlist(list(range(23)), {}),
        "few": Shortlist(list(range(4)), {5: [6, 8], 7: [10], 9: [12, 14], 11: [16], 12: [17, 18]}),
    }.items():
        shutil.copytree(tmp_path / "free", tmp_path / name)
        (tmp_path / name / VMAP).write_text(shortlist.written(spelt(source), spelt(target)))
        for one in SOURCES:  # each by itself: those of a batch share their lists
            for found, expected in zip(
                Runtime(tmp_path / name).search([one], beam=3), free.search([one], beam=3), strict=True
            ):
                assert set(found[0].tokens) <= shortlist.allowed(one)
                assert name == "few" or found[0].tokens == expected[0].tokens


def test_a_run_is_exported_with_one(transformer: Run, corpus: Path, regard: Command) -> None:
    said = regard("export", transformer.folder, "--to", "ctranslate2", "--shortlist")
    assert said.returncode == 0, said.stderr
    assert (transformer.folder / "engines" / "ctranslate2-fp32" / VMAP).is_file()
    text = (corpus / "test.en").read_text().splitlines()[0]
    made = regard("translate", transformer.folder, "--engine", "ctranslate2", input=f"{text}\n")
    assert (made.returncode, made.stdout.count("\n")) == (0, 1), made.stderr


def test_every_corpus_has_its_share(
    transformer: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Pair] = []

    def learning(translator: Any, some: Any) -> Shortlist:
        seen.extend(some)
        return Shortlist([0], {})

    monkeypatch.setattr("regard.translate.shortlist.learned", learning)
    monkeypatch.setattr("regard.translate.shortlist.PAIRS", 6)
    (tmp_path / "more.tsv").write_text("".join(f"a{number}\tb{number}\n" for number in range(9)))
    named = [tmp_path / "more.tsv", *corpus_files(corpus, "dev")]
    export(transformer.folder, to="ctranslate2", shortlist=True, data=named, out=tmp_path / "out")
    assert [pair.source for pair in seen[:3]] == ["a0", "a1", "a2"]
    assert [pair.source for pair in seen[3:]] == [pair.source for pair in pairs(corpus_files(corpus, "dev"))[:3]]


def test_what_cannot_be_is_refused(transformer: Run) -> None:
    with pytest.raises(UserError, match="--shortlist is for --to ctranslate2, not onnx"):
        export(transformer.folder, to="onnx", shortlist=True)
    with pytest.raises(UserError, match="--data is what a shortlist is learnt from: --shortlist is missing"):
        export(transformer.folder, to="ctranslate2", data=[Path("x.tsv")])
    with pytest.raises(UserError, match=r"x\.tsv"):
        export(transformer.folder, to="ctranslate2", shortlist=True, data=[Path("x.tsv")])
    with pytest.raises(UserError, match="white space in them, like 'a b'"):
        Shortlist([0], {}).written(["x"], ["a b"])


@pytest.fixture(scope="module")
def listed(fluent_run: Run, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a shortlist beside it."""
    run = tmp_path_factory.mktemp("listed") / "run"
    shutil.copytree(fluent_run.folder, run)
    export(run, to="shortlist", data=corpus_files(corpus, "dev"))
    return Run(run)


def test_a_run_translates_by_its_shortlist(listed: Run, corpus: Path, regard: Command) -> None:
    texts = (corpus / "test.en").read_text().splitlines()[:3]
    said = regard("translate", listed.folder, "--shortlist", "--json", input="".join(f"{text}\n" for text in texts))
    assert said.returncode == 0, said.stderr
    assert f"decoding by {listed.folder / 'engines' / 'shortlist'}" in said.stderr
    made = [json.loads(line) for line in said.stdout.splitlines()]
    by_list, free = load(listed.folder, device="cpu", shortlist=True), load(listed.folder, device="cpu")
    assert by_list.shortlist == learned(free, pairs(corpus_files(corpus, "dev")))
    assert [one["tokens"] for one in made] == [one.tokens for one in by_list.translate(texts)]
    assert [one.tokens for one in by_list.translate(texts, forbid=["der"])] == [
        one.tokens for one in free.translate(texts, forbid=["der"])
    ]
    scored = [each.judge([(texts[0], "die Katze .")])[0].hypothesis.log_prob for each in (by_list, free)]
    assert scored[0] == scored[1]


def test_only_what_a_batch_may_become_is_written(listed: Run, corpus: Path) -> None:
    translator, texts = load(listed.folder, device="cpu"), (corpus / "test.en").read_text().splitlines()[:4]
    words = [translator.tokenizers.target.encode(word) for word in ("Hund", "Katze")]
    (dog,), (cat,) = words
    sources = {id: [dog] for text in texts for id in translator.tokenizers.source.encode(text)}
    translator.shortlist = Shortlist([0, 1, 2, 3], sources)
    for made in translator.translate(texts, max_length=6):
        assert set(translator.tokenizers.target.encode(made.text)) <= {dog}
    for made in translator.translate(texts, max_length=6, force=["Katze"]):
        assert set(translator.tokenizers.target.encode(made.text)) <= {dog, cat}
        assert "Katze" in made.text
    free = load(listed.folder, device="cpu")
    drawn = [[one.text for one in each.translate(texts, sample=True)] for each in (translator, free)]
    assert drawn[0] == drawn[1]  # what is drawn does not depend on the batch


def test_a_shortlist_that_is_no_use_is_named(listed: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(listed.folder, run)
    file = run / "engines" / "shortlist" / FILE
    size, whole = file.stat().st_size, file.read_text()
    other = {"common": [600_000], "each": {}}
    for harm, message in {
        "[": "is not of this model as it is now, or is damaged",
        "x" * size: "shortlist is damaged",
        json.dumps({"common": 1}).ljust(size): "no shortlist",
        json.dumps(other).ljust(size): "an id that is not in the vocabulary",
    }.items():
        file.write_text(harm)
        with pytest.raises(UserError, match=rf"{message}.*: regard export \S+ --to shortlist"):
            load(run, device="cpu", shortlist=True)
    file.write_text(whole)
    config = Run(run).config()
    Run(run).write_config({**config, "model": {**config["model"], "dropout": 0.5}})
    with pytest.raises(UserError, match="is not of this model as it is now, or is damaged"):
        load(run, device="cpu", shortlist=True)
    shutil.rmtree(run / "engines")
    with pytest.raises(UserError, match="has no shortlist of target tokens: regard export"):
        load(run, device="cpu", shortlist=True)
    assert "decoding by" not in capfd.readouterr().err


def test_a_model_that_cannot_do_with_fewer_words_goes_without(
    listed: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(BahdanauDecoder, "vocabulary", Decoder.vocabulary)
    assert load(listed.folder, device="cpu", shortlist=True).shortlist is None
    assert f"no shortlist is used: the model of {listed.folder} writes all" in capfd.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(engines.Opened, "device", "cuda")
    assert load(listed.folder, device="cpu", shortlist=True).shortlist is None
    assert "no shortlist is used: it is for the CPU" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("ctranslate2", "a shortlist goes with torch and onnx; that of ctranslate2 is exported with its model"),
        ("ray", "--shortlist is not for --engine ray"),
    ],
)
def test_who_has_no_shortlist_says_so(engine: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Engine(engine, None, None, shortlist=True).check()
