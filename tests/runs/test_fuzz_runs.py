"""Fuzzing of the files of a run, recipes and gold alignments: they load, or raise a one-line UserError.

Nothing in them is executed, and no file outside the run's folder is opened.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.training import make_trainer

from regard.console import log_message
from regard.errors import UserError
from regard.evaluate.alignment_error_rate import read_gold_alignments
from regard.models import build
from regard.paths import compute_sha256
from regard.recipes.recipe import RECIPES_FOLDER, list_recipes, read_recipe
from regard.runs import Run, checkpoint
from regard.tokenizers.sentencepiece import SentencePieceTokenizer
from regard.tokenizers.tokenizer import TextSettings, save_tokenizers, train_tokenizers
from regard.tokenizers.words import WordTokenizer
from regard.training import Trainer
from regard.training.checkpointer import TrainState
from regard.training.metrics import truncate_metrics_after
from regard.training.train import check_config, make_config
from regard.translate import load

CONFIG: dict[str, Any] = {
    "recipe": "bahdanau2015",
    "model": {"kind": "bahdanau", "size": 4, "layers": 1, "dropout": 0.1, "initialisation": "torch", "tie": False},
    "loss": {"per": "sentence", "guided": 0.0},
    "text": {"kind": "word", "vocabulary": 60, "shared": False, "lowercase": False},
    "data": {"train": ["/corpus/train.en", "/corpus/train.de"], "max_length": 50, "source": "en"},
    "training": {"steps": 4, "learning_rate": 1.0e-3, "betas": [0.9, 0.98], "seed": 1},
}
LINES = [f"the house number {number} is {'old' if number % 2 else 'new'} ." for number in range(12)]
RECIPE = """\
paper: none
model:
  kind: luong  # the family
  size: 12
  layers: 2
  dropout: 0.1
  score: general
training: {steps: 10, learning_rate: 1e-3, betas: [0.9, 0.98], clip: null}
text:
  kind: bpe
  vocabulary: 100
data: {train: [a.tsv, b.en, b.de], weights: [1, 2.5], tags: [null, bt]}
loss: {label_smoothing: 0.1, per: token}
"""
PAIRS = [("the old house", "das alte Haus"), ("no", "nein"), ("a b c", "d e")]
PHARAOH, NAACL = "0-0 1?1 2-2\n0p0\n\n", "1 1 1 S\n1 2 2 P\n2 1 1\n3 3 2 S 0.5\n"

# Values of the wrong type, too large, too deeply nested, or naming files elsewhere.
ODD_BYTES = [
    *(b"null", b"[]", b"{}", b'""', b"true", b"-1", b"0", b"1.5", b"NaN", b"Infinity", b"-Infinity", b"1e999", b".inf"),
    *(b"9" * 30, b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"- " * 300, b'"../../x"', b'"/etc/hostname"', b"\x00"),
    *(b"!!int ''", b"!!float ''", b"!!bool x", b"!!timestamp x", b"!!binary x", b"!!set {a}", b"&a [*a]", b"<<: *a"),
    *(b"!!python/object/apply:os.system ['true']", b"2024-99-99", b"? [a]\n: b", b"\n", b": ", b"- ", b"\t", b"\xff"),
    *(
        b'["ab"]',
        b'[["a", 1]]',
        "²".encode(),
        "٣".encode(),
        b"0x",
        b"0x" + b"f" * 5000,
        b"1:2:3",
        b"base: default\n",
        b"base: x.yaml\n",
    ),
]
EXECUTION_EVENTS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "pickle.find_class",
)
IMPORT_EVENTS = ("socket.connect", "ctypes.dlopen", "import")
FILE_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "shutil.rmtree")
recorded_events: list[tuple[str, str]] | None = None


def record_event(event: str, arguments: tuple[Any, ...]) -> None:
    """Record execution, imports and file access while `confine_to` is active."""
    if recorded_events is not None and event in (*EXECUTION_EVENTS, *IMPORT_EVENTS, *FILE_EVENTS):
        paths = arguments[:2] if event in ("os.rename", "os.link", "os.symlink") else arguments[:1]
        named = [path for path in paths if isinstance(path, str | bytes | os.PathLike)]
        recorded_events.extend((event, os.fsdecode(name)) for name in named)


sys.addaudithook(record_event)


@contextmanager
def confine_to(*folders: Path) -> Iterator[None]:
    """Fail if anything is executed, imported or connected to, or a file outside the folders is accessed."""
    global recorded_events
    recorded_events = seen = list[tuple[str, str]]()
    try:
        yield
    finally:
        recorded_events = None
    for event, name in seen:
        assert event in FILE_EVENTS, f"{event} {name}"
        assert any(Path(os.path.normpath(name)).is_relative_to(folder) for folder in folders), f"{event} {name}"


def check_works_or_user_error(use: Callable[[], object], *folders: Path) -> None:
    """Check that the call succeeds or raises a UserError of one line."""
    with confine_to(*folders):
        try:
            use()
            message = ""
        except UserError as error:
            message = str(error)
    assert "\n" not in message


@st.composite
def mutated_bytes(draw: st.DrawFn, original: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """Draw a file with bits flipped, bytes deleted, overwritten, repeated or inserted, or another file instead."""
    content = bytearray(draw(st.sampled_from((original,) * 20 + others)))
    for _ in range(draw(st.integers(1, 3))):
        near = draw(st.sampled_from((len(content), min(len(content), 400))))  # file headers are short and matter most
        start = draw(st.integers(0, max(0, near - 1)))
        length = draw(st.integers(1, 12))
        how = draw(st.sampled_from(("flip", "cut", "end", "bytes", "odd", "instead", "again")))
        if how == "flip" and content:
            content[start] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del content[start : start + length]
        elif how == "end":
            del content[start:]
        elif how == "bytes":
            content[start:start] = draw(st.binary(min_size=1, max_size=8))
        elif how == "again":
            content[start:start] = content[start : start + 3 * length]
        else:
            content[start : start + (length if how == "instead" else 0)] = draw(st.sampled_from(ODD_BYTES))
    return bytes(content)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("../../x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def changed_documents(draw: st.DrawFn, original: dict[str, Any]) -> dict[str, Any]:
    """Draw a document in which one or two values, at any depth, are replaced or missing."""
    document = json.loads(json.dumps(original))
    for _ in range(draw(st.integers(1, 2))):
        at = document
        key = draw(st.sampled_from(sorted(at)))
        while isinstance(at[key], dict) and at[key] and draw(st.booleans()):
            at = at[key]
            key = draw(st.sampled_from(sorted(at)))
        if draw(st.booleans()):
            at[key] = draw(values)
        else:
            del at[key]
        if not document:
            break
    return dict(document)


class RestorableRun:
    """A run whose files can be changed and restored."""

    def __init__(self, folder: Path, trainer: Trainer | None = None) -> None:
        self.run = Run(folder)
        self.trainer: Any = trainer
        self.files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def restore(self) -> Run:
        """Restore all files and return the run."""
        for path in [*self.run.folder.rglob("*")][::-1]:
            if str(path.relative_to(self.run.folder)) not in self.files and path.is_file():
                path.unlink()
        for name, content in self.files.items():
            path = self.run.folder / name
            if not path.is_file() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return self.run

    def others(self, name: str) -> tuple[bytes, ...]:
        return tuple(content for other, content in self.files.items() if other != name)

    def change(self, name: str, content: bytes, vouched: bool = False) -> None:
        """Replace one file; `vouched`: update its checksum in the state too."""
        path = self.run.folder / name
        path.write_bytes(content)
        if vouched:
            state = path.with_name(checkpoint.STATE_FILE)
            document = json.loads(self.files[str(state.relative_to(self.run.folder))])
            document["files"][path.name] = compute_sha256(path)
            state.write_text(json.dumps(document), encoding="utf-8")


def check_load(kept: RestorableRun, name: str, content: bytes, vouched: bool = False) -> None:
    """Load the run with one file replaced."""
    kept.restore()
    kept.change(name, content, vouched)
    check_works_or_user_error(
        lambda: load(kept.run.folder).tokenizers.source.encode("the old house ☃"), kept.run.folder
    )


def make_untrained_run(folder: Path, config: dict[str, Any]) -> RestorableRun:
    """Write a run of an untrained model with two checkpoints and their average."""
    folder.mkdir()
    tokenizers = train_tokenizers(TextSettings(**config["text"]), lambda: LINES, lambda: LINES)
    run = Run(folder)
    run.create(config, partial(save_tokenizers, tokenizers, TextSettings(**config["text"])))
    tensors = checkpoint.collect_model_tensors(
        build(config, tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    )
    best = {"step": 2, "loss": 1.0, "bleu": 2.0}
    for step in (2, 4):
        checkpoint.write_checkpoint(run.checkpoint_folder(step), tensors, {}, {"step": step, "best": best})
    checkpoint.write_checkpoint(run.average_folder, tensors, {}, {"steps": [2, 4], "best": best})
    load(folder)
    log_message("first message")  # imports everything that printing needs
    return RestorableRun(folder)


def make_small_run(folder: Path, kind: str) -> RestorableRun:
    """Write a run with a short config, which loads fast."""
    text = {"kind": kind, "vocabulary": 300, "shared": False}
    config = {"model": {"kind": "cho", "size": 2}, "loss": {}, "text": text, "data": {}, "training": {}}
    return make_untrained_run(folder, config)


@pytest.fixture(scope="module", autouse=True)
def import_everything() -> None:
    """Import what PyTorch imports on first use, so that it is not attributed to a recipe."""
    for name in list_recipes():
        check_config(make_config(read_recipe(name)))


@pytest.fixture(scope="module", params=["word", "bpe"])
def any_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RestorableRun:
    return make_small_run(tmp_path_factory.mktemp("loading") / "run", request.param)


@pytest.fixture(scope="module")
def word_run(tmp_path_factory: pytest.TempPathFactory) -> RestorableRun:
    return make_small_run(tmp_path_factory.mktemp("loading") / "run", "word")


@pytest.fixture(scope="module")
def configured_run(tmp_path_factory: pytest.TempPathFactory) -> RestorableRun:
    return make_untrained_run(tmp_path_factory.mktemp("loading") / "run", CONFIG)


@pytest.fixture(scope="module")
def resumable_run(tmp_path_factory: pytest.TempPathFactory) -> RestorableRun:
    """Train a tiny run whose checkpoints hold everything that a checkpoint can."""
    folder = tmp_path_factory.mktemp("resuming") / "run"
    folder.mkdir()
    job = make_trainer(folder, steps=4, ema=0.5, patience=3, log_every=1, accumulate=2)
    job.fit()
    return RestorableRun(folder, job)


STATE, MODEL, OPTIMIZER = (
    f"checkpoints/step-4/{name}" for name in (checkpoint.STATE_FILE, checkpoint.MODEL_FILE, checkpoint.OPTIMIZER_FILE)
)


@pytest.mark.slow
@given(st.data())
def test_mutated_config_loads_or_is_a_user_error(configured_run: RestorableRun, data: st.DataObject) -> None:
    name = "config.yaml"
    check_load(configured_run, name, data.draw(mutated_bytes(configured_run.files[name], configured_run.others(name))))


@pytest.mark.slow
@given(changed_documents(CONFIG))
def test_config_with_other_values_loads_or_is_a_user_error(
    configured_run: RestorableRun, config: dict[str, Any]
) -> None:
    check_load(configured_run, "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode())


@pytest.mark.slow
@given(st.data())
def test_run_with_mutated_vocabulary_loads_or_is_a_user_error(any_run: RestorableRun, data: st.DataObject) -> None:
    name = next(name for name in any_run.files if name.startswith("tokenizer/source"))
    check_load(any_run, name, data.draw(mutated_bytes(any_run.files[name], any_run.others(name))))


@pytest.mark.slow
@given(st.data())
def test_run_with_mutated_state_loads_or_is_a_user_error(word_run: RestorableRun, data: st.DataObject) -> None:
    check_load(word_run, STATE, data.draw(mutated_bytes(word_run.files[STATE], word_run.others(STATE))))


@given(st.data(), st.booleans())
def test_mutated_weights_load_or_are_a_user_error(word_run: RestorableRun, data: st.DataObject, vouched: bool) -> None:
    name = "checkpoints/average/model.safetensors"
    check_load(word_run, name, data.draw(mutated_bytes(word_run.files[name], word_run.others(name))), vouched)


def check_resume(kept: RestorableRun, name: str, content: bytes, vouched: bool = False) -> None:
    """Resume the run with one file replaced."""
    kept.restore()
    kept.change(name, content, vouched)

    def go() -> None:
        kept.trainer.resume()
        next(kept.trainer.load_update_batches())
        truncate_metrics_after(kept.run, kept.trainer.train_state.step, kept.trainer.train_state.validated_step)

    check_works_or_user_error(go, kept.run.folder)


@given(st.data())
def test_run_with_mutated_state_resumes_or_is_a_user_error(resumable_run: RestorableRun, data: st.DataObject) -> None:
    check_resume(
        resumable_run, STATE, data.draw(mutated_bytes(resumable_run.files[STATE], resumable_run.others(STATE)))
    )


@pytest.mark.slow
@given(st.data())
def test_state_with_other_values_resumes_or_is_a_user_error(resumable_run: RestorableRun, data: st.DataObject) -> None:
    document = data.draw(changed_documents(json.loads(resumable_run.files[STATE])))
    with suppress(ValueError):
        TrainState.from_json(document)
    check_resume(resumable_run, STATE, json.dumps(document).encode())


@given(st.data(), st.sampled_from((OPTIMIZER, OPTIMIZER, MODEL)), st.booleans())
def test_mutated_optimizer_resumes_or_is_a_user_error(
    resumable_run: RestorableRun, data: st.DataObject, name: str, vouched: bool
) -> None:
    check_resume(
        resumable_run, name, data.draw(mutated_bytes(resumable_run.files[name], resumable_run.others(name))), vouched
    )


@given(st.data())
def test_mutated_metrics_are_read_or_a_user_error(resumable_run: RestorableRun, data: st.DataObject) -> None:
    name = "metrics.jsonl"
    changed = resumable_run.run
    changed.metrics_path.write_bytes(data.draw(mutated_bytes(resumable_run.files[name], resumable_run.others(name))))
    check_works_or_user_error(changed.read_metrics, changed.folder)
    check_works_or_user_error(lambda: truncate_metrics_after(changed, 3, 3), changed.folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@given(mutated_bytes(RECIPE.encode()))
def test_mutated_recipe_is_read_or_a_user_error(folder: Path, content: bytes) -> None:
    path = folder / "own" / "mine.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    check_works_or_user_error(lambda: check_config(make_config(read_recipe(path))), folder, RECIPES_FOLDER)


@given(
    st.sampled_from((PHARAOH, NAACL)).flatmap(lambda text: mutated_bytes(text.encode())), st.sampled_from((None, 0, 1))
)
def test_mutated_gold_alignment_is_read_or_a_user_error(folder: Path, content: bytes, first: int | None) -> None:
    path = folder / "gold.align"
    path.write_bytes(content)
    check_works_or_user_error(lambda: read_gold_alignments(path, PAIRS, first), folder)


@given(st.data())
def test_mutated_vocabulary_file_is_read_or_a_user_error(
    any_run: RestorableRun, folder: Path, data: st.DataObject
) -> None:
    readers: dict[str, Callable[[Path], Any]] = {".vocab": WordTokenizer.load, ".model": SentencePieceTokenizer.load}
    name = next(name for name in any_run.files if name.startswith("tokenizer/target"))
    path = folder / Path(name).name
    path.write_bytes(data.draw(mutated_bytes(any_run.files[name])))

    def use() -> None:
        found = readers[path.suffix](path)
        ids = list(range(found.vocab_size))
        found.decode(ids)
        found.convert_ids_to_tokens(found.encode("the old house ☃"))
        found.find_word_ids(ids)
        found.find_word_boundary_ids()

    check_works_or_user_error(use, folder)


def test_file_names_in_a_state_cannot_reach_other_files(word_run: RestorableRun, tmp_path: Path) -> None:
    outside = tmp_path / "x"
    outside.write_text("private", encoding="utf-8")
    document = json.loads(word_run.files[STATE])
    for name in (str(outside), "../../../x", f"{checkpoint.MODEL_FILE}/../../../x"):
        document["files"][name] = compute_sha256(outside)
    changed = word_run.restore()
    word_run.change(STATE, json.dumps(document).encode())
    with confine_to(changed.folder):
        load(changed.folder)
        checkpoint.rewrite_state_file(changed.checkpoint_folder(4), {"step": 4})
    assert outside.read_text(encoding="utf-8") == "private"


def test_yaml_bomb_is_refused(folder: Path) -> None:
    doubled = "".join(f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    path = folder / "bomb.yaml"
    path.write_text(f"base: default\npaper:\n  - &a0 [x]\n{doubled}model: {{size: *a11}}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"model\.size is a whole number, not \[\[") as caught:
        check_config(make_config(read_recipe(path)))
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize(
    "change",
    [
        {"size": 90_000},
        pytest.param({"layers": 999}, marks=pytest.mark.slow),
        {"size": 10**30},
        {"layers": 10**6},
    ],
    ids=str,
)
def test_config_larger_than_the_weights_is_refused(configured_run: RestorableRun, change: dict[str, int]) -> None:
    model = {**CONFIG["model"], **change}
    configured_run.restore()
    configured_run.change("config.yaml", yaml.safe_dump({**CONFIG, "model": model}).encode())
    with pytest.raises(UserError, match=r"does not fit|must be at most"):
        load(configured_run.run.folder)


def test_audit_hook_detects_writes_reads_and_commands(tmp_path: Path) -> None:
    for offence in (
        lambda: (tmp_path / ".." / "x").write_text("x"),
        lambda: os.system("true"),
        lambda: Path("/etc/hostname").read_bytes(),
    ):
        with pytest.raises(AssertionError, match=r"open|os\.system"), confine_to(tmp_path / "inside"):
            offence()
