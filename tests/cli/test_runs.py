"""`regard runs`: figures, order, differences, damaged runs."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import Command, environment
from support.training import copy_run

from regard.runs import Run, checkpoint
from regard.runs.run import find_runs, summarize_run


def copy_with(run: Run, folder: Path, **changes: Any) -> Run:
    """Copy a run and change keys of its config."""
    copy = copy_run(run, folder)
    config = copy.read_config()
    for key, value in changes.items():
        section, _, name = key.partition("_")
        config = {**config, section: {**config[section], name: value}}
    copy.write_config(config)
    return copy


def set_best_scores(run: Run, bleu: float, loss: float) -> None:
    """Change the scores of a run's best validation."""
    step = run.find_best_step()
    rows = run.read_metrics()
    for row in rows:
        if row["kind"] == "dev" and row["step"] == step:
            row.update(bleu=bleu, loss=loss, perplexity=math.exp(loss))
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def runs_folder(run: Run, tmp_path: Path) -> Path:
    """Write three runs, one of them in a subfolder, and a folder that is not a run."""
    set_best_scores(copy_with(run, tmp_path / "runs/good"), 30.0, 2.0)
    set_best_scores(copy_with(run, tmp_path / "runs/more/deep/poor", training_seed=7), 10.0, 3.0)
    set_best_scores(copy_with(run, tmp_path / "runs/sure", model_size=512), 20.0, 1.0)
    (tmp_path / "runs/notes").mkdir()
    (tmp_path / "runs/notes/readme.txt").write_text("nothing to see\n", encoding="utf-8")
    return tmp_path / "runs"


def test_infinite_settings_are_null_in_json(regard: Command, run: Run, tmp_path: Path) -> None:
    copy = copy_with(run, tmp_path / "infinite", training_clip=math.inf)
    done = regard("runs", copy.folder, "--json")
    assert done.returncode == 0, done.stderr
    assert "Infinity" not in done.stdout
    assert '"clip": null' in done.stdout


def list_runs(regard: Command, *arguments: object) -> dict[str, Any]:
    done = regard("runs", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_runs_lists_the_figures_of_a_run(regard: Command, run: Run, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    copy_with(run, tmp_path / "runs/one")
    (one,) = list_runs(regard)["runs"]
    state = checkpoint.read_state(run.checkpoint_folder(run.find_newest_step()))
    best = [row for row in run.read_metrics() if row["kind"] == "dev" and row["step"] == run.find_best_step()][-1]
    tensors = load_file(run.checkpoint_folder(run.find_newest_step()) / "model.safetensors")
    assert one["folder"] == "runs/one"
    assert one["recipe"] == "bahdanau2015"
    assert (one["steps"], one["finished"], one["damage"]) == (24, True, None)
    figures = {name: best[name] for name in ("step", "measure", "loss", "perplexity")}
    assert one["best"] == {**figures, "score": best["bleu"]}
    assert one["seconds"] == state["seconds"]
    assert one["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    assert one["config"] == run.read_config()
    speeds = sorted(row["tokens_per_second"] for row in run.read_metrics() if row["kind"] == "train")
    assert speeds[0] <= one["tokens_per_second"] <= speeds[-1]
    assert one["epochs"] == state["epochs"] > state["place"]["epoch"]


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("score", "good sure poor"),
        pytest.param("loss", "sure good poor", marks=pytest.mark.slow),
        pytest.param("name", "good poor sure", marks=pytest.mark.slow),
    ],
)
def test_runs_are_sorted_by_the_given_key(regard: Command, runs_folder: Path, sort: str, names: str) -> None:
    found = [Path(one["folder"]).name for one in list_runs(regard, "--sort", sort)["runs"]]
    assert found == names.split()


def test_runs_sorted_by_time_lists_the_newest_first(regard: Command, runs_folder: Path) -> None:
    for when, folder in enumerate((runs_folder / "sure", runs_folder / "good", runs_folder / "more/deep/poor")):
        for path in (folder, *folder.rglob("*")):
            os.utime(path, (1000 + when, 1000 + when))
    rows = list_runs(regard, "--sort", "time")["runs"]
    assert [Path(one["folder"]).name for one in rows] == ["poor", "good", "sure"]
    assert [one["written"] for one in rows] == [1002, 1001, 1000]


def test_best_figures_are_marked_with_an_asterisk(regard: Command, runs_folder: Path) -> None:
    done = regard("runs")
    assert done.returncode == 0, done.stderr
    head, _, good, sure, poor = done.stdout.splitlines()
    assert head.split()[:2] == ["run", "recipe"]
    assert "30.0 *" in good
    assert "1.000 *" in sure
    assert "2.72 *" in sure
    assert "*" not in poor
    assert poor.startswith("runs/more/deep/poor ")
    assert poor.rstrip().endswith("finished")


def test_differences_lists_keys_in_which_configs_differ(regard: Command, runs_folder: Path) -> None:
    document = list_runs(regard, "runs/sure", "runs/good", "runs/good", "--differences")
    assert [one["folder"] for one in document["runs"]] == ["runs/good", "runs/sure"]
    assert document["differences"] == {"model.size": {"runs/good": 24, "runs/sure": 512}}
    table = regard("runs", "--differences").stdout
    keys = table.split("\n\n")[1].splitlines()
    assert keys[0].split() == ["key", "runs/good", "runs/sure", "runs/more/deep/poor"]
    assert [line.split() for line in keys[2:]] == [
        ["model.size", "24", "512", "24"],
        ["training.seed", "1", "1", "7"],
    ]
    assert "the configs do not differ" in regard("runs", "runs/good", "--differences").stdout


def test_unfinished_runs_are_recognised(run: Run, tmp_path: Path) -> None:
    assert not summarize_run(copy_with(run, tmp_path / "a", training_steps=100).folder).finished
    assert summarize_run(copy_with(run, tmp_path / "b", training_steps=None, training_epochs=1).folder).finished
    assert not summarize_run(copy_with(run, tmp_path / "c", training_steps=None, training_epochs=999.5).folder).finished
    for step in (going := copy_with(run, tmp_path / "d")).list_steps():
        shutil.rmtree(going.checkpoint_folder(step))
    young = summarize_run(going.folder)
    assert (young.damage, young.finished, young.steps) == ("it has no checkpoint yet", False, 24)


DAMAGE = {
    "config.yaml": [(b"{", "config.yaml is not YAML"), (b"model: 3\n", "it has no section 'model'")],
    "metrics.jsonl": [
        (content, "metrics.jsonl:1: not a JSON object with kind and step") for content in (b"{}\n", b"\xff\n")
    ],
    "checkpoints/step-24/state.json": [
        (b"", "checkpoint checkpoints/step-24 is damaged: state.json cannot be read"),
        (b"[]", "checkpoint checkpoints/step-24 is damaged: state.json cannot be read"),
        (b'{"format": 1, "files": []}', "state.json lacks a valid format, files or best"),
    ],
}


def test_damaged_runs_are_listed_with_the_reason(regard: Command, run: Run, tmp_path: Path) -> None:
    reasons = {}
    for name, kinds in DAMAGE.items():
        for number, (content, reason) in enumerate(kinds):
            folder = tmp_path / f"runs/{Path(name).stem}{number}"
            copy_with(run, folder)
            (folder / name).write_bytes(content)
            reasons[folder.name] = reason
    (tmp_path / "runs/half/tokenizer").mkdir(parents=True)
    reasons["half"] = "it has no config.yaml: training ended before the first update"
    copy_with(run, tmp_path / "runs/whole")
    rows = {Path(one["folder"]).name: one for one in list_runs(regard)["runs"]}
    assert rows.keys() == {*reasons, "whole"}
    for name, reason in reasons.items():
        assert reason in rows[name]["damage"]
    done = regard("runs")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(reason in done.stdout for reason in reasons.values())
    assert done.stdout.splitlines()[2].startswith("runs/whole ")


@given(data=st.data())
def test_mutated_files_never_break_the_list(
    run: Run, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([*DAMAGE, "checkpoints/step-24/model.safetensors"]))
    content = bytearray((run.folder / name).read_bytes()[:6000])
    for start in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[start : start + data.draw(st.integers(0, 9))] = data.draw(
            st.sampled_from(
                [b"", b"\x00", b"[", b"{", b"}", b'"', b"-1", b"1e999", b"9" * 400, b"null", b"\xff", b": "]
            )
        )
    folder = tmp_path_factory.mktemp("fuzz")
    for other in (*DAMAGE, "checkpoints/step-24/model.safetensors"):
        (folder / other).parent.mkdir(parents=True, exist_ok=True)
        (folder / other).write_bytes(bytes(content) if other == name else (run.folder / other).read_bytes()[:6000])
    from regard.cli.runs import make_run_row

    assert find_runs(folder) == [folder]
    one = summarize_run(folder)
    assert all(isinstance(text, str) for text in make_run_row(one, [one]).values())
    assert json.dumps(asdict(one), default=str)
    shutil.rmtree(folder)


def test_empty_or_missing_folder_is_reported(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = regard("runs", "empty")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no runs in empty; `regard train` writes them" in done.stderr
    for arguments, message in (([], "folder runs does not exist"), (["empty", "--sort", "size"], "not 'size'")):
        done = regard("runs", *arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr


def test_runs_command_does_not_import_pytorch(runs_folder: Path) -> None:
    code = f"import sys, regard.cli.app as a; sys.argv = ['regard', 'runs', {str(runs_folder)!r}, '--differences']\n"
    code += "try: a.main()\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'numpy', 'sacrebleu'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "good" in done.stdout


def test_runs_help_has_an_example(regard: Command) -> None:
    assert "Example: regard runs" in regard("runs", "--help").stdout
