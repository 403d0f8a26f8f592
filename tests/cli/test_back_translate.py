"""`regard data back-translate` and `regard data distill`."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import sacrebleu
import typer
from support.combinations import slow_after
from support.commands import Command, environment
from support.files import write_jsonl
from support.training import corpus_files

from regard.cli import back_translate as translated_pairs
from regard.cli.back_translate import ResumableFile, back_translate, distill
from regard.data.readers.dispatch import read_all_pairs
from regard.errors import UserError
from regard.evaluate.translation_metrics import find_nearest_translation
from regard.runs import Run
from regard.translate import load

BATCH_SIZE = 8


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translated_pairs, "LINES_PER_CHUNK", BATCH_SIZE)


@pytest.fixture
def monolingual_text(corpus: Path, tmp_path: Path) -> Path:
    """Write lines in the source language of the run, some of them blank, one with a tab."""
    lines = (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "mono.en"
    path.write_text("\n".join([*lines[:10], "", *lines[10:20], "   ", "The\tdog .", *lines[20:]]) + "\n", "utf-8")
    return path


def read_rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def test_back_translation_writes_translation_and_original_line(
    run: Run, monolingual_text: Path, tmp_path: Path
) -> None:
    back_translate([run.folder, monolingual_text], out=tmp_path / "back.tsv", sample=True, temperature=0.7)
    lines = [line for line in monolingual_text.read_text(encoding="utf-8").split("\n") if line.strip()]
    made = load(run.folder).translate(lines, sample=True, temperature=0.7)
    expected = [[one.text, one.source.replace("\t", " ")] for one in made if one.ended and one.text]
    assert read_rows(tmp_path / "back.tsv") == expected
    assert len(expected) > len(lines) / 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.tsv", "mono.en"]
    assert read_all_pairs([tmp_path / "back.tsv"])[0].target == lines[0]


def test_back_translation_samples_depend_on_the_seed_only(run: Run, monolingual_text: Path, tmp_path: Path) -> None:
    (tmp_path / "mono.gz").write_bytes(gzip.compress(monolingual_text.read_bytes()))
    back_translate([run.folder, tmp_path / "mono.gz"], out=tmp_path / "a.tsv", sample=True, top_k=10)
    back_translate([run.folder, monolingual_text], out=tmp_path / "b.tsv", sample=True, top_k=10, seed=1)
    back_translate([run.folder, monolingual_text], out=tmp_path / "c.tsv", sample=True, top_k=10, seed=2)
    assert read_rows(tmp_path / "a.tsv") == read_rows(tmp_path / "b.tsv")
    assert read_rows(tmp_path / "b.tsv") != read_rows(tmp_path / "c.tsv")


def test_unfinished_translations_are_left_out_and_counted(
    run: Run, monolingual_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = monolingual_text.read_text(encoding="utf-8").splitlines()
    made = [one for one in load(run.folder).translate(lines, sample=True, max_length=9) if one.source.strip()]
    cut = sum(not one.ended for one in made)
    kept = [one for one in made if one.ended and one.text.strip()]
    assert 0 < len(kept) < len(made)
    back_translate([run.folder, monolingual_text], out=tmp_path / "back.tsv", sample=True, max_length=9)
    assert [target for _, target in read_rows(tmp_path / "back.tsv")] == [one.source.replace("\t", " ") for one in kept]
    report = capsys.readouterr().err
    assert f"{len(kept)} pairs of {len(lines)} lines; skipped: 2 blank lines" in report
    assert (f"{cut} translations that did not come to an end" in report) == (cut > 0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--keep-original"]], ids=["teacher only", "keep original"])
def test_distill_writes_the_targets_of_the_teacher(
    regard: Command, fluent_run: Run, corpus: Path, tmp_path: Path, options: list[str]
) -> None:
    done = regard("data", "distill", fluent_run.folder, *corpus_files(corpus, "test"), "--beam", 2, *options)
    assert done.returncode == 0, done.stderr
    test = read_all_pairs(corpus_files(corpus, "test"))
    expected = []
    for pair, one in zip(test, load(fluent_run.folder).translate([pair.source for pair in test], beam=2), strict=True):
        expected += [f"{pair.source}\t{one.text}"] if one.ended and one.text.strip() else []
        expected += [f"{pair.source}\t{pair.target}"] if options else []
    assert done.stdout.splitlines() == expected
    assert len(expected) > 10


def test_back_translation_without_any_pair_is_an_error(regard: Command, run: Run, tmp_path: Path) -> None:
    (tmp_path / "blank.en").write_text("\n\n", encoding="utf-8")
    done = regard("data", "back-translate", run.folder, "blank.en", "--out", "back.tsv")
    assert done.returncode == 2
    assert "no pairs were written" in done.stderr


def test_two_processes_cannot_write_the_same_file(tmp_path: Path) -> None:
    out = tmp_path / "back.tsv"
    with ResumableFile(out, {"a": 1}).start_new() as first:
        first.write(["x"], Counter(lines=1))
        with pytest.raises(UserError, match=r"another process is writing .*; wait for it$"):
            ResumableFile(out, {"a": 1}).resume()
        first.finish()
    assert out.read_text(encoding="utf-8") == "x\n"
    other = tmp_path / "other.tsv"
    with (
        ResumableFile(other, {}).start_new(),
        pytest.raises(UserError, match=r"another process is writing .*; wait for it, or choose another"),
    ):
        ResumableFile(other, {}).start_new()


def test_new_file_ignores_the_rest_of_an_old_one(tmp_path: Path) -> None:
    out = tmp_path / "out.tsv"
    out.with_name(".out.tsv.part").write_bytes(b"x" * 100)
    with ResumableFile(out, {}).start_new() as file:
        assert json.loads(file.state_path.read_text(encoding="utf-8"))["bytes"] == 0
        file.write(["a\tb"], Counter(lines=1))
    with ResumableFile(out, {}).resume() as file:
        assert list(file.iterate_rows()) == ["a\tb"]
        file.finish()
    assert out.read_text(encoding="utf-8") == "a\tb\n"


def test_nearest_chooses_the_hypothesis_with_the_best_bleu(run: Run, corpus: Path, tmp_path: Path) -> None:
    test = read_all_pairs(corpus_files(corpus, "test"))
    distill([run.folder, *corpus_files(corpus, "test")], out=tmp_path / "d.tsv", nearest=True, beam=4)
    written = dict(read_rows(tmp_path / "d.tsv"))
    made = load(run.folder).translate([pair.source for pair in test], beam=4, n_best=4)
    other = 0
    for pair, one in zip(test, made, strict=True):
        texts = [each.text for each in (one, *one.alternatives) if each.ended and each.text.strip()]
        if texts:
            scores = [sacrebleu.sentence_bleu(text, [pair.target]).score for text in texts]
            assert written[pair.source] == texts[max(range(len(texts)), key=scores.__getitem__)]
            other += written[pair.source] != texts[0]
    assert other > 0
    assert find_nearest_translation(["a b c", "a c"], "a c") == 1
    assert find_nearest_translation(["x", "x"], "y") == 0


RUN_UNTIL_SIGNAL = """
import os, signal, sys
from regard.cli import app, back_translate
from regard.cli.back_translate import ResumableFile
back_translate.LINES_PER_CHUNK = {batch_size}
write, left = ResumableFile.write, [{batches} + 1]
def write_or_stop(self, lines, tally):
    if left[0] == 0:
        self.file.write(b"half a li")
        self.file.flush()
        os.kill(os.getpid(), signal.{signal})
    left[0] -= 1
    write(self, lines, tally)
ResumableFile.write = write_or_stop
app.main()
"""


# Each starts a new interpreter; the test after this one interrupts the command in this process.
@pytest.mark.parametrize(
    ("signal_name", "code", "batches"),
    [
        ("SIGKILL", -9, 2),
        ("SIGKILL", -9, 0),
        ("SIGINT", 130, 0),
        ("SIGINT", 130, 2),
    ],
)
@pytest.mark.slow
def test_resume_after_a_signal_is_identical_to_an_uninterrupted_run(
    run: Run, monolingual_text: Path, tmp_path: Path, signal_name: str, code: int, batches: int
) -> None:
    arguments = ["data", "back-translate", str(run.folder), str(monolingual_text), "--out", "back.tsv", "--sample"]
    program = RUN_UNTIL_SIGNAL.format(batch_size=BATCH_SIZE, batches=batches, signal=signal_name)
    killed = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == code, killed.stderr
    assert not (tmp_path / "back.tsv").exists()
    out, whole = tmp_path / "back.tsv", tmp_path / "whole.tsv"
    back_translate([run.folder, monolingual_text], out=whole, sample=True)
    if batches:
        assert (
            code < 0 or f"stopped after line {batches * BATCH_SIZE}; to resume, run the same command" in killed.stderr
        )
        with pytest.raises(UserError, match=f"has reached line {batches * BATCH_SIZE}: continue with --resume"):
            back_translate([run.folder, monolingual_text], out=out, sample=True)
        with pytest.raises(
            UserError, match=r"can be resumed only with the same options and data: options\.seed was 1, not 2$"
        ):
            back_translate([run.folder, monolingual_text], out=out, sample=True, seed=2, resume=True)
    back_translate([run.folder, monolingual_text], out=out, sample=True, resume=bool(batches))
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.tsv", "mono.en", "whole.tsv"]


def interrupt(monkeypatch: pytest.MonkeyPatch, command: Callable[[], None], batches: int = 2) -> None:
    """Press Ctrl-C after some batches, while the next one is written."""
    real = ResumableFile.write

    def write_or_interrupt(self: ResumableFile, lines: Sequence[str], tally: Counter[str]) -> None:
        if tally["lines"] > batches * BATCH_SIZE:
            self.file.write(b"half a li")
            raise KeyboardInterrupt
        real(self, lines, tally)

    with monkeypatch.context() as patched:
        patched.setattr(ResumableFile, "write", write_or_interrupt)
        with pytest.raises(typer.Exit) as caught:
            command()
    assert caught.value.exit_code == 130


def interrupt_back_translation(
    monkeypatch: pytest.MonkeyPatch, run: Run, text: Path, out: Path, batches: int = 2
) -> None:
    interrupt(monkeypatch, lambda: back_translate([run.folder, text], out=out, sample=True), batches)


@pytest.mark.parametrize("batches", slow_after(1, [2, 0]))
def test_resume_after_ctrl_c_is_identical_to_an_uninterrupted_run(
    run: Run,
    monolingual_text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    batches: int,
) -> None:
    out, whole = tmp_path / "back.tsv", tmp_path / "whole.tsv"
    interrupt_back_translation(monkeypatch, run, monolingual_text, out, batches)
    how = "; to resume, run the same command with --resume" if batches else ""
    assert capsys.readouterr().err.endswith(f"stopped after line {batches * BATCH_SIZE}{how}\n")
    back_translate([run.folder, monolingual_text], out=out, sample=True, resume=bool(batches))
    back_translate([run.folder, monolingual_text], out=whole, sample=True)
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.tsv", "mono.en", "whole.tsv"]


def test_resume_with_mismatched_or_damaged_files_is_refused(
    run: Run, monolingual_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "back.tsv"
    interrupt_back_translation(monkeypatch, run, monolingual_text, out)
    note, unfinished = tmp_path / ".back.tsv.json", tmp_path / ".back.tsv.part"
    assert json.loads(note.read_text(encoding="utf-8"))["tally"]["lines"] == 2 * BATCH_SIZE
    whole, noted = monolingual_text.read_text(encoding="utf-8"), note.read_bytes()
    monolingual_text.write_text("only one\n", encoding="utf-8")
    with pytest.raises(UserError, match="has reached line 16, but the input has only 1 lines"):
        back_translate([run.folder, monolingual_text], out=out, sample=True, resume=True)
    monolingual_text.write_text(whole, encoding="utf-8")
    kept = unfinished.read_bytes()
    unfinished.write_bytes(kept[: json.loads(noted)["bytes"] - 1])
    with pytest.raises(UserError, match="is shorter than"):
        back_translate([run.folder, monolingual_text], out=out, sample=True, resume=True)
    unfinished.write_bytes(kept)
    note.write_text("[", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be read; remove it"):
        back_translate([run.folder, monolingual_text], out=out, sample=True, resume=True)
    note.write_bytes(noted)
    back_translate([run.folder, monolingual_text], out=out, sample=True, resume=True)
    with pytest.raises(UserError, match="nothing to resume"):
        back_translate([run.folder, monolingual_text], out=out, sample=True, resume=True)
    with pytest.raises(UserError, match="already exists"):
        back_translate([run.folder, monolingual_text], out=out, sample=True)


def test_resumed_distillation_keeps_its_direction(
    run: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out, whole = tmp_path / "t.jsonl", tmp_path / "d.tsv", tmp_path / "whole.tsv"
    test = read_all_pairs(corpus_files(corpus, "test"))[: 4 * BATCH_SIZE]
    write_jsonl(data, [{"de": pair.target, "en": pair.source} for pair in test])
    begin = partial(distill, [run.folder, data], out=out, keep_original=True, beam=1)
    interrupt(monkeypatch, begin)
    note, unfinished = tmp_path / ".d.tsv.json", tmp_path / ".d.tsv.part"
    noted = json.loads(note.read_bytes())
    assert (noted["job"]["source"], noted["job"]["target"]) == ("en", "de")
    with pytest.raises(UserError, match="same options and data: source was 'en', not 'eng'"):
        begin(source="eng", resume=True)
    # earlier versions named no languages, and read the file in its own order
    earlier = {key: value for key, value in noted["job"].items() if key not in ("source", "target")}
    kept = unfinished.read_bytes()
    rows = "".join(f"{pair.target}\t{pair.source}\n" for pair in test[: 2 * BATCH_SIZE])
    unfinished.write_bytes(rows.encode())
    note.write_text(json.dumps({**noted, "job": earlier, "bytes": len(rows.encode())}), encoding="utf-8")
    with pytest.raises(UserError, match="or in the other direction"):
        begin(resume=True)
    assert unfinished.read_bytes() == rows.encode()
    unfinished.write_bytes(kept)
    note.write_text(json.dumps({**noted, "job": earlier}), encoding="utf-8")
    begin(resume=True)
    distill([run.folder, data], out=whole, keep_original=True, beam=1)
    assert out.read_bytes() == whole.read_bytes()


def test_invalid_options_are_refused(run: Run, monolingual_text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--out must be a \.tsv file"):
        back_translate([run.folder, monolingual_text], out=tmp_path / "back.txt")
    with pytest.raises(UserError, match="--resume needs --out"):
        back_translate([run.folder, monolingual_text], resume=True)
    with pytest.raises(UserError, match="name one text file, not 2"):
        back_translate([run.folder, monolingual_text, monolingual_text], out=tmp_path / "back.tsv")
    with pytest.raises(UserError, match="top_k needs sample"):
        back_translate([run.folder, monolingual_text], out=tmp_path / "back.tsv", top_k=3)
    with pytest.raises(UserError, match="not nothing"):
        distill([run.folder], out=tmp_path / "back.tsv")
    with pytest.raises(UserError, match="--engine must be one of auto, torch, onnx, ctranslate2 and ray"):
        distill([run.folder, monolingual_text, monolingual_text], out=tmp_path / "back.tsv", engine="spark")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mono.en"]


@pytest.mark.slow
def test_back_translation_on_ray_writes_the_same_pairs(
    regard: Command, run: Run, monolingual_text: Path, tmp_path: Path
) -> None:
    arguments = ["data", "back-translate", run.folder, "-", "--sample"]
    lines = monolingual_text.read_text(encoding="utf-8")
    local = regard(*arguments, input=lines)
    remote = regard(*arguments, "--engine", "ray", "--workers", 1, "--out", "back.tsv", input=lines)
    assert remote.returncode == 0, remote.stderr
    # a busy machine is reported while the worker starts
    reported = [line for line in remote.stderr.splitlines() if not line.startswith("waiting for ")]
    assert reported == local.stderr.splitlines()
    assert (tmp_path / "back.tsv").read_text(encoding="utf-8") == local.stdout != ""
