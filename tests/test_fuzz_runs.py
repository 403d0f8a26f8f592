"""Whatever is in the files of a run, a recipe or a gold alignment: it is used, or refused with a sentence.

Nothing in them is executed, and nothing outside a run's folder is touched.
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

from regard import recipes
from regard.console import say
from regard.data.disk import digest
from regard.errors import UserError
from regard.evaluate import read_gold
from regard.models import build
from regard.recipes import read
from regard.runs import Run, checkpoint
from regard.text import Subwords, TextSettings, Words, learn, save
from regard.training import Trainer
from regard.training.configuration import check
from regard.training.metrics import forget_after
from regard.training.position import Position
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

# What a hand or a program may leave in such a file: of the wrong kind, too large, too deep, or pointing elsewhere.
ODD = [
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
RUNNING = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pickle.find_class")
REACHING = ("socket.connect", "ctypes.dlopen", "import")
TOUCHING = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "shutil.rmtree")
watched: list[tuple[str, str]] | None = None


def hook(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes what a loader does, while somebody watches."""
    if watched is not None and event in (*RUNNING, *REACHING, *TOUCHING):
        paths = arguments[:2] if event in ("os.rename", "os.link", "os.symlink") else arguments[:1]
        named = [path for path in paths if isinstance(path, str | bytes | os.PathLike)]
        watched.extend((event, os.fsdecode(name)) for name in named)


sys.addaudithook(hook)


@contextmanager
def confined(*folders: Path) -> Iterator[None]:
    """Nothing is run, fetched or imported, and no file outside the folders is touched."""
    global watched
    watched = seen = list[tuple[str, str]]()
    try:
        yield
    finally:
        watched = None
    for event, name in seen:
        assert event in TOUCHING, f"{event} {name}"
        assert any(Path(os.path.normpath(name)).is_relative_to(folder) for folder in folders), f"{event} {name}"


def tried(use: Callable[[], object], *folders: Path) -> None:
    """It works, or says why not in one line."""
    with confined(*folders):
        try:
            use()
            said = ""
        except UserError as error:
            said = str(error)
    assert "\n" not in said


@st.composite
def mutated(draw: st.DrawFn, original: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """A file with bits flipped, bytes cut, written over, doubled or put in, or one of the others in its place."""
    content = bytearray(draw(st.sampled_from((original,) * 20 + others)))
    for _ in range(draw(st.integers(1, 3))):
        near = draw(st.sampled_from((len(content), min(len(content), 400))))  # heads are small, and say most
        place = draw(st.integers(0, max(0, near - 1)))
        length = draw(st.integers(1, 12))
        how = draw(st.sampled_from(("flip", "cut", "end", "bytes", "odd", "instead", "again")))
        if how == "flip" and content:
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del content[place : place + length]
        elif how == "end":
            del content[place:]
        elif how == "bytes":
            content[place:place] = draw(st.binary(min_size=1, max_size=8))
        elif how == "again":
            content[place:place] = content[place : place + 3 * length]
        else:
            content[place : place + (length if how == "instead" else 0)] = draw(st.sampled_from(ODD))
    return bytes(content)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("../../x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def rewritten(draw: st.DrawFn, original: dict[str, Any]) -> dict[str, Any]:
    """A document in which a value, at any depth, is another one, or is missing."""
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


class Kept:
    """A run, and the way back to it after each change."""

    def __init__(self, folder: Path, trainer: Trainer | None = None) -> None:
        self.run = Run(folder)
        self.trainer: Any = trainer
        self.files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def restore(self) -> Run:
        """The run as it was, whatever has become of it."""
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
        """One file is another; `vouched`: the checksum is that of the change."""
        path = self.run.folder / name
        path.write_bytes(content)
        if vouched:
            state = path.with_name(checkpoint.STATE)
            document = json.loads(self.files[str(state.relative_to(self.run.folder))])
            document["files"][path.name] = digest(path)
            state.write_text(json.dumps(document), encoding="utf-8")


def loaded(kept: Kept, name: str, content: bytes, vouched: bool = False) -> None:
    """The run is used with one file changed."""
    kept.restore()
    kept.change(name, content, vouched)
    tried(lambda: load(kept.run.folder).tokenizers.source.encode("the old house ☃"), kept.run.folder)


def new_run(folder: Path, config: dict[str, Any]) -> Kept:
    """A run with two checkpoints and their mean, of a model that was never trained."""
    folder.mkdir()
    tokenizers = learn(TextSettings(**config["text"]), lambda: LINES, lambda: LINES)
    run = Run(folder)
    run.create(config, partial(save, tokenizers, TextSettings(**config["text"])))
    tensors = checkpoint.unique_tensors(build(config, tokenizers.source.size, tokenizers.target.size))
    best = {"step": 2, "loss": 1.0, "bleu": 2.0}
    for step in (2, 4):
        checkpoint.write(run.checkpoint_folder(step), tensors, {}, {"step": step, "best": best})
    checkpoint.write(run.average_folder, tensors, {}, {"steps": [2, 4], "best": best})
    load(folder)
    say("a first word")  # so that all is imported that anybody needs
    return Kept(folder)


def small_run(folder: Path, kind: str) -> Kept:
    """A run with a config of a few lines, which is read in no time."""
    text = {"kind": kind, "vocabulary": 300, "shared": False}
    config = {"model": {"kind": "cho", "size": 2}, "loss": {}, "text": text, "data": {}, "training": {}}
    return new_run(folder, config)


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """PyTorch imports parts of itself when they are first used; that is no recipe's doing."""
    for name in recipes.names():
        check(read(name))


@pytest.fixture(scope="module", params=["word", "bpe"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return small_run(tmp_path_factory.mktemp("loading") / "run", request.param)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return small_run(tmp_path_factory.mktemp("loading") / "run", "word")


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return new_run(tmp_path_factory.mktemp("loading") / "run", CONFIG)


@pytest.fixture(scope="module")
def resumable(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A tiny run with all that a checkpoint may hold."""
    folder = tmp_path_factory.mktemp("resuming") / "run"
    folder.mkdir()
    job = make_trainer(folder, steps=4, ema=0.5, patience=3, log_every=1, accumulate=2)
    job.fit()
    return Kept(folder, job)


STATE, MODEL, OPTIMIZER = (
    f"checkpoints/step-4/{name}" for name in (checkpoint.STATE, checkpoint.MODEL, checkpoint.OPTIMIZER)
)


@given(st.data())
def test_config(configured: Kept, data: st.DataObject) -> None:
    name = "config.yaml"
    loaded(configured, name, data.draw(mutated(configured.files[name], configured.others(name))))


@given(rewritten(CONFIG))
def test_config_with_other_values(configured: Kept, config: dict[str, Any]) -> None:
    loaded(configured, "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode())


@given(st.data())
def test_vocabulary(kept: Kept, data: st.DataObject) -> None:
    name = next(name for name in kept.files if name.startswith("tokenizer/source"))
    loaded(kept, name, data.draw(mutated(kept.files[name], kept.others(name))))


@given(st.data())
def test_state_of_a_run_that_is_used(words: Kept, data: st.DataObject) -> None:
    loaded(words, STATE, data.draw(mutated(words.files[STATE], words.others(STATE))))


@given(st.data(), st.booleans())
def test_weights(words: Kept, data: st.DataObject, vouched: bool) -> None:
    name = "checkpoints/average/model.safetensors"
    loaded(words, name, data.draw(mutated(words.files[name], words.others(name))), vouched)


def went_on(kept: Kept, name: str, content: bytes, vouched: bool = False) -> None:
    """The run is taken up with one file changed."""
    kept.restore()
    kept.change(name, content, vouched)

    def go() -> None:
        kept.trainer.resume()
        next(kept.trainer.shares())
        forget_after(kept.run, kept.trainer.position.step)

    tried(go, kept.run.folder)


@given(st.data())
def test_state_of_a_run_that_goes_on(resumable: Kept, data: st.DataObject) -> None:
    went_on(resumable, STATE, data.draw(mutated(resumable.files[STATE], resumable.others(STATE))))


@given(st.data())
def test_state_with_other_values(resumable: Kept, data: st.DataObject) -> None:
    document = data.draw(rewritten(json.loads(resumable.files[STATE])))
    with suppress(ValueError):
        Position.of(document)
    went_on(resumable, STATE, json.dumps(document).encode())


@given(st.data(), st.sampled_from((OPTIMIZER, OPTIMIZER, MODEL)), st.booleans())
def test_optimizer(resumable: Kept, data: st.DataObject, name: str, vouched: bool) -> None:
    went_on(resumable, name, data.draw(mutated(resumable.files[name], resumable.others(name))), vouched)


@given(st.data())
def test_metrics(resumable: Kept, data: st.DataObject) -> None:
    name = "metrics.jsonl"
    changed = resumable.run
    changed.metrics_path.write_bytes(data.draw(mutated(resumable.files[name], resumable.others(name))))
    tried(changed.metrics, changed.folder)
    tried(lambda: forget_after(changed, 3), changed.folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@given(mutated(RECIPE.encode()))
def test_recipe(folder: Path, content: bytes) -> None:
    path = folder / "own" / "mine.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    tried(lambda: check(read(path)), folder, Path(recipes.__file__).parent)


@given(st.sampled_from((PHARAOH, NAACL)).flatmap(lambda text: mutated(text.encode())), st.sampled_from((None, 0, 1)))
def test_gold_alignment(folder: Path, content: bytes, first: int | None) -> None:
    path = folder / "gold.align"
    path.write_bytes(content)
    tried(lambda: read_gold(path, PAIRS, first), folder)


@given(st.data())
def test_vocabulary_alone(kept: Kept, folder: Path, data: st.DataObject) -> None:
    readers: dict[str, Callable[[Path], Any]] = {".vocab": Words.load, ".model": Subwords.load}
    name = next(name for name in kept.files if name.startswith("tokenizer/target"))
    path = folder / Path(name).name
    path.write_bytes(data.draw(mutated(kept.files[name])))

    def use() -> None:
        found = readers[path.suffix](path)
        ids = list(range(found.size))
        found.decode(ids)
        found.pieces(found.encode("the old house ☃"))
        found.words(ids)
        found.word_ends()

    tried(use, folder)


def test_files_that_a_state_names_do_not_matter(words: Kept, tmp_path: Path) -> None:
    outside = tmp_path / "x"
    outside.write_text("nobody's business", encoding="utf-8")
    document = json.loads(words.files[STATE])
    for name in (str(outside), "../../../x", f"{checkpoint.MODEL}/../../../x"):
        document["files"][name] = digest(outside)
    changed = words.restore()
    words.change(STATE, json.dumps(document).encode())
    with confined(changed.folder):
        load(changed.folder)
        checkpoint.rewrite(changed.checkpoint_folder(4), {"step": 4})
    assert outside.read_text(encoding="utf-8") == "nobody's business"


def test_a_few_lines_that_would_fill_a_memory(folder: Path) -> None:
    doubled = "".join(f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    path = folder / "bomb.yaml"
    path.write_text(f"base: default\npaper:\n  - &a0 [x]\n{doubled}model: {{size: *a11}}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"model\.size is a whole number, not \[\[") as caught:
        check(read(path))
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize("change", [{"size": 90_000}, {"layers": 999}, {"size": 10**30}, {"layers": 10**6}])
def test_a_config_that_asks_for_more_than_the_weights_have(configured: Kept, change: dict[str, int]) -> None:
    model = {**CONFIG["model"], **change}
    configured.restore()
    configured.change("config.yaml", yaml.safe_dump({**CONFIG, "model": model}).encode())
    with pytest.raises(UserError, match=r"does not fit|must be at most"):
        load(configured.run.folder)


def test_the_watch_sees_what_it_should(tmp_path: Path) -> None:
    for offence in (
        lambda: (tmp_path / ".." / "x").write_text("x"),
        lambda: os.system("true"),
        lambda: Path("/etc/hostname").read_bytes(),
    ):
        with pytest.raises(AssertionError, match=r"open|os\.system"), confined(tmp_path / "inside"):
            offence()
