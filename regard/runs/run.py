"""A run's folder: what is where, and how it is read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor, nn

from regard import text
from regard.config import parse
from regard.console import say
from regard.data.disk import sync
from regard.errors import UserError
from regard.fast import quicken
from regard.models import build, outline
from regard.recipes import SECTIONS, Recipe, from_yaml
from regard.runs import checkpoint, viewpoint
from regard.text import TextSettings, Tokenizers

STEP = re.compile(r"step-(0|[1-9][0-9]*)")
NEEDED = {"place": dict, "ranked": list, "data": str, "processes": int, "scaler": dict}  # of a state, to go on


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

    def config(self) -> Recipe:
        """The resolved recipe."""
        if not self.exists:
            raise UserError(f"{self.folder} is not a run: it has no {self.config_path.name}")
        try:
            written = self.config_path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{self.config_path} cannot be read: {error}") from error
        config = from_yaml(written, str(self.config_path))
        for section in SECTIONS:
            if not isinstance(config, dict) or not isinstance(config.get(section), dict):
                raise UserError(f"{self.config_path} is not a run's config: it has no section {section!r}")
        return dict(config)

    def tokenizers(self) -> Tokenizers:
        """The vocabularies of both sides."""
        return text.load(parse(TextSettings, self.config()["text"], "text"), self.folder / "tokenizer")

    def create(self, config: Recipe, save: Callable[[Path], None]) -> None:
        """Makes the folder, into which `save` writes vocabularies.

        The config is written last and at once, so that a half-made folder is not a run.
        """
        tokenizer_folder = self.folder / "tokenizer"
        shutil.rmtree(tokenizer_folder, ignore_errors=True)
        tokenizer_folder.mkdir(parents=True)
        save(tokenizer_folder)
        for path in (*tokenizer_folder.iterdir(), tokenizer_folder):
            sync(path)
        self.write_config(config)

    def write_config(self, config: Recipe) -> None:
        """Writes the config at once: the old one or the new one is there, never half of one."""
        written = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        beside = self.config_path.with_name(".config.yaml.part")
        beside.write_text(written, encoding="utf-8")
        sync(beside)
        beside.replace(self.config_path)
        sync(self.folder)

    def checkpoint_folder(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self.folder / "checkpoints" / f"step-{step}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        found = (STEP.fullmatch(path.name) for path in (self.folder / "checkpoints").glob("step-*"))
        return sorted(int(match[1]) for match in found if match)

    @property
    def average_folder(self) -> Path:
        """Where the mean of the newest checkpoints is, if it is the model to use."""
        return self.folder / "checkpoints" / "average"

    def newest(self) -> int:
        """The last step that has a checkpoint."""
        steps = self.steps()
        if not steps:
            raise UserError(f"{self.folder} has no checkpoint yet")
        return steps[-1]

    def recover(self, wrong: Callable[[dict[str, Any]], str | None]) -> tuple[int, dict[str, Any]]:
        """The newest checkpoint that is whole, and its state; damaged ones are moved out of the way, with a word.

        `wrong` says what is wrong with a state, where whoever is to go on from it finds something.
        """
        for step in [self.newest(), *reversed(self.steps()[:-1])]:
            folder = self.checkpoint_folder(step)
            try:
                for name in (checkpoint.MODEL, checkpoint.OPTIMIZER):
                    checkpoint.checked(folder, name)
                state = complete(folder)
                if state.get("step") != step:
                    raise checkpoint.damaged(folder, f"{checkpoint.STATE} is that of step {state.get('step')}")
                if reason := wrong(state):
                    raise checkpoint.damaged(folder, f"{checkpoint.STATE} {reason}")
                return step, state
            except checkpoint.DamageError as damage:
                aside = folder.with_name(f"damaged-{folder.name}")
                shutil.rmtree(aside, ignore_errors=True)
                folder.rename(aside)
                say(f"{damage}; it is now {aside.name}, and the one before it is asked")
        raise UserError(f"{self.folder} has no checkpoint that is whole")

    def state(self) -> dict[str, Any]:
        """What the newest checkpoint that can be read remembers."""
        for step in [self.newest(), *reversed(self.steps()[:-1])]:
            try:
                return checkpoint.read_state(self.checkpoint_folder(step))
            except checkpoint.DamageError as damage:
                say(f"{damage}; the one before it is asked")
        raise UserError(f"{self.folder} has no checkpoint that is whole")

    def best(self) -> int:
        """The step of the best checkpoint, by what the newest one remembers; the newest where none was validated."""
        state = self.state()
        best = (state.get("best") or state).get("step")
        return next((step for step in self.steps() if step == best), self.newest())

    def unvalidated_step(self) -> int | None:
        """Return the newest step of a run that was stopped before its first validation, else None."""
        steps = self.steps()
        try:
            state = checkpoint.read_state(self.checkpoint_folder(steps[-1])) if steps else {"best": {}}
        except checkpoint.DamageError:
            return None  # it is reported where the checkpoint is used
        return steps[-1] if state.get("best") is None else None

    def warn_if_unvalidated(self) -> None:
        """Warn of a run that was stopped before its first validation."""
        if (step := self.unvalidated_step()) is not None:
            say(
                f"warning: {self.folder} was stopped at step {step:,}, before its first validation: its model has "
                f"hardly been trained; go on with: regard train --resume --out {self.folder}"
            )

    def candidates(self) -> list[Path]:
        """The checkpoints, the one to use first: the mean of several, the best, the newest and those before it."""
        found = [self.average_folder] if self.average_folder.is_dir() else []
        return found + [self.checkpoint_folder(step) for step in (self.best(), *reversed(self.steps()))]

    def model(self, sizes: tuple[int, int], step: int | None = None) -> Any:
        """The model of a step, the best where none is given, ready to be used rather than trained.

        `sizes` are those of its vocabularies.
        """
        if step is None:
            self.warn_if_unvalidated()
        config = self.config()
        expected = outline(config, *sizes)  # one that does not fit could ask for all the memory there is
        weights = self.weights(expected, [self.checkpoint_folder(step)] if step is not None else self.candidates())
        model = quicken(build(config, *sizes))
        model.load_state_dict(weights, strict=False)
        if config["model"].get("align_layer") == "auto":
            model.decoder.viewpoint = viewpoint.read(self.folder, model.decoder)
        return model.eval()

    def weights(self, expected: nn.Module, candidates: Sequence[Path]) -> dict[str, Tensor]:
        """Those of the first checkpoint that is whole and fits."""
        *others, last = dict.fromkeys(candidates)
        for folder in others:
            try:
                return checkpoint.fitting(folder, expected)
            except checkpoint.DamageError as damage:
                say(f"{damage}; another one is used")
        return checkpoint.fitting(last, expected)

    def metrics(self) -> list[dict[str, Any]]:
        """What was measured so far; a line that a kill cut short is left out."""
        if not self.metrics_path.is_file():
            return []
        lines = self.metrics_path.read_bytes().split(b"\n")[:-1]
        return [self.measurement(line, number) for number, line in enumerate(lines, 1)]

    def measurement(self, line: bytes, number: int) -> dict[str, Any]:
        """One line of the metrics."""
        try:
            row = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or type(row.get("step")) is not int:
            raise UserError(
                f"{self.metrics_path}:{number}: not a measurement, which is a JSON object with kind and step; the "
                f"run can do without the line, remove it"
            )
        return row


def complete(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint, if it has all that training needs to go on."""
    state = checkpoint.read_state(folder)
    wrong = [name for name, kind in NEEDED.items() if not isinstance(state.get(name), kind)]
    if wrong:
        raise checkpoint.damaged(folder, f"{checkpoint.STATE} lacks {', '.join(wrong)}")
    return state
