"""Extending regard as CONTRIBUTING.md says: its code blocks, word for word, train and translate."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.commands import Command, environment, regard_command

from regard.errors import UserError
from regard.models import build
from regard.nn import SCORES, Concat
from regard.recipes.recipe import list_recipes, read_recipe, read_recipe_text

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(r"```(?:py|yaml)\n# (?P<path>[\w/.-]+)(?:, in (?P<table>\w+))?\n(?P<code>.*?)```", re.DOTALL)
SMALL = ["model.size=8", "model.layers=1", "training.steps=2", "training.batch_tokens=200", "text.vocabulary=100"]


def write_block(path: str, folder: Path, file: str | None = None, table: str | None = None) -> None:
    """Write the guide's block for `path`: a new file, the end of `file`, or lines at the top of a table in it."""
    (code,) = [
        match["code"]
        for match in BLOCK.finditer(GUIDE.read_text(encoding="utf-8"))
        if (match["path"], match["table"]) == (path, table)
    ]
    target = folder / (file or path)
    text = target.read_text(encoding="utf-8") if target.exists() else ""
    if table == "imports":
        first = text.index("\nfrom regard")
        text = text[: first + 1] + code + text[first + 1 :]
    elif table:
        start = re.search(rf"^{table}\b.*= {{\n", text, re.MULTILINE)
        assert start, f"{path} has no table {table}"
        text = text[: start.end()] + code + text[start.end() :]
    else:
        text += code
    target.write_text(text, encoding="utf-8")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Copy the package into the temporary folder and return the folder."""
    shutil.copytree(ROOT / "regard", tmp_path / "regard", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture
def regard_in_package(package: Path) -> Command:
    """Run the command with the copied package."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            regard_command(arguments),
            cwd=package,
            env=environment() | {"PYTHONPATH": str(package)},
            capture_output=True,
            text=True,
            check=False,
        )

    return call


def check_training_and_translation(regard: Command, corpus: Path, recipe: str, *overrides: str) -> None:
    texts = [corpus / f"dev.{language}" for language in ("en", "de")]
    trained = regard("train", *texts, "--recipe", recipe, "--out", "run", *SMALL, *overrides)
    assert trained.returncode == 0, trained.stderr
    translated = regard("translate", "run", corpus / "test.en")
    assert translated.returncode == 0, translated.stderr
    lines = (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    assert len(translated.stdout.splitlines()) == len(lines)


def test_a_score_is_one_class_in_a_plugin(
    tmp_path: Path, corpus: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_block("mine.py", tmp_path)
    monkeypatch.setenv("REGARD_IMPORT", "mine")
    check_training_and_translation(regard, corpus, "luong2015-local-m", "model.score=mine.Cosine")


@pytest.mark.slow
def test_a_score_is_one_class_and_one_entry(package: Path, corpus: Path, regard_in_package: Command) -> None:
    write_block("mine.py", package, "regard/nn/scores.py")
    scores = package / "regard" / "nn" / "scores.py"
    text = scores.read_text(encoding="utf-8").replace("from regard.nn.scores import batched_dot\n", "")
    table, cosine = text.index("SCORES: "), text.index("class Cosine")
    scores.write_text(text[:table] + text[cosine:] + "\n\n" + text[table:cosine], encoding="utf-8")
    write_block("regard/nn/scores.py", package, table="SCORES")
    check_training_and_translation(
        regard_in_package, corpus, "bahdanau2015", "model.score=cosine", "model.coverage=neural"
    )


@pytest.mark.slow
def test_a_decoder_is_one_model_file_and_one_recipe(
    tmp_path: Path, corpus: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_block("sennrich2017.py", tmp_path)
    write_block("sennrich2017.yaml", tmp_path)
    monkeypatch.setenv("REGARD_IMPORT", "sennrich2017")
    check_training_and_translation(regard, corpus, "sennrich2017.yaml")
    texts = [corpus / f"dev.{language}" for language in ("en", "de")]
    for override, message in (
        ("model.layers=2", "one layer of gru cells, not 2 of gru"),
        ("model.tie=true", "tie: embeddings have 8 numbers, maxout gives 4"),
    ):
        done = regard("train", *texts, "--recipe", "sennrich2017.yaml", "--out", "refused", *SMALL, override)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_a_task_is_a_task_file_a_model_a_recipe_and_a_line(
    package: Path, corpus: Path, regard_in_package: Command
) -> None:
    for path in ("regard/tasks/identification.py", "regard/models/byte_bag.py", "regard/recipes/byte-bag.yaml"):
        write_block(path, package)
    for path, table in (("regard/tasks/__init__.py", "TASKS"), ("regard/models/registry.py", "MODELS")):
        write_block(path, package, table="imports")
        write_block(path, package, table=table)
    lines = [
        f"{language}\t{line}\n"
        for language in ("en", "de")
        for line in (corpus / f"dev.{language}").read_text(encoding="utf-8").splitlines()
    ]
    (package / "lines.tsv").write_text("".join(lines), encoding="utf-8")
    for arguments in (
        ["train", "lines.tsv", "--recipe", "byte-bag", "--out", "run", "training.steps=2"],
        ["predict", "run", corpus / "test.en"],
        ["evaluate", "run", "lines.tsv"],
    ):
        done = regard_in_package(*arguments)
        assert done.returncode == 0, done.stderr


def test_a_task_can_be_a_plugin(tmp_path: Path, regard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write_block("regard/tasks/identification.py", tmp_path, "identification.py")
    write_block("regard/models/byte_bag.py", tmp_path, "byte_bag.py")
    write_block("regard/recipes/byte-bag.yaml", tmp_path, "mine.yaml")
    (tmp_path / "mine.py").write_text(
        "import byte_bag\nfrom identification import IdentificationTask\n"
        "from regard.models import MODELS\nfrom regard.tasks import TASKS\n"
        'MODELS["byte-bag"] = (byte_bag.ByteBagSettings, byte_bag.build)\n'
        'TASKS["identify"] = IdentificationTask()\n'
    )
    (tmp_path / "lines.tsv").write_text("".join(f"en\tword {n}\nde\tWort {n}\n" for n in range(50)))
    refused = regard("train", "lines.tsv", "--recipe", "mine.yaml", "--out", "run", "training.steps=2")
    assert "there is no task 'identify'" in refused.stderr
    assert "REGARD_IMPORT" in refused.stderr
    monkeypatch.setenv("REGARD_IMPORT", "mine")
    trained = regard("train", "lines.tsv", "--recipe", "mine.yaml", "--out", "run", "training.steps=2")
    assert trained.returncode == 0, trained.stderr
    predicted = regard("predict", "run", "lines.tsv")
    languages = predicted.stdout.split()
    assert set(languages) <= {"en", "de"}, predicted.stderr
    assert len(languages) == 100, predicted.stderr


@pytest.mark.parametrize(
    "score", ["cosines", "mine.Cosine", "os.system", "torch.nn.Linear", "mine.missing", "mine.__class__", ".dot"]
)
def test_a_run_cannot_name_a_class_outside_scores_and_plugins(score: str) -> None:
    with pytest.raises(UserError, match=rf"unknown score {score!r}; (there are|did you mean) .*REGARD_IMPORT"):
        build("bahdanau2015", 9, 9, size=4, score=score)


def test_error_of_an_unknown_score_lists_each_score_once() -> None:
    with pytest.raises(UserError) as raised:
        build("bahdanau2015", 9, 9, size=4, score="xyz")
    assert f"unknown score 'xyz'; there are {', '.join(sorted(SCORES))} (" in str(raised.value)
    assert [str(raised.value).count(name) for name in SCORES] == [1] * len(SCORES)


def test_an_entry_of_the_scores_may_be_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORES, "wide", lambda query_size, key_size: Concat(query_size, key_size, 64))
    assert build("bahdanau2015", 9, 9, size=4, score="wide").decoder.attention.score.v.numel() == 64


@pytest.mark.parametrize("name", [name for name in list_recipes() if "score" in read_recipe(name)["model"]])
def test_recipe_comments_list_every_score(name: str) -> None:
    (comment,) = re.findall(r"^  score: .*# (.*)", read_recipe_text(name), re.MULTILINE)
    assert set(SCORES) <= set(re.findall(r"[\w-]+", comment))
