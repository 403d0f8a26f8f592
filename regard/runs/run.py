"""From where a run's model aligns, where the config leaves that open (`model.align_layer: auto`): `viewpoint.json`.

Training chooses it anew for each model that is the best so far, and keeps it apart from the config, by which training
goes on.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from regard import tokenizers
from regard.config import parse_settings
from regard.console import log_message
from regard.errors import UserError
from regard.fast import quicken
from regard.models import AlignmentHead, Decoder, build, build_on_meta
from regard.paths import fsync_path
from regard.recipes import SECTIONS, Recipe, parse_yaml
from regard.runs import checkpoint
from regard.tokenizers import TextSettings, Tokenizers

ALIGNMENT_HEAD_FILE = "viewpoint.json"


def write_alignment_head(folder: Path, head: AlignmentHead) -> None:
    """What was found."""
    partial_file = folder / f".{ALIGNMENT_HEAD_FILE}.part"
    partial_file.write_text(
        json.dumps({"layer": head.layer, "head": head.head, "after": head.shifted}) + "\n", encoding="utf-8"
    )
    partial_file.replace(folder / ALIGNMENT_HEAD_FILE)


def read_alignment_head(folder: Path, decoder: Decoder) -> AlignmentHead:
    """What was found for this decoder; its own viewpoint where nothing was yet."""
    path = folder / ALIGNMENT_HEAD_FILE
    if not path.exists():
        return decoder.alignment_head
    found = None
    try:
        match json.loads(path.read_text(encoding="utf-8")):
            case {"layer": int(layer), "head": int() | None as head, "after": bool(after)}:
                found = AlignmentHead(layer, head, after)
    except (OSError, ValueError, RecursionError):
        pass
    if found is None or found._replace(shifted=False) not in decoder.alignment_heads():
        raise UserError(f"{path} is damaged: delete it; `regard align {folder} PAIRS --choose-head` finds another")
    return found


_STEP_FOLDER = re.compile(r"step-(0|[1-9][0-9]*)")
_REQUIRED_STATE = {"place": dict, "ranked": list, "data": str, "processes": int, "scaler": dict}  # of a state, to go on


@dataclass(frozen=True)
class Run:
    """`config.yaml`, `tokenizer/`, `checkpoints/step-N/`, `metrics.jsonl`, `samples/`."""

    folder: Path

    @property
    def config_path(self) -> Path:
        """The recipe with everything resolved."""
        return self.folder / "config.yaml"

    @property
    def metrics_path(self) -> Path:
        """One JSON object a line: what was measured at which step."""
        return self.folder / "metrics.jsonl"

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return self.config_path.is_file()

    def read_config(self) -> Recipe:
        """The resolved recipe."""
        if not self.exists:
            raise UserError(f"{self.folder} is not a run: it has no {self.config_path.name}")
        try:
            written = self.config_path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{self.config_path} cannot be read: {error}") from error
        config = parse_yaml(written, str(self.config_path))
        for section in SECTIONS:
            if not isinstance(config, dict) or not isinstance(config.get(section), dict):
                raise UserError(f"{self.config_path} is not a run's config: it has no section {section!r}")
        return dict(config)

    def load_tokenizers(self) -> Tokenizers:
        """The vocabularies of both sides."""
        return tokenizers.load_tokenizers(
            parse_settings(TextSettings, self.read_config()["text"], "text"), self.folder / "tokenizer"
        )

    def create(self, config: Recipe, save_vocabularies: Callable[[Path], None]) -> None:
        """Makes the folder, into which `save` writes vocabularies.

        The config is written last and at once, so that a half-made folder is not a run.
        """
        tokenizer_folder = self.folder / "tokenizer"
        shutil.rmtree(tokenizer_folder, ignore_errors=True)
        tokenizer_folder.mkdir(parents=True)
        save_vocabularies(tokenizer_folder)
        for path in (*tokenizer_folder.iterdir(), tokenizer_folder):
            fsync_path(path)
        self.write_config(config)

    def write_config(self, config: Recipe) -> None:
        """Writes the config at once: the old one or the new one is there, never half of one."""
        written = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        partial_file = self.config_path.with_name(".config.yaml.part")
        partial_file.write_text(written, encoding="utf-8")
        fsync_path(partial_file)
        partial_file.replace(self.config_path)
        fsync_path(self.folder)

    def checkpoint_folder(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self.folder / "checkpoints" / f"step-{step}"

    def list_steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        found = (_STEP_FOLDER.fullmatch(path.name) for path in (self.folder / "checkpoints").glob("step-*"))
        return sorted(int(match[1]) for match in found if match)

    @property
    def average_folder(self) -> Path:
        """Where the mean of the newest checkpoints is, if it is the model to use."""
        return self.folder / "checkpoints" / "average"

    def find_newest_step(self) -> int:
        """The last step that has a checkpoint."""
        steps = self.list_steps()
        if not steps:
            raise UserError(f"{self.folder} has no checkpoint yet")
        return steps[-1]

    def recover_newest_checkpoint(
        self, find_problem: Callable[[dict[str, Any]], str | None]
    ) -> tuple[int, dict[str, Any]]:
        """The newest checkpoint that is whole, and its state; damaged ones are moved out of the way, with a word.

        `wrong` says what is wrong with a state, where whoever is to go on from it finds something.
        """
        for step in [self.find_newest_step(), *reversed(self.list_steps()[:-1])]:
            folder = self.checkpoint_folder(step)
            try:
                for name in (checkpoint.MODEL_FILE, checkpoint.OPTIMIZER_FILE):
                    checkpoint.verify_file(folder, name)
                state = _read_resumable_state(folder)
                if state.get("step") != step:
                    raise checkpoint.make_corrupt_error(
                        folder, f"{checkpoint.STATE_FILE} is that of step {state.get('step')}"
                    )
                if reason := find_problem(state):
                    raise checkpoint.make_corrupt_error(folder, f"{checkpoint.STATE_FILE} {reason}")
                return step, state
            except checkpoint.CorruptCheckpointError as damage:
                damaged_folder = folder.with_name(f"damaged-{folder.name}")
                shutil.rmtree(damaged_folder, ignore_errors=True)
                folder.rename(damaged_folder)
                log_message(f"{damage}; it is now {damaged_folder.name}, and the one before it is asked")
        raise UserError(f"{self.folder} has no checkpoint that is whole")

    def read_newest_state(self) -> dict[str, Any]:
        """What the newest checkpoint that can be read remembers."""
        for step in [self.find_newest_step(), *reversed(self.list_steps()[:-1])]:
            try:
                return checkpoint.read_state(self.checkpoint_folder(step))
            except checkpoint.CorruptCheckpointError as damage:
                log_message(f"{damage}; the one before it is asked")
        raise UserError(f"{self.folder} has no checkpoint that is whole")

    def find_best_step(self) -> int:
        """The step of the best checkpoint, by what the newest one remembers; the newest where none was validated."""
        state = self.read_newest_state()
        best = (state.get("best") or state).get("step")
        return next((step for step in self.list_steps() if step == best), self.find_newest_step())

    def find_unvalidated_step(self) -> int | None:
        """Return the newest step of a run that was stopped before its first validation, else None."""
        steps = self.list_steps()
        try:
            state = checkpoint.read_state(self.checkpoint_folder(steps[-1])) if steps else {"best": {}}
        except checkpoint.CorruptCheckpointError:
            return None  # it is reported where the checkpoint is used
        return steps[-1] if state.get("best") is None else None

    def warn_if_unvalidated(self) -> None:
        """Warn of a run that was stopped before its first validation."""
        if (step := self.find_unvalidated_step()) is not None:
            log_message(
                f"warning: {self.folder} was stopped at step {step:,}, before its first validation: its model has "
                f"hardly been trained; go on with: regard train --resume --out {self.folder}"
            )

    def list_checkpoints_best_first(self) -> list[Path]:
        """The checkpoints, the one to use first: the mean of several, the best, the newest and those before it."""
        found = [self.average_folder] if self.average_folder.is_dir() else []
        return found + [self.checkpoint_folder(step) for step in (self.find_best_step(), *reversed(self.list_steps()))]

    def load_model(self, vocabulary_sizes: tuple[int, int], step: int | None = None) -> Any:
        """The model of a step, the best where none is given, ready to be used rather than trained.

        `sizes` are those of its vocabularies.
        """
        if step is None:
            self.warn_if_unvalidated()
        config = self.read_config()
        expected = build_on_meta(
            config, *vocabulary_sizes
        )  # one that does not fit could ask for all the memory there is
        weights = self.load_weights(
            expected, [self.checkpoint_folder(step)] if step is not None else self.list_checkpoints_best_first()
        )
        with torch.random.fork_rng(devices=[]):  # the random initialisation must not change the caller's generator
            model = quicken(build(config, *vocabulary_sizes))
        model.load_state_dict(weights, strict=False)
        if config["model"].get("align_layer") == "auto":
            model.decoder.alignment_head = read_alignment_head(self.folder, model.decoder)
        return model.eval()

    def load_weights(self, model: nn.Module, folders: Sequence[Path]) -> dict[str, Tensor]:
        """Those of the first checkpoint that is whole and fits."""
        *others, last = dict.fromkeys(folders)
        for folder in others:
            try:
                return checkpoint.read_model_tensors(folder, model)
            except checkpoint.CorruptCheckpointError as damage:
                log_message(f"{damage}; another one is used")
        return checkpoint.read_model_tensors(last, model)

    def read_metrics(self) -> list[dict[str, Any]]:
        """What was measured so far; a line that a kill cut short is left out."""
        if not self.metrics_path.is_file():
            return []
        lines = self.metrics_path.read_bytes().split(b"\n")[:-1]
        return [self.parse_metrics_line(line, number) for number, line in enumerate(lines, 1)]

    def parse_metrics_line(self, line: bytes, line_number: int) -> dict[str, Any]:
        """One line of the metrics."""
        try:
            row = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or type(row.get("step")) is not int:
            raise UserError(
                f"{self.metrics_path}:{line_number}: not a measurement, which is a JSON object with kind and step; the "
                f"run can do without the line, remove it"
            )
        return row


def _read_resumable_state(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint, if it has all that training needs to go on."""
    state = checkpoint.read_state(folder)
    wrong = [name for name, kind in _REQUIRED_STATE.items() if not isinstance(state.get(name), kind)]
    if wrong:
        raise checkpoint.make_corrupt_error(folder, f"{checkpoint.STATE_FILE} lacks {', '.join(wrong)}")
    return state
