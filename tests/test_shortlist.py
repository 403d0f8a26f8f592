"""A shortlist of target tokens: learnt where the model looked, and nothing else is written."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK, Command, files
from test_ctranslate2 import ENDS, exported, pieces, small

from regard.cli.export import export
from regard.data.corpus import Pair, pairs
from regard.errors import UserError
from regard.fast.ctranslate2 import VMAP, spelt
from regard.runs import Run
from regard.symbols import EOS, NAMES
from regard.training import train
from regard.translate import load
from regard.translate.runtime import Runtime
from regard.translate.shortlist import Shortlist, learned

SOURCES = [[5, 7, EOS], [9, EOS], [11, 12, 13, EOS]]


@pytest.fixture(scope="module")
def transformer(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out, more = tmp_path_factory.mktemp("runs") / "transformer", {"model.heads": 2, "training.steps": 60}
    return train("default", files(corpus, "train"), out, dev=files(corpus, "dev"), **{**QUICK, **more})


def test_each_token_has_what_was_written_looking_at_it(able: Run, corpus: Path) -> None:
    translator, some = load(able.folder), pairs(files(corpus, "train"))[:40]
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


def test_the_most_frequent_are_kept(able: Run, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.translate.shortlist.COMMON", 3)
    monkeypatch.setattr("regard.translate.shortlist.EACH", 2)
    found = learned(load(able.folder), pairs(files(corpus, "train"))[:60])
    assert len(found.common) <= len(NAMES) + 3
    assert 0 < max(map(len, found.each.values())) <= 2


def test_nothing_to_learn_from_is_said(able: Run) -> None:
    with pytest.raises(UserError, match="there is none"):
        learned(load(able.folder), [Pair(" ", "x")])


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
    named = [tmp_path / "more.tsv", *files(corpus, "dev")]
    export(transformer.folder, to="ctranslate2", shortlist=True, data=named, out=tmp_path / "out")
    assert [pair.source for pair in seen[:3]] == ["a0", "a1", "a2"]
    assert [pair.source for pair in seen[3:]] == [pair.source for pair in pairs(files(corpus, "dev"))[:3]]


def test_what_cannot_be_is_refused(transformer: Run) -> None:
    with pytest.raises(UserError, match="--shortlist is for --to ctranslate2, not onnx"):
        export(transformer.folder, to="onnx", shortlist=True)
    with pytest.raises(UserError, match="--data is what a shortlist is learnt from: --shortlist is missing"):
        export(transformer.folder, to="ctranslate2", data=[Path("x.tsv")])
    with pytest.raises(UserError, match=r"x\.tsv"):
        export(transformer.folder, to="ctranslate2", shortlist=True, data=[Path("x.tsv")])
    with pytest.raises(UserError, match="white space in them, like 'a b'"):
        Shortlist([0], {}).written(["x"], ["a b"])
