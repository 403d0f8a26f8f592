"""The papers' comparisons: what an experiment trains, reuses, goes on with, finds and writes."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import ROOT, Command
from support.training import TINY
from torch import Tensor

from regard.cli.reproduce import reproduce
from regard.cli.train import is_override
from regard.data.corpus import Pair, pairs
from regard.data.embedded import write as write_embedded
from regard.errors import UserError
from regard.evaluate import read_gold
from regard.fast.output import way as output
from regard.fast.packed import way as packed
from regard.fast.packed.replay import OFTEN
from regard.models import Seq2Seq
from regard.recipes import parse_override
from regard.reproduce import (
    EXPERIMENTS,
    SCALES,
    Claim,
    Experiment,
    Lab,
    Row,
    Training,
    conduct,
    measures,
    plan,
    running,
    speed,
    summary,
    together,
)
from regard.reproduce.corpora import SOURCES, Source, added, copied, one_line, prepared, write_split
from regard.reproduce.experiment import Bars, Curves
from regard.reproduce.experiments.cost import COST
from regard.reproduce.experiments.scaling import SCALING
from regard.reproduce.measures import dictionary, spread, translation
from regard.reproduce.processes import Begun, side_by_side, starting
from regard.reproduce.scales import SETTINGS
from regard.reproduce.verdict import (
    TYPICAL,
    Chance,
    Deviation,
    Figures,
    Finding,
    Verdict,
    alike,
    decided,
    less,
    more,
    most,
    over,
    under,
)
from regard.runs import Run
from regard.training import Interrupted, Trainer, TrainingSettings
from regard.training.configuration import check
from regard.translate import load

TINY = {**TINY, "model.size": 8, "training.steps": 3, "training.validate_every": 3, "training.checkpoint_every": 1}

PAGE = ROOT / "docs" / "reproduce.md"


def tiny(folder: Path) -> None:
    write_embedded(folder, 60, overwrite=True)


def training(**changes: Any) -> Training:
    return Training("bahdanau2015", "tiny", {**TINY, **changes})


def rows(scale: str) -> list[Row]:
    plain, other = training(), training(**{"training.seed": 2})
    return [
        Row("plain", [plain], {"beam": 1}, {"bleu": 26.75}),
        Row("unk", [plain], {"beam": 1, "replace_unknown": True}),
        Row("both", [plain, other], {"beam": 1}),
    ]


FAKE = Experiment(
    name="fake",
    title="A <fake>",
    source="Nobody 1999, table 0",
    about="Three updates each.",
    rows=rows,
    measure=translation,
    columns=("perplexity", "bleu"),
    claims=(
        Claim("a model is at a loss", over("perplexity", "plain", 1.0)),
        Claim("a model knows all", under("perplexity", "plain", 1.0), "ours"),
        Claim("as good as itself", more("perplexity", "plain", "unk"), "definition"),
    ),
    charts=(Bars("bleu", "BLEU"), Curves("by_length", "By length", "words", "BLEU")),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduce")


@pytest.fixture(autouse=True)
def sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "tiny", Source(tiny, ("en", "de"), gold="test.align"))


@pytest.fixture
def lab(place: Path) -> Lab:
    """The laboratory of this file, where the fake experiment has been conducted."""
    lab = Lab(place, "small")
    if not (lab.results / "fake" / "table.json").exists():
        conduct(FAKE, lab)
    return lab


# What an experiment leaves.


def test_runs_are_shared_and_what_is_there_is_not_trained_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {path.name for path in (lab.out / "runs").iterdir()} == {one.name for one in rows("small")[2].trainings}
    before = json.loads((lab.results / "fake" / "table.json").read_text(encoding="utf-8"))
    monkeypatch.setattr("regard.reproduce.lab.train", no_training)
    outcome = conduct(FAKE, lab)
    after = json.loads((lab.results / "fake" / "table.json").read_text(encoding="utf-8"))
    assert after | {"seconds": 0} == before | {"seconds": 0}
    said = summary(outcome).splitlines()
    assert said[0] == "fake: A <fake>"
    assert said[1].startswith("  holds               a model is at a loss (plain ")
    assert said[2].startswith("  does not hold here  a model knows all (plain ")


def test_what_was_measured_needs_no_checkpoints(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(lab.out, tmp_path / "lab", ignore=shutil.ignore_patterns("checkpoints"))
    lean = Lab(tmp_path / "lab", "small")
    monkeypatch.setattr("regard.reproduce.lab.train", no_training)
    for outcome in (conduct(FAKE, lean), conduct(FAKE, lean, trains=False)):
        assert [result.row.name for result in outcome.results] == [row.name for row in rows("small")]
    together([FAKE], lean, seeds=1, jobs=2)


def test_a_table_of_what_is_trained_leaves_the_others_out(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = training(**{"training.seed": 77})
    more_rows = Experiment(
        name="partly",
        title="Partly",
        source="Nobody 1999",
        about="One row is not trained.",
        rows=lambda scale: [rows(scale)[0], Row("new", [missing], {"beam": 1})],
        measure=translation,
        columns=("perplexity", "bleu"),
        claims=(
            Claim("a model is at a loss", over("perplexity", "plain", 1.0)),
            Claim("another", more("bleu", "new", "plain")),
        ),
        charts=(Bars("bleu", "BLEU"),),
    )
    monkeypatch.setattr("regard.reproduce.lab.train", no_training)
    outcome = conduct(more_rows, lab, trains=False)
    assert "partly 2/2: new is left out: it is not trained" in capsys.readouterr().err
    assert [result.row.name for result in outcome.results] == ["plain"]
    assert [found.verdict for _, found in outcome.findings] == [Verdict.HOLDS, Verdict.OPEN]
    assert "| new |" not in (lab.results / "partly" / "table.md").read_text(encoding="utf-8")
    with pytest.raises(AssertionError, match="nothing was to be trained"):
        conduct(more_rows, lab)
    with pytest.raises(UserError, match="partly: no row is trained yet at the scale full"):
        conduct(more_rows, Lab(lab.out / "other", "full"), trains=False)


def no_training(*_: Any, **__: Any) -> None:
    raise AssertionError("nothing was to be trained")


def test_what_is_measured_is_kept_by_how_it_was_asked(lab: Lab) -> None:
    first = lab.folder(rows("small")[0].trainings[0])
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in (first / "measures").iterdir()]
    assert sorted(len(one["of"][3]) for one in kept) == [1, 1, 2]
    assert {json.dumps(one["of"][4]) for one in kept} == {'{"beam": 1}', '{"beam": 1, "replace_unknown": true}'}


def test_a_run_goes_on_after_an_interruption(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = training(**{"training.steps": 6, "training.validate_every": 6})
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "after", stopping(2))
        with pytest.raises(Interrupted):
            lab.trained(longer)
    assert not lab.has(longer)
    assert Run(lab.folder(longer)).newest() == 3
    began: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "after", noting(began))
        lab.trained(longer)
    assert began == [4, 5, 6]
    assert lab.has(longer)


AFTER = Trainer.after


def stopping(step: int) -> Any:
    """Asks to stop, as Ctrl-C does, after a step."""

    def after(self: Trainer, figures: dict[str, float]) -> None:
        AFTER(self, figures)
        if self.position.step == step:
            signal.raise_signal(signal.SIGINT)

    return after


def noting(steps: list[int]) -> Any:
    def after(self: Trainer, figures: dict[str, float]) -> None:
        AFTER(self, figures)
        steps.append(self.position.step)

    return after


def test_the_table_has_claims_figures_and_commands(lab: Lab) -> None:
    told = (lab.results / "fake" / "table.md").read_text(encoding="utf-8")
    assert "| a model is at a loss | the paper's | **holds** | plain " in told
    assert "| a model knows all | ours | **does not hold here** | plain " in told
    assert "| as good as itself | by definition | **not decided** | plain " in told
    assert "|  | perplexity | BLEU | BLEU, paper |" in told
    table = json.loads((lab.results / "fake" / "table.json").read_text(encoding="utf-8"))
    first, _, both = table["rows"]
    assert f"| plain | {first['measured']['perplexity']:.2f} | {first['measured']['bleu']:.1f} | 26.8 |" in told
    assert first["published"] == {"bleu": 26.75}
    assert [run["seed"] for run in both["runs"]] == [1, 2]
    assert table["signature"].startswith("nrefs:1")
    assert all({"torch", "cores", "gpu"} <= set(row["hardware"]) for row in table["rows"])
    assert all(run["seconds"] > 0 for run in both["runs"])
    assert [one["verdict"] for one in table["claims"]] == ["holds", "does not hold here", "not decided"]


TWO = {"training.steps": 2, "training.epochs": None, "training.validate_every": 2, "training.tensorboard": False}


def right(lab: Lab, row: Row) -> dict[str, Any]:
    """A measure that another process finds."""
    with (lab.out / "asked" / row.name).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    return {"accuracy": measures.evaluated(lab, row.trainings[0])["accuracy"]}


def test_several_are_trained_and_measured_at_once_and_then_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [Training("schuster1997", "copy-8", {**TWO, "training.seed": seed}) for seed in (1, 2)]
    asked = [Row("one", models[:1]), Row("two", models), Row("three", models[1:]), Row("none")]
    both = dataclasses.replace(FAKE, rows=lambda scale: asked, measure=right)
    lab, told = Lab(tmp_path, "small"), tmp_path / "asked"
    told.mkdir()
    together([dataclasses.replace(both, timed=True)], lab, seeds=1, jobs=2)
    assert all(lab.has(model) for model in models)
    assert not list(told.iterdir()), "nothing is beside what takes the time"
    shutil.rmtree(tmp_path / "corpora")  # what measures needs them as well
    together([both, both], lab, seeds=1, jobs=2)
    logs = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "logs").iterdir()}
    assert logs.keys() == {model.name for model in models}
    assert all("step 2: dev loss" in said for said in logs.values())
    monkeypatch.setattr("regard.reproduce.lab.train", no_training)
    together([both], lab, seeds=1, jobs=2)
    told_by = {path.name: path.read_text(encoding="utf-8").split() for path in told.iterdir()}
    assert {name: len(who) for name, who in told_by.items()} == {"one": 1, "two": 1, "three": 1}, "each is asked once"
    assert told_by["one"] == told_by["two"] != told_by["three"], "one process asks all that is of one run"
    assert [lab.measured(right, row) for row in asked[:3]] == [right(lab, row) for row in asked[:3]]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_who_has_seconds_in_the_table_says_so(name: str) -> None:
    one = EXPERIMENTS[name]
    assert one.timed == any(column.endswith(("_speed", "_seconds")) for column in one.columns)


STOPPED = """
import os, signal, sys
from functools import partial
from pathlib import Path
from regard.reproduce.processes import side_by_side
from regard.training import Interrupted

# Whoever started this may ignore them, as nohup does.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

def save(number):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    Path("told").write_text(f"{number} {os.getpgrp()}")
    signal.sigwait({signal.SIGTERM})
    Path(f"saved-{number}").touch()
    raise Interrupted(number, signal.SIGTERM)

if __name__ == "__main__":
    try:
        side_by_side({str(n): partial(save, n) for n in range(4)}, 1, print)
    except Interrupted as stop:
        print(stop, *sorted(path.name for path in Path().glob("saved-*")))
        sys.exit(128 + stop.signal_number)
"""


@pytest.mark.parametrize("everybody", [False, True], ids=["one", "group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
def test_who_is_asked_to_stop_saves_and_begins_nothing_else(
    number: signal.Signals, everybody: bool, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "told")
    (tmp_path / "script.py").write_text(STOPPED, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        begun, group = (tmp_path / "told").read_text(encoding="utf-8").split()
        assert begun == "0"
        assert int(group) != process.pid, "what is sent to all comes to the first alone"
        (os.killpg if everybody else os.kill)(process.pid, number)
        said = process.communicate()[0]
    assert process.returncode == 128 + number
    assert said == b"stopped saved-0\n"


class MoodyError(Exception):
    """Cannot be made again of what it says."""

    def __init__(self, mood: str, why: str) -> None:
        super().__init__(f"{mood} because of {why}")


class ClingingError(Exception):
    """Cannot go anywhere."""

    def __init__(self) -> None:
        super().__init__("clinging")
        self.to = lambda: None


def fail(kind: str) -> None:
    raise MoodyError("sad", "rain") if kind == "moody" else ClingingError


@pytest.mark.parametrize(
    ("kind", "said"), [("moody", "MoodyError: sad because of rain"), ("clinging", "ClingingError: clinging")]
)
def test_an_error_that_cannot_leave_its_process_is_told_in_words(kind: str, said: str) -> None:
    with pytest.raises(RuntimeError, match=said) as caught:
        side_by_side({"one": partial(fail, kind)}, 1, print)
    assert "in fail\n" in caught.value.__notes__[-1], "and where it was"


def leave_behind(told: Path) -> None:
    """Is killed while one that it has forked holds all that it had open."""
    if not os.fork():
        told.read_text(encoding="utf-8")
        os._exit(0)
    signal.raise_signal(signal.SIGKILL)


def test_a_process_that_is_killed_is_not_waited_for_because_of_what_it_forked(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "told")
    with pytest.raises(UserError, match=r"^parent: its process ended with the status -9$"):
        side_by_side({"parent": partial(leave_behind, tmp_path / "told")}, 1, print)
    (tmp_path / "told").write_text("go", encoding="utf-8")


def test_what_fails_beside_others_is_said(tmp_path: Path) -> None:
    broken = Training("schuster1997", "copy-8", {"model.size": -1})
    with pytest.raises(UserError, match="-1"):
        together([dataclasses.replace(FAKE, rows=lambda scale: [Row("one", [broken])])], Lab(tmp_path, "small"), 1, 2)


def test_a_process_that_is_killed_is_said_and_nothing_else_begins(tmp_path: Path) -> None:
    tasks = {"killed": partial(signal.raise_signal, signal.SIGKILL), "next": partial(touch, tmp_path / "begun")}
    with pytest.raises(UserError, match=r"^killed: its process ended with the status -9$"):
        side_by_side(tasks, 1, print)
    assert not (tmp_path / "begun").exists()


def test_a_process_that_is_told_nothing_ends() -> None:
    one = Begun(starting(), "early")
    one.process.start()
    one.join()
    assert one.process.exitcode == 0


def touch(path: Path) -> None:
    path.touch()


def test_a_rows_command_says_all_that_makes_its_run(lab: Lab) -> None:
    one = training(**{"training.betas": [0.9, 0.98], "training.epsilon": 1e-8, "model.attention": None})
    *words, last = shlex.split(lab.command(one))
    assert words[:2] == ["regard", "train"]
    assert dict(parse_override(word) for word in [*words, last] if is_override(word)) == one.changes
    corpus = lab.corpus("tiny")
    assert words[2:9] == [*map(str, corpus.train), "--dev", *map(str, corpus.dev or ()), "--recipe", "bahdanau2015"]
    assert words[9:11] == ["--out", str(lab.folder(one))]


def test_the_page_needs_nothing_from_outside(lab: Lab) -> None:
    page = (lab.results / "fake" / "page.html").read_text(encoding="utf-8")
    assert "<h1>A &lt;fake&gt;</h1>" in page
    assert page.count("data:image/png;base64,") == 2
    assert 'src="http' not in page
    assert "✓ holds" in page
    assert "✗ does not hold here" in page
    assert "? not decided" in page
    assert "regard reproduce fake --scale small" in page
    assert (lab.results / "fake" / "bleu.png").read_bytes().startswith(b"\x89PNG")


def test_the_overview_has_every_claim_of_what_was_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPERIMENTS, "fake", FAKE)
    index = running.overview(lab).read_text(encoding="utf-8")
    assert 'href="fake/page.html"' in index
    told = (lab.results / "README.md").read_text(encoding="utf-8")
    assert told.count("[fake](fake/table.md)") == 3


def test_a_plan_trains_nothing_and_says_what_is_there(lab: Lab, tmp_path: Path) -> None:
    told = plan([FAKE], lab)
    assert told.count("regard train ") == 4
    assert told.count("# is there") == 4
    elsewhere = Lab(tmp_path / "new", "small")
    assert "# is there" not in plan([FAKE], elsewhere)
    assert len(set(plan([FAKE], elsewhere, seeds=3).splitlines()) - set(plan([FAKE], elsewhere).splitlines())) == 4
    assert not elsewhere.out.exists()


# Rules.


def figures(**values: float | None) -> Figures:
    return Figures({name: {"bleu": value} for name, value in values.items()}, "small")


@pytest.mark.parametrize(
    ("gap", "verdict"),
    [
        (2.01, Verdict.HOLDS),
        (2.0, Verdict.OPEN),
        (0.0, Verdict.OPEN),
        (-2.0, Verdict.OPEN),
        (-2.01, Verdict.FAILS),
    ],
)
def test_a_gap_within_the_spread_decides_nothing(gap: float, verdict: Verdict) -> None:
    assert decided(gap, 2.0) is verdict


def test_rules_hold_fail_and_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each figure may be 0.3 off, a difference of two 2 · √(0.3² + 0.3²) = 0.85."""
    monkeypatch.setitem(TYPICAL["small"], "bleu", Deviation(0.3))
    found = figures(a=30.0, b=29.0, c=29.5)
    assert more("bleu", "a", "b")(found) == Finding(Verdict.HOLDS, "a 30, b 29, ± 0.85 assumed")
    assert more("bleu", "b", "a")(found).verdict is Verdict.FAILS
    assert more("bleu", "a", "c")(found).verdict is Verdict.OPEN
    assert more("bleu", "a", "c", 0.4)(found).verdict is Verdict.HOLDS
    assert less("bleu", "b", "a")(found).verdict is Verdict.HOLDS
    assert less("bleu", "a", "b")(found).verdict is Verdict.FAILS
    assert over("bleu", "a", 29.3)(found).verdict is Verdict.HOLDS
    assert over("bleu", "a", 29.5)(found).verdict is Verdict.OPEN
    assert under("bleu", "a", 29.3)(found).verdict is Verdict.FAILS
    assert alike("bleu", "a", "b", 2.0)(found).verdict is Verdict.HOLDS
    assert alike("bleu", "a", "b", 1.5)(found).verdict is Verdict.OPEN
    assert alike("bleu", "a", "b", 0.1)(found).verdict is Verdict.FAILS


def test_several_seeds_say_themselves_what_chance_does() -> None:
    times = [{"bleu": 30.0, "signature": "s"}, {"bleu": 32.0, "signature": "s"}, {"bleu": 34.0, "signature": "s"}]
    values = running.averaged(times)
    assert values == {"bleu": 32.0, "signature": "s", "deviations": {"bleu": 2.0}, "seeds": 3}
    assert running.averaged(times[:1]) == times[0]
    found = Figures({"a": values, "b": {**values, "bleu": 28.0}}, "small")
    assert found.chance("bleu", "a", "b").size == pytest.approx(2.78 * (2 * 2**2 / 3) ** 0.5), "4 degrees of freedom"
    assert more("bleu", "a", "b")(found) == Finding(Verdict.OPEN, "a 32, b 28, ± 4.5")


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_models_are_told_apart_once_in_twenty_times_at_most(seeds: int) -> None:
    draw, told_apart = np.random.default_rng(0), 0
    for _ in range(2000):
        values = {
            name: {"bleu": float(one.mean()), "deviations": {"bleu": float(one.std(ddof=1))}, "seeds": seeds}
            for name, one in zip("ab", draw.normal(30.0, 10.0, (2, seeds)), strict=True)
        }
        told_apart += more("bleu", "a", "b")(Figures(values, "small")).verdict is not Verdict.OPEN
    assert told_apart <= 0.06 * 2000


def test_seeds_that_agree_by_chance_are_not_taken_at_their_word() -> None:
    values: dict[str, Any] = {"bleu": 30.0, "deviations": {"bleu": 0.0}, "seeds": 2}
    found = Figures({"a": values, "b": {**values, "bleu": 31.0}}, "small").chance("bleu", "a", "b")
    assert found.size > 2
    assert not found.assumed


def test_what_is_assumed_is_called_so() -> None:
    assert more("bleu", "a", "b")(figures(a=60.0, b=30.0)).figures == "a 60, b 30, ± 18 assumed"
    assert str(Chance(812.3)) == "± 810"
    assert str(Chance(0.0)) == "± 0"


@pytest.mark.parametrize(
    ("middle", "high", "verdict"),
    [(34.2, 34.8, Verdict.HOLDS), (33.0, 34.8, Verdict.FAILS), (33.9, 34.8, Verdict.OPEN), (33.4, 33.4, Verdict.OPEN)],
)
def test_most_is_more_than_half(middle: float, high: float, verdict: Verdict) -> None:
    found = most("bleu", "b", ("a", "c"), 0.5)(figures(a=33.0, b=middle, c=high))
    assert found.verdict is verdict
    assert found.figures == f"a 33, b {middle:.4g}, c {high:.4g}, ± 0.5"
    assert most("bleu", "b", ("a", "c"), 0.5)(figures(a=33.0)).figures == "a 33, bleu of b and c was not measured"


def test_a_row_that_is_trained_again_has_other_seeds_throughout() -> None:
    row = rows("small")[2]
    assert row.again(0) == row
    assert [one.seed for one in row.again(2).trainings] == [201, 202]
    assert len({one.name for time in range(3) for one in row.again(time).trainings}) == 6


def test_a_deviation_may_grow_with_the_figure() -> None:
    assert Deviation(absolute=1.0, share=0.1).of(-20.0) == pytest.approx(3.0)


def test_what_was_not_measured_is_not_decided() -> None:
    for rule in (more("bleu", "a", "b"), less("bleu", "b", "a"), over("bleu", "b", 1), alike("bleu", "a", "b", 1)):
        assert rule(figures(a=1.0, b=None)).verdict is Verdict.OPEN
        assert "not measured" in rule(figures()).figures


# The twelve.


@pytest.mark.parametrize("scale", SCALES)
def test_every_experiment_can_be_trained_as_it_is_written(scale: str) -> None:
    assert len(EXPERIMENTS) == 12
    wanted = {one.name: one for each in EXPERIMENTS.values() for row in each.rows(scale) for one in row.trainings}
    assert len(wanted) > 40
    for one in wanted.values():
        assert check(one.config()).steps
        assert one.corpus in SOURCES
    assert {one.config()["training"]["device"] for one in wanted.values()} <= {"cpu", "auto"}


def test_the_page_says_what_each_experiment_says_of_itself() -> None:
    page = PAGE.read_text(encoding="utf-8")
    told = re.findall(r"^### (.+)\n\n.+\n\n(.+)$", page, re.MULTILINE)
    about = {one.title: one.about for one in EXPERIMENTS.values()}
    assert {title for title, _ in told} == set(about)
    assert all(about[title] == said for title, said in told)


@pytest.mark.parametrize("corpus", ["mixed-ende", "mixed-enfr", "multi30k"])
def test_the_page_has_the_sizes_of_the_full_scale(corpus: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (line,) = re.findall(r"^\| models \|.*\|(.*)\|$", page, re.MULTILINE)
    mixed, captions = line.split(";")
    keys = SETTINGS[corpus]
    size, layers, steps, tokens = (
        keys[name] for name in ("model.size", "model.layers", "training.steps", "training.batch_tokens")
    )
    if corpus == "multi30k":
        assert captions.strip() == f"{size} wide, {steps:,} of {tokens:,} tokens, for Multi30k"
    else:
        assert mixed.strip() == f"{size} wide, {layers} layers, {steps:,} updates of {tokens:,} tokens"


class Asked(dict[str, Mapping[str, Any]]):
    """Figures that note which rows and measures a rule asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return default


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("scale", SCALES)
def test_claims_are_of_rows_that_there_are(name: str, scale: str) -> None:
    experiment = EXPERIMENTS[name]
    known = [row.name for row in experiment.rows(scale)]
    assert len(set(known)) == len(known)
    for claim in experiment.claims:
        asked = Asked()
        assert claim.rule(Figures(asked, scale)).verdict is Verdict.OPEN
        assert asked.seen <= set(known), claim.text
    assert experiment.claims
    assert experiment.source


@pytest.mark.parametrize("experiment", [COST, SCALING], ids=lambda one: one.name)
def test_what_needs_no_training_is_measured_at_once(
    experiment: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab(tmp_path, "small")
    quick = little(experiment)
    values = {row.name: experiment.measure(lab, row) for row in quick}
    assert all(isinstance(values[row.name][name], float) for row in quick for name in experiment.columns)
    if experiment is COST:
        counted = dict(map(tuple, values["global"]["operations"]))
        assert counted[8192] == 256 * counted[32] == 8192 * 2 * 2 * 16, "a product for the score, one for the context"
        assert {count for _, count in values["local-m"]["operations"]} == {21 * 2 * 2 * 16}
        assert len({count for _, count in values["local-p"]["bytes"]}) == 1
    else:
        assert values["dot"]["gradient_kept"] < values["scaled dot"]["gradient_kept"]
        assert values["dot"]["entropy"] < values["scaled dot"]["entropy"]
    conduct(dataclasses.replace(experiment, rows=lambda scale: quick), lab, seeds=3)
    assert "has no runs, so that it was measured once, not with 3 seeds" in capsys.readouterr().err


LITTLE: dict[str, dict[str, Any]] = {"cost": {"size": 16, "repeats": 1}, "scaling": {"width": 16, "steps": 3}}


def little(experiment: Experiment) -> list[Row]:
    """The rows of an experiment that trains nothing, with less to count."""
    return [Row(row.name, (), {**row.options, **LITTLE[experiment.name]}) for row in experiment.rows("small")]


# Corpora.


def test_pairs_in_one_line_keep_their_links() -> None:
    from regard.data.grammar import Pair as Linked

    joined = one_line([Linked("a b", "x", ((0, 0), (1, 0))), Linked("c", "y z", ((0, 1),))])
    assert joined == Linked("a b c", "x y z", ((0, 0), (1, 0), (2, 2)))


def test_the_sum_of_two_marked_numbers_is_at_the_end() -> None:
    from random import Random

    table = [list(map(float, line.split())) for line in added(Random(3), 50).splitlines()]
    marked = [number for number, mark, _ in table if mark == 1]
    assert len(table) == 50
    assert len(marked) == 2
    assert table[-1][1:] == [-1, pytest.approx(sum(marked), abs=1e-3)]
    assert all(sought == 0 for *_, sought in table[:-1])


def test_what_was_told_is_to_be_said_again_after_a_pause() -> None:
    from random import Random

    table = [line.split() for line in copied(Random(3), 3, 4).splitlines()]
    words, labels = [row[0] for row in table], [row[1] for row in table]
    assert words[3:] == ["-"] * 4 + ["say"] * 3
    assert labels == ["wait"] * 7 + words[:3]


def test_nothing_is_trained_on_that_is_tested_on(tmp_path: Path) -> None:
    parts = [[Pair("a", "b"), Pair("c", "d")], [Pair("a", "b"), Pair("", "x"), Pair("t", "u"), Pair("a", "e")]]
    write_split(tmp_path, parts, [Pair("c", "f")], [Pair("t", "u")], ("en", "de"))
    assert pairs([tmp_path / "train.en", tmp_path / "train.de"]) == [Pair("a", "b"), Pair("a", "e")]


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of corpora with a line or two each."""
    data = tmp_path / "data"
    (data / "multi30k").mkdir(parents=True)
    for name in ("train", "val", "test_2016_flickr"):
        for code in ("en", "de"):
            (data / "multi30k" / f"{name}.{code}.gz").write_bytes(gzip.compress(f"{name} {code}\n".encode()))
    (data / "align").mkdir()
    (data / "align" / "enfr.src-tgt").write_text("the  dog |||  le chien \n", encoding="utf-8")
    (data / "align" / "enfr.gold").write_text("1-1 2p2\n", encoding="utf-8")
    monkeypatch.setenv("REGARD_DATA", str(data))
    return data


def test_real_corpora_are_found_however_they_are_compressed(real: Path, tmp_path: Path) -> None:
    corpus = prepared("multi30k", tmp_path)
    assert pairs(corpus.train) == [Pair("train en", "train de")]
    assert pairs(corpus.test) == [Pair("test_2016_flickr en", "test_2016_flickr de")]
    (real / "multi30k" / "train.en.gz").unlink()
    assert prepared("multi30k", tmp_path) == corpus, "what was written once is there"


def test_gold_alignments_count_from_one(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.reproduce.corpora.sides", lambda stem, *codes: iter([Pair(stem, codes[1])]))
    monkeypatch.setattr("regard.reproduce.corpora.tatoeba", lambda name: iter([Pair("hello", "bonjour")]))
    corpus = prepared("mixed-enfr", tmp_path)
    test = pairs(corpus.test)
    assert test == [Pair("the dog", "le chien")]
    assert corpus.gold is not None
    (gold,) = read_gold(corpus.gold, test, corpus.first)
    assert (set(gold.sure), set(gold.possible)) == ({(0, 0)}, {(0, 0), (1, 1)})


def test_what_is_missing_is_said_in_a_sentence(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"there is no newstest/news-test2008\.de-en\.en in .*, nor one that ends in \.xz"
    ):
        prepared("mixed-ende", tmp_path)
    assert not (tmp_path / "mixed-ende").exists()
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="nowhere, which is not a folder"):
        prepared("mixed-ende", tmp_path)
    monkeypatch.delenv("REGARD_DATA")
    with pytest.raises(UserError, match="set REGARD_DATA"):
        prepared("mixed-ende", tmp_path)


# Measures.


def test_a_dictionary_has_the_rare_word_that_a_word_comes_with_most(lab: Lab) -> None:
    translator = load(lab.folder(training()))
    corpus = [Pair("the xylophone plays", "das Xylophon spielt"), Pair("a xylophone", "ein Xylophon")]
    corpus += [Pair("the zebra runs", "das Zebra läuft"), Pair("the zebra", "das Zebra")]
    found = dictionary(corpus, translator)
    assert (found["xylophone"], found["zebra"]) == ("Xylophon", "Zebra")


@pytest.mark.parametrize(("precision", "half"), [("fp32", False), ("auto", False), ("bf16", True)])
def test_training_is_timed_on_all_lengths_in_the_runs_precision(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, precision: Any, half: bool
) -> None:
    translator, train = load(lab.folder(training())), pairs(lab.corpus("tiny").train)
    seen: list[tuple[int, int, bool]] = []

    def summed(model: Seq2Seq, source: Tensor, *rest: Any) -> Tensor:
        seen.append((source.shape[1], len(source), torch.is_autocast_enabled("cpu")))
        return plain(model, source, *rest)

    plain = Seq2Seq.summed
    monkeypatch.setattr(Seq2Seq, "summed", summed)
    settings = TrainingSettings(batch_tokens=100, device="cpu", precision=precision)
    assert speed.pace(translator, train, settings) > 0
    lengths = [length for length, _, _ in seen[1:]]
    words = [len(translator.tokenizers.source.encode(pair.source)) + 1 for pair in train]
    assert len(seen) == 1 + speed.SAMPLE, "one to begin with, on a CPU"
    assert len(set(lengths)) >= 4
    assert lengths[0] <= sorted(words)[len(words) // 4]
    assert lengths[-1] >= sorted(words)[-len(words) // 4]
    assert all(length * sentences <= 100 for length, sentences, _ in seen)
    assert {autocast for *_, autocast in seen} == {half}


def test_speed_of_training_is_in_tokens_without_padding(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    translator, train = load(lab.folder(training())), pairs(lab.corpus("tiny").train)
    ticks = iter([3.0, 5.0])
    monkeypatch.setattr(speed, "clock", lambda device: next(ticks))
    found = speed.pace(translator, train, TrainingSettings(batch_tokens=10**6, device="cpu"))
    words = sum(len(translator.tokenizers.target.encode(pair.target)) + 1 for pair in train)
    assert found == speed.SAMPLE * words / 2.0, "one batch has them all, and comes as often as there should be some"


def test_what_was_not_trained_on_is_not_timed(lab: Lab) -> None:
    translator, train = load(lab.folder(training())), pairs(lab.corpus("tiny").train)
    kept = measures.batches(translator, train, 500, longest=8)
    assert 0 < sum(batch.rows for batch in kept) < len(train)
    assert max(max(batch.source.shape[1], batch.target_out.shape[1]) for batch in kept) == 9, "with the end"


def test_the_clock_waits_for_the_faster_ways_of_a_gpu() -> None:
    last = max(packed.FIRST, output.FIRST)
    assert last + speed.SAMPLE * (OFTEN + 1) <= speed.SAMPLE * speed.UNTIMED, "recordings included"


def test_pairs_are_taken_from_all_over_a_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "LOOKED", 4)
    assert [pair.source for pair in speed.thinned([Pair(str(number), "") for number in range(9)])] == list("02468")
    assert len(speed.thinned([Pair("", "")] * 3)) == 3


def test_spread_is_entropy_and_the_share_of_faint_weights() -> None:
    even, sharp = np.full((1, 4), 0.25, dtype=np.float32), np.array([[1.0, 0, 0, 0]], dtype=np.float32)
    assert spread([even]) == {"entropy": pytest.approx(np.log(4)), "faint": 0.0}
    assert spread([sharp]) == {"entropy": pytest.approx(0.0, abs=1e-6), "faint": 0.75}
    assert spread([even * 0.5])["entropy"] == pytest.approx(np.log(4)), "what a Gaussian takes away is given back"


# The command.


def test_the_command_runs_an_experiment_and_says_what_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(COST, rows=lambda scale: little(COST))
    monkeypatch.setitem(EXPERIMENTS, "cost", small)
    reproduce(names=["cost"], out=tmp_path)
    assert "local-p: operations stay the same (local-p 1, " in capsys.readouterr().out
    assert (tmp_path / "small" / "cost" / "page.html").is_file()
    assert (tmp_path / "small" / "index.html").is_file()


def test_the_command_is_there(regard: Command) -> None:
    done = regard("reproduce", "laddder")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no experiment 'laddder'; did you mean 'ladder'?" in " ".join(done.stderr.split())


def test_the_command_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    reproduce(listed=True)
    said = capsys.readouterr().out
    assert all(f"{name}: {one.title}" in said for name, one in EXPERIMENTS.items())
    assert said.count("  source: ") == said.count(" full: ") == 12


def test_a_dry_run_of_the_full_scale_needs_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce(everything=True, scale="full", dry_run=True, out=tmp_path / "here")
    assert f"--recipe luong2015-local-p --out {tmp_path}/here/runs/luong2015-local-p-" in capsys.readouterr().out
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"names": ["ladder"], "scale": "smal"}, "there is no scale 'smal'; did you mean 'small'?"),
        ({}, "nothing to reproduce: name experiments, or --all; --list says what there is"),
        ({"names": ["ladder"], "everything": True}, "--all is every experiment: leave the names out, or --all"),
    ],
)
def test_mistakes_are_one_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as raised:
        reproduce(**given)
    assert str(raised.value) == said


@pytest.mark.learn
def test_an_experiment_is_run_as_it_comes(tmp_path: Path) -> None:
    """Both directions see what one does not: the tags of the embedded sentences, the sums of the embedded series."""
    outcome = conduct(EXPERIMENTS["directions"], Lab(tmp_path, "small"))
    found = {claim.text: finding.verdict for claim, finding in outcome.findings}
    assert found["brnn tags better than rnn"] is Verdict.HOLDS
    assert found["brnn follows numbers better than rnn (R²)"] is Verdict.HOLDS
