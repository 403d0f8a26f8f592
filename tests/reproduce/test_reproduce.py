"""`regard reproduce`: what an experiment trains, reuses, resumes, measures, concludes and writes."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import ROOT, Command
from support.training import TINY as TINY_TRANSLATION
from torch import Tensor

from regard.cli.options import InferenceDevice
from regard.cli.reproduce import reproduce
from regard.cli.train import is_override
from regard.data.readers.dispatch import read_all_pairs
from regard.data.readers.text import Pair
from regard.errors import UserError
from regard.evaluate.alignment_error_rate import read_gold_alignments
from regard.fast.cuda_graphs.cache import MIN_CALLS
from regard.models import Seq2Seq
from regard.recipes.recipe import parse_override
from regard.reproduce import metrics, runner, tables, workspace
from regard.reproduce.corpora import (
    CORPUS_BUILDERS,
    CorpusBuilder,
    join_aligned_pairs,
    make_adding_series,
    make_copy_sentence,
    prepare_corpus,
    write_split,
)
from regard.reproduce.experiment import (
    METRICS,
    PRESETS,
    SCALES,
    Chart,
    Claim,
    ClaimRule,
    Experiment,
    ExperimentRow,
    SeedDeviation,
    TrainingSpec,
)
from regard.reproduce.experiments import EXPERIMENTS, read_experiment
from regard.reproduce.metrics import (
    build_replacement_dictionary,
    measure_attention_entropy,
    measure_translation,
    measure_translation_and_speed,
)
from regard.reproduce.runner import (
    format_claim_results,
    format_dry_run,
    run_experiment,
    run_in_processes,
    train_and_measure_parallel,
)
from regard.reproduce.significance import (
    ClaimResult,
    Finding,
    Measurements,
    SignificanceMargin,
    compare_with_margin,
    decide_claim,
)
from regard.reproduce.workspace import Workspace
from regard.runs import Run
from regard.synthetic.translation import write_translation_corpus as write_embedded
from regard.training import Trainer, TrainingSettings
from regard.training.distributed import Interrupted
from regard.training.train import check_config, make_config
from regard.translate import load

TINY = {
    **TINY_TRANSLATION,
    "model.size": 8,
    "training.steps": 3,
    "training.validate_every": 3,
    "training.checkpoint_every": 1,
}

PAGE = ROOT / "docs" / "reproduce.md"


def write_tiny_corpus(folder: Path) -> None:
    write_embedded(folder, 60, overwrite=True)


def make_training(**changes: Any) -> TrainingSpec:
    return TrainingSpec("bahdanau2015", "tiny", {**TINY, **changes})


def make_rows(scale: str) -> list[ExperimentRow]:
    plain, other = make_training(), make_training(**{"training.seed": 2})
    return [
        ExperimentRow("plain", [plain], {"beam": 1}, {"bleu": 26.75}),
        ExperimentRow("unk", [plain], {"beam": 1, "replace_unknown": True}),
        ExperimentRow("both", [plain, other], {"beam": 1}),
    ]


EXPERIMENT = Experiment(
    name="fake",
    title="A <fake>",
    source="Author 1999, table 0",
    description="Three updates each.",
    rows=make_rows,
    measure=measure_translation,
    columns=("perplexity", "bleu"),
    claims=(
        Claim("perplexity is over 1", "above", "perplexity", ["plain"], 1.0),
        Claim("perplexity is under 1", "below", "perplexity", ["plain"], 1.0, origin="ours"),
        Claim("no better than itself", "higher", "perplexity", ["plain", "unk"], origin="definition"),
    ),
    charts=(Chart("bleu", "BLEU"), Chart("by_length", "By length", "words", "BLEU")),
)


@pytest.fixture(scope="module")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduce")


@pytest.fixture(autouse=True)
def tiny_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CORPUS_BUILDERS, "tiny", CorpusBuilder(write_tiny_corpus, ("en", "de"), gold="test.align"))


@pytest.fixture
def lab(lab_folder: Path) -> Workspace:
    """Provide a lab in which `EXPERIMENT` has been conducted."""
    lab = Workspace(lab_folder, "small")
    if not (lab.results_folder / "fake" / "table.json").exists():
        run_experiment(EXPERIMENT, lab)
    return lab


# Runs, measurements and pages of an experiment


def test_experiment_rows_share_runs_and_are_not_trained_again(lab: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {path.name for path in (lab.out / "runs").iterdir()} == {one.name for one in make_rows("small")[2].trainings}
    before = json.loads((lab.results_folder / "fake" / "table.json").read_text(encoding="utf-8"))
    monkeypatch.setattr("regard.reproduce.workspace.train", refuse_training)
    result = run_experiment(EXPERIMENT, lab)
    after = json.loads((lab.results_folder / "fake" / "table.json").read_text(encoding="utf-8"))
    assert after | {"seconds": 0} == before | {"seconds": 0}
    lines = format_claim_results(result).splitlines()
    assert lines[0] == "fake: A <fake>"
    assert lines[1].startswith("  holds               perplexity is over 1 (plain ")
    assert lines[2].startswith("  does not hold here  perplexity is under 1 (plain ")


def test_cached_measurements_need_no_checkpoints(
    lab: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(lab.out, tmp_path / "lab", ignore=shutil.ignore_patterns("checkpoints"))
    lean = Workspace(tmp_path / "lab", "small")
    monkeypatch.setattr("regard.reproduce.workspace.train", refuse_training)
    for table in (run_experiment(EXPERIMENT, lean), run_experiment(EXPERIMENT, lean, may_train=False)):
        assert [row["name"] for row in table["rows"]] == [row.name for row in make_rows("small")]
    train_and_measure_parallel([EXPERIMENT], lean, seeds=1, jobs=2)


def test_measurements_that_version_0_1_cached_are_found() -> None:
    row = ExperimentRow("a", [TrainingSpec("bahdanau2015", "tiny", {"model.size": 8})], {"beam": 1})
    path = Workspace(Path("lab"), "small").measurement_path(measure_translation, row)
    assert path == Path("lab/runs/bahdanau2015-08658b7659/measures/8fd18ae973.json")


def test_table_of_trained_rows_leaves_out_untrained_rows(
    lab: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    untrained = make_training(**{"training.seed": 77})
    partly_trained = Experiment(
        name="partly",
        title="Partly",
        source="Author 1999",
        description="One row is not trained.",
        rows=lambda scale: [make_rows(scale)[0], ExperimentRow("new", [untrained], {"beam": 1})],
        measure=measure_translation,
        columns=("perplexity", "bleu"),
        claims=(
            Claim("perplexity is over 1", "above", "perplexity", ["plain"], 1.0),
            Claim("another", "higher", "bleu", ["new", "plain"]),
        ),
        charts=(Chart("bleu", "BLEU"),),
    )
    monkeypatch.setattr("regard.reproduce.workspace.train", refuse_training)
    table = run_experiment(partly_trained, lab, may_train=False)
    assert "partly 2/2: new is skipped: it is not trained" in capsys.readouterr().err
    assert [row["name"] for row in table["rows"]] == ["plain"]
    assert [claim["verdict"] for claim in table["claims"]] == [ClaimResult.HOLDS, ClaimResult.UNDECIDED]
    assert "| new |" not in (lab.results_folder / "partly" / "table.md").read_text(encoding="utf-8")
    with pytest.raises(AssertionError, match="training was not expected"):
        run_experiment(partly_trained, lab)
    with pytest.raises(UserError, match="partly: no row is trained yet at the scale full"):
        run_experiment(partly_trained, Workspace(lab.out / "other", "full"), may_train=False)


def refuse_training(*_: Any, **__: Any) -> None:
    raise AssertionError("training was not expected")


def test_measurements_are_cached_by_their_options(lab: Workspace) -> None:
    first = lab.run_folder(make_rows("small")[0].trainings[0])
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in (first / "measures").iterdir()]
    assert sorted(len(one["of"][3]) for one in kept) == [1, 1, 2]
    assert {json.dumps(one["of"][4]) for one in kept} == {'{"beam": 1}', '{"beam": 1, "replace_unknown": true}'}


def test_interrupted_experiment_resumes_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Workspace(tmp_path, "small")
    longer = make_training(**{"training.steps": 6, "training.validate_every": 6})
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "log_validate_and_save", interrupt_after(2))
        with pytest.raises(Interrupted):
            lab.train_or_resume(longer)
    assert not lab.is_trained(longer)
    assert Run(lab.run_folder(longer)).find_newest_step() == 3
    steps: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "log_validate_and_save", record_steps(steps))
        lab.train_or_resume(longer)
    assert steps == [4, 5, 6]
    assert lab.is_trained(longer)


ORIGINAL_AFTER = Trainer.log_validate_and_save


def interrupt_after(step: int) -> Any:
    """Return a `Trainer.after` that raises SIGINT after a step."""

    def after(self: Trainer, figures: dict[str, float]) -> None:
        ORIGINAL_AFTER(self, figures)
        if self.train_state.step == step:
            signal.raise_signal(signal.SIGINT)

    return after


def record_steps(steps: list[int]) -> Any:
    def after(self: Trainer, figures: dict[str, float]) -> None:
        ORIGINAL_AFTER(self, figures)
        steps.append(self.train_state.step)

    return after


def test_result_table_has_claims_figures_and_seeds(lab: Workspace) -> None:
    text = (lab.results_folder / "fake" / "table.md").read_text(encoding="utf-8")
    assert "| perplexity is over 1 | the paper's | **holds** | plain " in text
    assert "| perplexity is under 1 | ours | **does not hold here** | plain " in text
    assert "| no better than itself | by definition | **not decided** | plain " in text
    assert "|  | perplexity | BLEU | BLEU, paper |" in text
    table = json.loads((lab.results_folder / "fake" / "table.json").read_text(encoding="utf-8"))
    first, _, both = table["rows"]
    assert f"| plain | {first['measured']['perplexity']:.2f} | {first['measured']['bleu']:.1f} | 26.8 |" in text
    assert first["published"] == {"bleu": 26.75}
    assert [run["seed"] for run in both["runs"]] == [1, 2]
    assert table["signature"].startswith("nrefs:1")
    assert all({"torch", "cores", "gpu"} <= set(row["hardware"]) for row in table["rows"])
    assert all(run["seconds"] > 0 for run in both["runs"])
    assert [one["verdict"] for one in table["claims"]] == ["holds", "does not hold here", "not decided"]


TWO_STEPS = {"training.steps": 2, "training.epochs": None, "training.validate_every": 2, "training.tensorboard": False}


def count_and_measure(lab: Workspace, row: ExperimentRow) -> dict[str, Any]:
    """Measure accuracy and append the process id to a file of this row."""
    with (lab.out / "calls" / row.name).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    return {"accuracy": metrics.evaluate_on_test_set(lab, row.trainings[0])["accuracy"]}


@pytest.mark.slow
def test_parallel_jobs_train_and_measure_each_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [TrainingSpec("schuster1997", "copy-8", {**TWO_STEPS, "training.seed": seed}) for seed in (1, 2)]
    rows = [
        ExperimentRow("one", models[:1]),
        ExperimentRow("two", models),
        ExperimentRow("three", models[1:]),
        ExperimentRow("none"),
    ]
    experiment = dataclasses.replace(EXPERIMENT, rows=lambda scale: rows, measure=count_and_measure)
    lab, calls = Workspace(tmp_path, "small"), tmp_path / "calls"
    calls.mkdir()
    train_and_measure_parallel([dataclasses.replace(experiment, measures_time=True)], lab, seeds=1, jobs=2)
    assert all(lab.is_trained(model) for model in models)
    assert not list(calls.iterdir()), "timed experiments are not measured in parallel"
    shutil.rmtree(tmp_path / "corpora")  # measuring has to write them again
    train_and_measure_parallel([experiment, experiment], lab, seeds=1, jobs=2)
    logs = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "logs").iterdir()}
    assert logs.keys() == {model.name for model in models}
    assert all("step 2: dev loss" in log for log in logs.values())
    monkeypatch.setattr("regard.reproduce.workspace.train", refuse_training)
    train_and_measure_parallel([experiment], lab, seeds=1, jobs=2)
    processes = {path.name: path.read_text(encoding="utf-8").split() for path in calls.iterdir()}
    assert {name: len(ids) for name, ids in processes.items()} == {"one": 1, "two": 1, "three": 1}
    assert processes["one"] == processes["two"] != processes["three"], "one process measures all rows of a run"
    assert [lab.measure_row(count_and_measure, row) for row in rows[:3]] == [
        count_and_measure(lab, row) for row in rows[:3]
    ]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_with_speed_columns_is_marked_as_timed(name: str) -> None:
    one = EXPERIMENTS[name]
    assert one.measures_time == any(column.endswith(("_speed", "_seconds")) for column in one.columns)


INTERRUPTED_SCRIPT = """
import os, signal, sys
from functools import partial
from pathlib import Path
from regard.reproduce.runner import run_in_processes
from regard.training.distributed import Interrupted

# The parent may ignore them, as nohup does.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

def save(number):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    Path("started").write_text(f"{number} {os.getpgrp()}")
    signal.sigwait({signal.SIGTERM})
    Path(f"saved-{number}").touch()
    raise Interrupted(number, signal.SIGTERM)

if __name__ == "__main__":
    try:
        list(run_in_processes({str(n): partial(save, n) for n in range(4)}, 1, Path()))
    except Interrupted as stop:
        print(stop, *sorted(path.name for path in Path().glob("saved-*")))
        sys.exit(128 + stop.signal_number)
"""


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True], ids=["process", "process group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signal_to_a_script_stops_its_parallel_jobs_in_order(
    number: signal.Signals, group: bool, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "started")
    fifo = os.open(tmp_path / "started", os.O_RDONLY | os.O_NONBLOCK)  # does not wait for a writer
    (tmp_path / "script.py").write_text(INTERRUPTED_SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout
        ready, _, _ = select.select([fifo, process.stdout.fileno()], [], [])
        assert ready == [fifo], "the script ended before its first job started"
        started, job_group = os.read(fifo, 100).decode().split()
        assert started == "0"
        assert int(job_group) != process.pid, "a signal to the process group must reach the parent alone"
        (os.killpg if group else os.kill)(process.pid, number)
        output = process.communicate()[0]
    os.close(fifo)
    assert process.returncode == 128 + number
    assert output == b"stopped saved-0\n"


def test_fork_server_leaves_the_process_group_before_it_imports_pytorch() -> None:
    script = "import os, sys; import regard.process_group; print(os.getpgrp() == os.getpid(), 'torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    output = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True).stdout
    assert output == b"True False\n"


def signal_and_save(parent: int, number: int, saved: Path) -> None:
    """Send a signal to the parent, wait for its SIGTERM, and stop as training does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.kill(parent, number)
    signal.sigwait({signal.SIGTERM})
    saved.touch()
    raise Interrupted(None, signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signal_stops_the_running_job_and_starts_no_more(number: signal.Signals, tmp_path: Path) -> None:
    tasks = {name: partial(signal_and_save, os.getpid(), number, tmp_path / name) for name in ("first", "second")}
    before = signal.signal(number, lambda *_: pytest.fail("the signal was not handled"))  # may be ignored (nohup)
    try:
        with pytest.raises(Interrupted) as caught:
            list(run_in_processes(tasks, 1, tmp_path))
    finally:
        signal.signal(number, before)
    assert caught.value.signal_number == number
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "first.log"]


def fail(error: type[Exception]) -> None:
    sys.stdout.write("before the error\n")
    raise error("two\nlines")


@pytest.mark.parametrize("error", [UserError, ValueError])
def test_error_in_a_job_is_reported_with_its_log(error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"^one: the process exited with status 1: lines \(see {tmp_path}/one.log\)$"):
        list(run_in_processes({"one": partial(fail, error)}, 1, tmp_path))
    log = (tmp_path / "one.log").read_text(encoding="utf-8")
    assert log.startswith("before the error\n" if error is UserError else "")
    assert ("in fail\n" in log) == (error is not UserError), "only a user error has no traceback"


def fork_and_die(fifo: Path) -> None:
    """Die by SIGKILL while a forked child keeps every file descriptor open."""
    if not os.fork():
        fifo.read_text(encoding="utf-8")
        os._exit(0)
    signal.raise_signal(signal.SIGKILL)


def test_killed_job_is_reported_while_its_own_child_still_runs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UserError, match=r"^parent: the process exited with status -9$"):
        list(run_in_processes({"parent": partial(fork_and_die, tmp_path / "fifo")}, 1, tmp_path))
    (tmp_path / "fifo").write_text("go", encoding="utf-8")


def test_error_in_a_parallel_training_is_raised(tmp_path: Path) -> None:
    broken = TrainingSpec("schuster1997", "copy-8", {"model.size": -1})
    experiment = dataclasses.replace(EXPERIMENT, rows=lambda scale: [ExperimentRow("one", [broken])])
    with pytest.raises(UserError, match=r"status 1: model: size must be at least 1"):
        train_and_measure_parallel([experiment], Workspace(tmp_path, "small"), seeds=1, jobs=2)


def test_killed_job_is_reported_and_no_other_starts(tmp_path: Path) -> None:
    tasks = {"killed": partial(signal.raise_signal, signal.SIGKILL), "next": partial(touch, tmp_path / "started")}
    with pytest.raises(UserError, match=r"^killed: the process exited with status -9$"):
        list(run_in_processes(tasks, 1, tmp_path))
    assert not (tmp_path / "started").exists()


def touch(path: Path) -> None:
    path.touch()


def test_command_of_a_row_has_every_override_of_its_run(lab: Workspace) -> None:
    one = make_training(**{"training.betas": [0.9, 0.98], "training.epsilon": 1e-8, "model.attention": None})
    *words, last = shlex.split(lab.format_train_command(one))
    assert words[:2] == ["regard", "train"]
    assert dict(parse_override(word) for word in [*words, last] if is_override(word)) == one.changes
    corpus = lab.get_corpus("tiny")
    assert words[2:9] == [*map(str, corpus.train), "--dev", *map(str, corpus.dev or ()), "--recipe", "bahdanau2015"]
    assert words[9:11] == ["--out", str(lab.run_folder(one))]


def test_result_page_is_self_contained(lab: Workspace) -> None:
    page = (lab.results_folder / "fake" / "page.html").read_text(encoding="utf-8")
    assert "<h1>A &lt;fake&gt;</h1>" in page
    assert page.count("data:image/png;base64,") == 2
    assert 'src="http' not in page
    assert "✓ holds" in page
    assert "✗ does not hold here" in page
    assert "? not decided" in page
    assert "regard reproduce fake --scale small" in page
    assert (lab.results_folder / "fake" / "bleu.png").read_bytes().startswith(b"\x89PNG")


def test_chart_has_no_published_values_of_rows_that_were_not_measured(
    lab: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"name": "one", "runs": [], "measured": {"bleu": 10.0}, "published": {"bleu": 20.0}},
        {"name": "other", "runs": [], "measured": {"bleu": None}, "published": {"bleu": 30.0}},
    ]
    experiment = dataclasses.replace(EXPERIMENT, name="chart", charts=[Chart("bleu", "BLEU")])
    drawn: list[Any] = []
    monkeypatch.setattr(tables, "plot_bars", lambda *arguments: drawn.append(arguments))
    table = {"experiment": "chart", "title": "", "scale": "small", "seeds": 1, "claims": [], "rows": rows}
    tables.write_results(experiment, table, lab)
    assert drawn == [({"one": 10.0}, "BLEU", {"one": 20.0}, {})]


def test_overview_lists_every_claim_of_finished_experiments(lab: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPERIMENTS, "fake", EXPERIMENT)
    index = tables.write_overview(lab).read_text(encoding="utf-8")
    assert 'href="fake/page.html"' in index
    text = (lab.results_folder / "README.md").read_text(encoding="utf-8")
    assert text.count("[fake](fake/table.md)") == 3


def test_plan_trains_nothing_and_marks_existing_runs(lab: Workspace, tmp_path: Path) -> None:
    text = format_dry_run([EXPERIMENT], lab)
    assert text.count("regard train ") == 4
    assert text.count("# already trained") == 4
    elsewhere = Workspace(tmp_path / "new", "small")
    assert "# already trained" not in format_dry_run([EXPERIMENT], elsewhere)
    once, thrice = (set(format_dry_run([EXPERIMENT], elsewhere, seeds=seeds).splitlines()) for seeds in (1, 3))
    assert len(thrice - once) == 4
    assert not elsewhere.out.exists()


# Rules that decide claims


def make_figures(**values: float | None) -> Measurements:
    return Measurements({name: {"bleu": value} for name, value in values.items()}, "small")


def decide(rule: ClaimRule, rows: str, found: Measurements, limit: float = 0.0, margin: float | None = None) -> Finding:
    """Decide a claim about the BLEU of rows that are named by one letter each."""
    return decide_claim(Claim("", rule, "bleu", list(rows), limit, margin), found)


@pytest.mark.parametrize(
    ("gap", "verdict"),
    [
        (2.01, ClaimResult.HOLDS),
        (2.0, ClaimResult.UNDECIDED),
        (0.0, ClaimResult.UNDECIDED),
        (-2.0, ClaimResult.UNDECIDED),
        (-2.01, ClaimResult.FAILS),
    ],
)
def test_difference_within_the_margin_is_not_decided(gap: float, verdict: ClaimResult) -> None:
    assert compare_with_margin(gap, 2.0) is verdict


def test_claim_rules_hold_fail_or_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a deviation of 0.3 the margin of a difference is 2 · √(0.3² + 0.3²) = 0.85."""
    monkeypatch.setitem(METRICS, "bleu", METRICS["bleu"]._replace(small=SeedDeviation(0.3)))
    found = make_figures(a=30.0, b=29.0, c=29.5)
    assert decide("higher", "ab", found) == Finding(ClaimResult.HOLDS, "a 30, b 29, ± 0.85 assumed")
    assert decide("higher", "ba", found).result is ClaimResult.FAILS
    assert decide("higher", "ac", found).result is ClaimResult.UNDECIDED
    assert decide("higher", "ac", found, margin=0.4).result is ClaimResult.HOLDS
    assert decide("lower", "ba", found).result is ClaimResult.HOLDS
    assert decide("lower", "ab", found).result is ClaimResult.FAILS
    assert decide("above", "a", found, 29.3).result is ClaimResult.HOLDS
    assert decide("above", "a", found, 29.5).result is ClaimResult.UNDECIDED
    assert decide("below", "a", found, 29.3).result is ClaimResult.FAILS
    assert decide("similar", "ab", found, 2.0).result is ClaimResult.HOLDS
    assert decide("similar", "ab", found, 1.5).result is ClaimResult.UNDECIDED
    assert decide("similar", "ab", found, 0.1).result is ClaimResult.FAILS


def test_margin_comes_from_the_deviation_over_seeds() -> None:
    times = [{"bleu": 30.0, "signature": "s"}, {"bleu": 32.0, "signature": "s"}, {"bleu": 34.0, "signature": "s"}]
    values = runner._average_repetitions(times)
    assert values == {"bleu": 32.0, "signature": "s", "deviations": {"bleu": 2.0}, "seeds": 3}
    assert runner._average_repetitions(times[:1]) == times[0]
    found = Measurements({"a": values, "b": {**values, "bleu": 28.0}}, "small")
    assert found.compute_margin("bleu", "a", "b").size == pytest.approx(2.78 * (2 * 2**2 / 3) ** 0.5), (
        "4 degrees of freedom"
    )
    assert decide("higher", "ab", found) == Finding(ClaimResult.UNDECIDED, "a 32, b 28, ± 4.5")


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_models_differ_significantly_in_at_most_one_of_twenty_cases(seeds: int) -> None:
    generator, significant = np.random.default_rng(0), 0
    for _ in range(2000):
        values = {
            name: {"bleu": float(one.mean()), "deviations": {"bleu": float(one.std(ddof=1))}, "seeds": seeds}
            for name, one in zip("ab", generator.normal(30.0, 10.0, (2, seeds)), strict=True)
        }
        significant += decide("higher", "ab", Measurements(values, "small")).result is not ClaimResult.UNDECIDED
    assert significant <= 0.06 * 2000


def test_identical_results_of_two_seeds_still_have_a_margin() -> None:
    values: dict[str, Any] = {"bleu": 30.0, "deviations": {"bleu": 0.0}, "seeds": 2}
    found = Measurements({"a": values, "b": {**values, "bleu": 31.0}}, "small").compute_margin("bleu", "a", "b")
    assert found.size > 2
    assert not found.is_assumed


def test_assumed_margin_is_marked_as_assumed() -> None:
    assert decide("higher", "ab", make_figures(a=60.0, b=30.0)).evidence == "a 60, b 30, ± 18 assumed"
    assert str(SignificanceMargin(812.3)) == "± 810"
    assert str(SignificanceMargin(0.0)) == "± 0"


@pytest.mark.parametrize(
    ("middle", "high", "verdict"),
    [
        (34.2, 34.8, ClaimResult.HOLDS),
        (33.0, 34.8, ClaimResult.FAILS),
        (33.9, 34.8, ClaimResult.UNDECIDED),
        (33.4, 33.4, ClaimResult.UNDECIDED),
    ],
)
def test_rule_most_needs_more_than_half_of_the_gap(middle: float, high: float, verdict: ClaimResult) -> None:
    found = decide("most of gain", "abc", make_figures(a=33.0, b=middle, c=high), 0.5, 0.5)
    assert found.result is verdict
    assert found.evidence == f"a 33, b {middle:.4g}, c {high:.4g}, ± 0.5"
    missing = decide("most of gain", "abc", make_figures(a=33.0), 0.5, 0.5)
    assert missing.evidence == "a 33, bleu of b and c was not measured"


def test_repeated_row_has_new_seeds_for_all_its_models() -> None:
    row = make_rows("small")[2]
    assert row.with_seed_offset(0) == row
    assert [one.seed for one in row.with_seed_offset(2).trainings] == [201, 202]
    assert len({one.name for time in range(3) for one in row.with_seed_offset(time).trainings}) == 6


def test_deviation_has_an_absolute_and_a_relative_part() -> None:
    assert SeedDeviation(absolute=1.0, relative=0.1).compute_at(-20.0) == pytest.approx(3.0)


def test_claim_about_a_missing_measurement_is_open() -> None:
    claims: list[tuple[ClaimRule, str]] = [("higher", "ab"), ("lower", "ba"), ("above", "b"), ("similar", "ab")]
    for rule, rows in claims:
        assert decide(rule, rows, make_figures(a=1.0, b=None), 1.0).result is ClaimResult.UNDECIDED
        assert "not measured" in decide(rule, rows, make_figures(), 1.0).evidence


# The experiments of the package


@pytest.mark.parametrize("scale", SCALES)
def test_every_experiment_has_valid_training_configurations(scale: str) -> None:
    trainings = {one.name: one for each in EXPERIMENTS.values() for row in each.rows(scale) for one in row.trainings}
    assert len(trainings) > 40
    for one in trainings.values():
        config = make_config(one.make_config())
        check_config(config)
        assert config.training.steps
        assert one.corpus in CORPUS_BUILDERS
    assert {one.make_config()["training"]["device"] for one in trainings.values()} <= {"cpu", "auto"}


OWN_EXPERIMENT = """
name: own
title: Two scores
source: none
description: Dot and concat.
corpora: [simple]
measure: regard.reproduce.metrics.measure_architecture
columns: [bleu]
rows:
  dot: {recipe: luong2015-global, changes: {model.score: dot}}
  concat: {recipe: luong2015-global, changes: {model.score: concat}}
claims:
  - {text: dot is better, rule: higher, metric: bleu, rows: [dot, concat]}
"""


def test_experiment_of_a_user_shares_trained_models_with_those_of_the_package(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN_EXPERIMENT, encoding="utf-8")
    architectures = {training.name for row in EXPERIMENTS["architectures"].rows("small") for training in row.trainings}
    rows = read_experiment(path, "small").rows("small")
    assert [row.name for row in rows] == ["dot", "concat"]
    assert {training.name for row in rows for training in row.trainings} <= architectures


def test_reproduce_command_takes_the_file_of_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN_EXPERIMENT, encoding="utf-8")
    reproduce(names=[str(path)], out=tmp_path, dry_run=True)
    printed = capsys.readouterr().out
    assert "# own: Two scores" in printed
    assert [line.split()[-1] for line in printed.splitlines() if line.startswith("regard train")] == [
        "model.score=dot",
        "model.score=concat",
    ]
    with pytest.raises(UserError, match=r"missing\.yaml does not exist"):
        reproduce(names=["missing.yaml"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rows:", "models:", "it has no 'rows'"),
        ("title:", "titel:", "titel"),
        ("measure_architecture", "measure_nothing", "measure_nothing"),
        ("[simple]", "[simpel]", "unknown corpus 'simpel'"),
        ("[dot, concat]", "[dot, cosine]", "'cosine', which is no row"),
        ("name: own", "name: ladder", "'ladder' is that of an experiment of regard"),
        ("model.score: dot", "model.skore: dot", "skore"),
    ],
)
def test_mistake_in_an_experiment_of_a_user_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN_EXPERIMENT.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(message)) as error:
        [training.make_config() for row in read_experiment(path, "small").rows("small") for training in row.trainings]
    assert "\n" not in str(error.value)


def test_documentation_describes_each_experiment() -> None:
    for name, one in EXPERIMENTS.items():
        page = (PAGE.parent / "reproduce" / f"{name}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {one.title}\n\n{one.source}.\n\n{one.description}\n")
        assert f"](reproduce/{name}.md)" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("corpus", ["mixed-ende", "mixed-enfr", "multi30k"])
def test_documentation_has_the_model_sizes_of_the_full_scale(corpus: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (line,) = re.findall(r"^\| models \|.*\|(.*)\|$", page, re.MULTILINE)
    mixed, captions = line.split(";")
    keys = PRESETS[corpus]
    size, layers, steps, tokens = (
        keys[name] for name in ("model.size", "model.layers", "training.steps", "training.batch_tokens")
    )
    if corpus == "multi30k":
        assert captions.strip() == f"{size} wide, {steps:,} of {tokens:,} tokens, for Multi30k"
    else:
        assert mixed.strip() == f"{size} wide, {layers} layers, {steps:,} updates of {tokens:,} tokens"


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("scale", SCALES)
def test_claims_refer_to_existing_rows(name: str, scale: str) -> None:
    experiment = EXPERIMENTS[name]
    known = [row.name for row in experiment.rows(scale)]
    assert len(set(known)) == len(known)
    for claim in experiment.claims:
        assert set(claim.rows) <= set(known), claim.text
        assert decide_claim(claim, Measurements({}, scale)).result is ClaimResult.UNDECIDED
        measured = Measurements({row: {claim.metric: 1.0} for row in known}, scale)
        assert "not measured" not in decide_claim(claim, measured).evidence
    assert experiment.claims
    assert experiment.source


@pytest.mark.parametrize("experiment", [EXPERIMENTS["cost"], EXPERIMENTS["scaling"]], ids=lambda one: one.name)
def test_experiments_without_training_are_measured_directly(
    experiment: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Workspace(tmp_path, "small")
    quick = shrink_rows(experiment)
    values = {row.name: experiment.measure(lab, row) for row in quick}
    assert all(isinstance(values[row.name][name], float) for row in quick for name in experiment.columns)
    if experiment.name == "cost":
        counted = dict(map(tuple, values["global"]["operations"]))
        assert counted[8192] == 256 * counted[32] == 8192 * 2 * 2 * 16, "products for the scores and for the context"
        assert {count for _, count in values["local-m"]["operations"]} == {21 * 2 * 2 * 16}
        assert len({count for _, count in values["local-p"]["bytes"]}) == 1
    else:
        assert values["dot"]["gradient_kept"] < values["scaled dot"]["gradient_kept"]
        assert values["dot"]["entropy"] < values["scaled dot"]["entropy"]
    run_experiment(dataclasses.replace(experiment, rows=lambda scale: quick), lab, seeds=3)
    assert "trains no models; it was measured once, not with 3 seeds" in capsys.readouterr().err


SMALL_OPTIONS: dict[str, dict[str, Any]] = {"cost": {"size": 16, "repeats": 1}, "scaling": {"width": 16, "steps": 3}}


def shrink_rows(experiment: Experiment) -> list[ExperimentRow]:
    """Return the rows of an experiment without training, with smaller sizes and fewer repeats."""
    return [
        ExperimentRow(row.name, (), {**row.options, **SMALL_OPTIONS[experiment.name]})
        for row in experiment.rows("small")
    ]


# Corpora


def test_joined_sentence_pairs_keep_their_alignment_links() -> None:
    from regard.synthetic.grammar.sentences import AlignedPair as Linked

    joined = join_aligned_pairs([Linked("a b", "x", ((0, 0), (1, 0))), Linked("c", "y z", ((0, 1),))])
    assert joined == Linked("a b c", "x y z", ((0, 0), (1, 0), (2, 2)))


def test_adding_task_has_the_sum_of_the_marked_numbers_at_the_end() -> None:
    from random import Random

    table = [list(map(float, line.split())) for line in make_adding_series(Random(3), 50).splitlines()]
    marked = [number for number, mark, _ in table if mark == 1]
    assert len(table) == 50
    assert len(marked) == 2
    assert table[-1][1:] == [-1, pytest.approx(sum(marked), abs=1e-3)]
    assert all(sought == 0 for *_, sought in table[:-1])


def test_copy_task_repeats_its_symbols_after_a_pause() -> None:
    from random import Random

    table = [line.split() for line in make_copy_sentence(Random(3), 3, 4).splitlines()]
    words, labels = [row[0] for row in table], [row[1] for row in table]
    assert words[3:] == ["-"] * 4 + ["say"] * 3
    assert labels == ["wait"] * 7 + words[:3]


def test_training_split_excludes_dev_and_test_sources(tmp_path: Path) -> None:
    parts = [[Pair("a", "b"), Pair("c", "d")], [Pair("a", "b"), Pair("", "x"), Pair("t", "u"), Pair("a", "e")]]
    write_split(tmp_path, parts, [Pair("c", "f")], [Pair("t", "u")], ("en", "de"))
    assert read_all_pairs([tmp_path / "train.en", tmp_path / "train.de"]) == [Pair("a", "b"), Pair("a", "e")]


@pytest.fixture
def real_corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write corpora of one line each and point `REGARD_DATA` at them."""
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


def test_compressed_corpora_are_found_and_prepared_once(real_corpora: Path, tmp_path: Path) -> None:
    corpus = prepare_corpus("multi30k", tmp_path)
    assert read_all_pairs(corpus.train) == [Pair("train en", "train de")]
    assert read_all_pairs(corpus.test) == [Pair("test_2016_flickr en", "test_2016_flickr de")]
    (real_corpora / "multi30k" / "train.en.gz").unlink()
    assert prepare_corpus("multi30k", tmp_path) == corpus, "a prepared corpus must be reused"


def test_gold_alignments_of_enfr_are_counted_from_one(
    real_corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "regard.reproduce.corpora.read_parallel_files", lambda stem, *codes: iter([Pair(stem, codes[1])])
    )
    monkeypatch.setattr("regard.reproduce.corpora.read_tatoeba", lambda name: iter([Pair("hello", "bonjour")]))
    corpus = prepare_corpus("mixed-enfr", tmp_path)
    test = read_all_pairs(corpus.test)
    assert test == [Pair("the dog", "le chien")]
    assert corpus.gold is not None
    (gold,) = read_gold_alignments(corpus.gold, test, corpus.gold_offset)
    assert (set(gold.sure), set(gold.possible)) == ({(0, 0)}, {(0, 0), (1, 1)})


def test_missing_corpus_is_a_one_line_error(
    real_corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"has no file newstest/news-test2008\.de-en\.en, also not with \.xz"):
        prepare_corpus("mixed-ende", tmp_path)
    assert not (tmp_path / "mixed-ende").exists()
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="nowhere, which is not a folder"):
        prepare_corpus("mixed-ende", tmp_path)
    monkeypatch.delenv("REGARD_DATA")
    with pytest.raises(UserError, match="set REGARD_DATA"):
        prepare_corpus("mixed-ende", tmp_path)


# Measurements


def test_dictionary_pairs_rare_words_by_cooccurrence(lab: Workspace) -> None:
    translator = load(lab.run_folder(make_training()))
    corpus = [Pair("the xylophone plays", "das Xylophon spielt"), Pair("a xylophone", "ein Xylophon")]
    corpus += [Pair("the zebra runs", "das Zebra läuft"), Pair("the zebra", "das Zebra")]
    found = build_replacement_dictionary(corpus, translator)
    assert (found["xylophone"], found["zebra"]) == ("Xylophon", "Zebra")


@pytest.mark.parametrize(("precision", "autocast"), [("fp32", False), ("auto", False), ("bf16", True)])
def test_training_speed_is_timed_on_all_lengths_in_the_run_precision(
    lab: Workspace, monkeypatch: pytest.MonkeyPatch, precision: Any, autocast: bool
) -> None:
    translator, train = load(lab.run_folder(make_training())), read_all_pairs(lab.get_corpus("tiny").train)
    seen: list[tuple[int, int, bool]] = []

    def summed(model: Seq2Seq, source: Tensor, *rest: Any) -> Tensor:
        seen.append((source.shape[1], len(source), torch.is_autocast_enabled("cpu")))
        return plain(model, source, *rest)

    plain = Seq2Seq.loss_sum
    monkeypatch.setattr(Seq2Seq, "loss_sum", summed)
    settings = TrainingSettings(batch_tokens=100, device="cpu", precision=precision)
    assert metrics.measure_training_speed(translator, train, settings) > 0
    lengths = [length for length, _, _ in seen[1:]]
    words = [len(translator.tokenizers.source.encode(pair.source)) + 1 for pair in train]
    assert len(seen) == 1 + metrics.TIMED_BATCHES, "one warm-up batch on a CPU"
    assert len(set(lengths)) >= 4
    assert lengths[0] <= sorted(words)[len(words) // 4]
    assert lengths[-1] >= sorted(words)[-len(words) // 4]
    assert all(length * sentences <= 100 for length, sentences, _ in seen)
    assert {enabled for *_, enabled in seen} == {autocast}


def test_training_speed_does_not_count_padding(lab: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    translator, train = load(lab.run_folder(make_training())), read_all_pairs(lab.get_corpus("tiny").train)
    ticks = iter([3.0, 5.0])
    monkeypatch.setattr(metrics, "read_clock", lambda device: next(ticks))
    found = metrics.measure_training_speed(translator, train, TrainingSettings(batch_tokens=10**6, device="cpu"))
    words = sum(len(translator.tokenizers.target.encode(pair.target)) + 1 for pair in train)
    assert found == metrics.TIMED_BATCHES * words / 2.0, "one batch holds all pairs and is repeated"


def test_training_speed_leaves_out_sentences_over_the_length_limit(lab: Workspace) -> None:
    translator, train = load(lab.run_folder(make_training())), read_all_pairs(lab.get_corpus("tiny").train)
    kept = metrics.make_batches(translator, train, 500, max_length=8)
    assert 0 < sum(batch.num_rows for batch in kept) < len(train)
    assert max(max(batch.source.shape[1], batch.target_out.shape[1]) for batch in kept) == 9, "8 tokens and EOS"


def test_timing_starts_after_cuda_kernels_and_graphs_are_ready() -> None:
    assert MIN_CALLS + 1 <= metrics.WARMUP_REPEATS, "CUDA graph capture included"


def test_timed_pairs_are_taken_from_the_whole_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MIN_SAMPLED_PAIRS", 4)
    assert [pair.source for pair in metrics.subsample_pairs([Pair(str(number), "") for number in range(9)])] == list(
        "02468"
    )
    assert len(metrics.subsample_pairs([Pair("", "")] * 3)) == 3


def test_attention_spread_is_entropy_and_fraction_of_small_weights() -> None:
    even, sharp = np.full((1, 4), 0.25, dtype=np.float32), np.array([[1.0, 0, 0, 0]], dtype=np.float32)
    assert measure_attention_entropy([even]) == {"entropy": pytest.approx(np.log(4)), "faint": 0.0}
    assert measure_attention_entropy([sharp]) == {"entropy": pytest.approx(0.0, abs=1e-6), "faint": 0.75}
    assert measure_attention_entropy([even * 0.5])["entropy"] == pytest.approx(np.log(4)), (
        "weights that do not add up to 1 are normalised"
    )


# The command


def test_reproduce_command_runs_an_experiment_and_prints_its_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = EXPERIMENTS["cost"]
    small = dataclasses.replace(cost, rows=lambda scale: shrink_rows(cost))
    monkeypatch.setitem(EXPERIMENTS, "cost", small)
    reproduce(names=["cost"], out=tmp_path)
    assert "local-p: operations stay the same (local-p 1, " in capsys.readouterr().out
    assert (tmp_path / "small" / "cost" / "page.html").is_file()
    assert (tmp_path / "small" / "index.html").is_file()


def test_measurements_on_a_chosen_device_have_a_cache_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    row = make_rows("small")[2]
    usual, cpu = (Workspace(tmp_path, "small", device) for device in (None, torch.device("cpu")))
    assert usual.measurement_path(measure_translation, row) != cpu.measurement_path(metrics.measure_translation, row)
    assert [workspace._describe_hardware(device)["gpu"] for device in (None, torch.device("cpu"))] == ["a GPU", None]


def test_reproduce_command_trains_on_the_chosen_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen: dict[str, list[str]] = {}
    devices: tuple[InferenceDevice, ...] = ("auto", "cpu")
    for device in devices:
        reproduce(names=["ladder"], scale="full", device=device, dry_run=True, out=tmp_path)
        chosen[device] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("regard train")]
    assert len(chosen["cpu"]) > 3
    assert chosen["cpu"] == [f"{line} training.device=cpu" for line in chosen["auto"]]


@pytest.mark.slow
def test_models_are_trained_and_measured_on_the_device_of_the_workspace(tmp_path: Path) -> None:
    lab = Workspace(tmp_path, "small", torch.device("cpu"))
    row = ExperimentRow("one", [make_training(**{"training.device": "auto"})])
    assert lab.measure_row(measure_translation_and_speed, row)["training_speed"] > 0
    assert Run(lab.run_folder(row.trainings[0])).read_config()["training"]["device"] == "cpu"


def test_reproduce_command_suggests_the_name_of_an_experiment(regard: Command) -> None:
    done = regard("reproduce", "laddder")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown experiment 'laddder'; did you mean 'ladder'?" in " ".join(done.stderr.split())


def test_reproduce_command_lists_all_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    reproduce(show_list=True)
    output = capsys.readouterr().out
    assert all(f"{name}: {one.title}" in output for name, one in EXPERIMENTS.items())
    assert output.count("  source: ") == output.count(" full: ") == len(EXPERIMENTS)


def test_reproduce_dry_run_of_the_full_scale_needs_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce(everything=True, scale="full", dry_run=True, out=tmp_path / "here")
    assert f"--recipe luong2015-local-p --out {tmp_path}/here/runs/luong2015-local-p-" in capsys.readouterr().out
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"names": ["ladder"], "scale": "smal"}, "unknown scale 'smal'; did you mean 'small'?"),
        ({}, "name experiments, or use --all; --list shows all of them"),
        ({"names": ["ladder"], "everything": True}, "--all runs every experiment: leave out either the names or --all"),
    ],
    ids=["unknown scale", "nothing named", "names and --all"],
)
def test_wrong_reproduce_arguments_are_one_line_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        reproduce(**arguments)
    assert str(raised.value) == message


@pytest.mark.learn
def test_directions_experiment_confirms_its_claims(tmp_path: Path) -> None:
    """Bidirectional networks tag the synthetic sentences and sum the synthetic series better than one direction."""
    table = run_experiment(EXPERIMENTS["directions"], Workspace(tmp_path, "small"))
    found = {claim["claim"]: claim["verdict"] for claim in table["claims"]}
    assert found["brnn tags better than rnn"] is ClaimResult.HOLDS
    assert found["brnn follows numbers better than rnn (R²)"] is ClaimResult.HOLDS
