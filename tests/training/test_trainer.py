"""Training: resume, checkpoints, validation, early stopping, skipped updates, out-of-memory, init_from."""

from __future__ import annotations

import copy
import json
import math
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.combinations import each_value, slow_after
from support.training import (
    TINY,
    are_state_dicts_equal,
    copy_run,
    corpus_files,
    gradients_of,
    make_loss_nan,
    make_trainer,
    newest_weights,
    train_tiny,
)
from torch import Tensor

from regard.data import prepare
from regard.data.dataset import Indices
from regard.data.loader import SamplerPosition, UpdateBatches
from regard.data.readers.dispatch import read_all_pairs
from regard.data.readers.text import Pair
from regard.data.split import CorpusSplit, DataSettings
from regard.errors import UserError
from regard.evaluate.alignment_error_rate import read_gold_alignments
from regard.models import Seq2Seq, build
from regard.models.base import AlignmentHead
from regard.recipes.recipe import TrainingSettings, read_recipe
from regard.report.html import format_training_curves
from regard.runs import Run, checkpoint
from regard.runs.run import is_finished, lock_run
from regard.tasks.base import Validation
from regard.tasks.translation import TranslationValidator
from regard.tokenizers.tokenizer import Tokenizers
from regard.tokenizers.words import WordTokenizer
from regard.training import Trainer, train
from regard.training.checkpointer import ValidationRecord
from regard.training.distributed import DistributedContext, Interrupted, StopSignals, build_autocast, choose_local_gpu
from regard.training.metrics import format_time_left
from regard.training.train import build_new_config, sweep_learning_rates
from regard.translate import load
from regard.translate.evaluation import score_alignments
from regard.translate.inspection import choose_alignment_head

TORCH_INIT = {"model.initialisation": "torch"}
# Overrides with which a recipe learns in 24 updates: a recurrent model, a Transformer, then others (slow).
OVERRIDES: dict[str, dict[str, Any]] = {
    "bahdanau2015": TORCH_INIT,
    "default": {"model.heads": 2},
    "luong2015-global": TORCH_INIT,
    "vaswani2017-base": {"model.heads": 2},
}


def resume(folder: Path, overrides: dict[str, Any], data: list[Path] | None = None) -> Run:
    return train(None, data, folder, resume=True, **overrides)


def assert_loss_fell(run: Run) -> None:
    """Check the dev losses, the metrics, the checkpoints and the sample translations of 24 updates."""
    rows = run.read_metrics()
    losses = [row["loss"] for row in rows if row["kind"] == "dev"]
    assert losses[-1] < math.log(run.load_tokenizers().target.vocab_size) - 1
    assert losses[-1] < losses[0]
    assert [row["step"] for row in rows if row["kind"] == "train"] == [4, 8, 12, 16, 20, 24]
    assert run.list_steps() == [12, 24]
    samples = (run.folder / "samples" / "step-24.jsonl").read_text(encoding="utf-8").splitlines()
    assert set(json.loads(samples[0])) == {"source", "reference", "translation"}


def test_recurrent_model_trains_and_writes_metrics(run: Run) -> None:
    assert_loss_fell(run)


@pytest.mark.parametrize("recipe", slow_after(1, ["default", "bahdanau2015", "luong2015-global", "vaswani2017-base"]))
def test_recipe_trains_and_writes_metrics(recipe: str, corpus: Path, tmp_path: Path) -> None:
    assert_loss_fell(train_tiny(recipe, corpus, tmp_path / "run", **OVERRIDES[recipe]))


@pytest.mark.parametrize(
    ("recipe", "first", "second", "last"),
    [
        ("bahdanau2015", 3, 6, 8),
        ("default", 3, 6, 8),
        *(pytest.param(recipe, 7, 15, 24, marks=pytest.mark.slow) for recipe in OVERRIDES),
    ],
)
def test_resume_is_bit_identical_to_an_uninterrupted_run(
    recipe: str, first: int, second: int, last: int, corpus: Path, tmp_path: Path
) -> None:
    often = {"training.validate_every": last // 2, "training.checkpoint_every": last // 2}
    overrides = {**OVERRIDES[recipe], **often, "model.dropout": 0.2, "training.accumulate": 2}
    whole = train_tiny(recipe, corpus, tmp_path / "whole", **{**overrides, "training.steps": last})
    parts = tmp_path / "parts"
    train_tiny(recipe, corpus, parts, **{**overrides, "training.steps": first})
    torch.manual_seed(99)  # the state of the global generator must not matter
    resume(parts, {"training.steps": second})
    resumed = resume(parts, {"training.steps": last})
    assert are_state_dicts_equal(newest_weights(whole), newest_weights(resumed))
    optimizers = [(run.checkpoint_folder(last) / "optimizer.safetensors").read_bytes() for run in (whole, resumed)]
    assert optimizers[0] == optimizers[1]
    metrics = [run.read_metrics()[-1] for run in (whole, resumed)]
    assert metrics[0] == metrics[1]


def test_checkpoint_records_its_arithmetic_and_resume_reports_changes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_tiny("bahdanau2015", corpus, tmp_path / "run", **OVERRIDES["bahdanau2015"], **{"training.steps": 1})
    arithmetic = checkpoint.read_state(run.checkpoint_folder(1))["arithmetic"]
    expected = {"device": "cpu", "precision": "float32", "implementation": "fast", "torch": torch.__version__}
    assert arithmetic == expected
    resume(run.folder, {"training.steps": 2})
    assert "last digits" not in capsys.readouterr().err
    monkeypatch.setenv("REGARD_FAST", "0")
    resume(run.folder, {"training.steps": 3})
    message = f"{run.folder} was trained with implementation fast, now reference: results differ in the last digits"
    assert message in capsys.readouterr().err
    state = checkpoint.read_state(run.checkpoint_folder(3))
    assert state["arithmetic"]["implementation"] == "reference"


def test_run_killed_during_validation_keeps_its_updates_and_validates_on_resume(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = make_trainer(tmp_path / "whole", checkpoint_every=100)
    whole.fit()
    killed = make_trainer(tmp_path / "killed", checkpoint_every=100)
    validate = killed.validate

    def die_at_the_second_validation(model: Any, device: torch.device) -> Validation:
        if killed.train_state.step == 4:
            raise SystemExit
        return validate(model, device)

    killed.validate = die_at_the_second_validation
    with pytest.raises(SystemExit):
        killed.fit()
    assert killed.run.list_steps()[-1] == 4
    resumed = make_trainer(tmp_path / "killed", checkpoint_every=100)
    resumed.resume()
    resumed.fit()
    runs = whole.run, resumed.run
    assert [[row["step"] for row in run.read_metrics() if row["kind"] == "dev"] for run in runs] == [[2, 4, 6, 8]] * 2
    assert are_state_dicts_equal(*(newest_weights(run) for run in runs))


@pytest.mark.parametrize("end", ["finished", "interrupted", "rates tried"])
def test_training_leaves_the_random_generators_as_they_were(end: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=2, dropout=0.1)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    if end == "interrupted":
        interrupt_at(trainer, 1)
        with pytest.raises(Interrupted):
            trainer.fit()
    elif end == "finished":
        trainer.fit()
    else:
        sweep_learning_rates(trainer, updates=2)
    assert torch.equal(torch.rand(3), expected)


def test_loading_a_run_leaves_the_random_generators_as_they_were(run: Run) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load(run.folder)
    assert torch.equal(torch.rand(3), expected)


def test_starting_a_run_leaves_the_random_generators_as_they_were(corpus: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_tiny("luong2015-global", corpus, tmp_path / "run", **{"training.steps": 1, "training.validate_every": 1})
    assert torch.equal(torch.rand(3), expected)


def test_weights_depend_on_the_seed_and_nothing_else(corpus: Path, tmp_path: Path) -> None:
    runs = [
        train_tiny("bahdanau2015", corpus, tmp_path / str(number), **{"training.seed": seed, "training.steps": 2})
        for number, seed in enumerate((1, 1, 2))
    ]
    assert are_state_dicts_equal(newest_weights(runs[0]), newest_weights(runs[1]))
    assert not are_state_dicts_equal(newest_weights(runs[0]), newest_weights(runs[2]))


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "patience": 2, "validate_every": 3},
        pytest.param(
            {"optimizer": "sgd", "schedule": "halving", "halve_after": 1.0, "halve_every": 0.5, "accumulate": 3},
            marks=pytest.mark.slow,
        ),
        pytest.param({"optimizer": "adadelta", "accumulate": 2}, marks=pytest.mark.slow),
    ],
    ids=lambda settings: settings["optimizer"],
)
def test_stopping_and_resuming_at_every_step_changes_nothing(settings: dict[str, Any], tmp_path: Path) -> None:
    bleus = [3.0, 2.0, 5.0, 4.0, 4.5, 4.0, 1.0, 1.0, 1.0, 1.0]
    settings = {"steps": 12, "validate_every": 99, "dropout": 0.3, **settings}
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = make_trainer(tmp_path / "whole", bleus, **settings)
    end = whole.fit()
    steps = 0
    while True:
        part = make_trainer(tmp_path / "parts", bleus[steps // settings["validate_every"] :], **settings)
        if steps:
            part.resume()
        part.stop_signals.received_signal = 15
        try:
            last = part.fit()
            break
        except Interrupted as stop:
            reached = stop.step
        assert reached is not None
        steps = reached
    assert steps in (end.step - 1, end.step)
    assert are_state_dicts_equal(whole.model.state_dict(), part.model.state_dict())
    assert (last.data_position, last.step, last.best_validations) == (
        end.data_position,
        end.step,
        end.best_validations,
    )


def test_early_stopping_counts_validations_without_improvement(tmp_path: Path) -> None:
    position = make_trainer(tmp_path, [1.0, 5.0, 4.0, 3.0, 2.0, 1.0], patience=2, steps=99).fit()
    assert position.step == 8
    assert position.best_validation is not None
    assert (position.best_validation.step, position.best_validation.score) == (4, 5.0)


def test_best_checkpoint_is_kept_beside_the_newest(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [1.0, 5.0, 4.0, 3.0, 2.0], patience=None, keep=1, steps=10)
    trainer.fit()
    assert trainer.run.list_steps() == [4, 10]
    assert trainer.run.find_best_step() == 4


def test_last_checkpoint_includes_the_last_validation(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [1.0, 9.0], validate_every=5, checkpoint_every=2, steps=8)
    trainer.fit()
    assert trainer.run.list_steps()[-1] == 8
    assert checkpoint.read_state(trainer.run.checkpoint_folder(8))["best"]["score"] == 9.0


def test_equal_bleu_scores_are_ranked_by_loss(tmp_path: Path) -> None:
    losses = iter([8.2, 8.0, 8.1, 8.3])
    trainer = make_trainer(tmp_path, patience=2, steps=8)
    trainer.validate = lambda *_: Validation(next(losses), {"bleu": 0.0}, "bleu")
    position = trainer.fit()
    assert position.best_validation is not None
    assert (position.best_validation.step, position.best_validation.loss) == (4, 8.0)


CHINESE = Pair("a big dog", "我今天早上在公园里看到了一只非常大的狗。")


@pytest.mark.parametrize(
    ("target", "language", "measure"),
    [
        ("ein großer Hund", "de", "bleu"),
        ("ein großer Hund", None, "bleu"),
        ("큰 개", "ko", "bleu"),
        (CHINESE.target, None, "chrf"),
        ("我 看到 一只 狗", "zh_Hans", "chrf"),
        ("犬を見たことがある", "ja", "chrf"),
        ("ฉันเห็นสุนัข", None, "chrf"),
        ("x = 1", "my", "chrf"),
    ],
)
def test_chrf_chooses_the_best_model_where_words_have_no_spaces(
    target: str, language: str | None, measure: str
) -> None:
    tokenizers = Tokenizers(WordTokenizer.train(["a big dog"], 20), WordTokenizer.train([target], 20))
    validator = TranslationValidator([Pair("a big dog", target)], tokenizers, 100, 5, language)
    model = build("luong2015-global", *tokenizers.vocab_sizes, size=8, layers=1)
    found = validator(model, torch.device("cpu"))
    assert (found.selection_metric, found.score) == (measure, found.metrics[measure])
    assert {"bleu", "chrf"} < set(found.metrics)


def test_validation_line_says_that_chrf_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(tmp_path, steps=4)
    scores = iter([30.0, 20.0])
    trainer.validate = lambda model, device: Validation(1.0, {"bleu": 0.0, "chrf": next(scores)}, "chrf")
    assert trainer.fit().bad_validations == 1
    lines = capsys.readouterr().err.splitlines()
    assert "step 2: dev loss 1.000, BLEU 0.0000, chrF 30.00 (best by chrF)" in lines
    assert "step 4: dev loss 1.000, BLEU 0.0000, chrF 20.00" in lines


@pytest.mark.parametrize(("loss", "best"), [(8.0, 4), (9.9, 2)])
def test_resumed_run_compares_scores_of_different_metrics_by_loss(tmp_path: Path, loss: float, best: int) -> None:
    make_trainer(tmp_path, [1.0], steps=2).fit()
    resumed = make_trainer(tmp_path, steps=4)
    resumed.resume()
    resumed.validate = lambda model, device: Validation(loss, {"chrf": 0.5}, "chrf")
    assert resumed.fit().best_validations[0].step == best
    assert resumed.run.find_best_step() == best


def test_on_best_sees_the_validated_weights_of_each_new_best(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [1.0, 3.0, 2.0, 4.0, 4.0], steps=8, ema=0.9, average=2, keep=2, checkpoint_every=2)
    validated, chosen = record_validated_weights(trainer), dict[int, dict[str, Tensor]]()
    trainer.on_best = lambda model, device: chosen.update({trainer.train_state.step: copy.deepcopy(model.state_dict())})
    trainer.fit()
    assert list(chosen) == [2, 4, 8], "the average of steps 6 and 8 is as good as step 8"
    assert trainer.run.average_folder.is_dir()
    last = dict(validated)
    assert all(are_state_dicts_equal(weights, last[step]) for step, weights in chosen.items())


def record_validated_weights(trainer: Trainer) -> list[tuple[int, dict[str, Tensor]]]:
    """Return a list to which each validation adds its step and the weights that it validates."""
    validate, validated = trainer.validate, list[tuple[int, dict[str, Tensor]]]()

    def record(model: Seq2Seq, device: torch.device) -> Validation:
        validated.append((trainer.train_state.step, copy.deepcopy(model.state_dict())))
        return validate(model, device)

    trainer.validate = record
    return validated


def test_training_without_a_report_chooses_the_alignment_head(transformer_run: Run, corpus: Path) -> None:
    translator = load(transformer_run.folder)
    model = translator.models[0].train()
    own = model.decoder.alignment_head
    assert json.loads((transformer_run.folder / "viewpoint.json").read_text(encoding="utf-8")) == {
        "layer": own.layer,
        "head": own.head,
        "after": own.shifted,
    }
    dev = read_all_pairs(corpus_files(corpus, "dev"))
    assert choose_alignment_head(model, translator.tokenizers, dev, torch.device("cpu")) == own
    model.decoder.alignment_head = AlignmentHead()
    choose_alignment_head(model, translator.tokenizers, dev, torch.device("cpu"))
    assert (model.decoder.alignment_head, model.training) == (AlignmentHead(), True), "the model stays as it is"


def test_resume_says_where_it_goes_on_and_a_finished_run_how_to_train_further(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_tiny("bahdanau2015", corpus, tmp_path / "run", **{"training.steps": 2})
    assert "resumed at" not in capsys.readouterr().err
    resume(run.folder, {})
    assert "has already finished, at step 2; --init-from trains it further" in capsys.readouterr().err
    resume(run.folder, {"training.steps": 3})
    assert "resumed at step 2\n" in capsys.readouterr().err
    with pytest.raises(UserError, match=f"training.minutes cannot change .* --init-from {run.folder} --out RUN"):
        resume(run.folder, {"training.minutes": 5})


def test_resume_with_minutes_says_how_many_are_left() -> None:
    assert format_time_left(None, 60) == ""
    assert format_time_left(30, 90) == ", 28.5 of 30 min left"
    assert format_time_left(3, 999) == ", 0.0 of 3 min left"


def test_resume_chooses_the_alignment_head_of_a_run_without_one(transformer_run: Run, tmp_path: Path) -> None:
    run = copy_run(transformer_run, tmp_path / "run")
    chosen = (run.folder / "viewpoint.json").read_text(encoding="utf-8")
    (run.folder / "viewpoint.json").unlink()
    train(None, None, run.folder, resume=True)
    assert (run.folder / "viewpoint.json").read_text(encoding="utf-8") == chosen


def test_resume_after_averaging_chooses_for_the_best_checkpoint(tmp_path: Path) -> None:
    settings = {"average": 2, "keep": 2, "checkpoint_every": 2}
    make_trainer(tmp_path, [1.0, 2.0, 3.0], steps=4, **settings).fit()
    assert Run(tmp_path).average_folder.is_dir()
    best = newest_weights(Run(tmp_path))
    trainer = make_trainer(tmp_path, [0.0, 0.0], steps=6, **settings)
    chosen: list[dict[str, Tensor]] = []
    trainer.on_best = lambda model, device: chosen.append(copy.deepcopy(model.state_dict()))
    trainer.resume()
    trainer.fit()
    assert len(chosen) == 1
    assert all(torch.equal(chosen[0][name], weights) for name, weights in best.items())


def test_tied_weights_are_saved_once_in_a_stable_order(tmp_path: Path) -> None:
    model = build("vaswani2017-base", 9, 9, size=8)
    optimizer = torch.optim.SGD(model.parameters())
    written = []
    for name in ("a", "b"):
        tensors = checkpoint.collect_model_tensors(model), checkpoint.collect_optimizer_tensors(optimizer)
        checkpoint.write_checkpoint(tmp_path / name, *tensors, {})
        written.append((tmp_path / name / "model.safetensors").read_bytes())
    assert written[0] == written[1]
    other = build("vaswani2017-base", 9, 9, size=8)
    other.load_state_dict(checkpoint.read_model_tensors(tmp_path / "a", other), strict=False)
    assert are_state_dicts_equal(model.state_dict(), other.state_dict())
    with pytest.raises(UserError, match="does not fit"):
        checkpoint.read_model_tensors(tmp_path / "a", build("vaswani2017-base", 9, 9, size=8, tie="none"))
    with pytest.raises(UserError, match="does not fit"):
        checkpoint.read_model_tensors(tmp_path / "a", build("vaswani2017-base", 9, 9, size=16))


def test_patience_count_survives_resume(tmp_path: Path) -> None:
    bleus = [5.0, 4.0, 3.0, 2.0]
    first = make_trainer(tmp_path, bleus, patience=3, steps=4)
    assert first.fit().bad_validations == 1
    second = make_trainer(tmp_path, bleus[2:], patience=3, steps=99)
    second.resume()
    assert second.fit().step == 8


def first_batches(trainer: Trainer, count: int) -> list[Indices]:
    return [rows for rows, _ in islice(trainer.sampler.iterate_batches(SamplerPosition()), count)]


def test_accumulated_gradients_equal_those_of_one_large_batch(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, optimizer="sgd", learning_rate=1.0, warmup=0, schedule="constant", clip=None)
    gradients = gradients_of(trainer)
    rows = first_batches(trainer, 3)
    gradients.accumulate([trainer.dataset.make_batch(some, 0) for some in rows], 1, 1)
    accumulated = {
        name: parameter.grad.clone()
        for name, parameter in trainer.model.named_parameters()
        if parameter.grad is not None
    }
    together = trainer.dataset.make_batch(np.concatenate(rows), 0)
    loss, _ = gradients.accumulate([together], 1, 1)
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(parameter.grad, accumulated[name])
    assert float(loss) == pytest.approx(trainer.model.loss_sum(*together).item(), rel=1e-5)


class UnconnectedRank(DistributedContext):
    """A rank whose sums are those of its own batches."""

    def all_reduce_sum(self, numbers: Sequence[float], group: Any = None) -> list[float]:
        return list(numbers)


def test_ranks_draw_the_dropout_masks_of_one_process_with_all_batches(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, dropout=0.5)
    gradients = gradients_of(trainer)
    batches = [trainer.dataset.make_batch(rows, 0) for rows in first_batches(trainer, 6)]

    def sum_losses(rank: int, ranks: int) -> float:
        gradients.distributed = UnconnectedRank(rank, ranks)
        return float(gradients.accumulate(batches[rank::ranks], 1, 1)[0])

    assert sum(sum_losses(rank, 3) for rank in range(3)) == pytest.approx(sum_losses(0, 1), rel=1e-6)


class LimitedMemory(torch.nn.Module):
    """A layer that runs out of memory for more than `rows` sentences, in its forward or its backward pass."""

    def __init__(self, rows: int, in_backward: bool) -> None:
        super().__init__()
        self.rows = rows
        self.in_backward = in_backward
        self.seen: list[int] = []

    def check(self, rows: int) -> None:
        if rows > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        self.seen.append(rows)
        if not self.in_backward:
            self.check(rows)
        elif x.requires_grad:
            x.register_hook(lambda gradient: self.check(rows))  # type: ignore[no-untyped-call]
        return x


@pytest.mark.parametrize("in_backward", [False, True])
def test_out_of_memory_splits_batches_until_they_fit(
    in_backward: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = make_trainer(tmp_path / "whole", dropout=0.0, steps=4)
    (tmp_path / "whole").mkdir()
    whole.fit()
    (tmp_path / "cut").mkdir()
    cut = make_trainer(tmp_path / "cut", dropout=0.0, steps=4)
    limited = LimitedMemory(3, in_backward)
    encoder: Any = cut.model.encoder
    encoder.embedding = torch.nn.Sequential(encoder.embedding, limited)
    cut.validate = lambda *_: Validation(1.0, {"bleu": 1.0}, "bleu")
    end = cut.fit()
    assert end.step == 4
    assert end.micro_batches > 1
    assert "out of memory; each batch is split into" in capsys.readouterr().err
    assert max(limited.seen[-4:]) <= 3, "later batches are split before the first attempt"
    for left, right in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    state = checkpoint.read_state(cut.run.checkpoint_folder(4))
    assert state["pieces"] == end.micro_batches


def test_out_of_memory_with_a_single_pair_is_a_user_error(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=4)
    encoder: Any = trainer.model.encoder
    encoder.embedding = torch.nn.Sequential(encoder.embedding, LimitedMemory(0, False))
    with pytest.raises(UserError, match="out of memory with a single example per batch"):
        trainer.fit()


def test_nan_updates_are_skipped_and_counted(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=8, log_every=1, validate_every=8)
    make_loss_nan(trainer, {3, 4, 6})
    before: dict[int, list[Tensor]] = {}
    update = trainer.train_step

    def recorded(update_batches: UpdateBatches) -> Any:
        before[trainer.train_state.step + 1] = [weight.detach().clone() for weight in trainer.model.parameters()]
        return update(update_batches)

    trainer.train_step = recorded  # type: ignore[method-assign]
    end = trainer.fit()
    assert (end.step, end.skipped, end.skipped_in_row) == (8, 3, 0)
    changed = {
        step: any(not torch.equal(a, b) for a, b in zip(before[step], before[step + 1], strict=True))
        for step in range(1, 8)
    }
    assert changed == {1: True, 2: True, 3: False, 4: False, 5: True, 6: False, 7: True}
    assert [row["skipped"] for row in trainer.run.read_metrics() if row["kind"] == "train"] == [0, 0, 1, 2, 2, 3, 3, 3]


def test_update_whose_gradient_overflows_is_skipped_although_its_loss_is_finite(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=4, log_every=1)
    next(trainer.model.parameters()).register_hook(  # type: ignore[no-untyped-call]
        lambda gradient: gradient + (math.inf if trainer.train_state.step + 1 == 3 else 0.0)
    )
    assert trainer.fit().skipped == 1
    rows = {row["step"]: row for row in trainer.run.read_metrics() if row["kind"] == "train"}
    assert [step for step, row in rows.items() if row["gradient_norm"] is None] == [3], "null is NaN or inf"
    assert rows[3]["loss"] is not None
    assert all(weight.isfinite().all() for weight in trainer.model.parameters())


def read_strictly(text: str) -> Any:
    """Parse JSON as jq and browsers do: NaN and Infinity are errors."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_metrics_and_state_with_nan_are_valid_json(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=4, log_every=1)
    make_loss_nan(trainer, {3})
    losses = iter([math.inf, math.nan])
    trainer.validate = lambda model, device: Validation(next(losses), {"bleu": math.nan}, "bleu")
    trainer.fit()
    rows = [read_strictly(line) for line in trainer.run.metrics_path.read_text(encoding="utf-8").splitlines()]
    assert [row["loss"] is None for row in rows if row["kind"] == "train"] == [False, False, True, False]
    assert [(row["loss"], row["bleu"]) for row in rows if row["kind"] == "dev"] == [(None, None), (None, None)]
    state = read_strictly((trainer.run.checkpoint_folder(4) / "state.json").read_text(encoding="utf-8"))
    assert state["best"]["loss"] is None
    assert "<svg" in format_training_curves(trainer.run.read_metrics())
    resumed = make_trainer(tmp_path, steps=6)
    resumed.resume()
    assert math.isnan(resumed.train_state.best_validations[0].loss)
    resumed.validate = lambda model, device: Validation(9.0, {"bleu": 0.0}, "bleu")
    resumed.fit()
    assert resumed.train_state.best_validations[0] == ValidationRecord(6, 9.0, 0.0, "bleu"), (
        "any number is better than NaN"
    )


def test_resume_rewrites_nan_of_earlier_versions_as_null(tmp_path: Path) -> None:
    make_trainer(tmp_path, steps=2, log_every=1).fit()
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1, "loss": NaN}\n' + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert math.isnan(Run(tmp_path).read_metrics()[0]["loss"])
    resumed = make_trainer(tmp_path, steps=4, log_every=1)
    resumed.resume()
    resumed.fit()
    assert read_strictly(path.read_text(encoding="utf-8").splitlines()[0])["loss"] is None


def test_work_due_at_a_skipped_update_is_done_after_the_next(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [1.0] * 9, steps=12, validate_every=4, checkpoint_every=3, keep=9, patience=None)
    make_loss_nan(trainer, {3, 4, 9})
    trainer.fit()
    assert trainer.run.list_steps() == [5, 6, 8, 10, 12], "steps 3 and 4 were due at 5, step 9 at 10"
    assert [row["step"] for row in trainer.run.read_metrics() if row["kind"] == "dev"] == [5, 8, 12]


def test_skipped_update_leaves_the_ema_unchanged(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=8, ema=0.5, validate_every=8)
    make_loss_nan(trainer, {5})
    means: dict[int, list[Tensor]] = {}
    update = trainer.train_step

    def recorded(update_batches: UpdateBatches) -> Any:
        found = update(update_batches)
        means[trainer.train_state.step] = [tensor.clone() for tensor in trainer.ema.average]
        return found

    trainer.train_step = recorded  # type: ignore[method-assign]
    trainer.fit()
    unchanged = {step: all(map(torch.equal, means[step], means[step - 1])) for step in (4, 5, 6)}
    assert unchanged == {4: False, 5: True, 6: False}


def test_repeated_nan_updates_end_training_and_keep_the_checkpoint(tmp_path: Path) -> None:
    make_trainer(tmp_path, learning_rate=1e-3, steps=4).fit()
    resumed = make_trainer(tmp_path, steps=99, bad_updates=3)
    resumed.resume()
    with torch.no_grad():
        next(resumed.model.parameters()).fill_(math.nan)
    with pytest.raises(UserError) as error:
        resumed.fit()
    assert "at step 7 the loss is nan" in str(error.value)
    assert "3 updates in a row" in str(error.value)
    assert "step-4 is kept" in str(error.value)
    assert "training.learning_rate" in str(error.value)
    assert resumed.run.list_steps()[-1] == 4
    checkpoint.read_state(resumed.run.checkpoint_folder(4))


def test_diverged_weights_at_validation_are_a_user_error(corpus: Path, tmp_path: Path) -> None:
    diverging = {"training.learning_rate": 1e30, "training.warmup": 1, "training.validate_every": 1}
    with pytest.raises(UserError, match=r"at step 1 validation failed: .* no checkpoint yet\. Try a lower"):
        train_tiny("luong2015-global", corpus, tmp_path / "x", **diverging)


def test_ema_weights_are_validated_and_saved(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, ema=0.9, steps=6, validate_every=6)
    mean = [weight.detach().clone() for weight in trainer.model.parameters()]
    seen: list[list[Tensor]] = []

    def validate(model: Seq2Seq, device: torch.device) -> Validation:
        seen.append([weight.detach().clone() for weight in model.parameters()])
        return Validation(1.0, {"bleu": 1.0}, "bleu")

    trainer.validate = validate
    update = trainer.train_step

    def recorded(update_batches: UpdateBatches) -> Any:
        made = update(update_batches)
        kept = min(0.9, (1 + trainer.train_state.step) / (10 + trainer.train_state.step))
        for old, new in zip(mean, trainer.model.parameters(), strict=True):
            old.mul_(kept).add_((1 - kept) * new.detach())
        return made

    trainer.train_step = recorded  # type: ignore[method-assign]
    trainer.fit()
    for ours, shown in zip(mean, seen[-1], strict=True):
        torch.testing.assert_close(ours, shown)
    saved = checkpoint.read_tensors(trainer.run.checkpoint_folder(6), checkpoint.MODEL_FILE)
    own = dict(trainer.model.named_parameters())
    for name, ours in zip((n for n, _ in trainer.model.named_parameters()), mean, strict=True):
        torch.testing.assert_close(ours, saved[name])
    assert any(not torch.equal(own[name].detach(), saved[name]) for name in saved if name in own)


def test_checkpoint_average_is_used_only_if_no_worse(tmp_path: Path) -> None:
    for name, last in (("better", 9.0), ("worse", 0.5)):
        (tmp_path / name).mkdir()
        trainer = make_trainer(tmp_path / name, [1.0, 2.0, 3.0, last], steps=6, average=2, keep=2)
        validated = record_validated_weights(trainer)
        trainer.fit()
        steps = [trainer.run.checkpoint_folder(step) for step in (4, 6)]
        weights = [checkpoint.read_tensors(folder, checkpoint.MODEL_FILE) for folder in steps]
        assert trainer.run.average_folder.exists() == (name == "better")
        assert trainer.run.list_checkpoints_best_first()[0] == (
            trainer.run.average_folder if name == "better" else steps[1]
        )
        if name == "better":
            assert checkpoint.read_state(trainer.run.average_folder)["best"]["step"] == 6
            mean = checkpoint.read_tensors(trainer.run.average_folder, checkpoint.MODEL_FILE)
            for key, tensor in mean.items():
                torch.testing.assert_close(tensor, (weights[0][key] + weights[1][key]) / 2)
                assert torch.equal(validated[-1][1][key], tensor)
            own = trainer.model.state_dict()
            unchanged = (torch.equal(own[key], tensor) for key, tensor in weights[1].items())
            assert all(unchanged), "the trainer keeps the weights of the last update"


def test_checkpoint_without_the_weights_behind_the_running_mean_is_damaged(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=2, ema=0.9)
    trainer.fit()
    folder = trainer.run.checkpoint_folder(2)
    model, optimizer = (
        checkpoint.read_tensors(folder, name) for name in (checkpoint.MODEL_FILE, checkpoint.OPTIMIZER_FILE)
    )
    del optimizer["weight.0"]
    state = checkpoint.read_state(folder)
    checkpoint.remove_checkpoint(folder)
    checkpoint.write_checkpoint(folder, model, optimizer, state)
    with pytest.raises(UserError, match=r"step-.*optimizer.* does not fit the run: 'weight\.0'"):
        make_trainer(tmp_path, steps=4, ema=0.9).resume()


def test_training_goes_on_beside_a_damaged_older_checkpoint(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=4, keep=2, checkpoint_every=2)
    trainer.fit()
    (trainer.run.checkpoint_folder(2) / checkpoint.STATE_FILE).write_text("{", encoding="utf-8")
    resumed = make_trainer(tmp_path, steps=6, keep=2, checkpoint_every=2)
    resumed.resume()
    resumed.fit()
    assert resumed.run.find_newest_step() == 6


def test_keep_best_keeps_the_best_checkpoints(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [5.0, 1.0, 4.0, 2.0, 3.0], patience=None, keep=1, keep_best=3, steps=10)
    end = trainer.fit()
    assert [best.score for best in end.best_validations] == [5.0, 4.0, 3.0]
    assert trainer.run.list_steps() == [2, 6, 10]


def test_resume_skips_a_damaged_newest_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("whole", "damaged"):
        (tmp_path / name).mkdir()
        make_trainer(tmp_path / name, steps=6, dropout=0.2).fit()
    damaged = Run(tmp_path / "damaged")
    path = damaged.checkpoint_folder(6) / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    ends = []
    for name in ("whole", "damaged"):
        trainer = make_trainer(tmp_path / name, steps=9, dropout=0.2)
        trainer.resume()
        assert trainer.train_state.step == (6 if name == "whole" else 4)
        trainer.fit()
        ends.append(trainer.model.state_dict())
    assert are_state_dicts_equal(*ends)
    stderr = capsys.readouterr().err
    assert "step-6 is damaged: optimizer.safetensors does not match its checksum" in stderr
    assert (damaged.folder / "checkpoints" / "damaged-step-6").is_dir()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"place": {"epoch": 0, "pool": 99, "batch": 0}}, "has a data position that does not exist"),
        ({"pieces": -1}, "has no valid training state: -1 is not a count of updates"),
        ({"place": {}, "skipped": "none"}, "has no valid training state: 'none' is not a count of updates"),
    ],
    ids=["data position out of range", "negative count", "count is text"],
)
def test_resume_skips_a_checkpoint_with_an_invalid_state(
    change: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(tmp_path, steps=6).fit()
    path = tmp_path / "checkpoints" / "step-6" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    trainer = make_trainer(tmp_path, steps=9)
    trainer.resume()
    assert trainer.train_state.step == 4
    assert f"step-6 is damaged: state.json {reason}" in capsys.readouterr().err


def test_resume_with_other_training_data_is_refused(tmp_path: Path) -> None:
    make_trainer(tmp_path, steps=6).fit()
    trainer = make_trainer(tmp_path, steps=9)
    trainer.dataset.fingerprint = "another"
    with pytest.raises(UserError, match="the training data differs from"):
        trainer.resume()
    assert trainer.run.list_steps() == [2, 4, 6]


def test_two_processes_cannot_train_into_one_folder(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    with lock_run(out), pytest.raises(UserError, match="another process is training into"):
        train_tiny("bahdanau2015", corpus, out, **{"training.steps": 1})
    assert not Run(out).exists
    train_tiny("bahdanau2015", corpus, out, **{"training.steps": 1})
    assert Run(out).find_newest_step() == 1


def test_interruptions_do_not_change_which_checkpoints_are_kept(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 12, "validate_every": 12, "checkpoint_every": 2, "keep": 3, "average": 3}
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    make_trainer(tmp_path / "whole", **settings).fit()
    for until in (3, 5, 11, 99):
        trainer = make_trainer(tmp_path / "stopped", **settings)
        if trainer.run.list_steps():
            trainer.resume()
        interrupt_at(trainer, until)
        with suppress(Interrupted):
            trainer.fit()
    whole, stopped = Run(tmp_path / "whole"), Run(tmp_path / "stopped")
    assert whole.list_steps() == stopped.list_steps() == [8, 10, 12]
    means = [checkpoint.read_tensors(run.average_folder, checkpoint.MODEL_FILE) for run in (whole, stopped)]
    assert are_state_dicts_equal(*means)


def interrupt_at(trainer: Trainer, step: int) -> None:
    """Simulate SIGTERM during an update."""
    update = trainer.train_step

    def interrupted(update_batches: UpdateBatches) -> Any:
        if trainer.train_state.step + 1 == step:
            trainer.stop_signals.received_signal = 15
        return update(update_batches)

    trainer.train_step = interrupted  # type: ignore[method-assign]


class RecordingProcesses(DistributedContext):
    """One process of several: `sums` adds what others have contributed, and records its own numbers."""

    def __init__(self, others: list[list[float]]) -> None:
        super().__init__()
        object.__setattr__(self, "others", others)
        object.__setattr__(self, "own", [])

    def all_reduce_sum(self, numbers: Sequence[float], group: Any = None) -> list[float]:
        self.own.append(list(numbers))  # type: ignore[attr-defined]
        return [float(sum(each)) for each in zip(numbers, *self.others, strict=True)]  # type: ignore[attr-defined]


def test_different_signals_to_several_processes_end_all_by_one_of_them(tmp_path: Path) -> None:
    contributed: list[list[float]] = []
    for number in (signal.SIGINT, signal.SIGTERM, 0):
        trainer = make_trainer(tmp_path)
        trainer.distributed = RecordingProcesses(contributed)
        trainer.stop_signals.received_signal = int(number)
        _, stop = trainer.train_step(next(trainer.load_update_batches()))
        contributed += trainer.distributed.own  # type: ignore[attr-defined]
    assert len(contributed) == 3
    assert stop == signal.SIGTERM


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_repeated_signals_do_not_lose_the_checkpoint_but_ctrl_c_stops_at_once(first: signal.Signals) -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
    signals = StopSignals()
    try:
        with signals.install_handlers():
            for number in (first, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):  # as `timeout` and supervisors do
                signal.raise_signal(number)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert signals.received_signal == first


def test_ranks_of_torchrun_ignore_repeated_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    signals = StopSignals()
    with signals.install_handlers():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # the one that torchrun passes on
    assert signals.received_signal == signal.SIGINT


def test_training_runs_outside_the_main_thread(tmp_path: Path) -> None:
    """Python allows signal handlers in the main thread alone."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(make_trainer(tmp_path, steps=4).fit).result().step == 4


def test_hangup_that_nohup_ignores_does_not_stop_training() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = StopSignals()
    try:
        with signals.install_handlers():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert signals.received_signal == 0


def exit_with_threads_at_fork(work: Callable[[], object]) -> None:
    """Run the work as on a terminal, and exit with the highest number of Python threads while it forks."""
    threads: list[int] = []
    os.register_at_fork(before=lambda: threads.append(threading.active_count()))
    with patch("regard.console.is_terminal", lambda: True):
        work()
    os._exit(max(threads))


def fit_with_a_worker(folder: Path) -> None:
    trainer = make_trainer(folder, steps=1, tensorboard=True)
    trainer.data_settings = replace(trainer.data_settings, workers=1)
    trainer.fit()


def encode_with_a_pool(folder: Path) -> None:
    (folder / "a.en").write_text("a house\n" * 9, encoding="utf-8")
    (folder / "a.de").write_text("ein Haus\n" * 9, encoding="utf-8")
    data = DataSettings(train=(str(folder / "a.en"), str(folder / "a.de")))
    words = WordTokenizer.train(["a house ein Haus"], 9)
    with patch("regard.data.prepare.PAIRS_PER_CHUNK", 2):
        prepare._write_encoded_pairs(
            folder, data, Tokenizers(words, words), CorpusSplit([9], [], frozenset(), []), None
        )


@pytest.mark.parametrize("work", [fit_with_a_worker, encode_with_a_pool], ids=lambda work: work.__name__)
def test_processes_are_forked_before_threads_start(work: Callable[[Path], None], tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=exit_with_threads_at_fork, args=(partial(work, tmp_path),)
    )
    process.start()
    process.join()
    assert process.exitcode == 1


def test_finished_run_starts_no_data_workers(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=1)
    trainer.data_settings = replace(trainer.data_settings, workers=1)
    trainer.train_state.step = 1
    with closing(trainer.load_update_batches()):
        assert multiprocessing.active_children() == []


def test_runs_list_and_resume_agree_on_whether_a_run_is_finished(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=None, epochs=1.0)
    trainer.train_state.data_position = SamplerPosition(0, 0, 1)
    epochs = trainer.sampler.compute_epochs(trainer.train_state.data_position)
    for limit in (epochs, epochs + 1e-7, epochs - 1e-7):
        trainer.settings = replace(trainer.settings, epochs=limit)
        state = {"step": 1, "epochs": epochs, "bad_validations": 0}
        assert is_finished(asdict(trainer.settings), state) == trainer.has_finished() == (epochs >= limit)


def test_failed_validation_of_the_average_leaves_the_weights_as_they_were(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=4, average=2, keep=2, checkpoint_every=2)
    trainer.fit()
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}

    def fail(model: Seq2Seq, device: torch.device) -> Validation:
        assert not are_state_dicts_equal(model.state_dict(), before), "the average is validated"
        model.eval()
        raise OSError("the disk is full")

    trainer.validate = fail
    with pytest.raises(OSError, match="the disk is full"):
        trainer.try_checkpoint_average()
    assert are_state_dicts_equal(trainer.model.state_dict(), before)
    assert trainer.model.training
    with pytest.raises(checkpoint.CorruptCheckpointError, match="does not fit"):
        trainer.run_validation({"other": torch.zeros(1)})
    assert are_state_dicts_equal(trainer.model.state_dict(), before)


def test_conflicting_limits_are_warned_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    make_trainer(tmp_path / "a", steps=500, epochs=1, warmup=0).fit()
    stderr = capsys.readouterr().err
    assert "updates: training.epochs=1 ends before training.steps=500" in stderr
    assert "warmup" not in stderr
    make_trainer(tmp_path / "b", steps=2, warmup=9).fit()
    stderr = capsys.readouterr().err
    assert "training.warmup=9 is longer than 2 updates: the learning rate stays low" in stderr
    assert "ends before" not in stderr


def test_resume_skips_a_metrics_line_that_is_not_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, steps=4, log_every=1).fit()
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind\n')
    number = len((tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    trainer = make_trainer(tmp_path, steps=6, log_every=1)
    trainer.resume()
    trainer.fit()
    assert [row["step"] for row in trainer.run.read_metrics() if row["kind"] == "train"] == [1, 2, 3, 4, 5, 6]
    assert f"metrics.jsonl:{number} is not readable and is skipped" in capsys.readouterr().err


def test_init_from_refuses_another_kind_vocabulary_or_size(run: Run, corpus: Path, tmp_path: Path) -> None:
    def start(recipe: str | None, **changes: Any) -> None:
        more = {"training.init_from": str(run.folder), "training.steps": 1, **changes}
        train(recipe, corpus_files(corpus, "train"), tmp_path / "tuned", **more)

    with pytest.raises(UserError, match=r"has model\.kind bahdanau, but the recipe 'default' has trans"):
        start("default")
    with pytest.raises(UserError, match=r"text\.vocabulary is 600 in .*, and cannot be 500: the weights would not fit"):
        start(None, **{"text.vocabulary": 500})
    with pytest.raises(UserError, match=r"model\.size is 24 in .* and cannot be 32") as caught:
        start(None, **{"model.size": 32})
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "tuned").exists()
    start(None, **{"model.dropout": 0.3})
    assert Run(tmp_path / "tuned").read_config()["model"]["dropout"] == 0.3


def test_init_from_weights_stay_best_if_training_worsens_them(run: Run, corpus: Path, tmp_path: Path) -> None:
    # Ranked by loss, since BLEU of 10 sentences is random.
    harmful: dict[str, Any] = {
        "training.init_from": str(run.folder),
        "training.steps": 3,
        "training.learning_rate": 5.0,
        "training.best": "loss",
    }
    tuned = train(None, corpus_files(corpus, "train"), tmp_path / "tuned", dev=corpus_files(corpus, "dev"), **harmful)
    first, *later = [row for row in tuned.read_metrics() if row["kind"] == "dev"]
    assert first["step"] == tuned.find_best_step() == 0
    assert all(row["loss"] > first["loss"] for row in later)
    own = load(run.folder).models[0].state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in load(tuned.folder).models[0].state_dict().items())


def test_finetuning_has_a_low_rate_and_few_epochs(
    run: Run, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start: dict[str, Any] = {"training.init_from": str(run.folder), "training.epochs": 1}
    files, dev = corpus_files(corpus, "train"), corpus_files(corpus, "dev")
    capsys.readouterr()
    tuned = train(None, files, tmp_path / "tuned", dev=dev, **start)
    lines = capsys.readouterr().err.splitlines()
    peak, settings = run.read_config()["training"]["learning_rate"], tuned.read_config()["training"]
    assert settings["learning_rate"] == pytest.approx(0.3 * peak)
    assert (settings["schedule"], settings["epochs"], settings["steps"]) == ("linear", 1, None)
    assert any(line.startswith("values for fine-tuning, which you can override: training.epochs=1") for line in lines)
    estimate = next(number for number, line in enumerate(lines) if line.startswith("an update takes about"))
    assert estimate < next(number for number, line in enumerate(lines) if line.startswith("step 0: dev loss"))
    again = build_new_config(Run(tmp_path / "again"), None, {"training.init_from": str(tuned.folder)})
    assert again.training.learning_rate == settings["learning_rate"], "the factor applies only once"
    assert [again.resolve_auto_sizes(pairs).training.epochs for pairs in (50, 20_000)] == [30, 8]
    with_recipe = build_new_config(Run(tmp_path / "again"), "bahdanau2015", start)
    assert with_recipe.training.learning_rate == read_recipe("bahdanau2015")["training"]["learning_rate"]


def test_swapped_or_equal_languages_are_reported(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {**TINY, "training.steps": 1}
    train("bahdanau2015", corpus_files(corpus, "train"), tmp_path / "a", dev=corpus_files(corpus, "dev")[::-1], **more)
    stderr = capsys.readouterr().err
    assert stderr.count("by name from de to en, but en to de is expected; are the files in order?") == 1
    train_tiny("bahdanau2015", corpus, tmp_path / "b", **{"training.steps": 1})
    assert "are the files in order?" not in capsys.readouterr().err
    with pytest.raises(UserError, match="source en and target eng are the same language"):
        train_tiny("bahdanau2015", corpus, tmp_path / "c", **{"data.source": "en", "data.target": "eng"})
    with pytest.raises(UserError, match=r"data\.target='german' is no language code, such as de"):
        train_tiny("bahdanau2015", corpus, tmp_path / "c", **{"data.target": "german"})


def test_resume_with_another_recipe_is_refused(run: Run, tmp_path: Path) -> None:
    copy_run(run, tmp_path / "copy")
    with pytest.raises(UserError, match="is a run of the recipe 'bahdanau2015'; you cannot resume it as 'default'"):
        train("default", None, tmp_path / "copy", resume=True)
    assert train("bahdanau2015", None, tmp_path / "copy", resume=True).find_newest_step() == run.find_newest_step()


def test_reading_from_a_pipe_needs_a_single_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="- is a pipe, which only one process can read"):
        train("default", "-", tmp_path / "run")


def test_more_processes_than_gpus_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_local_gpu(1) == 1
    with pytest.raises(UserError, match=r"4 processes on this machine, which has 2 GPUs.*--nproc-per-node=2"):
        choose_local_gpu(2)


def test_validation_splits_batches_when_out_of_memory(run: Run, corpus: Path) -> None:
    tokenizers = run.load_tokenizers()
    validator = TranslationValidator(read_all_pairs(corpus_files(corpus, "dev")), tokenizers, 4000, 20)
    model = run.load_model(tokenizers.vocab_sizes)
    whole = validator(model, torch.device("cpu"))
    model.encoder.embedding = torch.nn.Sequential(model.encoder.embedding, LimitedMemory(3, False))
    split = validator(model, torch.device("cpu"))
    assert split.loss == pytest.approx(whole.loss, rel=1e-5)
    assert split.score == whole.score
    model.encoder.embedding[1].rows = 0
    with pytest.raises(torch.OutOfMemoryError):
        validator(model, torch.device("cpu"))


def test_resume_with_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    make_trainer(tmp_path, steps=2).fit()
    path = tmp_path / "checkpoints" / "step-2" / "state.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"processes": 1', '"processes": 4'), encoding="utf-8")
    with pytest.raises(UserError, match="was trained by 4 processes, not 1"):
        make_trainer(tmp_path).resume()


def test_fp16_loss_scaler_is_resumed(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, precision="fp16", steps=4)
    trainer.fit()
    state = checkpoint.read_state(trainer.run.checkpoint_folder(4))
    assert state["scaler"]["scale"] > 1
    assert state["scaler"]["_growth_tracker"] + state["skipped"] == 4
    resumed = make_trainer(tmp_path, precision="fp16", steps=5)
    resumed.resume()
    resumed.fit()
    assert resumed.accumulator.scaler.state_dict()["_growth_tracker"] == state["scaler"]["_growth_tracker"] + 1


def test_resume_drops_metrics_after_the_checkpoint(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, log_every=1, steps=4)
    trainer.fit()
    with trainer.run.metrics_path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "train", "step": 5, "loss": 0}\n')
    resumed = make_trainer(tmp_path, log_every=1, steps=6)
    resumed.resume()
    resumed.fit()
    steps = [row["step"] for row in resumed.run.read_metrics() if row["kind"] == "train"]
    assert steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("name", "damage"),
    each_value(["model.safetensors", "optimizer.safetensors", "state.json"], ["flip", "truncate", "remove"]),
)
def test_resume_names_the_damaged_file_of_a_checkpoint(
    name: str, damage: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copy_run(run, tmp_path / "copy")
    path = copy.checkpoint_folder(copy.find_newest_step()) / name
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 0x55
        path.write_bytes(content if name != "state.json" else b"[]")
    resume(copy.folder, {"training.steps": 13})
    stderr = capsys.readouterr().err
    assert "is damaged" in stderr
    assert name in stderr
    assert copy.find_newest_step() == 13


def test_model_loads_without_the_optimizer_file(run: Run, tmp_path: Path) -> None:
    copy = copy_run(run, tmp_path / "copy")
    for step in copy.list_steps():
        (copy.checkpoint_folder(step) / "optimizer.safetensors").unlink()
    assert not copy.load_model(copy.load_tokenizers().vocab_sizes).training


def test_overrides_given_at_resume_are_saved(run: Run, tmp_path: Path) -> None:
    copy = copy_run(run, tmp_path / "copy")
    resume(copy.folder, {"training.steps": 26})
    assert copy.read_config()["training"]["steps"] == 26
    assert resume(copy.folder, {}).find_newest_step() == 26


def test_run_without_a_checkpoint_can_be_started_again(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = train_tiny("bahdanau2015", corpus, out, **{"training.steps": 1})
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint yet; start it again without --resume"):
        resume(out, {})
    train_tiny("bahdanau2015", corpus, out, **{"training.steps": 2})
    assert run.find_newest_step() == 2


def test_resume_drops_a_truncated_metrics_line(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, log_every=1, steps=3)
    trainer.fit()
    with trainer.run.metrics_path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "tra')
    resumed = make_trainer(tmp_path, log_every=1, steps=4)
    resumed.resume()
    resumed.fit()
    assert [row["step"] for row in resumed.run.read_metrics() if row["kind"] == "train"] == [1, 2, 3, 4]


def test_resume_cannot_change_the_length_of_a_schedule_that_falls_to_zero(corpus: Path, tmp_path: Path) -> None:
    for schedule, changes in (
        ("cosine", [{"training.steps": 4}]),
        ("linear", [{"training.steps": 4}, {"training.epochs": 9}]),
    ):
        overrides = {"training.steps": 2, "training.schedule": schedule}
        train_tiny("bahdanau2015", corpus, tmp_path / schedule, **overrides)
        for change in changes:
            with pytest.raises(UserError, match=f"cannot change when you resume a run with the {schedule} schedule"):
                resume(tmp_path / schedule, change)
        resume(tmp_path / schedule, {"training.steps": 2})


def test_saving_a_step_again_rewrites_only_its_state(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=2)
    trainer.fit()
    folder = trainer.run.checkpoint_folder(2)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    trainer.train_state.bad_validations, trainer.is_checkpoint_stale = 7, True
    trainer.save()
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert len(list(folder.iterdir())) == 3
    assert checkpoint.read_state(folder)["bad_validations"] == 7
    make_trainer(tmp_path).resume()


def test_full_disk_leaves_no_partial_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, steps=2)
    trainer.fit()

    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    trainer.train_state.step = 3
    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(UserError, match=r"could not be written .*No space"):
        trainer.save()
    assert trainer.run.list_steps() == [2]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-2"]
    checkpoint.read_state(trainer.run.checkpoint_folder(2))


def test_resume_refuses_another_model_or_corpus(run: Run, corpus: Path, tmp_path: Path) -> None:
    copy = copy_run(run, tmp_path / "copy")
    with pytest.raises(UserError, match=r"model\.size cannot change"):
        resume(copy.folder, {"model.size": 8})
    with pytest.raises(UserError, match="the training data differs from"):
        resume(copy.folder, {"training.steps": 30}, corpus_files(corpus, "test"))
    with pytest.raises(UserError, match="already holds a run"):
        train("bahdanau2015", corpus_files(corpus, "train"), copy.folder)


def test_default_recipe_is_sized_by_the_corpus(corpus: Path, tmp_path: Path) -> None:
    quick: dict[str, Any] = {"training.steps": 1, "training.validate_pairs": 1, "training.tensorboard": False}
    run = train("default", corpus_files(corpus, "train"), tmp_path / "run", **{"training.device": "cpu", **quick})
    config = run.read_config()
    assert config["model"].pop("align_layer") == "auto", "the alignment layer is chosen at the end of training"
    assert "auto" not in [*config["model"].values(), *config["text"].values(), config["training"]["batch_tokens"]]
    assert (config["model"]["size"], config["model"]["layers"]) == (128, 2)
    assert (config["data"]["source"], config["data"]["target"]) == ("en", "de")


def test_separate_vocabularies_tie_only_the_decoder(corpus: Path, tmp_path: Path) -> None:
    overrides = {"model.heads": 2, "text.shared": False, "training.steps": 1}
    run = train_tiny("vaswani2017-base", corpus, tmp_path / "run", **overrides)
    model = build(run.read_config(), 9, 9)
    assert model.encoder.embedding.words.weight is not model.decoder.output.weight
    assert model.decoder.embedding.words.weight is model.decoder.output.weight


def test_corpus_of_too_long_pairs_is_a_user_error(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="0 have an empty side, 300 are longer"):
        train_tiny("bahdanau2015", corpus, tmp_path / "run", **{"data.max_length": 1})
    assert not Run(tmp_path / "run").exists


def test_user_recipe_extends_a_base_recipe(corpus: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("base: bahdanau2015\nmodel:\n  size: 20\n  maxout: 7\n", encoding="utf-8")
    overrides = {key: value for key, value in TINY.items() if key != "model.size"}
    run = train(own, corpus_files(corpus, "train"), tmp_path / "run", **{**overrides, "training.steps": 1})
    assert run.read_config()["recipe"] == "mine"
    assert run.read_config()["model"]["embedding"] is None


def test_tensorboard_receives_loss_and_bleu(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = make_trainer(tmp_path, tensorboard=True, log_every=2, steps=4)
    trainer.fit()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4]
    assert [event.step for event in events.Scalars("dev/bleu")] == [2, 4]


@pytest.mark.parametrize("steps", slow_after(1, [2, 4]))
def test_tensorboard_receives_attention_images(steps: int, corpus: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    overrides = {"training.tensorboard": True, "training.steps": steps, "training.validate_every": 2}
    run = train_tiny("bahdanau2015", corpus, tmp_path / "run", **overrides)
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    assert {f"attention/{number}" for number in range(1, 6)} == set(events.Tags()["images"])
    first = events.Images("attention/1")
    assert [image.step for image in first] == list(range(2, steps + 1, 2))
    assert all(image.encoded_image_string.startswith(b"\x89PNG") for image in first)


@pytest.mark.slow
def test_guided_attention_lowers_the_alignment_error(corpus: Path, tmp_path: Path) -> None:
    test = read_all_pairs(corpus_files(corpus, "test"))
    gold = read_gold_alignments(corpus / "test.align", test)
    errors = []
    for weight in (0.0, 5.0):
        guided = {"loss.guided": weight, "data.alignments": str(corpus / "train.align")}
        overrides = {"model.heads": 2, "training.steps": 60, **guided}
        run = train_tiny("vaswani2017-base", corpus, tmp_path / str(weight), **overrides)
        errors.append(score_alignments(load(run.folder).align(test), gold).aer)
    assert errors[1] < errors[0] - 0.2
    assert Path(Run(tmp_path / "5.0").read_config()["data"]["alignments"]).is_absolute()


def test_guided_attention_without_alignments_is_a_user_error(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"loss\.guided=0\.5 needs data\.alignments"):
        train_tiny("bahdanau2015", corpus, tmp_path / "run", **{"loss.guided": 0.5})
    guided = {"loss.guided": 0.5, "data.alignments": str(corpus / "train.align")}
    with pytest.raises(UserError, match="without attention cannot be guided"):
        train_tiny("cho2014", corpus, tmp_path / "run", **guided)


@pytest.mark.filterwarnings("ignore:CUDA is not available", "ignore:User provided device_type")  # by PyTorch's version
@pytest.mark.parametrize("precision", ["auto", "mixed"])
def test_gpu_that_only_emulates_bf16_trains_in_fp32(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def supports_bf16(including_emulation: bool = True) -> bool:
        return is_ampere or including_emulation  # as on a T4 or V100

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supports_bf16)
    settings, gpu = TrainingSettings(precision=precision), torch.device("cuda")
    is_ampere = False
    assert not isinstance(build_autocast(settings, gpu), torch.autocast)
    is_ampere = True
    assert isinstance(build_autocast(settings, gpu), torch.autocast)
