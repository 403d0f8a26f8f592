"""The command line as a user meets it: real processes, real signals."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.commands import ROOT, Command, environment, regard_command
from support.training import TINY, corpus_files

from regard.cli.train import spread
from regard.documents import translated
from regard.runs import Run
from regard.translate import load
from regard.version import VERSION

KEYS = [f"{key}={'null' if value is None else value}" for key, value in TINY.items()]


def test_help_answers_without_pytorch() -> None:
    look = "import sys, regard.cli.app as a; sys.argv = ['regard', '--help']\ntry: a.main()\nexcept SystemExit: pass\n"
    look += "assert not {'torch', 'numpy', 'matplotlib', 'sacrebleu'} & set(sys.modules), sorted(sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    for verb in ("demo", "train", "translate", "evaluate", "plot", "recipes", "runs", "data"):
        assert verb in done.stdout


@pytest.mark.parametrize(
    "verb", ["demo", "train", "translate", "evaluate", "align", "plot", "recipes", "reproduce", "runs", "data make"]
)
def test_every_verb_explains_itself_with_an_example(regard: Command, verb: str) -> None:
    done = regard(*verb.split(), "--help")
    assert done.returncode == 0
    assert f"regard {verb}" in done.stdout
    assert "Example" in done.stdout


def test_version(regard: Command) -> None:
    assert regard("--version").stdout == f"regard {VERSION}\n"


def test_recipes(regard: Command) -> None:
    listed = regard("recipes").stdout
    assert all(name in listed for name in ("bahdanau2015", "luong2015-global", "vaswani2017-base", "default"))
    shown = regard("recipes", "bahdanau2015")
    assert shown.stdout == (ROOT / "regard/recipes/bahdanau2015.yaml").read_text(encoding="utf-8")


def test_data_make(regard: Command, tmp_path: Path) -> None:
    done = regard("data", "make", "--pairs", 40, "--out", "c", "--seed", 3)
    assert done.returncode == 0
    names = {f"{split}.{ending}" for split in ("train", "dev", "test") for ending in ("en", "de", "align")}
    assert {path.name for path in (tmp_path / "c").iterdir()} == names
    assert len((tmp_path / "c/train.en").read_text(encoding="utf-8").splitlines()) == 40
    assert regard("data", "make", "--pairs", 2, "--out", "d").returncode == 2
    again = regard("data", "make", "--pairs", 50, "--out", "c")
    assert again.returncode == 2
    assert "c already holds train.en" in again.stderr
    assert len((tmp_path / "c/train.en").read_text(encoding="utf-8").splitlines()) == 40
    (tmp_path / "file").touch()
    blocked = regard("data", "make", "--pairs", 50, "--out", "file/x")
    assert (blocked.returncode, blocked.stderr.count("\n")) == (2, 1)
    assert "Not a directory" in blocked.stderr


def test_from_training_to_a_picture(regard: Command, corpus: Path, tmp_path: Path) -> None:
    done = regard(
        "train",
        *corpus_files(corpus, "train"),
        "--dev",
        *corpus_files(corpus, "dev"),
        "--recipe",
        "luong2015-global",
        "--out",
        "r",
        *KEYS,
    )
    assert done.returncode == 0, done.stderr
    assert "step 24/24" in done.stderr
    assert (tmp_path / "r" / "report.html").is_file()
    assert len(list((tmp_path / "r" / "samples").glob("attention-*.png"))) == 5
    assert "translate with: regard translate r FILE" in done.stderr
    assert Run(tmp_path / "r").config()["model"]["size"] == 24
    text = (corpus / "test.en").read_text(encoding="utf-8")
    made = regard("translate", "r", input=text + "\n")
    assert made.returncode == 0
    assert len(made.stdout.splitlines()) == len(text.splitlines()) + 1
    assert made.stdout.endswith("\n\n")
    assert regard("translate", "r", corpus / "test.en").stdout == made.stdout[:-1]
    scored = json.loads(
        regard("evaluate", "r", *corpus_files(corpus, "test"), "--gold", corpus / "test.align", "--json").stdout
    )
    figures = {"bleu", "chrf", "ter", "perplexity", "accuracy", "aer", "precision", "recall"}
    assert figures < set(scored)
    assert all(scored[name] > 0 for name in ("ter", "perplexity", "aer", "precision", "recall"))
    told = regard("evaluate", "r", *corpus_files(corpus, "test"), "--gold", corpus / "test.align").stdout
    assert f"aer        {scored['aer']:.4f}  precision {scored['precision']:.4f}" in told
    (tmp_path / "out.de").write_text(made.stdout[:-1], encoding="utf-8")
    again = regard("evaluate", "--hypothesis", "out.de", *corpus_files(corpus, "test"), "--json")
    assert json.loads(again.stdout)["bleu"] == pytest.approx(scored["bleu"])
    pictures: list[tuple[str, bytes, list[str]]] = [
        ("a.png", b"\x89PNG", []),
        ("deep/a.svg", b"<?xml", []),
        ("s.png", b"\x89PNG", ["--steps"]),
        ("a.gif", b"GIF8", []),
    ]
    for picture, magic, options in pictures:
        drawn = regard("plot", "r", text.splitlines()[0], "--out", picture, *options)
        assert drawn.returncode == 0, drawn.stderr
        assert drawn.stdout.splitlines() == [made.stdout.splitlines()[0], picture]
        assert (tmp_path / picture).read_bytes().startswith(magic)


def test_forms_of_output(regard: Command, run: Run) -> None:
    text = "The dog sleeps .\n\nThe man reads a book .\n"
    rows = [
        json.loads(line)
        for line in regard("translate", run.folder, "--json", "--n-best", 2, input=text).stdout.splitlines()
    ]
    assert [row["source"] for row in rows] == text.split("\n")[:-1]
    assert rows[1]["text"] == ""
    assert rows[1]["alignment"] is None
    assert len(rows[0]["alignment"]["soft"]) == len(rows[0]["text"].split())
    assert rows[0]["alternatives"][0]["score"] <= rows[0]["score"]
    linked = regard("translate", run.folder, "--alignments", "pharaoh", input=text).stdout.splitlines()
    assert linked[0].split(" ||| ")[0] == rows[0]["text"]
    links = [tuple(map(int, link.split("-"))) for link in linked[0].split(" ||| ")[1].split()]
    assert sorted(links) == sorted(map(tuple, rows[0]["alignment"]["pairs"]))
    best = regard("translate", run.folder, "--n-best", 2, input="The dog sleeps .\n").stdout.splitlines()
    assert [line.split(" ||| ")[0] for line in best] == ["0", "0"]
    assert best[0].split(" ||| ")[1] == rows[0]["text"]


@pytest.mark.thorough
def test_default_names_and_a_single_file(regard: Command, corpus: Path, tmp_path: Path) -> None:
    sides = [path.read_text(encoding="utf-8").splitlines() for path in corpus_files(corpus, "train")]
    (tmp_path / "de-en.tsv").write_text("".join(f"{b}\t{a}\n" for a, b in zip(*sides, strict=True)), encoding="utf-8")
    done = regard("train", "de-en.tsv", "training.steps=1", "training.validate_pairs=2")
    assert done.returncode == 0, done.stderr
    config = Run(tmp_path / "runs/de-en-default").config()
    assert (config["recipe"], config["data"]["source"], config["data"]["target"]) == ("default", "de", "en")
    assert "270 pairs" in done.stderr


BAD = [
    (["train", "nowhere.tsv"], "there is no file nowhere.tsv"),
    (["train", "a.en", "b.de", "--out", "x"], "a.en has 3 lines and b.de has 2"),
    (["train", "latin.tsv", "--out", "x"], "latin.tsv:2: not UTF-8"),
    (["train", "empty.tsv", "--out", "x"], "empty.tsv: no pairs"),
    (["train", "good.tsv", "--out", "x", "--recipe", "bahdanou2015"], "did you mean 'bahdanau2015'?"),
    (["train", "good.tsv", "--out", "x", "model.sise=3"], "did you mean 'model.size'?"),
    (
        ["train", "good.tsv", "--steps", "4"],
        "there is no option --steps; keys of the recipe stand alone: training.steps=…",
    ),
    (["train", "good.tsv", "--label-smoothing=0.2"], "stand alone: loss.label_smoothing=0.2"),
    (["train", "good.tsv", "--out", "x", "model.size=big"], "model.size is a whole number, not 'big'"),
    (["train", "good.tsv", "--out", "x", "--recipe", "no.yaml"], "there is no recipe file no.yaml"),
    (["train", "good.tsv", "--out", "x", "training.device=cuda"], "this machine has no cuda"),
    (["train", "good.tsv", "--out", "x", "--resume"], "x is not a run"),
    (["train"], "nothing to train on"),
    (["train", "--resume"], "--resume needs --out"),
    (["train", "good.tsv", "--out", "x", "size=3"], "did you mean 'model.size'?"),
    (["train", "good.tsv", "--out", "x", "model.size=0"], "size must be at least 1, not 0"),
    (["train", "good.tsv", "--out", "x", "training.betas=[2,3]"], "not [2.0, 3.0]"),
    (["translate", "nowhere"], "there is no run nowhere"),
    (["evaluate", "nowhere", "good.tsv"], "nowhere"),
    (["plot", "nowhere", "a sentence"], "nowhere is not a run"),
    (["plot", "nowhere"], "a run and a sentence in quotes, not 1 arguments"),
    (["plot", "nowhere", "a", "--heads", "--steps"], "one picture at a time"),
    (["plot", "nowhere", "good.tsv", "--by-length"], "there is no run nowhere"),
    (["align", "nowhere", "good.tsv"], "there is no run nowhere"),
    (["recipes", "defaut"], "did you mean 'default'?"),
    (["demo", "--recipe", "nothing"], "there is no recipe 'nothing'"),
    (["demo", "--task", "tag", "--recipe", "yang2016"], "the recipe yang2016 is of the task classify, not tag"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(
    regard: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n", encoding="utf-8")
    (tmp_path / "b.de").write_text("eins\nzwei\n", encoding="utf-8")
    (tmp_path / "latin.tsv").write_bytes(b"one\teins\ntwo\tgr\xfc\xdfe\n")
    (tmp_path / "empty.tsv").write_text("", encoding="utf-8")
    (tmp_path / "good.tsv").write_text("one\teins\ntwo\tzwei\n", encoding="utf-8")
    before = sorted(path.name for path in tmp_path.iterdir())
    done = regard(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.startswith("regard: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("one\n", [], "standard input:1: no tab"),
        ("", [], "standard input: no pairs"),
        ("one\teins\ntwo\tzwei\n", ["model.sise=3"], "did you mean 'model.size'?"),
        ("one\n", ["--find-rate"], "standard input:1: no tab"),
    ],
)
def test_a_pipe_that_is_refused_leaves_nothing_behind(
    regard: Command, tmp_path: Path, text: str, arguments: list[str], message: str
) -> None:
    out = [] if "--find-rate" in arguments else ["--out", "runs/x"]
    done = regard("train", "-", *out, *arguments, input=text)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_a_run_goes_on_from_what_came_through_a_pipe(regard: Command, corpus: Path, tmp_path: Path) -> None:
    sides = [path.read_text(encoding="utf-8").splitlines() for path in corpus_files(corpus, "train")]
    text = "".join(f"{one}\t{other}\n" for one, other in zip(*sides, strict=True))
    done = regard("train", "-", "--out", "x", *KEYS, "training.steps=12", input=text)
    assert done.returncode == 0, done.stderr
    assert "what came through - is kept as x/data/" in done.stderr
    (copy,) = (tmp_path / "x/data").iterdir()
    again = regard("train", "-", "--out", "x", input=text)
    other = regard("train", "-", "--out", "x", "--resume", "model.size=2", input="one\teins\n")
    assert (again.returncode, other.returncode) == (2, 2)
    assert list((tmp_path / "x/data").iterdir()) == [copy], "what a run has stays, and what it has not goes"
    assert copy.read_text(encoding="utf-8") == text
    assert regard("train", "--resume", "--out", "x", "training.steps=24").returncode == 0


@pytest.mark.thorough
def test_a_memory_through_a_pipe_is_trained_on(regard: Command, corpus: Path, tmp_path: Path) -> None:
    sides = [path.read_text(encoding="utf-8").splitlines() for path in corpus_files(corpus, "train")]
    rows = [json.dumps({"en": one, "de": other}) + "\n" for one, other in zip(*sides, strict=True)]
    packed = gzip.compress("".join(rows).encode())
    done = regard("train", "-", "--source", "de", "--out", "x", *KEYS, "training.steps=1", input=packed)
    assert done.returncode == 0, done.stderr
    data = Run(tmp_path / "x").config()["data"]
    assert (data["source"], data["target"]) == ("de", "en")
    assert data["train"][0].endswith(".jsonl.gz")


def test_a_run_is_never_overwritten(regard: Command, run: Run, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "x")
    content = {path: path.read_bytes() for path in (tmp_path / "x").rglob("*") if path.is_file()}
    done = regard("train", *corpus_files(corpus, "train"), "--out", "x")
    assert done.returncode == 2
    assert "x already holds a run; go on with it by --resume" in done.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "x").rglob("*") if path.is_file()} == content


def test_a_damaged_checkpoint_is_one_sentence(regard: Command, run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "x")
    copy = Run(tmp_path / "x")
    for step in copy.steps():
        (copy.checkpoint_folder(step) / "model.safetensors").write_bytes(b"nothing")
    for arguments in (("translate", "x"), ("train", "--resume", "--out", "x", "training.steps=30")):
        done = regard(*arguments, input="The dog sleeps .\n")
        assert done.returncode == 2
        assert "is damaged: model.safetensors does not match its checksum" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_a_signal_saves_a_checkpoint_and_going_on_ends_as_if_nothing_had_been(
    regard: Command, corpus: Path, tmp_path: Path, number: signal.Signals
) -> None:
    base = [
        "train",
        *corpus_files(corpus, "train"),
        "--dev",
        *corpus_files(corpus, "dev"),
        "--recipe",
        "bahdanau2015",
        *KEYS,
        "training.log_every=1",
    ]
    base += ["model.dropout=0.2", "training.steps=60", "training.validate_every=30", "training.checkpoint_every=30"]
    with subprocess.Popen(
        regard_command([*base, "--out", "cut"]), stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 5/"):
                process.send_signal(number)
                break
        rest = process.stderr.read()
    assert process.returncode == 128 + number
    assert "checkpoint saved; go on with: regard train --resume --out cut" in rest
    stopped = Run(tmp_path / "cut").newest()
    assert 5 <= stopped < 60
    assert regard("train", "--resume", "--out", "cut").returncode == 0
    assert regard(*base, "--out", "whole").returncode == 0
    ends = [Run(tmp_path / name).checkpoint_folder(60) / "model.safetensors" for name in ("cut", "whole")]
    assert ends[0].read_bytes() == ends[1].read_bytes()


def test_a_closed_pipe_ends_quietly(run: Run, tmp_path: Path) -> None:
    with subprocess.Popen(
        regard_command(["translate", run.folder, "--beam", 1]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"The dog sleeps .\n" * 300)
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE


def test_text_that_is_not_utf8_on_standard_input(regard: Command, run: Run) -> None:
    done = regard("translate", run.folder, input=b"The dog .\n\xff\xfe\n")
    assert done.returncode == 2
    assert "standard input:2: not UTF-8" in done.stderr


def test_two_files_may_follow_dev() -> None:
    assert spread(["a", "b", "--dev", "c.en", "c.de", "--out", "x"]) == [
        "a",
        "b",
        "--dev",
        "c.en",
        "--dev",
        "c.de",
        "--out",
        "x",
    ]
    assert spread(["--dev", "c.tsv", "a.en", "a.de"]) == ["--dev", "c.tsv", "a.en", "a.de"]
    assert spread(["a", "--dev", "c.en", "--out", "x"]) == ["a", "--dev", "c.en", "--out", "x"]
    assert spread(["a", "--dev", "c.en", "model.size=3"]) == ["a", "--dev", "c.en", "model.size=3"]


def test_a_line_is_answered_before_the_next_is_written(run: Run, tmp_path: Path) -> None:
    with subprocess.Popen(
        regard_command(["translate", run.folder, "--beam", 1, "--min-length", 3]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers = []
        for line in ("The dog sleeps .", "", "The man reads a book ."):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answers.append(process.stdout.readline())
        process.stdin.close()
        assert process.stdout.read() == ""
    assert process.returncode == 0
    assert answers[1] == "\n"
    assert all(answer.strip() for answer in answers[::2])


def test_words_that_must_and_must_not_be_there(regard: Command, run: Run, tmp_path: Path) -> None:
    text = "The dog sleeps .\nThe man reads a book .\n"
    (tmp_path / "terms.tsv").write_text("dog\tKatze\n\nbook\tBuch\n", encoding="utf-8")
    made = regard("translate", run.folder, "--glossary", "terms.tsv", "--prefix", "Heute", input=text)
    first, second = made.stdout.splitlines()
    assert "Katze" in first
    assert "Buch" in second
    assert first.startswith("Heute")
    forced = regard("translate", run.folder, "--force", "die Frau", "--force", "Hund", input=text).stdout.splitlines()
    assert all("die Frau" in line and "Hund" in line for line in forced)
    some = ["translate", run.folder, "--min-length", 4]
    word = regard(*some, input=text).stdout.splitlines()[0].split()[0]
    assert word not in regard(*some, "--forbid", word, input=text).stdout.splitlines()[0].split()
    tagged = regard("translate", run.folder, "--tags", input="The <b>dog</b> sleeps .\n").stdout
    assert tagged.count("<b>") == tagged.count("</b>") == 1


def test_what_is_drawn_is_seeded(regard: Command, run: Run) -> None:
    def drawn(seed: int) -> str:
        return regard(
            "translate", run.folder, "--sample", "--seed", seed, "--n-best", 3, input="The dog sleeps .\n"
        ).stdout

    assert drawn(1) == drawn(1) != drawn(2)
    assert len(drawn(1).splitlines()) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--length-penalty", "short"], "--length-penalty is a number or 'average', not 'short'"),
        (["--n-best", "6"], "n_best 6, beam 5"),
        (["--force", "Xylophon"], "'Xylophon' cannot be forced"),
        (["--prefix", "Der Hund", "--max-length", "2"], "a prefix of 2 tokens leaves no room for EOS"),
        (["--glossary", "bad.tsv"], "bad.tsv:1: an entry is a term, a tab and its translation"),
        (["--alignments", "naacl"], "--alignments is 'pharaoh', not 'naacl'"),
        (["--alignments", "pharaoh", "--json"], "--json has the links already"),
        (["--alignments", "pharaoh", "--tags"], "--tags puts tags among them"),
        (["--top-k", "3"], "top_k needs sample"),
        (["--glossary", "odd.tsv"], "'Xylophon' cannot be forced"),
        (["--sample", "--top-p", "2"], "top_p must be more than 0 and at most 1, not 2.0"),
    ],
)
def test_wishes_that_cannot_be_met(regard: Command, run: Run, tmp_path: Path, options: list[str], message: str) -> None:
    (tmp_path / "bad.tsv").write_text("no tab\n", encoding="utf-8")
    (tmp_path / "odd.tsv").write_text("never seen\tXylophon\n", encoding="utf-8")
    done = regard("translate", run.folder, *options, input="The dog sleeps .\n")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_given_pairs_are_aligned(regard: Command, run: Run, corpus: Path, tmp_path: Path) -> None:
    test = corpus_files(corpus, "test")
    done = regard("align", run.folder, *test, "--gold", corpus / "test.align")
    count = len(test[0].read_text(encoding="utf-8").splitlines())
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == count
    scored = json.loads(
        regard("evaluate", run.folder, *test, "--gold", corpus / "test.align", "--beam", 1, "--json").stdout
    )
    assert f"aer {scored['aer']:.4f}" in done.stderr
    rows = [json.loads(line) for line in regard("align", run.folder, *test, "--json").stdout.splitlines()]
    for row, line in zip(rows, done.stdout.splitlines(), strict=True):
        assert " ".join(f"{left}-{right}" for left, right in row["pairs"]) == line
        assert row["score"] < 0
    refused = regard("align", run.folder, *test, "--symmetrize", run.folder)
    assert refused.returncode == 2
    assert "takes a run of the other direction" in refused.stderr
    keys = [key for key in KEYS if not key.startswith("training.steps")]
    back = regard("train", *reversed(corpus_files(corpus, "train")), "--out", "back", *keys, "training.steps=2")
    assert back.returncode == 0, back.stderr
    both = regard("align", run.folder, *test, "--symmetrize", "back")
    assert both.returncode == 0, both.stderr
    assert len(both.stdout.splitlines()) == count


def test_a_head_is_chosen_by_gold_alignments_or_without(regard: Command, corpus: Path, tmp_path: Path) -> None:
    keys = [*KEYS, "model.heads=2"]
    trained = regard("train", *corpus_files(corpus, "train"), "--recipe", "vaswani2017-base", "--out", "t", *keys)
    assert trained.returncode == 0, trained.stderr
    test, gold = corpus_files(corpus, "test"), corpus / "test.align"
    done = regard("align", "t", *test, "--gold", gold, "--choose-head")
    assert done.returncode == 0, done.stderr
    errors = [float(line.split("aer ")[1].split(",")[0]) for line in done.stdout.splitlines()[:-1]]
    assert len(errors) == 6, "two heads and their mean, at the step that writes a word and at the one after it"
    assert errors == sorted(errors)
    assert f"aer {errors[0]:.4f}" in regard("align", "t", *test, "--gold", gold).stderr
    heads = regard("plot", "t", "The dog sleeps .", "--heads", "--out", "h.png")
    assert heads.returncode == 0, heads.stderr
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")
    lengths = regard("plot", "t", *test, "--by-length", "--out", "l.svg", "--beam", 1)
    assert lengths.returncode == 0, lengths.stderr
    assert "t  1–10 words: " in lengths.stdout
    assert (tmp_path / "l.svg").read_bytes().startswith(b"<?xml")
    alone = regard("align", "t", *test, "--choose-head")
    assert alone.returncode == 0, alone.stderr
    shares = [float(line.rsplit(" ", 1)[1].rstrip("%")) for line in alone.stdout.splitlines()[:-1]]
    assert len(shares) == 6
    assert shares == sorted(shares, reverse=True)
    refused = regard("align", "t", *test, "--choose-head", "--json")
    assert refused.returncode == 2
    assert "goes with neither --json nor --symmetrize" in refused.stderr
    config = Run(tmp_path / "t").config()
    other = Run(shutil.copytree(tmp_path / "t", tmp_path / "other"))
    other.write_config({**config, "model": {**config["model"], "align_after": not config["model"]["align_after"]}})
    alone, both = (regard("align", *runs, *test) for runs in (["t"], ["t", "other"]))
    assert alone.stdout == both.stdout, "attention is that of those which look as the first does"
    older = {key: value for key, value in config["model"].items() if not key.startswith("align_")}
    Run(tmp_path / "t").write_config({**config, "model": older})
    again = regard("align", "t", *test, "--gold", gold, "--choose-head")
    assert again.returncode == 0, again.stderr
    pieces = regard("plot", "t", "The dog sleeps .\nIt sleeps .", "--out", "p.gif")
    assert pieces.returncode == 2
    assert "in several pieces" in pieces.stderr


def test_systems_are_compared(regard: Command, run: Run, corpus: Path, tmp_path: Path) -> None:
    references = (corpus / "test.de").read_text(encoding="utf-8")
    (tmp_path / "good.de").write_text(references, encoding="utf-8")
    (tmp_path / "bad.de").write_text(references.replace("der", "das").replace("die", "das"), encoding="utf-8")
    done = regard(
        "evaluate", "--hypothesis", "good.de", "--hypothesis", "bad.de", *corpus_files(corpus, "test"), "--json"
    )
    assert done.returncode == 0, done.stderr
    good, bad = json.loads(done.stdout)["systems"]
    assert good["bleu"] > bad["bleu"]
    assert good["bootstrap"]["p"] is None
    assert bad["bootstrap"]["p"] < 0.05
    for arguments in (("--compare",), ("--gold-first", 1)):
        assert regard("evaluate", run.folder, *corpus_files(corpus, "test"), *arguments).returncode == 2
    assert regard("evaluate", "--hypothesis", "good.de", *corpus_files(corpus, "test"), "--beam", 1).returncode == 2
    shutil.copytree(run.folder, tmp_path / "twin")
    told = regard("evaluate", run.folder, "twin", *corpus_files(corpus, "test"), "--compare", "--beam", 1).stdout
    assert told.count("system ") == 2
    assert "the baseline" in told
    assert "against the baseline" in told


def test_standard_input_by_its_name_and_a_pipe_with_a_name(regard: Command, run: Run, tmp_path: Path) -> None:
    text = "The dog sleeps .\n"
    expected = regard("translate", run.folder, input=text).stdout
    assert regard("translate", run.folder, "-", input="\ufeff" + text).stdout == expected
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(text, encoding="utf-8"))
    writer.start()
    assert regard("translate", run.folder, "pipe").stdout == expected
    writer.join()


def test_what_was_cut_off_is_counted(regard: Command, run: Run) -> None:
    done = regard("translate", run.folder, "--prefix", "Der alte", "--max-length", 3, "--json", input="The dog .\n\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[1]["ended"]
    assert ("1 of 2 translations did not come to an end" in done.stderr) == (not rows[0]["ended"])


def test_a_document_is_translated_as_a_whole(regard: Command, run: Run, tmp_path: Path) -> None:
    content = {
        "page.html": b"<p>The <b>dog</b> sleeps .</p>",
        "words.po": b'msgid "The dog sleeps ."\nmsgstr ""\n',
    }
    translator = load(run.folder)
    for name, source in content.items():
        (tmp_path / name).write_bytes(source)
        made = translated(name, source, lambda texts: [one.text for one in translator.translate(texts, tags=True)])
        assert regard("translate", run.folder, name).stdout == made.decode()
    assert "one document at a time" in regard("translate", run.folder, *content).stderr
    for option in (["--json"], ["--n-best", 2], ["--alignments", "pharaoh"]):
        done = regard("translate", run.folder, "page.html", *option)
        assert (done.returncode, done.stdout) == (2, "")
        assert "page.html is translated as a document" in done.stderr
    (tmp_path / "not.docx").write_bytes(b"no zip file")
    done = regard("translate", run.folder, "not.docx")
    assert (done.returncode, done.stdout) == (2, "")
    assert "not.docx" in done.stderr
