"""A run's folder: config, vocabularies, checkpoints, metrics, alignment head, its lock, and its summary.

PyTorch is imported only to load a model, so that `regard runs` lists many runs quickly.

The alignment head (`viewpoint.json`) is chosen again for each new best model if the config has `model.align_layer:
auto`. It is not in the config, which must not change when a run is resumed.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import yaml

from regard.config import parse_settings
from regard.console import log_message
from regard.errors import UserError
from regard.paths import fsync_path, lock_file, parse_json_object, read_json_object, write_atomically
from regard.recipes.recipe import REQUIRED_SECTIONS, Recipe, parse_yaml
from regard.runs import checkpoint

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from regard.models.base import AlignmentHead, Decoder
    from regard.tokenizers.tokenizer import Tokenizers

ALIGNMENT_HEAD_FILE = "viewpoint.json"
IMPORTED = "imported"  # name of the recipe of imported models
_STEP_FOLDER = re.compile(r"step-(0|[1-9][0-9]*)")
_REQUIRED_STATE = {"place": dict, "ranked": list, "data": str, "processes": int, "scaler": dict}  # to resume


@dataclass(frozen=True)
class Run:
    """Folder of a run: `config.yaml`, `tokenizer/`, `checkpoints/step-N/`, `metrics.jsonl`, `samples/`."""

    folder: Path

    @property
    def config_path(self) -> Path:
        """Path of the resolved recipe."""
        return self.folder / "config.yaml"

    @property
    def metrics_path(self) -> Path:
        """Path of the metrics, one JSON object a line."""
        return self.folder / "metrics.jsonl"

    @property
    def exists(self) -> bool:
        """True if the folder holds a run."""
        return self.config_path.is_file()

    def read_config(self) -> Recipe:
        """Read the resolved recipe; raise UserError if the folder is not a run or its config is damaged."""
        if not self.exists:
            raise UserError(f"{self.folder} is not a run: it has no {self.config_path.name}")
        try:
            text = self.config_path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{self.config_path} cannot be read: {error}") from error
        config = parse_yaml(text, str(self.config_path))
        for section in REQUIRED_SECTIONS:
            if not isinstance(config, dict) or not isinstance(config.get(section), dict):
                raise UserError(f"{self.config_path} is not a run's config: it has no section {section!r}")
        return dict(config)

    def load_tokenizers(self) -> Tokenizers:
        """Load the vocabularies of both sides."""
        from regard.tokenizers.tokenizer import TextSettings, load_tokenizers

        config = self.read_config()
        languages = config["data"].get("source"), config["data"].get("target")
        return load_tokenizers(
            parse_settings(TextSettings, config["text"], "text"), self.folder / "tokenizer", languages
        )

    def create(self, config: Recipe, save_vocabularies: Callable[[Path], None]) -> None:
        """Create the folder; `save_vocabularies` writes the vocabularies into it.

        The config is written last and atomically, so that an incomplete folder is not a run.
        """
        tokenizer_folder = self.folder / "tokenizer"
        shutil.rmtree(tokenizer_folder, ignore_errors=True)
        tokenizer_folder.mkdir(parents=True)
        save_vocabularies(tokenizer_folder)
        for path in (*tokenizer_folder.iterdir(), tokenizer_folder):
            fsync_path(path)
        self.write_config(config)

    def write_config(self, config: Recipe) -> None:
        """Write the config atomically."""
        write_atomically(self.config_path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))

    def checkpoint_folder(self, step: int) -> Path:
        """Return the folder of a step's checkpoint."""
        return self.folder / "checkpoints" / f"step-{step}"

    def list_steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in ascending order."""
        matches = (_STEP_FOLDER.fullmatch(path.name) for path in (self.folder / "checkpoints").glob("step-*"))
        return sorted(int(match[1]) for match in matches if match)

    @property
    def average_folder(self) -> Path:
        """Folder of the averaged checkpoint, which exists only if it is the model to use."""
        return self.folder / "checkpoints" / "average"

    def find_newest_step(self) -> int:
        """Return the last step that has a checkpoint."""
        return self._list_steps_newest_first()[0]

    def _list_steps_newest_first(self) -> list[int]:
        """Return the steps that have a checkpoint; raise UserError if there are none."""
        steps = self.list_steps()
        if not steps:
            raise UserError(f"{self.folder} has no checkpoint yet")
        return steps[::-1]

    def recover_newest_checkpoint(
        self, find_problem: Callable[[dict[str, Any]], str | None]
    ) -> tuple[int, dict[str, Any]]:
        """Return step and state of the newest intact checkpoint; damaged ones are renamed and logged.

        `find_problem` describes what is wrong with a state, or returns None.
        """
        for step in self._list_steps_newest_first():
            folder = self.checkpoint_folder(step)
            try:
                for name in (checkpoint.MODEL_FILE, checkpoint.OPTIMIZER_FILE):
                    checkpoint.verify_file(folder, name)
                state = checkpoint.read_state(folder)
                missing_keys = [name for name, kind in _REQUIRED_STATE.items() if not isinstance(state.get(name), kind)]
                if missing_keys:
                    reason: str | None = f"lacks {', '.join(missing_keys)}"
                elif state.get("step") != step:
                    reason = f"belongs to step {state.get('step')}"
                else:
                    reason = find_problem(state)
                if reason:
                    raise checkpoint.make_corrupt_error(folder, f"{checkpoint.STATE_FILE} {reason}")
                return step, state
            except checkpoint.CorruptCheckpointError as damage:
                damaged_folder = folder.with_name(f"damaged-{folder.name}")
                shutil.rmtree(damaged_folder, ignore_errors=True)
                folder.rename(damaged_folder)
                log_message(f"{damage}; it is renamed to {damaged_folder.name}, and the previous checkpoint is tried")
        raise UserError(f"{self.folder} has no intact checkpoint")

    def read_newest_state(self) -> dict[str, Any]:
        """Return the state of the newest readable checkpoint."""
        for step in self._list_steps_newest_first():
            try:
                return checkpoint.read_state(self.checkpoint_folder(step))
            except checkpoint.CorruptCheckpointError as damage:
                log_message(f"{damage}; the previous checkpoint is tried")
        raise UserError(f"{self.folder} has no intact checkpoint")

    def find_best_step(self) -> int:
        """Return the step of the best checkpoint according to the newest one; the newest if none was validated."""
        state = self.read_newest_state()
        best, steps = (state.get("best") or state).get("step"), self._list_steps_newest_first()
        return next((step for step in steps if step == best), steps[0])

    def warn_if_unvalidated(self) -> None:
        """Log a warning if the run was stopped before its first validation."""
        for step in self.list_steps()[-1:]:
            # A damaged checkpoint is reported where it is used.
            with suppress(checkpoint.CorruptCheckpointError):
                if checkpoint.read_state(self.checkpoint_folder(step)).get("best") is None:
                    log_message(
                        f"warning: {self.folder} was stopped at step {step:,}, before its first validation: its model "
                        f"has hardly been trained; resume it with: regard train --resume --out {self.folder}"
                    )

    def list_checkpoints_best_first(self) -> list[Path]:
        """Return the checkpoints in order of preference: the average, the best, the newest and those before it."""
        averages = [self.average_folder] if self.average_folder.is_dir() else []
        steps = [self.find_best_step(), *self._list_steps_newest_first()]
        return averages + [self.checkpoint_folder(step) for step in steps]

    def load_model(self, vocabulary_sizes: tuple[int, int], step: int | None = None) -> Any:
        """Load the model of a step, by default the best one, in eval mode.

        `vocabulary_sizes` are those of source and target.
        """
        import torch

        from regard.fast import accelerate
        from regard.models import build
        from regard.models.registry import build_on_meta

        if step is None:
            self.warn_if_unvalidated()
        config = self.read_config()
        # Check the weights against a model on the meta device: a damaged config could ask for too much memory.
        expected = build_on_meta(config, *vocabulary_sizes)
        folders = self.list_checkpoints_best_first() if step is None else [self.checkpoint_folder(step)]
        weights = self.load_weights(expected, folders)
        with torch.random.fork_rng(devices=[]):  # the random initialisation must not change the caller's generator
            model = accelerate(build(config, *vocabulary_sizes))
        model.load_state_dict(weights, strict=False)
        if config["model"].get("align_layer") == "auto":
            model.decoder.alignment_head = self.read_alignment_head(model.decoder)
        return model.eval()

    def write_alignment_head(self, head: AlignmentHead) -> None:
        """Write the chosen alignment head."""
        fields = {"layer": head.layer, "head": head.head, "after": head.shifted}
        write_atomically(self.folder / ALIGNMENT_HEAD_FILE, json.dumps(fields) + "\n")

    def read_alignment_head(self, decoder: Decoder) -> AlignmentHead:
        """Return the chosen alignment head; the decoder's default if none has been chosen yet."""
        path = self.folder / ALIGNMENT_HEAD_FILE
        if not path.exists():
            return decoder.alignment_head
        match read_json_object(path):
            case {"layer": int(layer), "head": int() | None as head, "after": bool(after)}:
                chosen = decoder.alignment_head._replace(layer=layer, head=head, shifted=after)
                if chosen._replace(shifted=False) in decoder.alignment_heads():
                    return chosen
        raise UserError(
            f"{path} is damaged; delete it and run `regard align {self.folder} PAIRS --choose-head` to choose again"
        )

    def load_weights(self, model: nn.Module, folders: Sequence[Path]) -> dict[str, Tensor]:
        """Return the weights of the first checkpoint that is intact and fits the model."""
        *others, last = dict.fromkeys(folders)
        for folder in others:
            try:
                return checkpoint.read_model_tensors(folder, model)
            except checkpoint.CorruptCheckpointError as damage:
                log_message(f"{damage}; another checkpoint is used")
        return checkpoint.read_model_tensors(last, model)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the rows of `metrics.jsonl`; an incomplete last line is ignored."""
        return list(self.iterate_metrics())

    def iterate_metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of `metrics.jsonl` as they are read."""
        if self.metrics_path.is_file():
            with self.metrics_path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.endswith(b"\n"):
                        yield self.parse_metrics_line(line, number)

    def parse_metrics_line(self, line: bytes, line_number: int) -> dict[str, Any]:
        """Parse one line of `metrics.jsonl`; raise UserError if it is invalid."""
        row = parse_json_object(line)
        if not isinstance(row.get("kind"), str) or type(row.get("step")) is not int:
            raise UserError(
                f"{self.metrics_path}:{line_number}: not a JSON object with kind and step; remove the line, which the "
                f"run does not need"
            )
        return row


def choose_inference_device(device: str | torch.device | None) -> torch.device:
    """Return the given device; by default a GPU if there is one, else the CPU."""
    import torch

    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


_HELD_LOCKS = set[IO[Any]]()  # open lock files of this process


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Hold the run's lock inside the context; raise UserError if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    busy = f"another process is training into {folder}; wait for it, or choose another --out"
    with (folder / ".lock").open("a") as lock:
        lock_file(lock, busy)
        _HELD_LOCKS.add(lock)
        try:
            yield
        finally:
            _HELD_LOCKS.discard(lock)


def _release_locks_in_child() -> None:
    """Close inherited lock files after a fork: a data worker may outlive its killed parent and would keep the lock."""
    while _HELD_LOCKS:
        _HELD_LOCKS.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_locks_in_child)


_RUN_FILES = ("config.yaml", "tokenizer", "checkpoints", "metrics.jsonl")  # training may end before it writes the first
_MAX_DEPTH = 4  # nested folders that are searched for runs
_MAX_MAGNITUDE = 1e300  # larger numbers in JSON, some beyond the range of float, are damage
_MAX_HEADER_BYTES = 1 << 26  # a safetensors file that claims a longer header is damaged


@dataclass(frozen=True)
class ValidationSummary:
    """Result of one validation."""

    step: int
    score: float | None
    measure: str  # metric of the score
    loss: float | None
    perplexity: float | None


@dataclass(frozen=True)
class RunSummary:
    """Key figures of a run; None if unknown."""

    folder: Path
    damage: str | None = None  # description of a problem
    recipe: str | None = None
    config: Mapping[str, Any] | None = None
    parameters: int | None = None
    steps: int = 0
    epochs: float | None = None
    best: ValidationSummary | None = None  # of the model that is used
    tokens_per_second: float | None = None  # median
    seconds: float | None = None  # training time
    written: float | None = None  # time of the last write, in seconds since 1970
    finished: bool = False


def find_runs(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run, else the runs inside it, incomplete ones included."""
    if not folder.is_dir():
        raise UserError(f"folder {folder} does not exist; `regard train` writes runs to the folder `runs`")
    return sorted(_iterate_runs(folder, _MAX_DEPTH))


def _iterate_runs(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the runs in a folder; runs are not searched for further runs."""
    if any((folder / name).exists() for name in _RUN_FILES):
        yield folder
    elif depth:
        for inner in folder.iterdir():
            if inner.is_dir() and not inner.name.startswith("."):
                yield from _iterate_runs(inner, depth - 1)


def summarize_run(folder: Path) -> RunSummary:
    """Return the summary of a run; if a file cannot be read, only its `damage` is set."""
    try:
        return _read_summary(Run(folder))
    except UserError as error:
        return RunSummary(folder, damage=str(error).replace(f"{folder}/", ""))
    except OSError as error:
        return RunSummary(folder, damage=f"{Path(error.filename or folder).name}: {error.strerror or error}")


def _read_summary(run: Run) -> RunSummary:
    """Read all files of a run; raise UserError or OSError if one is damaged."""
    if not run.exists:
        raise UserError(f"it has no {run.config_path.name}: training ended before the first update")
    config, steps, last_step = run.read_config(), run.list_steps(), 0
    dev_rows: list[dict[str, Any]] = []
    speeds: list[float] = []
    for row in run.iterate_metrics():
        last_step = row["step"]
        if row["kind"] == "dev":
            dev_rows.append(row)
        elif row["kind"] == "train" and _is_plausible_number(row.get("tokens_per_second")):
            speeds.append(row["tokens_per_second"])
    newest = run.checkpoint_folder(steps[-1]) if steps else None
    state = checkpoint.read_state(newest) if newest else {}
    written = [run.config_path, run.metrics_path, *([newest / checkpoint.STATE_FILE] if newest else [])]
    return RunSummary(
        run.folder,
        damage=None if newest else "it has no checkpoint yet",
        recipe=str(config.get("recipe", "?")),
        config=config,
        parameters=_count_parameters(newest / checkpoint.MODEL_FILE) if newest else None,
        steps=steps[-1] if steps else last_step,
        epochs=_get_number(state, "epochs"),
        best=_find_best_validation(state, dev_rows),
        tokens_per_second=statistics.median(speeds) if speeds else None,
        seconds=_get_number(state, "seconds"),
        written=max(path.stat().st_mtime for path in written if path.is_file()),
        finished=is_finished(config["training"], state),
    )


def _count_parameters(path: Path) -> int | None:
    """Return the number of parameters from the header of a safetensors file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = parse_json_object(file.read(size)) if size < _MAX_HEADER_BYTES else {}
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__") or None
    except (OSError, KeyError, TypeError):
        return None


def _is_plausible_number(value: Any) -> bool:
    """Return whether a JSON value is a number within the range of float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_MAGNITUDE


def _get_number(row: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a row, or None if it is missing or invalid."""
    value: Any = row.get(name)
    return float(value) if _is_plausible_number(value) else None


def _find_best_validation(state: Mapping[str, Any], rows: list[dict[str, Any]]) -> ValidationSummary | None:
    """Return the validation of the model that is used; without a checkpoint, the last validation."""
    best = state.get("best")
    if best is not None:
        measure = str(best.get("measure", "bleu"))  # the first release wrote `bleu`, without a measure
        score = best.get("score", best.get("bleu"))
        recorded = {"step": int(_get_number(best, "step") or 0), "measure": measure, "loss": best.get("loss")}
        rows = [row for row in rows if row["step"] == best.get("step")] or [recorded | {measure: score}]
    if not rows:
        return None
    row, measure = rows[-1], str(rows[-1].get("measure", "bleu"))
    return ValidationSummary(
        row["step"], _get_number(row, measure), measure, _get_number(row, "loss"), _get_number(row, "perplexity")
    )


def is_finished(training: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Return whether training has reached a limit of the `training` section: steps, epochs, minutes or patience."""
    if not state:
        return False
    counts = {"steps": "step", "epochs": "epochs", "minutes": "minutes", "patience": "bad_validations"}
    limits = [(_get_number(training, limit), _get_number(state, count)) for limit, count in counts.items()]
    return any(limit is not None and value is not None and value >= limit for limit, value in limits)
