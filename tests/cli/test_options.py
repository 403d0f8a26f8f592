"""Options that several commands share: one name has one meaning, and old names keep working."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Protocol

import pytest
import torch
import typer
import yaml
from support.in_process import run_in_process
from support.training import TINY, corpus_files, format_overrides

from regard.cli.app import app
from regard.console import log_detail, log_message, set_verbosity
from regard.runs import Run
from regard.serve.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"


class Call(Protocol):
    def __call__(self, *arguments: object, input: str = "") -> CompletedProcess[str]: ...


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Call]:
    def call(*arguments: object, input: str = "") -> CompletedProcess[str]:
        return run_in_process(list(map(str, arguments)), tmp_path, input.encode(), tmp_path.with_suffix(".streams"))

    yield call
    set_verbosity()


def _iterate_commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for child_name, child in group.commands.items():
        if hasattr(child, "commands"):
            yield from _iterate_commands(child, f"{name}{child_name} ")
        else:
            yield name + child_name, child


COMMANDS = dict(_iterate_commands(typer.main.get_command(app)))


def list_visible_options(command: Any) -> list[list[str]]:
    """Return the names of each option that the help shows."""
    return [option.opts for option in command.params if option.opts[0].startswith("-") and not option.hidden]


def test_every_command_is_quiet_or_verbose_on_request() -> None:
    for name, command in COMMANDS.items():
        options = list_visible_options(command)
        assert ["--quiet", "-q"] in options, name
        assert ["--verbose", "-v"] in options, name


def test_a_short_option_means_the_same_in_every_command() -> None:
    meanings = defaultdict(set)
    for command in COMMANDS.values():
        for names in list_visible_options(command):
            for short in (name for name in names if re.fullmatch(r"-\w", name)):
                meanings[short].add(names[0])
    assert {short: long for short, long in meanings.items() if len(long) > 1} == {}
    assert set(meanings) >= {"-b", "-j", "-o", "-q", "-r", "-s", "-t", "-v"}


@pytest.mark.parametrize("long", ["--out", "--source", "--target", "--beam", "--jobs", "--recipe"])
def test_a_common_option_has_its_short_name_in_every_command(long: str) -> None:
    shorts = {tuple(names) for command in COMMANDS.values() for names in list_visible_options(command) if long in names}
    assert len(shorts) == 1
    assert len(next(iter(shorts))) == 2


def list_names(command: Any) -> set[str]:
    """Return all names of the visible options."""
    return {name for names in list_visible_options(command) for name in names}


def test_parallelism_is_jobs_and_only_translate_forces() -> None:
    named = {name: list_names(one) for name, one in COMMANDS.items()}
    assert [name for name, options in named.items() if "--force" in options] == ["translate"]
    assert [name for name, options in named.items() if options & {"--workers", "--processes"}] == []
    assert {name for name, options in named.items() if "--jobs" in options} == {
        *("translate", "reproduce", "serve", "data back-translate", "data distill")
    }


READING_PAIRS = (
    "train",
    "evaluate",
    "align",
    "plot",
    "data inspect",
    "data clean",
    "data split",
    "data convert",
    "data distill",
)
USING_A_MODEL = (
    *("train", "demo", "translate", "predict", "evaluate", "align", "plot", "serve", "data distill"),
    *("data back-translate", "report", "export", "reproduce"),
)


def test_commands_that_read_pairs_choose_languages_and_those_with_a_model_a_device() -> None:
    assert [name for name in READING_PAIRS if not {"--source", "--target"} <= list_names(COMMANDS[name])] == []
    assert [name for name in USING_A_MODEL if "--device" not in list_names(COMMANDS[name])] == []


def test_the_documented_table_of_common_options_names_options_that_exist() -> None:
    known = set().union(*map(list_names, COMMANDS.values()))
    documented = re.findall(r"`(--?[a-z-]+)`", (DOCS / "commands.md").read_text(encoding="utf-8"))
    assert {option for option in documented if option not in known} <= {"--debug", "-h", "--help", "--processes"}


def test_old_names_of_options_still_work(command: Call, tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("the house\tdas Haus\n", encoding="utf-8")
    for option in ((), ("--force",), ("--overwrite",)):
        done = command("data", "clean", "in.tsv", "-o", "out.tsv", *option)
        assert done.returncode == 0, done.stderr
    assert "overwrite it with --overwrite" in command("data", "clean", "in.tsv", "-o", "out.tsv").stderr
    assert command("keys", "add", "the wiki", "--file", "keys.db").returncode == 0
    assert "the wiki" in command("keys", "list", "--keys", "keys.db").stdout


def test_serve_takes_options_from_environment_variables(
    command: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[tuple[list[str], Settings]] = []
    monkeypatch.setattr("regard.serve.server.serve", lambda runs, settings: served.append((runs, settings)))
    variables = {
        "RUNS": "runs/a runs/b=en-de",
        "PORT": "7000",
        "JOBS": "2",
        "REQUIRE_KEY": "true",
        "KEYS": "keys.db",
        "PAGE": "false",
        "CORS": "https://a.example https://b.example",
        "METRICS_TOKEN": "",
    }
    monkeypatch.setattr(
        "support.in_process.environment", lambda: {f"REGARD_SERVE_{n}": v for n, v in variables.items()}
    )
    done = command("serve", "--port", 7001)
    assert done.returncode == 0, done.stderr
    ((runs, settings),) = served
    assert runs == ["runs/a", "runs/b=en-de"]
    assert (settings.port, settings.processes, settings.require_key, settings.page) == (7001, 2, True, False)
    assert (settings.keys, settings.cors) == (Path("keys.db"), ("https://a.example", "https://b.example"))
    assert command("serve", "runs/c", "--processes", 0).returncode == 0
    assert (served[1][0], served[1][1].processes) == (["runs/c"], 0)


def test_quiet_leaves_warnings_and_verbose_adds_details(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    for options in ({}, {"quiet": True}, {"verbose": True}):
        set_verbosity(**options)
        for log, message in ((log_message, "step 1"), (log_message, "warning: late"), (log_detail, "in fp32")):
            log(message)
        seen.append(capsys.readouterr().err.split("\n")[:-1])
    set_verbosity()
    assert seen == [["step 1", "warning: late"], ["warning: late"], ["step 1", "warning: late", "in fp32"]]


def test_translate_writes_the_file_that_out_names(command: Call, fluent_run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the old house\nthe dog\n", encoding="utf-8")
    printed = command("translate", fluent_run.folder, "in.txt", "-v")
    assert f"{fluent_run.folder}: step " in printed.stderr
    done = command("translate", fluent_run.folder, "in.txt", "-o", "new/out.txt", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "new/out.txt").read_text(encoding="utf-8") == printed.stdout
    done = command("translate", fluent_run.folder, "in.txt", "-o", "new/out.txt")
    assert done.returncode == 2
    assert "new/out.txt already exists" in done.stderr
    (tmp_path / "in.txt").write_bytes(b"the dog\n\xff\n")
    done = command("translate", fluent_run.folder, "in.txt", "-o", "new/out.txt", "--overwrite")
    assert done.returncode == 2
    assert (tmp_path / "new/out.txt").read_text(encoding="utf-8") == printed.stdout
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out.txt"]


def test_translate_writes_a_document_under_its_own_extension(command: Call, fluent_run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>the old <b>house</b></p>", encoding="utf-8")
    assert command("translate", fluent_run.folder, "a.html", "-o", "b.html").returncode == 0
    assert (tmp_path / "b.html").read_text(encoding="utf-8").startswith("<p>")
    done = command("translate", fluent_run.folder, "a.html", "-o", "b.docx")
    assert done.returncode == 2
    assert "give --out this extension" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("name", ["translate", "evaluate", "align", "plot", "export", "reproduce"])
def test_a_device_that_is_missing_is_one_sentence(command: Call, fluent_run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "a.tsv").write_text("the house\tdas Haus\n", encoding="utf-8")
    text = {"plot": "the house", "translate": "-"}.get(name, "a.tsv")
    arguments = {"export": (fluent_run.folder, "--to", "shortlist"), "reproduce": ("ladder",)}
    done = command(name, *arguments.get(name, (fluent_run.folder, text)), "--device", "cuda")
    assert done.returncode == 2
    assert done.stderr == "regard: --device cuda, but this machine has no cuda\n"


@pytest.mark.slow
def test_train_records_seed_and_device(command: Call, corpus: Path, tmp_path: Path) -> None:
    arguments = [*corpus_files(corpus, "train"), *format_overrides({**TINY, "training.steps": 1})]
    done = command("train", *arguments, "-o", "run", "--seed", 7, "--device", "cpu", "-q")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text(encoding="utf-8"))
    assert (config["training"]["seed"], config["training"]["device"]) == (7, "cpu")
