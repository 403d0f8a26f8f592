"""Regression over time series: files, standardisation, the model's equations, training and predictions."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tasks
from support.combinations import slow_after
from support.commands import Command
from support.files import write_file
from support.tasks import SIX_STEPS, error_message, prepare_job
from torch import Tensor

import regard as package
from regard.config import parse_settings
from regard.data.series import MAX_MAGNITUDE, Series, parse_series, read_series
from regard.errors import UserError
from regard.models import build
from regard.models.schuster1997 import Regressor
from regard.runs import Run
from regard.synthetic.corpora import compute_target, write_regression_corpus
from regard.tasks.base import Split, Validator
from regard.tasks.regression import (
    MAX_DEVIATIONS,
    RegressionBatch,
    RegressionDataset,
    RegressionPredictor,
    RegressionSettings,
    RegressionTask,
    SeriesScalers,
    StandardScaler,
    compute_regression_metrics,
)
from regard.training import train

Array = npt.NDArray[np.float64]
NAME = "schuster1997-regression"
I, O, SIZE, B, S = 2, 3, 5, 3, 7  # noqa: E741 - letters of the shapes: inputs, outputs, hidden size, batch, steps
LENGTHS = torch.tensor([7, 4, 1])
NETWORKS: dict[str, dict[str, Any]] = {
    "brnn": {},
    "rnn": {"network": "rnn"},
    "rnn-delay": {"network": "rnn", "delay": 2},
    "tdnn": {"network": "tdnn", "layers": 2, "window": 1},
    "mlp": {"network": "mlp", "window": 3},
    "brnn-deep": {"layers": 2, "residual": True, "cell": "gru"},
    "brnn-elman": {"cell": "elman"},
}
QUICK: dict[str, Any] = {
    **SIX_STEPS,
    "model.size": 8,
    "model.dropout": 0.2,
    "data.inputs": 2,
    "training.batch_tokens": 60,
    "training.schedule": "constant",
}


# Files.


def split_series(settings: RegressionSettings, seed: int) -> Split[Series]:
    return RegressionTask().split(settings, seed)


def read_text(text: str, inputs: int = 1) -> list[Series]:
    return list(parse_series(text.split("\n"), inputs))


def to_lists(one: Series) -> list[Any]:
    return [one.inputs.tolist(), one.targets.tolist()]


def test_each_line_is_a_step_and_a_blank_line_ends_a_series() -> None:
    first, second = read_text("\n1 2 3\n-4e1\t5 .6\n\n \n7 8 9\n", 2)
    assert to_lists(first) == [[[1, 2], [-40, 5]], [[3], [0.6]]]
    assert to_lists(second) == [[[7, 8]], [[9]]]
    assert to_lists(read_text("1 2 3")[0]) == [[[1]], [[2, 3]]]
    assert to_lists(read_text("1 2 3", 3)[0]) == [[[1, 2, 3]], [[]]]


def test_each_json_line_is_a_series() -> None:
    lines = [{"inputs": [[1, 2], [3, 4]], "targets": [[0.5], [6]]}, {"inputs": [[7, 8]], "name": "x"}]
    first, second = read_text("\n".join(map(json.dumps, lines)) + "\n\n", 2)
    assert to_lists(first) == [[[1, 2], [3, 4]], [[0.5], [6]]]
    assert to_lists(second) == [[[7, 8]], [[]]]


def test_series_is_yielded_as_soon_as_its_blank_line_is_read() -> None:
    consumed = []

    def lines() -> Any:
        for line in ("1 2", "", "3 4", ""):
            consumed.append(line)
            yield line

    next(parse_series(lines(), 1))
    assert consumed == ["1 2", ""]


def test_several_files_compressed_or_not_are_read_in_order(tmp_path: Path) -> None:
    columns = write_file(tmp_path / "a.txt.gz", gzip.compress(b"1 2\n\n3 4\n"))
    objects = write_file(tmp_path / "b.jsonl", '{"inputs": [[5]], "targets": [[6]]}')
    assert [float(one.inputs[0, 0]) for one in read_series([columns, objects], 1)] == [1, 3, 5]


@pytest.mark.parametrize(
    ("text", "inputs", "message"),
    [
        ("1 2\n3\n", 1, "a.txt:2: 1 numbers, but 2 in the lines before"),
        ("1 2\n3 x\n", 1, "a.txt:2: expected numbers separated by white space, not '3 x'"),
        ("1 nan\n", 1, "a.txt:1: nan is out of range"),
        ("1 -inf\n", 1, "a.txt:1: -inf is out of range"),
        ("1 1e31\n", 1, "a.txt:1: 1e+31 is out of range; numbers must be from -1e+30 to 1e+30"),
        ("1 2\n", 3, "a.txt:1: 2 numbers in a step, but data.inputs is 3"),
        ("1 2\n", 2, "a.txt:1: no target: all 2 numbers of a step are inputs (data.inputs)"),
        ("1 2\n\n1 2 3\n", 1, "a.txt:3: 2 targets in a step, but 1 in earlier steps"),
        ("\n \n", 1, "a.txt: no numbers found"),
        ("{\n", 1, "a.txt:1: not JSON: "),
        ('{"inputs": [[1]], "targets": [[1]]}\n[]', 1, "a.txt:2: a series is {"),
        ('{"inputs": 1}', 1, 'a.txt:1: "inputs" cannot be 1'),
        ('{"inputs": []}', 1, 'a.txt:1: "inputs" cannot be []'),
        ('{"inputs": [[]]}', 1, 'a.txt:1: "inputs" cannot be [[]]'),
        ('{"inputs": [[1], [2, 3]]}', 1, 'a.txt:1: "inputs" cannot be [[1], [2, 3]]'),
        ('{"inputs": [["1"]]}', 1, "a.txt:1: \"inputs\" contains '1', which is not a number"),
        ('{"inputs": [[true]]}', 1, 'a.txt:1: "inputs" contains True, which is not a number'),
        ('{"inputs": [[NaN]]}', 1, "a.txt:1: nan is out of range"),
        (f'{{"inputs": [[{"9" * 400}]]}}', 1, "a.txt:1: 9"),
        ('{"inputs": [[1, 2]]}', 1, "a.txt:1: 2 inputs in a step, but data.inputs is 1"),
        ('{"inputs": [[1]], "targets": [[1], [2]]}', 1, "a.txt:1: 1 steps of inputs and 2 of targets"),
    ],
)
def test_malformed_input_is_reported_with_file_and_line(text: str, inputs: int, message: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", text)
    assert error_message(lambda: list(read_series([path], inputs))).startswith(f"{tmp_path}/{message}")


FRAGMENTS = st.sampled_from(
    ["1", "2.5", "-", "e", "nan", "1e999", " ", "\t", "\n", "\n\n", '{"inputs": [[1', "]]}", "\x00", "٣"]
)
CONTENTS = st.one_of(
    st.binary(max_size=60), st.lists(FRAGMENTS, max_size=40).map(lambda parts: "".join(parts).encode())
)


@given(CONTENTS, st.integers(1, 3))
def test_arbitrary_bytes_are_read_or_refused_in_one_line(content: bytes, inputs: int) -> None:
    refusal = ""
    every: list[Series] = []
    with TemporaryDirectory() as folder:
        path = write_file(Path(folder) / "a.txt", content)
        try:
            every = list(read_series([path], inputs))
        except UserError as error:
            refusal = str(error)
    assert "\n" not in refusal
    for one in every:
        assert one.inputs.shape == (len(one.targets), inputs)
        assert np.isfinite(one.inputs).all()
        assert np.isfinite(one.targets).all()
    if every:
        examples = RegressionDataset(every, SeriesScalers.fit(every))
        assert examples.make_batch(np.arange(len(every))).source.isfinite().all()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(st.fixed_dictionaries({}, optional={"inputs": JSON, "targets": JSON}))
def test_arbitrary_json_is_read_or_refused_in_one_line(fields: dict[str, Any]) -> None:
    refusal = ""
    try:
        (one,) = read_text(json.dumps({**fields, "more": 1}))
        assert one.inputs.shape[1] == 1
    except UserError as error:
        refusal = str(error)
    assert "\n" not in refusal


# Standardisation.


def test_inputs_are_standardised_by_the_training_data_and_back() -> None:
    tables = [np.array([[1.0, 10.0, 7.0], [3.0, 10.0, 7.1]]), np.array([[5.0, 10.0, 9.0]])]
    scale = StandardScaler.fit(tables)
    every = np.concatenate(tables)
    assert scale.mean == pytest.approx((3, 10, 7.7))
    assert scale.deviation == pytest.approx((np.sqrt(8 / 3), 1, every[:, 2].std()))
    standard = scale.transform(every)
    np.testing.assert_allclose(standard.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(standard.std(0), [1, 0, 1])
    np.testing.assert_allclose(scale.inverse_transform(standard), every)
    assert np.abs(scale.transform(np.full((1, 3), MAX_MAGNITUDE))).max() == MAX_DEVIATIONS


def test_scales_round_trip_and_damaged_files_are_refused(tmp_path: Path) -> None:
    made = SeriesScalers.fit([Series(np.array([[0.1, 2.0], [0.3, 5.0]]), np.array([[1.0], [1e-20]]))])
    made.save(tmp_path)
    assert SeriesScalers.load(tmp_path) == made
    assert made.sizes == (2, 1)
    path = tmp_path / "scale.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    for damage in (
        "",
        "[]",
        "{}",
        "[" * 9999,
        json.dumps({**whole, "targets": {"mean": [1], "deviation": [0]}}),
        json.dumps({**whole, "targets": {"mean": [1, 2], "deviation": [1]}}),
        json.dumps({**whole, "inputs": {"mean": [None], "deviation": [1]}}),
        json.dumps({**whole, "inputs": {"mean": [float("nan")], "deviation": [1]}}),
    ):
        path.write_text(damage, encoding="utf-8")
        with pytest.raises(UserError, match=r"scale\.json"):
            SeriesScalers.load(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        SeriesScalers.load(tmp_path)


# The model.


def make_model(name: str = "brnn", **changes: Any) -> Any:
    """Return a small model in double precision, with weights large enough for outputs to differ."""
    torch.manual_seed(7)
    model = build(NAME, I, O, **{"size": SIZE, **NETWORKS[name], **changes}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    assert isinstance(model, Regressor)
    return model


def make_batch() -> RegressionBatch:
    generator = torch.Generator().manual_seed(3)
    source = torch.randn((B, S, I), generator=generator).double()
    wanted = torch.randn((B, S, O), generator=generator).double()
    past = (torch.arange(S) >= LENGTHS[:, None])[..., None]
    return RegressionBatch(source.masked_fill(past, 0), LENGTHS, wanted.masked_fill(past, 0))


def elman(cell: Any, inputs: Array) -> Array:
    """h_t = tanh(W x_t + U h_{t-1} + b), one step after the other."""
    W, U, b, c = (getattr(cell, name).detach().numpy() for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    h, states = np.zeros(SIZE), []
    for x in inputs:
        h = np.tanh(W @ x + b + U @ h + c)
        states.append(h)
    return np.stack(states)


def test_bidirectional_output_is_a_linear_merge_of_both_directions() -> None:
    model, batch = make_model("brnn-elman"), make_batch()
    outputs = model(batch.source, batch.lengths).detach().numpy()
    V_f, V_b = np.split(model.output.weight.detach().numpy(), 2, axis=1)
    total = 0.0
    for row, length in enumerate(LENGTHS.tolist()):
        x = batch.source[row, :length].numpy()
        ahead, back = elman(model.network.ahead.forwards[0], x), elman(model.network.back.forwards[0], x[::-1])[::-1]
        y = ahead @ V_f.T + back @ V_b.T + model.output.bias.detach().numpy()
        np.testing.assert_allclose(outputs[row, :length], y, atol=1e-12)
        total += float(np.square(y - batch.target[row, :length].numpy()).sum())
    assert model.loss_sum(*batch).item() == pytest.approx(total, rel=1e-12)
    assert int(model.loss_count(*batch)) == 12 * O == batch.num_targets
    assert (batch.num_rows, batch.num_tokens) == (B, 12)


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_do_not_depend_on_padding_or_the_rest_of_the_batch(name: str) -> None:
    model, batch = make_model(name), make_batch()
    together = model(batch.source, batch.lengths)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model(batch.source[row : row + 1, :length], LENGTHS[row : row + 1])
        torch.testing.assert_close(together[row, :length], alone[0], rtol=1e-12, atol=1e-12)
    past = (torch.arange(S) >= LENGTHS[:, None])[..., None]
    noise = RegressionBatch(batch.source.masked_fill(past, 3.0), LENGTHS, batch.target.masked_fill(past, 9.0))
    torch.testing.assert_close(model.loss_sum(*noise), model.loss_sum(*batch))
    torch.testing.assert_close(sum(model.loss_sum(*part) for part in batch.split_into(2)), model.loss_sum(*batch))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = make_model(name).train()
    model.loss_sum(*make_batch()).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize(
    ("name", "context"),
    [("brnn", (-9, 9)), ("rnn", (-9, 0)), ("rnn-delay", (-9, 2)), ("tdnn", (-2, 2)), ("mlp", (-3, 3))],
)
def test_network_uses_exactly_its_context_of_steps(name: str, context: tuple[int, int]) -> None:
    model, batch = make_model(name), make_batch()
    other = batch.source.clone()
    other[0, 3] += 1
    before, after = (model(x, LENGTHS)[0] for x in (batch.source, other))
    changed = [bool((left != right).any()) for left, right in zip(before, after, strict=True)]
    assert changed == [context[0] <= 3 - t <= context[1] for t in range(S)]


def test_dropout_acts_before_the_output_and_not_on_the_inputs() -> None:
    batch = make_batch()
    for dropout in (0.0, 0.5):
        model = make_model(dropout=dropout).train()
        inputs: list[Tensor] = []
        model.network.register_forward_pre_hook(lambda layer, arguments, kept=inputs: kept.append(arguments[0]))
        first, second = model(batch.source, LENGTHS), model(batch.source, LENGTHS)
        assert torch.equal(first, second) == (dropout == 0)
        assert all(torch.equal(one, batch.source) for one in inputs)


# Metrics.


def test_r2_is_the_explained_variance_averaged_over_outputs() -> None:
    right, given_ = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]), np.array([[1.0, 5.0], [2.0, 6.0], [4.0, 5.0]])
    metrics = compute_regression_metrics([right[:2], right[2:]], [given_[:2], given_[2:]])
    assert metrics["rmse"] == pytest.approx(np.sqrt(2 / 6))
    assert metrics["r2"] == pytest.approx(((1 - 1 / 2) + 0) / 2)
    assert compute_regression_metrics([right[:, :1]], [right[:, :1]]) == {"rmse": 0.0, "r2": 1.0}
    assert compute_regression_metrics([right[:, :1]], [np.full((3, 1), 2.0)])["r2"] == pytest.approx(0)


# Runs.


def random_series(seed: int, count: int) -> str:
    """Return series of two inputs and two targets, in columns."""
    random = np.random.default_rng(seed)
    every = [random.normal(3, 5, (int(random.integers(3, 12)), 2)) for _ in range(count)]
    return "\n".join(
        "".join(f"{a:.4f} {b:.4f} {a + b:.4f} {100 * (a - b):.4f}\n" for a, b in one.tolist()) for one in every
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    for seed, name in enumerate(("train", "dev", "test")):
        write_file(folder / f"{name}.txt", random_series(seed, 60))
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "numbers"
    return package.train(NAME, corpus / "train.txt", out, dev=corpus / "dev.txt", **QUICK)


def test_resume_is_bit_identical_to_an_uninterrupted_run(run: Run, tmp_path: Path) -> None:
    tasks.assert_resume_is_bit_identical(run, tmp_path / "run")


@pytest.mark.parametrize("network", slow_after(1, ["tdnn", "rnn", "mlp"]))
def test_resume_of_other_networks_is_bit_identical(network: str, corpus: Path, tmp_path: Path) -> None:
    overrides = {**QUICK, "model.network": network}
    whole = train(NAME, corpus / "train.txt", tmp_path / "whole", dev=corpus / "dev.txt", **overrides)
    tasks.assert_resume_is_bit_identical(whole, tmp_path / "run")


def test_dev_split_depends_on_content_and_seed_not_on_order(corpus: Path, tmp_path: Path) -> None:
    blocks = (corpus / "train.txt").read_text(encoding="utf-8").strip().split("\n\n")
    reordered = write_file(tmp_path / "reordered.txt", "\n\n".join(reversed(blocks)))

    def dev_set(path: Path, seed: int = 1, **more: Any) -> list[str]:
        parts = split_series(RegressionSettings(train=(str(path),), inputs=2, **more), seed)
        assert len(parts.train) + len(parts.dev) == 60
        return sorted(str(one.inputs.tolist()) for one in parts.dev)

    assert dev_set(corpus / "train.txt") == dev_set(reordered) != dev_set(reordered, 2)
    assert (len(dev_set(reordered)), len(dev_set(reordered, dev_series=2))) == (6, 2)


def test_max_length_drops_series_from_training_only(corpus: Path) -> None:
    def split_at(longest: int) -> Split[Series]:
        return split_series(RegressionSettings(train=(str(corpus / "train.txt"),), inputs=2, max_length=longest), 1)

    whole, cut = split_at(2000), split_at(5)
    assert max(len(one.inputs) for one in cut.train) == 5
    assert len(cut.train) + cut.left_out["too long"] == len(whole.train)
    assert len(cut.dev) == len(whole.dev)
    with pytest.raises(UserError, match="all series have more than 1 steps"):
        split_at(1)
    with pytest.raises(UserError, match="nothing to train on"):
        split_series(RegressionSettings(), 1)


def test_single_series_is_too_little_to_train_on(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", "1 2\n")
    assert "there is one series" in error_message(split_series, RegressionSettings(train=(str(path),)), 1)


def test_dev_set_with_another_number_of_targets_is_refused(corpus: Path, tmp_path: Path) -> None:
    dev = write_file(tmp_path / "a.txt", "1 2 3\n")
    message = error_message(train, NAME, corpus / "train.txt", tmp_path / "run", dev=dev, **QUICK)
    assert message == f"{dev}:1: 2 inputs and 1 targets in a step, but 2 and 2 in the training data"


def test_predictions_are_in_the_scale_of_the_targets(run: Run, corpus: Path) -> None:
    follower: RegressionPredictor = package.load(run.folder, device="cpu")
    every = list(read_series([corpus / "test.txt"], 2))
    predictions = follower.predict([one.inputs for one in every])
    scales = follower.vocabulary
    for one, prediction in zip(every[:3], predictions, strict=False):
        x = torch.tensor((one.inputs - np.array(scales.inputs.mean)) / np.array(scales.inputs.deviation))
        y = follower.model(x[None].float(), torch.tensor([len(x)]))[0].detach().double().numpy()
        expected = y * np.array(scales.targets.deviation) + np.array(scales.targets.mean)
        np.testing.assert_allclose(prediction.outputs, expected, rtol=1e-4, atol=1e-4)
    metrics = follower.evaluate([corpus / "test.txt"])
    wanted = compute_regression_metrics([one.targets for one in every], [one.outputs for one in predictions])
    errors = [one.targets - made.outputs for one, made in zip(every, predictions, strict=True)]
    wanted["loss"] = float(np.square(np.concatenate(errors) / scales.targets.deviation).mean())
    assert metrics == pytest.approx({"series": 60, "steps": sum(len(one.inputs) for one in every), **wanted})
    alone, nothing = follower.predict([every[0].inputs.tolist(), []])
    np.testing.assert_allclose(alone.outputs, predictions[0].outputs, rtol=1e-4, atol=1e-4)
    assert (nothing.to_text(), nothing.to_dict()) == ("", {"outputs": []})
    assert follower.predict([]) == []


@pytest.mark.parametrize(
    "wrong",
    [5, None, [[]], [[1.0]], [[1.0, float("nan")]], [1.0, 2.0], [["a", "b"]], [[1, 2], [3]], [[1, 10**400]]],
    ids=lambda wrong: repr(wrong)[:20],
)
def test_prediction_refuses_what_is_not_a_series_of_numbers(wrong: Any, run: Run) -> None:
    message = error_message(package.load(run.folder).predict, [wrong])
    assert "a series must be a list of steps, each of 2 numbers" in message


def test_evaluation_with_another_number_of_targets_is_refused(run: Run, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", "1 2 3\n")
    message = error_message(package.load(run.folder).evaluate, [path])
    assert message == f"{path}:1: 2 inputs and 1 targets in a step, but 2 and 2 in the training data"


def test_ensembles_are_refused(run: Run) -> None:
    message = error_message(package.load, run.folder, run.folder)
    assert message.startswith("a model that regresses cannot join an ensemble")


def test_validation_agrees_with_predictions_and_restores_rng_state(corpus: Path) -> None:
    every = list(read_series([corpus / "dev.txt"], 2))
    scales = SeriesScalers.fit(every)
    torch.manual_seed(2)
    model = build(NAME, 2, 2, size=6, dropout=0.5).train()
    before = torch.get_rng_state()

    def make_predictor(model: Any, device: torch.device) -> RegressionPredictor:
        return RegressionPredictor(model, scales, RegressionSettings(inputs=2), device, 100)

    found = Validator(make_predictor, every, RegressionDataset(every, scales), 10)(model, torch.device("cpu"))
    assert model.training
    assert torch.equal(before, torch.get_rng_state())
    batch = RegressionDataset(every, scales).make_batch(np.arange(60))
    loss = model.eval().loss_sum(*batch) / model.loss_count(*batch)
    assert found.loss == pytest.approx(loss.item(), rel=1e-5)
    assert found.score == found.metrics["r2"]
    outputs = make_predictor(model, torch.device("cpu")).predict([one.inputs for one in every[:10]])
    gold = [one.targets for one in every[:10]]
    assert found.metrics == pytest.approx(compute_regression_metrics(gold, [one.outputs for one in outputs]), rel=1e-4)
    assert found.samples[0].texts["right"].split()[0].count(",") == 1
    assert found.samples[0].plot() is not None


def test_report_plots_targets_and_outputs(run: Run, regard: Command) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert page.count('<polyline class="right"') == 10, "two outputs of five series"
    assert "Predictions" in page
    assert "Dev R²" in page
    assert (run.folder / "samples" / "series-5.png").is_file()
    assert "r2" in regard("runs", run.folder).stdout


@pytest.mark.slow
def test_train_command_says_how_to_predict(corpus: Path, regard: Command) -> None:
    tasks.check_train_command(regard, NAME, corpus / "train.txt", QUICK, "regress")


def test_predict_command_prints_a_line_for_each_series(run: Run, regard: Command) -> None:
    message = "line 1: this model reads 2 numbers of a step, optionally followed by 2 targets"
    lines, documents = tasks.check_predict_command(regard, run.folder, "1 2\n3 4\n\n5 6 7 8\n", "1 2 3\n", message)
    assert [[step.count(",") for step in line.split()] for line in lines] == [[1, 1], [1]]
    assert [np.array(document["outputs"]).shape for document in documents] == [(2, 2), (1, 2)]


@pytest.mark.slow
def test_evaluate_command_prints_rmse_and_r2(corpus: Path, run: Run, regard: Command) -> None:
    metrics = tasks.check_evaluate_command(regard, run.folder, corpus / "test.txt", {"rmse", "r2"})
    assert set(metrics) == {"system", "series", "steps", "loss", "rmse", "r2"}


def test_json_series_are_read_from_lines(run: Run) -> None:
    (one,) = package.load(run.folder).parse_lines(['{"inputs": [[1, 2]]}'])
    assert np.asarray(one).shape == (1, 2)


def test_init_from_copies_weights_and_scales(corpus: Path, run: Run, tmp_path: Path) -> None:
    child = tasks.assert_init_from_copies_weights(
        run, (2, 2), corpus / "test.txt", corpus / "dev.txt", tmp_path / "child"
    )
    assert SeriesScalers.load(child.folder / "tokenizer") == SeriesScalers.load(run.folder / "tokenizer")


def test_data_settings_take_effect(corpus: Path, tmp_path: Path) -> None:
    def job(**changes: Any) -> Any:
        return prepare_job(NAME, corpus / "train.txt", tmp_path, **{**QUICK, **changes})

    assert job().vocabulary_sizes == (2, 2)
    assert job(**{"data.inputs": 3}).vocabulary_sizes == (3, 1)
    assert len(job(**{"data.dev_series": 2}).validate.examples) == 2
    assert len(job(**{"data.max_length": 5}).dataset) < len(job().dataset)
    assert job(**{"training.validate_pairs": 4}).validate.max_measured == 4
    assert job().description == "54 series, 6 dev series, 2 inputs and 2 targets in a step"


@pytest.mark.parametrize("key", ["inputs", "max_length", "dev_series"])
def test_invalid_settings_are_refused(key: str) -> None:
    message = error_message(parse_settings, RegressionSettings, {key: 0}, "data")
    assert f"{key} must be at least 1, not 0" in message


# The synthetic corpus.


def test_synthetic_target_is_a_weighted_sum_over_both_sides() -> None:
    x = np.random.default_rng(1).uniform(-1, 1, 50)
    for t, found in enumerate(compute_target(x).tolist()):
        before = sum(x[t - d] * (1 - d / 10) / 10 for d in range(1, 11) if t >= d)
        behind = sum(x[t + d] * (1 - d / 20) / 20 for d in range(21) if t + d < 50)
        assert found == pytest.approx(before + behind)


def test_synthetic_corpus_depends_on_the_seed(tmp_path: Path) -> None:
    first = tasks.assert_synthetic_corpus_depends_on_seed(write_regression_corpus, tmp_path, NAME)
    splits = [list(read_series(paths, 1)) for paths in (first.train, first.dev, first.test)]
    assert list(map(len, splits)) == [400, 40, 100]
    starts = [float(one.inputs[0, 0]) for one in itertools.chain(*splits)]
    assert len(set(starts)) > 530


@pytest.mark.learn
def test_bidirectional_rnn_learns_what_a_unidirectional_rnn_cannot(tmp_path: Path) -> None:
    corpus = write_regression_corpus(tmp_path / "data")
    scores = {}
    for network in ("brnn", "rnn"):
        changes = {**corpus.overrides, "model.network": network}
        made = train(NAME, corpus.train, tmp_path / network, dev=corpus.dev, **changes)
        scores[network] = package.load(made.folder).evaluate(corpus.test)["r2"]
    assert scores["brnn"] > 0.98
    assert scores["rnn"] < 0.7, "later inputs account for a third of the variance"
