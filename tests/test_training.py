"""The training loop: what it keeps, and that a run which goes on is the run that never stopped."""

from __future__ import annotations

import json
import math
import shutil
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.training import (
    TINY,
    corpus_files,
    gradients_of,
    make_loss_nan,
    make_trainer,
    state_dicts_equal,
)
from torch import Tensor

from regard.data.corpus import pairs
from regard.data.loader import Share
from regard.data.order import Place
from regard.data.ragged import Indices
from regard.errors import UserError
from regard.evaluate import read_gold
from regard.models import Seq2Seq, build
from regard.runs import Run, checkpoint
from regard.runs.lock import held
from regard.tasks import Validation
from regard.tasks.translation import Validator
from regard.training import Interrupted, Trainer, train
from regard.training.processes import own_card
from regard.translate import against, load

NAMES = ["bahdanau2015", "luong2015-global", "vaswani2017-base", "default"]


def small(name: str, **more: Any) -> dict[str, Any]:
    heads = {"model.heads": 2} if name in ("vaswani2017-base", "default") else {"model.initialisation": "torch"}
    return {**TINY, **heads, **{key.replace("__", "."): value for key, value in more.items()}}


def weights(run: Run) -> dict[str, Tensor]:
    return dict(run.model(run.tokenizers().sizes, run.newest()).state_dict())


def go_on(folder: Path, changes: dict[str, Any], data: list[Path] | None = None) -> Run:
    return train(None, data, folder, resume=True, **changes)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_trains_and_its_loss_falls(name: str, corpus: Path, tmp_path: Path) -> None:
    run = train(name, corpus_files(corpus, "train"), tmp_path / "run", dev=corpus_files(corpus, "dev"), **small(name))
    rows = run.metrics()
    losses = [row["loss"] for row in rows if row["kind"] == "dev"]
    assert losses[-1] < math.log(run.tokenizers().target.size) - 1
    assert losses[-1] < losses[0]
    assert [row["step"] for row in rows if row["kind"] == "train"] == [4, 8, 12, 16, 20, 24]
    assert run.steps() == [12, 24]
    samples = (run.folder / "samples" / "step-24.jsonl").read_text(encoding="utf-8").splitlines()
    assert set(json.loads(samples[0])) == {"source", "reference", "translation"}


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_goes_on_is_the_run_that_never_stopped(name: str, corpus: Path, tmp_path: Path) -> None:
    more = {"model__dropout": 0.2, "training__accumulate": 2}
    whole = train(
        name, corpus_files(corpus, "train"), tmp_path / "whole", dev=corpus_files(corpus, "dev"), **small(name, **more)
    )
    parts = tmp_path / "parts"
    train(
        name,
        corpus_files(corpus, "train"),
        parts,
        dev=corpus_files(corpus, "dev"),
        **small(name, **more, training__steps=7),
    )
    torch.manual_seed(99)  # whatever happened in between
    go_on(parts, {"training.steps": 15})
    resumed = go_on(parts, {"training.steps": 24})
    assert state_dicts_equal(weights(whole), weights(resumed))
    optimizers = [(run.checkpoint_folder(24) / "optimizer.safetensors").read_bytes() for run in (whole, resumed)]
    assert optimizers[0] == optimizers[1]
    last = [run.metrics()[-1] for run in (whole, resumed)]
    assert last[0] == last[1]


def test_seeds_make_runs(corpus: Path, tmp_path: Path) -> None:
    runs = [
        train(
            "bahdanau2015",
            corpus_files(corpus, "train"),
            tmp_path / str(number),
            **small("bahdanau2015", training__seed=seed, training__steps=3),
        )
        for number, seed in enumerate((1, 1, 2))
    ]
    assert state_dicts_equal(weights(runs[0]), weights(runs[1]))
    assert not state_dicts_equal(weights(runs[0]), weights(runs[2]))


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd", "schedule": "halving", "halve_after": 1.0, "halve_every": 0.5, "accumulate": 3},
        {"optimizer": "adadelta", "accumulate": 2},
        {"optimizer": "adamw", "patience": 2, "validate_every": 3},
    ],
)
def test_stopped_at_every_step_a_run_ends_as_if_it_never_was(settings: dict[str, Any], tmp_path: Path) -> None:
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
        part.signals.number = 15
        try:
            last = part.fit()
            break
        except Interrupted as stop:
            reached = stop.step
        assert reached is not None
        steps = reached
    assert steps == end.step - 1 or steps == end.step
    assert state_dicts_equal(whole.model.state_dict(), part.model.state_dict())
    assert (last.place, last.step, last.ranked) == (end.place, end.step, end.ranked)


def test_early_stopping_counts_validations_without_a_new_best(tmp_path: Path) -> None:
    position = make_trainer(tmp_path, [1.0, 5.0, 4.0, 3.0, 2.0, 1.0], patience=2, steps=99).fit()
    assert position.step == 8
    assert position.best is not None
    assert (position.best.step, position.best.score) == (4, 5.0)


def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, [1.0, 5.0, 4.0, 3.0, 2.0], patience=None, keep=1, steps=10)
    job.fit()
    assert job.run.steps() == [4, 10]
    assert job.run.best() == 4


def test_the_last_validation_is_in_the_last_checkpoint(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, [1.0, 9.0], validate_every=5, checkpoint_every=2, steps=8)
    job.fit()
    assert job.run.steps()[-1] == 8
    assert checkpoint.read_state(job.run.checkpoint_folder(8))["best"]["score"] == 9.0


def test_among_equal_bleus_the_loss_decides(tmp_path: Path) -> None:
    losses = iter([8.2, 8.0, 8.1, 8.3])
    job = make_trainer(tmp_path, patience=2, steps=8)
    job.validate = lambda *_: Validation(next(losses), {"bleu": 0.0}, "bleu")
    position = job.fit()
    assert position.best is not None
    assert (position.best.step, position.best.loss) == (4, 8.0)


def test_tied_weights_are_saved_once_and_in_one_order(tmp_path: Path) -> None:
    model = build("vaswani2017-base", 9, 9, size=8)
    optimizer = torch.optim.SGD(model.parameters())
    written = []
    for name in ("a", "b"):
        tensors = checkpoint.unique_tensors(model), checkpoint.optimizer_tensors(optimizer)
        checkpoint.write(tmp_path / name, *tensors, {})
        written.append((tmp_path / name / "model.safetensors").read_bytes())
    assert written[0] == written[1]
    other = build("vaswani2017-base", 9, 9, size=8)
    checkpoint.read_model(tmp_path / "a", other)
    assert state_dicts_equal(model.state_dict(), other.state_dict())
    with pytest.raises(UserError, match="does not fit"):
        checkpoint.read_model(tmp_path / "a", build("vaswani2017-base", 9, 9, size=8, tie="none"))
    with pytest.raises(UserError, match="does not fit"):
        checkpoint.read_model(tmp_path / "a", build("vaswani2017-base", 9, 9, size=16))


def test_the_best_may_be_that_of_the_loss(tmp_path: Path) -> None:
    position = make_trainer(tmp_path, [5.0, 9.0, 1.0, 2.0], best="loss", patience=None).fit()
    assert position.best is not None
    assert position.best.step == 4


def test_patience_survives_going_on(tmp_path: Path) -> None:
    bleus = [5.0, 4.0, 3.0, 2.0]
    first = make_trainer(tmp_path, bleus, patience=3, steps=4)
    assert first.fit().bad_validations == 1
    second = make_trainer(tmp_path, bleus[2:], patience=3, steps=99)
    second.resume()
    assert second.fit().step == 8


def first_rows(job: Trainer, count: int) -> list[Indices]:
    return [rows for rows, _ in islice(job.order.after(Place()), count)]


def test_accumulated_batches_are_one_large_batch(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, optimizer="sgd", learning_rate=1.0, warmup=0, schedule="constant", clip=None)
    gradients = gradients_of(job)
    rows = first_rows(job, 3)
    gradients.add([job.source.batch(some, 0) for some in rows], 1, 1)
    accumulated = {
        name: parameter.grad.clone() for name, parameter in job.model.named_parameters() if parameter.grad is not None
    }
    together = job.source.batch(np.concatenate(rows), 0)
    found = gradients.add([together], 1, 1)
    for name, parameter in job.model.named_parameters():
        torch.testing.assert_close(parameter.grad, accumulated[name])
    assert float(found.loss) == pytest.approx(job.model.summed(*together).item(), rel=1e-5)


def test_gradients_are_clipped_to_the_norm(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, clip=0.01)
    gradients = gradients_of(job)
    gradients.add([job.source.batch(first_rows(job, 1)[0], 0)], 1, 1)
    assert float(gradients.clip(job.optimizer)) > 0.01
    norm = torch.stack([p.grad.norm() for p in job.model.parameters() if p.grad is not None]).norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-3)


class Greedy(torch.nn.Module):
    """Wants more memory than there is for more than so many rows, on the way back as well."""

    def __init__(self, rows: int, back: bool) -> None:
        super().__init__()
        self.rows = rows
        self.back = back
        self.asked: list[int] = []

    def check(self, rows: int) -> None:
        if rows > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        self.asked.append(rows)
        if not self.back:
            self.check(rows)
        elif x.requires_grad:
            x.register_hook(lambda gradient: self.check(rows))  # type: ignore[no-untyped-call]
        return x


@pytest.mark.parametrize("back", [False, True])
def test_a_batch_that_does_not_fit_is_cut_until_it_does(
    back: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = make_trainer(tmp_path / "whole", dropout=0.0, steps=4)
    (tmp_path / "whole").mkdir()
    whole.fit()
    (tmp_path / "cut").mkdir()
    cut = make_trainer(tmp_path / "cut", dropout=0.0, steps=4)
    greedy = Greedy(3, back)
    reader: Any = cut.model.encoder
    reader.embedding = torch.nn.Sequential(reader.embedding, greedy)
    cut.validate = lambda *_: Validation(1.0, {"bleu": 1.0}, "bleu")
    end = cut.fit()
    assert end.step == 4
    assert end.pieces > 1
    assert "out of memory; batches are cut into" in capsys.readouterr().err
    assert max(greedy.asked[-4:]) <= 3, "and from then on they are cut from the start"
    for left, right in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    state = checkpoint.read_state(cut.run.checkpoint_folder(4))
    assert state["pieces"] == end.pieces


def test_one_pair_that_does_not_fit_is_the_end(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, steps=4)
    reader: Any = job.model.encoder
    reader.embedding = torch.nn.Sequential(reader.embedding, Greedy(0, False))
    with pytest.raises(UserError, match="not even one pair at a time fits into the memory"):
        job.fit()


def test_an_update_that_is_no_number_is_left_out_and_counted(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, steps=8, log_every=1, validate_every=8)
    make_loss_nan(job, {3, 4, 6})
    before: dict[int, list[Tensor]] = {}
    update = job.update

    def noted(share: Share) -> Any:
        before[job.position.step + 1] = [weight.detach().clone() for weight in job.model.parameters()]
        return update(share)

    job.update = noted  # type: ignore[method-assign]
    end = job.fit()
    assert (end.step, end.skipped, end.skipped_in_row) == (8, 3, 0)
    changed = {
        step: any(not torch.equal(a, b) for a, b in zip(before[step], before[step + 1], strict=True))
        for step in range(1, 8)
    }
    assert changed == {1: True, 2: True, 3: False, 4: False, 5: True, 6: False, 7: True}
    assert [row["skipped"] for row in job.run.metrics() if row["kind"] == "train"] == [0, 0, 1, 2, 2, 3, 3, 3]


def test_what_was_due_at_an_update_that_was_left_out_is_done_after_the_next(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, [1.0] * 9, steps=12, validate_every=4, checkpoint_every=3, keep=9, patience=None)
    make_loss_nan(job, {3, 4, 9})
    job.fit()
    assert job.run.steps() == [5, 6, 8, 10, 12], "3 and 4 after the 5th, 9 after the 10th"
    assert [row["step"] for row in job.run.metrics() if row["kind"] == "dev"] == [5, 8, 12]


def test_a_running_mean_stands_still_where_an_update_is_left_out(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, steps=8, ema=0.5, validate_every=8)
    make_loss_nan(job, {5})
    means: dict[int, list[Tensor]] = {}
    update = job.update

    def noted(share: Share) -> Any:
        found = update(share)
        means[job.position.step] = [tensor.clone() for tensor in job.mean.mean]
        return found

    job.update = noted  # type: ignore[method-assign]
    job.fit()
    still = {step: all(map(torch.equal, means[step], means[step - 1])) for step in (4, 5, 6)}
    assert still == {4: False, 5: True, 6: False}


def test_too_many_updates_that_are_no_number_stop_with_the_last_checkpoint_kept(tmp_path: Path) -> None:
    make_trainer(tmp_path, learning_rate=1e-3, steps=4).fit()
    again = make_trainer(tmp_path, steps=99, bad_updates=3)
    again.resume()
    with torch.no_grad():
        next(again.model.parameters()).fill_(math.nan)
    with pytest.raises(UserError) as error:
        again.fit()
    assert "at step 7 the loss is nan" in str(error.value)
    assert "3 updates in a row" in str(error.value)
    assert "step-4 is kept" in str(error.value)
    assert "training.learning_rate" in str(error.value)
    assert again.run.steps()[-1] == 4
    checkpoint.read_state(again.run.checkpoint_folder(4))


def test_weights_that_give_no_numbers_when_validated_are_a_sentence(corpus: Path, tmp_path: Path) -> None:
    wild = {**TINY, "training.learning_rate": 1e30, "training.warmup": 1, "training.validate_every": 1}
    with pytest.raises(UserError, match=r"at step 1 there is nothing to validate: .* no checkpoint yet\. Try a lower"):
        train("luong2015-global", corpus_files(corpus, "train"), tmp_path / "x", **wild)


def test_a_running_mean_is_what_is_validated_kept_and_used(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, ema=0.9, steps=6, validate_every=6)
    mean = [weight.detach().clone() for weight in job.model.parameters()]
    seen: list[list[Tensor]] = []

    def look(model: Seq2Seq, device: torch.device) -> Validation:
        seen.append([weight.detach().clone() for weight in model.parameters()])
        return Validation(1.0, {"bleu": 1.0}, "bleu")

    job.validate = look
    update = job.update

    def noted(share: Share) -> Any:
        made = update(share)
        kept = min(0.9, (1 + job.position.step) / (10 + job.position.step))
        for old, new in zip(mean, job.model.parameters(), strict=True):
            old.mul_(kept).add_((1 - kept) * new.detach())
        return made

    job.update = noted  # type: ignore[method-assign]
    job.fit()
    for ours, shown in zip(mean, seen[-1], strict=True):
        torch.testing.assert_close(ours, shown)
    saved = checkpoint.read_tensors(job.run.checkpoint_folder(6), checkpoint.MODEL)
    own = dict(job.model.named_parameters())
    for name, ours in zip((n for n, _ in job.model.named_parameters()), mean, strict=True):
        torch.testing.assert_close(ours, saved[name])
    assert any(not torch.equal(own[name].detach(), saved[name]) for name in saved if name in own)


def test_the_mean_of_the_newest_checkpoints_is_the_model_if_it_is_no_worse(tmp_path: Path) -> None:
    for name, last in (("better", 9.0), ("worse", 0.5)):
        (tmp_path / name).mkdir()
        job = make_trainer(tmp_path / name, [1.0, 2.0, 3.0, last], steps=6, average=2, keep=2)
        job.fit()
        steps = [job.run.checkpoint_folder(step) for step in (4, 6)]
        weights = [checkpoint.read_tensors(folder, checkpoint.MODEL) for folder in steps]
        assert job.run.average_folder.exists() == (name == "better")
        assert job.run.candidates()[0] == (job.run.average_folder if name == "better" else steps[1])
        if name == "better":
            mean = checkpoint.read_tensors(job.run.average_folder, checkpoint.MODEL)
            for key, tensor in mean.items():
                torch.testing.assert_close(tensor, (weights[0][key] + weights[1][key]) / 2)
            own = job.model.state_dict()
            assert all(torch.equal(own[key], tensor) for key, tensor in weights[1].items()), "which trains on as it was"


def test_the_best_few_are_kept_in_order(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, [5.0, 1.0, 4.0, 2.0, 3.0], patience=None, keep=1, keep_best=3, steps=10)
    end = job.fit()
    assert [best.score for best in end.ranked] == [5.0, 4.0, 3.0]
    assert job.run.steps() == [2, 6, 10]


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("whole", "hurt"):
        (tmp_path / name).mkdir()
        make_trainer(tmp_path / name, steps=6, dropout=0.2).fit()
    hurt = Run(tmp_path / "hurt")
    path = hurt.checkpoint_folder(6) / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    ends = []
    for name in ("whole", "hurt"):
        job = make_trainer(tmp_path / name, steps=9, dropout=0.2)
        job.resume()
        assert job.position.step == (6 if name == "whole" else 4)
        job.fit()
        ends.append(job.model.state_dict())
    assert state_dicts_equal(*ends)
    said = capsys.readouterr().err
    assert "step-6 is damaged: optimizer.safetensors does not match its checksum" in said
    assert (hurt.folder / "checkpoints" / "damaged-step-6").is_dir()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"place": {"epoch": 0, "pool": 99, "batch": 0}}, "names a place in the data that is not there"),
        ({"pieces": -1}, "does not say how far training is: -1 is no number of updates"),
        ({"place": {}, "skipped": "none"}, "does not say how far training is: 'none' is no number of updates"),
    ],
)
def test_a_state_that_no_run_can_go_on_from_is_passed_over(
    change: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(tmp_path, steps=6).fit()
    path = tmp_path / "checkpoints" / "step-6" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    job = make_trainer(tmp_path, steps=9)
    job.resume()
    assert job.position.step == 4
    assert f"step-6 is damaged: state.json {reason}" in capsys.readouterr().err


def test_other_data_is_another_run_not_a_damaged_one(tmp_path: Path) -> None:
    make_trainer(tmp_path, steps=6).fit()
    job = make_trainer(tmp_path, steps=9)
    job.source.fingerprint = "another"
    with pytest.raises(UserError, match="the training data is not what"):
        job.resume()
    assert job.run.steps() == [2, 4, 6]


def test_two_do_not_train_into_one_folder(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    with held(out), pytest.raises(UserError, match="another process is training into"):
        train("bahdanau2015", corpus_files(corpus, "train"), out, **small("bahdanau2015", training__steps=1))
    assert not Run(out).exists
    train("bahdanau2015", corpus_files(corpus, "train"), out, **small("bahdanau2015", training__steps=1))
    assert Run(out).newest() == 1


def test_a_stop_leaves_no_trace_in_what_is_kept(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 12, "validate_every": 12, "checkpoint_every": 2, "keep": 3, "average": 3}
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    make_trainer(tmp_path / "whole", **settings).fit()
    for until in (3, 5, 7, 99):
        job = make_trainer(tmp_path / "stopped", **settings)
        if job.run.steps():
            job.resume()
        stop_after(job, until)
        with suppress(Interrupted):
            job.fit()
    whole, stopped = Run(tmp_path / "whole"), Run(tmp_path / "stopped")
    assert whole.steps() == stopped.steps() == [8, 10, 12]
    means = [checkpoint.read_tensors(run.average_folder, checkpoint.MODEL) for run in (whole, stopped)]
    assert state_dicts_equal(*means)


def stop_after(job: Trainer, step: int) -> None:
    """Asks the trainer to stop during an update."""
    update = job.update

    def asked(share: Share) -> Any:
        if job.position.step + 1 == step:
            job.signals.number = 15
        return update(share)

    job.update = asked  # type: ignore[method-assign]


def test_limits_that_get_in_each_others_way_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    make_trainer(tmp_path / "a", steps=500, epochs=1, warmup=0).fit()
    said = capsys.readouterr().err
    assert "updates: training.epochs=1 ends before training.steps=500" in said
    assert "warmup" not in said
    make_trainer(tmp_path / "b", steps=2, warmup=9).fit()
    said = capsys.readouterr().err
    assert "training.warmup=9 is longer than 2 updates: the learning rate stays low" in said
    assert "ends before" not in said


def test_a_line_of_metrics_that_nobody_can_read_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, steps=4, log_every=1).fit()
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind\n')
    job = make_trainer(tmp_path, steps=6, log_every=1)
    job.resume()
    job.fit()
    assert [row["step"] for row in job.run.metrics() if row["kind"] == "train"] == [1, 2, 3, 4, 5, 6]
    assert "cannot be read; it is left out" in capsys.readouterr().err


def test_what_a_run_starts_from_fits_it_alone(run: Run, corpus: Path, tmp_path: Path) -> None:
    def start(recipe: str | None, **changes: Any) -> None:
        more = {"training.init_from": str(run.folder), "training.steps": 1, **changes}
        train(recipe, corpus_files(corpus, "train"), tmp_path / "tuned", **more)

    with pytest.raises(
        UserError, match=r"is a model of the kind bahdanau, and the recipe 'default' is for the kind trans"
    ):
        start("default")
    with pytest.raises(
        UserError, match=r"text\.vocabulary is 600 in .*, and cannot be 500: its weights fit nothing else"
    ):
        start(None, **{"text.vocabulary": 500})
    with pytest.raises(UserError, match=r"model\.size is 24 in .* and cannot be 32") as caught:
        start(None, **{"model.size": 32})
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "tuned").exists()
    start(None, **{"model.dropout": 0.3})
    assert Run(tmp_path / "tuned").config()["model"]["dropout"] == 0.3


def test_what_a_run_starts_from_may_stay_the_best(run: Run, corpus: Path, tmp_path: Path) -> None:
    # BLEU of so few sentences is chance.
    spoils: dict[str, Any] = {
        "training.init_from": str(run.folder),
        "training.steps": 3,
        "training.learning_rate": 5.0,
        "training.best": "loss",
    }
    tuned = train(None, corpus_files(corpus, "train"), tmp_path / "tuned", dev=corpus_files(corpus, "dev"), **spoils)
    first, *later = [row for row in tuned.metrics() if row["kind"] == "dev"]
    assert first["step"] == tuned.best() == 0
    assert all(row["loss"] > first["loss"] for row in later)
    own = load(run.folder).models[0].state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in load(tuned.folder).models[0].state_dict().items())


def test_languages_that_do_not_fit_are_questioned(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = small("bahdanau2015", training__steps=1)
    train("bahdanau2015", corpus_files(corpus, "train"), tmp_path / "a", dev=corpus_files(corpus, "dev")[::-1], **more)
    said = capsys.readouterr().err
    assert "by its name this is de, but en is expected here; are the files in order?" in said
    train("bahdanau2015", corpus_files(corpus, "train"), tmp_path / "b", dev=corpus_files(corpus, "dev"), **more)
    assert "are the files in order?" not in capsys.readouterr().err
    same: dict[str, Any] = {**more, "data.source": "en", "data.target": "en"}
    with pytest.raises(UserError, match="source and target are both en"):
        train("bahdanau2015", corpus_files(corpus, "train"), tmp_path / "c", **same)


def test_a_run_goes_on_as_what_it_is(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "copy")
    with pytest.raises(UserError, match="is a run of the recipe 'bahdanau2015', it cannot go on as 'default'"):
        train("default", None, tmp_path / "copy", resume=True)
    assert train("bahdanau2015", None, tmp_path / "copy", resume=True).newest() == run.newest()


def test_pipes_are_for_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="- is a pipe, which one process alone can read"):
        train("default", "-", tmp_path / "run")


def test_more_processes_than_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert own_card(1) == 1
    with pytest.raises(UserError, match=r"4 processes on this machine, which has 2 GPUs.*--nproc-per-node=2"):
        own_card(2)


def test_a_dev_set_that_does_not_fit_is_measured_in_pieces(run: Run, corpus: Path) -> None:
    tokenizers = run.tokenizers()
    validator = Validator(pairs(corpus_files(corpus, "dev")), tokenizers, 4000, 20)
    model = run.model(tokenizers.sizes)
    whole = validator(model, torch.device("cpu"))
    model.encoder.embedding = torch.nn.Sequential(model.encoder.embedding, Greedy(3, False))
    pieces = validator(model, torch.device("cpu"))
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)
    assert pieces.score == whole.score
    model.encoder.embedding[1].rows = 0
    with pytest.raises(torch.OutOfMemoryError):
        validator(model, torch.device("cpu"))


def test_another_number_of_processes_is_another_run(tmp_path: Path) -> None:
    make_trainer(tmp_path, steps=2).fit()
    path = tmp_path / "checkpoints" / "step-2" / "state.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"processes": 1', '"processes": 4'), encoding="utf-8")
    with pytest.raises(UserError, match="was trained by 4 processes, not 1"):
        make_trainer(tmp_path).resume()


def test_fp16_scales_its_loss_and_its_scaler_goes_on(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, precision="fp16", steps=4)
    job.fit()
    state = checkpoint.read_state(job.run.checkpoint_folder(4))
    assert state["scaler"]["scale"] > 1
    assert state["scaler"]["_growth_tracker"] + state["skipped"] == 4
    again = make_trainer(tmp_path, precision="fp16", steps=5)
    again.resume()
    again.fit()
    assert again.gradients.scaler.state_dict()["_growth_tracker"] == state["scaler"]["_growth_tracker"] + 1


def test_going_on_forgets_what_was_measured_after_the_checkpoint(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, log_every=1, steps=4)
    job.fit()
    with job.run.metrics_path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "train", "step": 5, "loss": 0}\n')
    again = make_trainer(tmp_path, log_every=1, steps=6)
    again.resume()
    again.fit()
    steps = [row["step"] for row in again.run.metrics() if row["kind"] == "train"]
    assert steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_named(
    name: str, how: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Run(tmp_path / "copy")
    shutil.copytree(run.folder, copy.folder)
    path = copy.checkpoint_folder(copy.newest()) / name
    content = bytearray(path.read_bytes())
    if how == "remove":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 0x55
        path.write_bytes(content if name != "state.json" else b"[]")
    go_on(copy.folder, {"training.steps": 13})
    said = capsys.readouterr().err
    assert "is damaged" in said
    assert name in said
    assert copy.newest() == 13


def test_a_run_translates_without_its_optimizer(run: Run, tmp_path: Path) -> None:
    copy = Run(tmp_path / "copy")
    shutil.copytree(run.folder, copy.folder)
    for step in copy.steps():
        (copy.checkpoint_folder(step) / "optimizer.safetensors").unlink()
    assert not copy.model(copy.tokenizers().sizes).training


def test_what_changes_when_a_run_goes_on_is_remembered(run: Run, tmp_path: Path) -> None:
    copy = Run(tmp_path / "copy")
    shutil.copytree(run.folder, copy.folder)
    go_on(copy.folder, {"training.steps": 26})
    assert copy.config()["training"]["steps"] == 26
    assert go_on(copy.folder, {}).newest() == 26


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = train("bahdanau2015", corpus_files(corpus, "train"), out, **small("bahdanau2015", training__steps=1))
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint yet; start it again without --resume"):
        go_on(out, {})
    train("bahdanau2015", corpus_files(corpus, "train"), out, **small("bahdanau2015", training__steps=2))
    assert run.newest() == 2


def test_a_line_of_metrics_that_was_cut_short_is_forgotten(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, log_every=1, steps=3)
    job.fit()
    with job.run.metrics_path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "tra')
    again = make_trainer(tmp_path, log_every=1, steps=4)
    again.resume()
    again.fit()
    assert [row["step"] for row in again.run.metrics() if row["kind"] == "train"] == [1, 2, 3, 4]


def test_the_end_of_a_cosine_cannot_move(corpus: Path, tmp_path: Path) -> None:
    more = small("bahdanau2015", training__steps=2, training__schedule="cosine")
    train("bahdanau2015", corpus_files(corpus, "train"), tmp_path / "run", **more)
    with pytest.raises(UserError, match="cosine"):
        go_on(tmp_path / "run", {"training.steps": 4})
    go_on(tmp_path / "run", {"training.steps": 2})


def test_new_words_on_a_saved_step_leave_its_weights_alone(tmp_path: Path) -> None:
    job = make_trainer(tmp_path, steps=2)
    job.fit()
    folder = job.run.checkpoint_folder(2)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    job.position.bad_validations, job.stale = 7, True
    job.save()
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert len(list(folder.iterdir())) == 3
    assert checkpoint.read_state(folder)["bad_validations"] == 7
    make_trainer(tmp_path).resume()


def test_a_checkpoint_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_trainer(tmp_path, steps=2)
    job.fit()

    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    job.position.step = 3
    monkeypatch.setattr(checkpoint, "save_file", full_disk)
    with pytest.raises(UserError, match=r"could not be written .*No space"):
        job.save()
    assert job.run.steps() == [2]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-2"]
    checkpoint.read_state(job.run.checkpoint_folder(2))


def test_a_checkpoint_of_a_later_format_says_so(run: Run, tmp_path: Path) -> None:
    copy = Run(tmp_path / "copy")
    shutil.copytree(run.folder, copy.folder)
    path = copy.checkpoint_folder(copy.newest()) / "state.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"format": 1', '"format": 9'), encoding="utf-8")
    with pytest.raises(UserError, match="format 9"):
        copy.best()


def test_what_may_not_change_when_a_run_goes_on(run: Run, corpus: Path, tmp_path: Path) -> None:
    copy = Run(tmp_path / "copy")
    shutil.copytree(run.folder, copy.folder)
    with pytest.raises(UserError, match=r"model\.size cannot change"):
        go_on(copy.folder, {"model.size": 8})
    with pytest.raises(UserError, match="is not what"):
        go_on(copy.folder, {"training.steps": 30}, corpus_files(corpus, "test"))
    with pytest.raises(UserError, match="already holds a run"):
        train("bahdanau2015", corpus_files(corpus, "train"), copy.folder)


def test_the_default_is_sized_by_the_corpus_and_the_config_says_how(corpus: Path, tmp_path: Path) -> None:
    quick: dict[str, Any] = {"training.steps": 1, "training.validate_pairs": 1, "training.tensorboard": False}
    run = train("default", corpus_files(corpus, "train"), tmp_path / "run", **quick)
    config = run.config()
    assert config["model"].pop("align_layer") == "auto", "this one is found when training ends"
    assert "auto" not in [*config["model"].values(), *config["text"].values(), config["training"]["batch_tokens"]]
    assert (config["model"]["size"], config["model"]["layers"]) == (128, 3)
    assert (config["data"]["source"], config["data"]["target"]) == ("en", "de")


def test_separate_vocabularies_tie_the_decoder_alone(corpus: Path, tmp_path: Path) -> None:
    more = small("vaswani2017-base", text__shared=False, training__steps=1)
    run = train("vaswani2017-base", corpus_files(corpus, "train"), tmp_path / "run", **more)
    one_size = build(run.config(), 9, 9)
    assert one_size.encoder.embedding.words.weight is not one_size.decoder.output.weight
    assert one_size.decoder.embedding.words.weight is one_size.decoder.output.weight


def test_a_corpus_in_which_nothing_is_short_enough(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="0 have an empty side, 300 are longer"):
        train(
            "bahdanau2015",
            corpus_files(corpus, "train"),
            tmp_path / "run",
            dev=corpus_files(corpus, "dev"),
            **small("bahdanau2015", data__max_length=1),
        )
    assert not Run(tmp_path / "run").exists


def test_a_recipe_of_ones_own_builds_on_another(corpus: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("base: bahdanau2015\nmodel:\n  size: 20\n  maxout: 7\n", encoding="utf-8")
    changes = {key: value for key, value in small("bahdanau2015", training__steps=1).items() if key != "model.size"}
    run = train(own, corpus_files(corpus, "train"), tmp_path / "run", **changes)
    assert run.config()["recipe"] == "mine"
    assert run.config()["model"]["embedding"] is None


def test_tensorboard_gets_the_figures(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    job = make_trainer(tmp_path, tensorboard=True, log_every=2, steps=4)
    job.fit()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4]
    assert [event.step for event in events.Scalars("dev/bleu")] == [2, 4]


def test_tensorboard_shows_where_the_model_looks(corpus: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    changes = {**TINY, "training.tensorboard": True, "training.steps": 4, "training.validate_every": 2}
    run = train(
        "bahdanau2015", corpus_files(corpus, "train"), tmp_path / "run", dev=corpus_files(corpus, "dev"), **changes
    )
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    assert {f"attention/{number}" for number in range(1, 6)} == set(events.Tags()["images"])
    first = events.Images("attention/1")
    assert [image.step for image in first] == [2, 4]
    assert all(image.encoded_image_string.startswith(b"\x89PNG") for image in first)


def test_guided_attention_follows_the_links_it_is_given(corpus: Path, tmp_path: Path) -> None:
    test = pairs(corpus_files(corpus, "test"))
    gold = read_gold(corpus / "test.align", test)
    errors = []
    for weight in (0.0, 5.0):
        more = {"loss.guided": weight, "data.alignments": str(corpus / "train.align"), "training.steps": 60}
        run = train(
            "vaswani2017-base",
            corpus_files(corpus, "train"),
            tmp_path / str(weight),
            **{**TINY, "model.heads": 2, **more},
        )
        errors.append(against(load(run.folder).align(test), gold).aer)
    assert errors[1] < errors[0] - 0.2
    assert Path(Run(tmp_path / "5.0").config()["data"]["alignments"]).is_absolute()


def test_guided_attention_needs_links(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"loss\.guided=0\.5 needs data\.alignments"):
        train("bahdanau2015", corpus_files(corpus, "train"), tmp_path / "run", **{**TINY, "loss.guided": 0.5})
    more = {"loss.guided": 0.5, "data.alignments": str(corpus / "train.align")}
    with pytest.raises(UserError, match="without attention cannot be guided"):
        train("cho2014", corpus_files(corpus, "train"), tmp_path / "run", **{**TINY, **more})
