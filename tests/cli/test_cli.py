"""The command line: help, errors, training, translation, evaluation, signals and pipes."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from support.commands import ROOT, Command, environment, regard_command
from support.files import write_jsonl
from support.in_process import run_in_process
from support.training import TINY, corpus_files, format_overrides, train_tiny

from regard import api
from regard.cli.app import app, exit_with_error, main
from regard.cli.options import read_pairs
from regard.cli.train import expand_dev_arguments
from regard.cli.translate import count_translation, format_translation, log_warnings
from regard.console import log_message, make_progress_bar
from regard.documents import translate_document
from regard.errors import UserError, make_nan_error
from regard.recipes.recipe import read_recipe
from regard.runs import Run
from regard.training import train
from regard.translate import Translation, load
from regard.version import VERSION

TINY_ARGUMENTS = format_overrides(TINY)


def list_commands(group: Any, *parents: str) -> list[str]:
    """Return the full names of all commands, such as "data make"."""
    names = [(*parents, name) for name in group.commands]
    return [
        command
        for name, child in zip(names, group.commands.values(), strict=True)
        for command in (list_commands(child, *name) if hasattr(child, "commands") else [" ".join(name)])
    ]


COMMANDS = list_commands(typer.main.get_command(app))


@pytest.fixture(params=["in process", pytest.param("forked", marks=pytest.mark.slow)])
def command(request: pytest.FixtureRequest, tmp_path: Path, regard: Command) -> Command:
    """Run the command in `tmp_path`: in this process, and by `make test-slow` in a forked one."""

    def call(*arguments: object, input: str | bytes = b"") -> subprocess.CompletedProcess[str]:
        data = input.encode() if isinstance(input, str) else input
        return run_in_process(list(map(str, arguments)), tmp_path, data, tmp_path.with_suffix(".streams"))

    return call if request.param == "in process" else regard


def test_help_does_not_import_pytorch() -> None:
    script = (
        "import sys, regard.cli.app as a; sys.argv = ['regard', '--help']\ntry: a.main()\nexcept SystemExit: pass\n"
    )
    script += "assert not {'torch', 'numpy', 'matplotlib', 'sacrebleu'} & set(sys.modules), sorted(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert name.split()[0] in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(command: Command, name: str) -> None:
    done = command(*name.split(), "--help")
    assert done.returncode == 0
    assert f"regard {name}" in done.stdout
    assert "Example" in done.stdout


def test_version_option_prints_the_version(regard: Command) -> None:
    assert regard("--version").stdout == f"regard {VERSION}\n"


def test_recipes_are_listed_and_printed(command: Command) -> None:
    listed = command("recipes").stdout
    assert all(name in listed for name in ("bahdanau2015", "luong2015-global", "vaswani2017-base", "default"))
    shown = command("recipes", "bahdanau2015").stdout
    assert shown.startswith((ROOT / "regard/recipes/bahdanau2015.yaml").read_text(encoding="utf-8").split("paper:")[0])
    assert {"recipe": "bahdanau2015", **yaml.safe_load(shown)} == read_recipe("bahdanau2015")


def test_data_make_writes_splits_and_never_overwrites(command: Command, tmp_path: Path) -> None:
    done = command("data", "make", "--pairs", 40, "--out", "c", "--seed", 3)
    assert done.returncode == 0
    names = {f"{split}.{ending}" for split in ("train", "dev", "test") for ending in ("en", "de", "align")}
    assert {path.name for path in (tmp_path / "c").iterdir()} == names
    assert len((tmp_path / "c/train.en").read_text(encoding="utf-8").splitlines()) == 40
    assert command("data", "make", "--pairs", 2, "--out", "d").returncode == 2
    again = command("data", "make", "--pairs", 50, "--out", "c")
    assert again.returncode == 2
    assert "c already holds train.en" in again.stderr
    assert len((tmp_path / "c/train.en").read_text(encoding="utf-8").splitlines()) == 40
    (tmp_path / "file").touch()
    blocked = command("data", "make", "--pairs", 50, "--out", "file/x")
    assert (blocked.returncode, blocked.stderr.count("\n")) == (2, 1)
    assert "Not a directory" in blocked.stderr


@pytest.fixture(scope="module")
def luong_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train `luong2015-global` by the command and return the run's folder; read-only."""
    folder = tmp_path_factory.mktemp("commands")
    data, dev = corpus_files(corpus, "train"), corpus_files(corpus, "dev")
    arguments = ["train", *data, "--dev", *dev, "--recipe", "luong2015-global", "--out", "r", *TINY_ARGUMENTS]
    done = run_in_process(list(map(str, arguments)), folder, b"", folder / "streams")
    assert done.returncode == 0, done.stderr
    assert "step 24/24" in done.stderr
    assert "translate with: regard translate r FILE" in done.stderr
    return folder / "r"


def test_train_command_writes_config_report_and_heatmaps(luong_run: Path) -> None:
    assert (luong_run / "report.html").is_file()
    assert len(list((luong_run / "samples").glob("attention-*.png"))) == 5
    assert Run(luong_run).read_config()["model"]["size"] == 24


def test_evaluate_of_a_run_and_of_its_output_agree(
    command: Command, luong_run: Path, corpus: Path, tmp_path: Path
) -> None:
    text = (corpus / "test.en").read_text(encoding="utf-8")
    made = command("translate", luong_run, input=text + "\n")
    assert made.returncode == 0
    assert len(made.stdout.splitlines()) == len(text.splitlines()) + 1
    assert made.stdout.endswith("\n\n")
    assert command("translate", luong_run, corpus / "test.en").stdout == made.stdout[:-1]
    test, gold = corpus_files(corpus, "test"), corpus / "test.align"
    scored = json.loads(command("evaluate", luong_run, *test, "--gold", gold, "--json").stdout)
    assert {"bleu", "chrf", "ter", "perplexity", "accuracy", "aer", "precision", "recall"} < set(scored)
    assert all(scored[name] > 0 for name in ("ter", "perplexity", "aer", "precision", "recall"))
    printed = command("evaluate", luong_run, *test, "--gold", gold).stdout
    assert f"aer        {scored['aer']:.4f}  precision {scored['precision']:.4f}" in printed
    (tmp_path / "out.de").write_text(made.stdout[:-1], encoding="utf-8")
    again = command("evaluate", "--hypothesis", "out.de", *test, "--json")
    assert json.loads(again.stdout)["bleu"] == pytest.approx(scored["bleu"])


@pytest.mark.parametrize(
    ("picture", "magic", "options"),
    [
        ("a.png", b"\x89PNG", []),
        pytest.param("deep/a.svg", b"<?xml", [], marks=pytest.mark.slow),
        ("s.png", b"\x89PNG", ["--steps"]),
        ("a.gif", b"GIF8", []),
    ],
    ids=["heatmap", "SVG in a new folder", "steps", "animation"],
)
def test_plot_prints_the_translation_and_writes_the_picture(
    command: Command, luong_run: Path, corpus: Path, tmp_path: Path, picture: str, magic: bytes, options: list[str]
) -> None:
    sentence = (corpus / "test.en").read_text(encoding="utf-8").splitlines()[0]
    drawn = command("plot", luong_run, sentence, "--out", picture, *options)
    assert drawn.returncode == 0, drawn.stderr
    assert drawn.stdout.splitlines() == [load(luong_run).translate([sentence])[0].text, picture]
    assert (tmp_path / picture).read_bytes().startswith(magic)


def test_translate_prints_json_pharaoh_and_n_best(command: Command, run: Run) -> None:
    text = "The dog sleeps .\n\nThe man reads a book .\n"
    rows = [
        json.loads(line)
        for line in command("translate", run.folder, "--json", "--n-best", 2, input=text).stdout.splitlines()
    ]
    assert [row["source"] for row in rows] == text.split("\n")[:-1]
    assert rows[1]["text"] == ""
    assert rows[1]["alignment"] is None
    assert len(rows[0]["alignment"]["soft"]) == len(rows[0]["text"].split())
    assert rows[0]["alternatives"][0]["score"] <= rows[0]["score"]
    linked = command("translate", run.folder, "--alignments", "pharaoh", input=text).stdout.splitlines()
    assert linked[0].split(" ||| ")[0] == rows[0]["text"]
    links = [tuple(map(int, link.split("-"))) for link in linked[0].split(" ||| ")[1].split()]
    assert sorted(links) == sorted(map(tuple, rows[0]["alignment"]["pairs"]))
    best = command("translate", run.folder, "--n-best", 2, input="The dog sleeps .\n").stdout.splitlines()
    assert [line.split(" ||| ")[0] for line in best] == ["0", "0"]
    assert best[0].split(" ||| ")[1] == rows[0]["text"]


@pytest.mark.parametrize(
    ("recipe", "arguments"),
    [
        ("sutskever2014", ["--recipe", "sutskever2014", *TINY_ARGUMENTS]),
        pytest.param("default", [], marks=pytest.mark.slow),
    ],
    ids=["named recipe", "default recipe"],
)
def test_train_derives_run_name_and_languages_from_the_file_name(
    command: Command, corpus: Path, tmp_path: Path, recipe: str, arguments: list[str]
) -> None:
    sides = [path.read_text(encoding="utf-8").splitlines() for path in corpus_files(corpus, "train")]
    (tmp_path / "de-en.tsv").write_text("".join(f"{b}\t{a}\n" for a, b in zip(*sides, strict=True)), encoding="utf-8")
    done = command("train", "de-en.tsv", *arguments, "training.steps=1", "training.validate_pairs=2")
    assert done.returncode == 0, done.stderr
    config = Run(tmp_path / f"runs/de-en-{recipe}").read_config()
    assert (config["recipe"], config["data"]["source"], config["data"]["target"]) == (recipe, "de", "en")
    assert "270 pairs" in done.stderr


USER_ERRORS = [
    (["train", "nowhere.tsv"], "there is no file nowhere.tsv"),
    (["train", "a.en", "b.de", "--out", "x"], "a.en has 3 lines and b.de has 2"),
    (["train", "latin.tsv", "--out", "x"], "latin.tsv:2: not UTF-8"),
    (["train", "empty.tsv", "--out", "x"], "empty.tsv: no pairs"),
    (["train", "good.tsv", "--out", "x", "--recipe", "bahdanou2015"], "did you mean 'bahdanau2015'?"),
    (["train", "good.tsv", "--out", "x", "model.sise=3"], "did you mean 'model.size'?"),
    (
        ["train", "good.tsv", "--steps", "4"],
        "unknown option --steps; recipe keys are given without dashes: training.steps=…",
    ),
    (["train", "good.tsv", "--label-smoothing=0.2"], "without dashes: loss.label_smoothing=0.2"),
    (["train", "good.tsv", "--out", "x", "model.size=big"], "model.size is a whole number, not 'big'"),
    (["train", "good.tsv", "--out", "x", "--recipe", "no.yaml"], "the recipe file no.yaml does not exist"),
    (["train", "good.tsv", "--out", "x", "training.device=cuda"], "this machine has no cuda"),
    (["train", "good.tsv", "--out", "x", "--resume"], "x is not a run"),
    (["train"], "nothing to train on"),
    (["train", "--resume"], "--resume needs --out"),
    (["train", "good.tsv", "--out", "x", "size=3"], "did you mean 'model.size'?"),
    (["train", "good.tsv", "--out", "x", "model.size=0"], "size must be at least 1, not 0"),
    (["train", "good.tsv", "--out", "x", "training.betas=[2,3]"], "not [2.0, 3.0]"),
    (["translate", "nowhere"], "nowhere is not a run"),
    (["evaluate", "nowhere", "good.tsv"], "nowhere"),
    (["plot", "nowhere", "a sentence"], "nowhere is not a run"),
    (["plot", "nowhere"], "a run and a sentence in quotes, not 1 arguments"),
    (["plot", "nowhere", "a", "--heads", "--steps"], "use only one of --heads"),
    (["plot", "nowhere", "good.tsv", "--by-length"], "nowhere is not a run"),
    (["align", "nowhere", "good.tsv"], "nowhere is not a run"),
    (["evaluate", "texts", "good.tsv"], "texts is a folder, but not a run: it has no config.yaml"),
    (["recipes", "defaut"], "did you mean 'default'?"),
    (["demo", "--recipe", "nothing"], "unknown recipe 'nothing'"),
    (["demo", "--task", "tag", "--recipe", "yang2016"], "the recipe yang2016 is for the task classify, not tag"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), USER_ERRORS, ids=[" ".join(arguments) for arguments, _ in USER_ERRORS]
)
def test_user_error_is_one_line_and_exit_code_2(
    command: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n", encoding="utf-8")
    (tmp_path / "b.de").write_text("eins\nzwei\n", encoding="utf-8")
    (tmp_path / "latin.tsv").write_bytes(b"one\teins\ntwo\tgr\xfc\xdfe\n")
    (tmp_path / "empty.tsv").write_text("", encoding="utf-8")
    (tmp_path / "good.tsv").write_text("one\teins\ntwo\tzwei\n", encoding="utf-8")
    (tmp_path / "texts").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    done = command(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.startswith("regard: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_debug_shows_the_traceback_behind_an_error(regard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = regard("recipes", "nothing")
    traced = [regard("--debug", "recipes", "nothing"), regard("recipes", "nothing", "--debug")]
    monkeypatch.setenv("REGARD_DEBUG", "1")
    traced.append(regard("recipes", "nothing"))
    assert [done.returncode for done in (plain, *traced)] == [2] * 4
    assert "Traceback" not in plain.stderr
    for done in traced:
        assert done.stderr.startswith("Traceback (most recent call last):")
        assert done.stderr.endswith(plain.stderr)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("one\n", [], "standard input:1: no tab"),
        ("", [], "standard input: no pairs"),
        ("one\teins\ntwo\tzwei\n", ["model.sise=3"], "did you mean 'model.size'?"),
        ("one\n", ["--find-rate"], "standard input:1: no tab"),
    ],
    ids=["no tab", "empty", "unknown key", "learning rate search"],
)
def test_refused_training_data_from_a_pipe_leaves_no_files(
    command: Command, tmp_path: Path, text: str, arguments: list[str], message: str
) -> None:
    out = [] if "--find-rate" in arguments else ["--out", "runs/x"]
    done = command("train", "-", *out, *arguments, input=text)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_run_trained_from_a_pipe_can_be_resumed(regard: Command, corpus: Path, tmp_path: Path) -> None:
    sides = [path.read_text(encoding="utf-8").splitlines() for path in corpus_files(corpus, "train")]
    text = "".join(f"{one}\t{other}\n" for one, other in zip(*sides, strict=True))
    done = regard("train", "-", "--out", "x", *TINY_ARGUMENTS, "training.steps=12", input=text)
    assert done.returncode == 0, done.stderr
    assert "data from - is copied to x/data/" in done.stderr
    (copy,) = (tmp_path / "x/data").iterdir()
    again = regard("train", "-", "--out", "x", input=text)
    other = regard("train", "-", "--out", "x", "--resume", "model.size=2", input="one\teins\n")
    assert (again.returncode, other.returncode) == (2, 2)
    assert list((tmp_path / "x/data").iterdir()) == [copy], "refused commands must neither remove nor add data"
    assert copy.read_text(encoding="utf-8") == text
    assert regard("train", "--resume", "--out", "x", "training.steps=24").returncode == 0


def test_compressed_jsonl_from_a_pipe_is_trained_on(command: Command, corpus: Path, tmp_path: Path) -> None:
    sides = [path.read_text(encoding="utf-8").splitlines() for path in corpus_files(corpus, "train")]
    rows = [json.dumps({"en": one, "de": other}) + "\n" for one, other in zip(*sides, strict=True)]
    packed = gzip.compress("".join(rows).encode())
    arguments = ["--source", "de", "--recipe", "sutskever2014", "--out", "x", *TINY_ARGUMENTS, "training.steps=1"]
    done = command("train", "-", *arguments, input=packed)
    assert done.returncode == 0, done.stderr
    data = Run(tmp_path / "x").read_config()["data"]
    assert (data["source"], data["target"]) == ("de", "en")
    assert data["train"][0].endswith(".jsonl.gz")


def test_train_never_overwrites_a_run(command: Command, run: Run, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "x")
    content = {path: path.read_bytes() for path in (tmp_path / "x").rglob("*") if path.is_file()}
    done = command("train", *corpus_files(corpus, "train"), "--out", "x")
    assert done.returncode == 2
    assert "x already holds a run; add --resume" in done.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "x").rglob("*") if path.is_file()} == content


def test_damaged_checkpoint_is_a_one_line_error(command: Command, run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "x")
    copy = Run(tmp_path / "x")
    for step in copy.list_steps():
        (copy.checkpoint_folder(step) / "model.safetensors").write_bytes(b"nothing")
    for arguments in (("translate", "x"), ("train", "--resume", "--out", "x", "training.steps=30")):
        done = command(*arguments, input="The dog sleeps .\n")
        assert done.returncode == 2
        assert "is damaged: model.safetensors does not match its checksum" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("recipe", "number"),
    [
        ("sutskever2014", signal.SIGINT),
        ("bahdanau2015", signal.SIGINT),
        ("bahdanau2015", signal.SIGTERM),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else value,
)
@pytest.mark.slow
def test_resume_after_a_signal_is_bit_identical_to_an_uninterrupted_run(
    command: Command, corpus: Path, tmp_path: Path, recipe: str, number: signal.Signals
) -> None:
    changes: dict[str, Any] = {"model.dropout": 0.2, "training.validate_every": 4, "training.checkpoint_every": 4}
    arguments = ["train", *corpus_files(corpus, "train"), "--dev", *corpus_files(corpus, "dev")]
    arguments += ["--recipe", recipe, "--out", "cut", *TINY_ARGUMENTS, "training.log_every=1"]
    arguments += [f"{key}={value}" for key, value in changes.items()]
    with subprocess.Popen(
        regard_command([*arguments, "training.steps=100000"]),  # more than it can make before the signal comes
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 5/"):
                process.send_signal(number)
                break
        rest = process.stderr.read()
    assert process.returncode == 128 + number
    assert "checkpoint saved; resume with: regard train --resume --out cut" in rest
    stopped = Run(tmp_path / "cut").find_newest_step()
    assert stopped >= 5
    last = stopped + 5
    resumed = command("train", "--resume", "--out", "cut", f"training.steps={last}")
    assert resumed.returncode == 0, resumed.stderr
    whole = train_tiny(recipe, corpus, tmp_path / "whole", **changes, **{"training.steps": last})
    ends = [run.checkpoint_folder(last) / "model.safetensors" for run in (Run(tmp_path / "cut"), whole)]
    assert ends[0].read_bytes() == ends[1].read_bytes()


@pytest.mark.parametrize("drawn", [False, True], ids=["line", "bar"])
def test_messages_to_a_closed_pipe_are_dropped(drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        monkeypatch.setattr("regard.console.is_terminal", lambda: drawn)
        os.close(reader)
        with make_progress_bar() as progress:
            progress.add_task("training", note="")
            log_message("step 1")
            log_message("step 2")
        assert [task.description for task in progress.tasks] == ["training"], "the bar goes on"


@pytest.mark.parametrize(("total", "count", "time"), [(None, "1,005", ""), (2000, "1005/2000", "0:00:05 left")])
def test_progress_bar_names_the_time_left_only_if_it_is_known(total: int | None, count: str, time: str) -> None:
    clock = iter(range(100))
    bar = make_progress_bar()
    bar.get_time = lambda: 5.0 * next(clock)
    number = bar.add_task("converting", total=total, note="")
    bar.advance(number, 5)
    bar.advance(number, 1000)
    (task,) = bar.tasks
    columns = [str(column.render(task)) for column in bar.columns if not isinstance(column, str)]
    assert columns[2] == count
    assert columns[4] == time


def test_messages_are_printed_literally(capfd: pytest.CaptureFixture[str]) -> None:
    log_message("runs/:apple:/[bold]epoch 1")
    assert capfd.readouterr().err == "runs/:apple:/[bold]epoch 1\n"


def test_messages_without_standard_error_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as with `2>&-`
    with make_progress_bar() as progress:
        progress.add_task("training", note="")
        log_message("step 1")
    with pytest.raises(SystemExit):
        exit_with_error("no such file")


@pytest.mark.slow
def test_closed_output_pipe_ends_translate_quietly(run: Run, tmp_path: Path) -> None:
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


def test_non_utf8_standard_input_is_reported_with_its_line(command: Command, run: Run) -> None:
    done = command("translate", run.folder, input=b"The dog .\n\xff\xfe\n")
    assert done.returncode == 2
    assert "standard input:2: not UTF-8" in done.stderr


def test_dev_option_takes_two_files() -> None:
    assert expand_dev_arguments(["a", "b", "--dev", "c.en", "c.de", "--out", "x"]) == [
        "a",
        "b",
        "--dev",
        "c.en",
        "--dev",
        "c.de",
        "--out",
        "x",
    ]
    assert expand_dev_arguments(["--dev", "c.tsv", "a.en", "a.de"]) == ["--dev", "c.tsv", "a.en", "a.de"]
    assert expand_dev_arguments(["a", "--mix", "c.en", "c.de", "k=1"]) == ["a", "--mix", "c.en", "--mix", "c.de", "k=1"]
    assert expand_dev_arguments(["a", "--dev", "c.en", "--out", "x"]) == ["a", "--dev", "c.en", "--out", "x"]
    assert expand_dev_arguments(["a", "--dev", "c.en", "model.size=3"]) == ["a", "--dev", "c.en", "model.size=3"]
    override = f"data.weights=[{'1, ' * 200}]"  # longer than the name of a file
    assert expand_dev_arguments(["a.tsv", override]) == ["a.tsv", override]


@pytest.mark.parametrize("model", ["run", "transformer_run"], ids=["recurrent", "Transformer"])
def test_translate_command_prints_what_the_python_interface_returns(
    regard: Command, model: str, request: pytest.FixtureRequest, corpus: Path
) -> None:
    trained: Run = request.getfixturevalue(model)
    text = (corpus / "test.en").read_text(encoding="utf-8")
    done = regard("translate", trained.folder, input=text)
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0)
    assert done.stdout.splitlines() == [made.text for made in load(trained.folder).translate(text.splitlines())]


@pytest.mark.parametrize(
    "model",
    ["run", pytest.param("transformer_run", marks=pytest.mark.slow)],
    ids=["recurrent", "Transformer"],
)
def test_translate_process_answers_each_line_before_the_next_is_written(
    model: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    trained: Run = request.getfixturevalue(model)
    with subprocess.Popen(
        regard_command(["translate", trained.folder, "--beam", 1, "--min-length", 3]),
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


def test_translate_obeys_glossary_prefix_forced_and_forbidden_words(command: Command, run: Run, tmp_path: Path) -> None:
    text = "The dog sleeps .\nThe man reads a book .\n"
    (tmp_path / "terms.tsv").write_text("dog\tKatze\n\nbook\tBuch\n", encoding="utf-8")
    made = command("translate", run.folder, "--glossary", "terms.tsv", "--prefix", "Heute", input=text)
    first, second = made.stdout.splitlines()
    assert "Katze" in first
    assert "Buch" in second
    assert first.startswith("Heute")
    forced = command("translate", run.folder, "--force", "die Frau", "--force", "Hund", input=text).stdout.splitlines()
    assert all("die Frau" in line and "Hund" in line for line in forced)
    arguments = ["translate", run.folder, "--min-length", 4]
    word = command(*arguments, input=text).stdout.splitlines()[0].split()[0]
    assert word not in command(*arguments, "--forbid", word, input=text).stdout.splitlines()[0].split()
    tagged = command("translate", run.folder, "--tags", input="The <b>dog</b> sleeps .\n").stdout
    assert tagged.count("<b>") == tagged.count("</b>") == 1


def test_samples_depend_on_the_seed_alone(command: Command, run: Run) -> None:
    def sample(seed: int) -> str:
        options = ["--sample", "--seed", seed, "--n-best", 3]
        return command("translate", run.folder, *options, input="The dog sleeps .\n").stdout

    first = sample(1)
    assert first == sample(1) != sample(2)
    assert len(first.splitlines()) == 3


TRANSLATE_ERRORS = [
    (["--length-penalty", "short"], "--length-penalty must be a number or 'average', not 'short'"),
    (["--n-best", "6"], "n_best 6, beam 5"),
    (["--force", "Xylophon"], "'Xylophon' cannot be forced"),
    (["--prefix", "Der Hund", "--max-length", "2"], "a prefix of 2 tokens leaves no room for EOS"),
    (["--glossary", "bad.tsv"], "bad.tsv:1: a line must be a term, a tab and its translation"),
    (["--alignments", "naacl"], "--alignments must be 'pharaoh', not 'naacl'"),
    (["--alignments", "pharaoh", "--json"], "--json includes the links"),
    (["--alignments", "pharaoh", "--tags"], "cannot be combined with --tags"),
    (["--top-k", "3"], "top_k needs sample"),
    (["--glossary", "odd.tsv"], "'Xylophon' cannot be forced"),
    (["--sample", "--top-p", "2"], "top_p must be more than 0 and at most 1, not 2.0"),
]


@pytest.mark.parametrize(
    ("options", "message"), TRANSLATE_ERRORS, ids=[" ".join(options) for options, _ in TRANSLATE_ERRORS]
)
def test_impossible_translate_option_is_a_one_line_error(
    command: Command, run: Run, tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "bad.tsv").write_text("no tab\n", encoding="utf-8")
    (tmp_path / "odd.tsv").write_text("never seen\tXylophon\n", encoding="utf-8")
    done = command("translate", run.folder, *options, input="The dog sleeps .\n")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_align_command_prints_links_and_aer(command: Command, run: Run, corpus: Path) -> None:
    test, gold = corpus_files(corpus, "test"), corpus / "test.align"
    done = command("align", run.folder, *test, "--gold", gold)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(test[0].read_text(encoding="utf-8").splitlines())
    scored = json.loads(command("evaluate", run.folder, *test, "--gold", gold, "--beam", 1, "--json").stdout)
    assert f"aer {scored['aer']:.4f}" in done.stderr
    rows = [json.loads(line) for line in command("align", run.folder, *test, "--json").stdout.splitlines()]
    for row, line in zip(rows, done.stdout.splitlines(), strict=True):
        assert " ".join(f"{left}-{right}" for left, right in row["pairs"]) == line
        assert row["score"] < 0


def test_symmetrize_takes_a_run_of_the_other_direction(
    command: Command, run: Run, corpus: Path, tmp_path: Path
) -> None:
    test = corpus_files(corpus, "test")
    refused = command("align", run.folder, *test, "--symmetrize", run.folder)
    assert refused.returncode == 2
    assert "needs a run of the opposite direction" in refused.stderr
    reverse = list(reversed(corpus_files(corpus, "train")))
    train("bahdanau2015", reverse, tmp_path / "back", **{**TINY, "training.steps": 2})
    both = command("align", run.folder, *test, "--symmetrize", "back")
    assert both.returncode == 0, both.stderr
    assert len(both.stdout.splitlines()) == len(test[0].read_text(encoding="utf-8").splitlines())


@pytest.fixture
def two_head_run(transformer_run: Run, tmp_path: Path) -> Run:
    """Provide a Transformer with one layer of two heads, as the folder `t`."""
    return Run(shutil.copytree(transformer_run.folder, tmp_path / "t"))


def set_model_options(run: Run, **options: Any) -> None:
    config = run.read_config()
    run.write_config({**config, "model": {**config["model"], **options}})


@pytest.mark.usefixtures("two_head_run")
def test_choose_head_ranks_heads_by_aer_and_keeps_the_best(command: Command, corpus: Path) -> None:
    test, gold = corpus_files(corpus, "test"), corpus / "test.align"
    done = command("align", "t", *test, "--gold", gold, "--choose-head")
    assert done.returncode == 0, done.stderr
    errors = [float(line.split("aer ")[1].split(",")[0]) for line in done.stdout.splitlines()[:-1]]
    assert len(errors) == 6, "two heads and their mean, each at the step of the word and at the next"
    assert errors == sorted(errors)
    assert f"aer {errors[0]:.4f}" in command("align", "t", *test, "--gold", gold).stderr


@pytest.mark.usefixtures("two_head_run")
def test_choose_head_without_gold_ranks_heads_by_mutual_links(command: Command, corpus: Path) -> None:
    test = corpus_files(corpus, "test")
    done = command("align", "t", *test, "--choose-head")
    assert done.returncode == 0, done.stderr
    fractions = [float(line.rsplit(" ", 1)[1].rstrip("%")) for line in done.stdout.splitlines()[:-1]]
    assert len(fractions) == 6
    assert fractions == sorted(fractions, reverse=True)
    refused = command("align", "t", *test, "--choose-head", "--json")
    assert refused.returncode == 2
    assert "cannot be combined with --json or --symmetrize" in refused.stderr


def test_choose_head_works_for_a_config_without_alignment_options(
    command: Command, two_head_run: Run, corpus: Path
) -> None:
    config = two_head_run.read_config()
    older = {key: value for key, value in config["model"].items() if not key.startswith("align_")}
    two_head_run.write_config({**config, "model": older})
    done = command("align", "t", *corpus_files(corpus, "test"), "--gold", corpus / "test.align", "--choose-head")
    assert done.returncode == 0, done.stderr


def test_ensemble_aligns_by_models_with_the_alignment_step_of_the_first(
    command: Command, two_head_run: Run, corpus: Path, tmp_path: Path
) -> None:
    other = Run(shutil.copytree(two_head_run.folder, tmp_path / "other"))
    set_model_options(two_head_run, align_layer=1, align_head=1, align_after=False)
    set_model_options(other, align_layer=1, align_head=1, align_after=True)
    runs = ["t"], ["other"], ["t", "other"]
    first, second, both = (command("align", *some, *corpus_files(corpus, "test")).stdout for some in runs)
    assert both == first != second


@pytest.mark.usefixtures("two_head_run")
def test_plot_draws_all_heads_and_bleu_by_length(command: Command, corpus: Path, tmp_path: Path) -> None:
    heads = command("plot", "t", "The dog sleeps .", "--heads", "--out", "h.png")
    assert heads.returncode == 0, heads.stderr
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")
    lengths = command("plot", "t", *corpus_files(corpus, "test"), "--by-length", "--out", "l.svg", "--beam", 1)
    assert lengths.returncode == 0, lengths.stderr
    assert "t  1–10 words: " in lengths.stdout
    assert (tmp_path / "l.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.usefixtures("two_head_run")
def test_plot_of_several_segments_as_an_animation_is_an_error(command: Command) -> None:
    done = command("plot", "t", "The dog sleeps .\nIt sleeps .", "--out", "p.gif")
    assert done.returncode == 2
    assert "in several segments" in done.stderr


def test_evaluate_compares_systems(command: Command, run: Run, corpus: Path, tmp_path: Path) -> None:
    references = (corpus / "test.de").read_text(encoding="utf-8")
    (tmp_path / "good.de").write_text(references, encoding="utf-8")
    (tmp_path / "bad.de").write_text(references.replace("der", "das").replace("die", "das"), encoding="utf-8")
    done = command(
        "evaluate", "--hypothesis", "good.de", "--hypothesis", "bad.de", *corpus_files(corpus, "test"), "--json"
    )
    assert done.returncode == 0, done.stderr
    good, bad = json.loads(done.stdout)["systems"]
    assert good["bleu"] > bad["bleu"]
    assert good["bootstrap"]["p"] is None
    assert bad["bootstrap"]["p"] < 0.05
    for arguments in (("--compare",), ("--gold-first", 1)):
        assert command("evaluate", run.folder, *corpus_files(corpus, "test"), *arguments).returncode == 2
    assert command("evaluate", "--hypothesis", "good.de", *corpus_files(corpus, "test"), "--beam", 1).returncode == 2
    shutil.copytree(run.folder, tmp_path / "twin")
    printed = command("evaluate", run.folder, "twin", *corpus_files(corpus, "test"), "--compare", "--beam", 1).stdout
    assert printed.count("system ") == 2
    assert "the baseline" in printed
    assert "against the baseline" in printed


@pytest.mark.slow
def test_systems_are_compared_without_case_if_one_has_no_capital_letters(
    command: Command, fluent_run: Run, corpus: Path, tmp_path: Path
) -> None:
    twin = Run(Path(shutil.copytree(fluent_run.folder, tmp_path / "twin")))
    config = twin.read_config()
    twin.write_config({**config, "text": {**config["text"], "lowercase": True}})
    for side in ("en", "de"):
        text = (corpus / f"test.{side}").read_text(encoding="utf-8").splitlines()[:10]
        (tmp_path / f"t.{side}").write_text("\n".join(text).lower().replace("die", "DIE") + "\n", encoding="utf-8")
    arguments = "t.en", "t.de", "--beam", 1, "--json"
    done = command("evaluate", fluent_run.folder, twin.folder, *arguments, "--compare")
    for system in json.loads(done.stdout)["systems"]:
        assert "case:lc" in system["bleu_signature"]
        assert 0 < system["bleu"] == pytest.approx(system["bootstrap"]["mean"], abs=5)
    with_case, without = (
        json.loads(command("evaluate", fluent_run.folder, *arguments, *more).stdout) for more in ((), ("--lowercase",))
    )
    assert with_case["bleu"] < without["bleu"]


@pytest.fixture
def target_first(corpus: Path, tmp_path: Path) -> list[Path]:
    """Write five test pairs as text, `t.en` and `t.de`, and as `t.jsonl`, in which German comes first."""
    sides = [path.read_text(encoding="utf-8").splitlines()[:5] for path in corpus_files(corpus, "test")]
    text = [tmp_path / "t.en", tmp_path / "t.de"]
    for path, lines in zip(text, sides, strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_jsonl(tmp_path / "t.jsonl", [{"de": german, "en": english} for english, german in zip(*sides, strict=True)])
    return text


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        (["evaluate"], ["--beam", 1, "--json"]),
        (["align"], ["--json"]),
        (["data", "distill"], []),
        (["plot"], ["--by-length"]),
    ],
    ids=["evaluate", "align", "distill", "plot"],
)
def test_pairs_are_read_in_the_direction_of_the_run(
    command: Command, fluent_run: Run, target_first: list[Path], verb: list[str], options: list[object]
) -> None:
    expected = command(*verb, fluent_run.folder, *target_first, *options)
    assert (expected.returncode, expected.stdout != "") == (0, True), expected.stderr
    assert command(*verb, fluent_run.folder, "t.jsonl", *options).stdout == expected.stdout
    named = command(*verb, fluent_run.folder, "t.jsonl", *options, "--source", "en", "--target", "de")
    assert named.stdout == expected.stdout


@pytest.mark.usefixtures("target_first")
def test_languages_that_do_not_fit_the_run_are_refused(command: Command, run: Run, tmp_path: Path) -> None:
    direction = f"{run.folder} translates from en into de"
    reverse = command("evaluate", run.folder, "t.jsonl", "--source", "de", "--target", "en")
    assert (reverse.returncode, reverse.stderr) == (2, f"regard: --source de does not fit: {direction}\n")
    with pytest.raises(UserError, match="--target fra does not fit"):
        list(read_pairs([run.folder], [tmp_path / "t.jsonl"], "eng", "fra"))
    assert len(list(read_pairs([run.folder], [tmp_path / "t.jsonl"], "eng", "deu"))) == 5
    french = (tmp_path / "t.jsonl").read_text(encoding="utf-8").replace('"en"', '"fr"')
    (tmp_path / "french.jsonl").write_text(french, encoding="utf-8")
    other = command("align", run.folder, "french.jsonl")
    assert other.returncode == 2
    assert "french.jsonl:1 holds de, fr, not en and de" in other.stderr
    assert direction in other.stderr
    assert "give those as --source and --target" in other.stderr
    with pytest.raises(UserError, match=rf"holds de, fr, not en and de; {direction}$"):  # no advice to give --source
        list(read_pairs([run.folder], [tmp_path / "french.jsonl"], "en", "de"))
    for arguments in (("evaluate", run.folder), ("evaluate", "--hypothesis", "t.de")):
        nameless = command(*arguments, "t.en", "t.de", "--source", "en")
        assert (nameless.returncode, "names no languages" in nameless.stderr) == (2, True)
    back = shutil.copytree(run.folder, tmp_path / "back")
    config = Run(back).read_config()
    Run(back).write_config({**config, "data": {**config["data"], "source": "de", "target": "en"}})
    both = command("evaluate", run.folder, back, "t.en", "t.de", "--compare")
    assert (both.returncode, "one test set does not fit both" in both.stderr) == (2, True)
    swapped = command("align", run.folder, "t.de", "t.en")
    assert "are the files in order?" in swapped.stderr


def test_translate_reads_standard_input_and_named_pipes(command: Command, run: Run, tmp_path: Path) -> None:
    text = "The dog sleeps .\n"
    expected = command("translate", run.folder, input=text).stdout
    assert command("translate", run.folder, "-", input="\ufeff" + text).stdout == expected
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(text, encoding="utf-8"))
    writer.start()
    assert command("translate", run.folder, "pipe").stdout == expected
    writer.join()


def test_translate_counts_unfinished_translations(command: Command, run: Run) -> None:
    done = command("translate", run.folder, "--prefix", "Der alte", "--max-length", 3, "--json", input="The dog .\n\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[1]["ended"]
    assert ("1 of 2 translations were cut off" in done.stderr) == (not rows[0]["ended"])


def test_translate_warns_of_a_run_stopped_before_its_first_validation(
    command: Command, run: Run, tmp_path: Path
) -> None:
    stopped = _copy_run_without_validation(run, tmp_path / "stopped")
    (tmp_path / "page.html").write_text("<p>The dog sleeps .</p>", encoding="utf-8")
    for arguments in ([], ["page.html"]):
        done = command("translate", "stopped", *arguments, input="The dog .\n")
        assert done.returncode == 0
        step = f"stopped at step {stopped.find_newest_step()}, before its first validation"
        assert done.stderr.count(step) == 1
        assert "hardly been trained" in done.stderr
    assert "validation" not in command("translate", run.folder, input="The dog .\n").stderr


def _copy_run_without_validation(run: Run, folder: Path) -> Run:
    shutil.copytree(run.folder, folder)
    stopped = Run(folder)
    path = stopped.checkpoint_folder(stopped.find_newest_step()) / "state.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(state | {"best": None, "ranked": [], "validated": 0}), encoding="utf-8")
    return stopped


@pytest.mark.parametrize("load_run", [load, api.load])
def test_load_warns_once_of_a_run_stopped_before_its_first_validation(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], load_run: Callable[..., object]
) -> None:
    stopped = _copy_run_without_validation(run, tmp_path / "stopped")
    load_run(stopped.folder)
    assert capsys.readouterr().err.count("before its first validation") == 1
    load_run(run.folder)
    assert "validation" not in capsys.readouterr().err


def test_translate_reports_empty_translations_and_unaligned_tags(capsys: pytest.CaptureFixture[str]) -> None:
    counts = Counter[str]()

    def count(*translations: Translation, tags: bool = False) -> list[str]:
        """Count translations, and return the lines of the warnings."""
        for translation in translations:
            count_translation(counts, translation, tags)
        log_warnings(counts)
        return capsys.readouterr().err.splitlines()

    assert count(Translation("a", ""), Translation("", "")) == ["warning: all 1 translations are empty"]
    warnings = count(Translation("b", "x"), Translation("<b>c</b> d", "<b>x</b>", unaligned_tags=1))
    assert [warning.partition(" have")[0] for warning in warnings] == [
        "warning: 1 of 3 translations are empty",
        "warning: 1 of 4 translations",
    ]
    assert "1 of 5 translations keep sentences of the source" in count(Translation("c", "c", untranslated=1))[-1]
    counts.clear()
    assert count(Translation("<b>a</b>", "<b></b>"), Translation("<br/>", "<br/>"), tags=True) == [
        "warning: all 1 translations are empty"
    ]


def test_empty_and_multiline_translations_are_one_line_each() -> None:
    assert format_translation(Translation("a", ""), "text") == "\n"
    assert format_translation(Translation("<b>c</b> d", "<b>x</b>\ny"), "text") == "<b>x</b> y\n"


def test_translate_keeps_the_format_of_documents(command: Command, run: Run, tmp_path: Path) -> None:
    content = {
        "page.html": b"<p>The <b>dog</b> sleeps .</p>",
        "words.po": b'msgid "The dog sleeps ."\nmsgstr ""\n',
    }
    translator = load(run.folder)
    for name, source in content.items():
        (tmp_path / name).write_bytes(source)
        made = translate_document(
            name, source, lambda texts: [one.text for one in translator.translate(texts, tags=True)]
        )
        assert command("translate", run.folder, name).stdout == made.decode()
    assert "name one document, not" in command("translate", run.folder, *content).stderr
    for option in (["--json"], ["--n-best", 2], ["--alignments", "pharaoh"]):
        done = command("translate", run.folder, "page.html", *option)
        assert (done.returncode, done.stdout) == (2, "")
        assert "page.html is a document" in done.stderr
    (tmp_path / "not.docx").write_bytes(b"no zip file")
    done = command("translate", run.folder, "not.docx")
    assert (done.returncode, done.stdout) == (2, "")
    assert "not.docx" in done.stderr


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes")]
)
def test_lack_of_memory_is_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: Any) -> None:
        raise error

    monkeypatch.setattr("regard.cli.app.app", fail)
    monkeypatch.delenv("REGARD_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("regard: not enough memory: ")


def test_probabilities_of_a_diverged_run_that_are_nan_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: Any) -> None:
        raise make_nan_error(3)

    monkeypatch.setattr("regard.cli.app.app", fail)
    monkeypatch.delenv("REGARD_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("regard: the model's probabilities at step 3 are NaN or inf: ")
