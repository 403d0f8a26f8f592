"""Numbers over time: files, scales, the model's equations, a run from its files to numbers."""

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
from support.commands import Command
from torch import Tensor

import regard as package
from regard.config import parse
from regard.errors import UserError
from regard.models import build
from regard.models.regression import Regressor
from regard.recipes import override
from regard.recipes import read as recipe
from regard.runs import Run
from regard.tasks import TASKS
from regard.tasks.regression import Follower, Validator, embedded
from regard.tasks.regression.embedded import target
from regard.tasks.regression.examples import Batch, Examples
from regard.tasks.regression.files import LARGEST, Series, read, series
from regard.tasks.regression.measures import figures
from regard.tasks.regression.preparation import Split, split
from regard.tasks.regression.scale import FAR, Scale, Scales
from regard.tasks.regression.settings import NumberSettings
from regard.training import train

Array = npt.NDArray[np.float64]
NAME = "schuster1997-regression"
I, O, SIZE, B, S = 2, 3, 5, 3, 7  # noqa: E741 - the letters of the shapes
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
    "model.size": 8,
    "model.dropout": 0.2,
    "data.inputs": 2,
    "training.steps": 6,
    "training.batch_tokens": 60,
    "training.learning_rate": 0.01,
    "training.schedule": "constant",
    "training.validate_every": 3,
    "training.checkpoint_every": 3,
    "training.log_every": 1,
    "training.tensorboard": False,
}


# Files.


def found(text: str, inputs: int = 1) -> list[Series]:
    return [one for one, _ in read(text.split("\n"), inputs)]


def listed(one: Series) -> list[Any]:
    return [one.inputs.tolist(), None if one.targets is None else one.targets.tolist()]


def test_a_line_is_a_step_and_a_blank_line_ends_a_series() -> None:
    first, second = found("\n1 2 3\n-4e1\t5 .6\n\n \n7 8 9\n", 2)
    assert listed(first) == [[[1, 2], [-40, 5]], [[3], [0.6]]]
    assert listed(second) == [[[7, 8]], [[9]]]
    assert listed(found("1 2 3")[0]) == [[[1]], [[2, 3]]]
    assert listed(found("1 2 3", 3)[0]) == [[[1, 2, 3]], None]


def test_json_lines_hold_a_series_each() -> None:
    lines = [{"inputs": [[1, 2], [3, 4]], "targets": [[0.5], [6]]}, {"inputs": [[7, 8]], "name": "x"}]
    first, second = found("\n".join(map(json.dumps, lines)) + "\n\n", 2)
    assert listed(first) == [[[1, 2], [3, 4]], [[0.5], [6]]]
    assert listed(second) == [[[7, 8]], None]


def test_a_series_is_there_as_soon_as_its_blank_line_is() -> None:
    came = []

    def lines() -> Any:
        for line in ("1 2", "", "3 4", ""):
            came.append(line)
            yield line

    next(read(lines(), 1))
    assert came == ["1 2", ""]


def test_files_may_be_compressed_and_several(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"1 2\n\n3 4\n"))
    (tmp_path / "b.jsonl").write_text('{"inputs": [[5]], "targets": [[6]]}', encoding="utf-8")
    every = series([tmp_path / "a.txt.gz", tmp_path / "b.jsonl"], 1)
    assert [float(one.inputs[0, 0]) for one in every] == [1, 3, 5]


@pytest.mark.parametrize(
    ("text", "inputs", "said"),
    [
        ("1 2\n3\n", 1, "a.txt:2: 1 numbers, and 2 in the line before"),
        ("1 2\n3 x\n", 1, "a.txt:2: not numbers with white space between: '3 x'"),
        ("1 nan\n", 1, "a.txt:1: nan is no number to compute with"),
        ("1 -inf\n", 1, "a.txt:1: -inf is no number to compute with"),
        ("1 1e31\n", 1, "a.txt:1: 1e+31 is no number to compute with; they go from -1e+30 to 1e+30"),
        ("1 2\n", 3, "a.txt:1: 2 numbers in a step, and 3 are to be read (data.inputs)"),
        ("1 2\n", 2, "a.txt:1: no target: all 2 numbers of a step are read (data.inputs)"),
        ("1 2\n\n1 2 3\n", 1, "a.txt:3: 2 targets in a step, and 1 in those before"),
        ("\n \n", 1, "a.txt: no numbers in there, nothing to work with"),
        ("{\n", 1, "a.txt:1: not JSON; a series is {"),
        ('{"inputs": [[1]], "targets": [[1]]}\n[]', 1, "a.txt:2: not a series, which is {"),
        ('{"inputs": 1}', 1, 'a.txt:1: "inputs" cannot be 1'),
        ('{"inputs": []}', 1, 'a.txt:1: "inputs" cannot be []'),
        ('{"inputs": [[]]}', 1, 'a.txt:1: "inputs" cannot be [[]]'),
        ('{"inputs": [[1], [2, 3]]}', 1, 'a.txt:1: "inputs" cannot be [[1], [2, 3]]'),
        ('{"inputs": [["1"]]}', 1, "a.txt:1: \"inputs\" has '1' in it, which is no number"),
        ('{"inputs": [[true]]}', 1, 'a.txt:1: "inputs" has True in it, which is no number'),
        ('{"inputs": [[NaN]]}', 1, "a.txt:1: nan is no number to compute with"),
        (f'{{"inputs": [[{"9" * 400}]]}}', 1, 'a.txt:1: "inputs" has a number in it that is beyond all bounds'),
        ('{"inputs": [[1, 2]]}', 1, "a.txt:1: 2 inputs in a step, and 1 are to be read (data.inputs)"),
        ('{"inputs": [[1]], "targets": [[1], [2]]}', 1, "a.txt:1: 1 steps of inputs and 2 of targets"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(text: str, inputs: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        series([path], inputs)
    assert str(caught.value).startswith(f"{tmp_path}/{said}")
    assert "\n" not in str(caught.value)


pieces = st.sampled_from(
    ["1", "2.5", "-", "e", "nan", "1e999", " ", "\t", "\n", "\n\n", '{"inputs": [[1', "]]}", "\x00", "٣"]
)
texts = st.one_of(st.binary(max_size=60), st.lists(pieces, max_size=40).map(lambda some: "".join(some).encode()))


@given(texts, st.integers(1, 3))
def test_whatever_the_bytes_they_are_read_or_refused(content: bytes, inputs: int) -> None:
    refusal = ""
    every: list[Series] = []
    with TemporaryDirectory() as folder:
        (Path(folder) / "a.txt").write_bytes(content)
        try:
            every = series([Path(folder) / "a.txt"], inputs)
        except UserError as error:
            refusal = str(error)
    assert "\n" not in refusal
    for one in every:
        assert one.targets is not None
        assert one.inputs.shape == (len(one.targets), inputs)
        assert np.isfinite(one.inputs).all()
        assert np.isfinite(one.targets).all()
    if every:
        examples = Examples(every, Scales.learn(every))
        assert examples.batch(np.arange(len(every))).source.isfinite().all()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(st.fixed_dictionaries({}, optional={"inputs": JSON, "targets": JSON}))
def test_whatever_json_holds_is_read_or_refused(given_: dict[str, Any]) -> None:
    said = ""
    try:
        (one,) = found(json.dumps({**given_, "more": 1}))
        assert one.inputs.shape[1] == 1
    except UserError as error:
        said = str(error)
    assert "\n" not in said


# Scales.


def test_numbers_are_scaled_by_the_training_data_and_back() -> None:
    tables = [np.array([[1.0, 10.0, 7.0], [3.0, 10.0, 7.1]]), np.array([[5.0, 10.0, 9.0]])]
    scale = Scale.of(tables)
    every = np.concatenate(tables)
    assert scale.mean == pytest.approx((3, 10, 7.7))
    assert scale.deviation == pytest.approx((np.sqrt(8 / 3), 1, every[:, 2].std()))
    standard = scale.standard(every)
    np.testing.assert_allclose(standard.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(standard.std(0), [1, 0, 1])
    np.testing.assert_allclose(scale.natural(standard), every)
    assert np.abs(scale.standard(np.full((1, 3), LARGEST))).max() == FAR


def test_scales_are_written_and_read(tmp_path: Path) -> None:
    made = Scales.learn([Series(np.array([[0.1, 2.0], [0.3, 5.0]]), np.array([[1.0], [1e-20]]))])
    made.save(tmp_path)
    assert Scales.load(tmp_path) == made
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
        with pytest.raises(UserError, match="does not have a mean and a deviation for each column"):
            Scales.load(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        Scales.load(tmp_path)


# The model.


def made(name: str = "brnn", **changes: Any) -> Any:
    """A small model in double precision, with weights large enough to tell one number from another."""
    torch.manual_seed(7)
    model = build(NAME, I, O, **{"size": SIZE, **NETWORKS[name], **changes}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    assert isinstance(model, Regressor)
    return model


def batch() -> Batch:
    generator = torch.Generator().manual_seed(3)
    source = torch.randn((B, S, I), generator=generator).double()
    wanted = torch.randn((B, S, O), generator=generator).double()
    past = (torch.arange(S) >= LENGTHS[:, None])[..., None]
    return Batch(source.masked_fill(past, 0), LENGTHS, wanted.masked_fill(past, 0))


def elman(cell: Any, inputs: Array) -> Array:
    """h_t = tanh(W x_t + U h_{t-1} + b), one step after the other."""
    W, U, b, c = (getattr(cell, name).detach().numpy() for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    h, states = np.zeros(SIZE), []
    for x in inputs:
        h = np.tanh(W @ x + b + U @ h + c)
        states.append(h)
    return np.stack(states)


def test_both_directions_are_merged_linearly() -> None:
    model, some = made("brnn-elman"), batch()
    outputs = model(some.source, some.lengths).detach().numpy()
    V_f, V_b = np.split(model.output.weight.detach().numpy(), 2, axis=1)
    total = 0.0
    for row, length in enumerate(LENGTHS.tolist()):
        x = some.source[row, :length].numpy()
        ahead, back = elman(model.network.ahead.forwards[0], x), elman(model.network.back.forwards[0], x[::-1])[::-1]
        y = ahead @ V_f.T + back @ V_b.T + model.output.bias.detach().numpy()
        np.testing.assert_allclose(outputs[row, :length], y, atol=1e-12)
        total += float(np.square(y - some.target[row, :length].numpy()).sum())
    assert model.summed(*some).item() == pytest.approx(total, rel=1e-12)
    assert int(model.count(*some)) == 12 * O == some.targets
    assert (some.rows, some.tokens) == (B, 12)


@pytest.mark.parametrize("name", NETWORKS)
def test_padding_and_batch_mates_never_matter(name: str) -> None:
    model, some = made(name), batch()
    together = model(some.source, some.lengths)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model(some.source[row : row + 1, :length], LENGTHS[row : row + 1])
        torch.testing.assert_close(together[row, :length], alone[0], rtol=1e-12, atol=1e-12)
    past = (torch.arange(S) >= LENGTHS[:, None])[..., None]
    noise = Batch(some.source.masked_fill(past, 3.0), LENGTHS, some.target.masked_fill(past, 9.0))
    torch.testing.assert_close(model.summed(*noise), model.summed(*some))
    torch.testing.assert_close(sum(model.summed(*part) for part in some.pieces(2)), model.summed(*some))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = made(name).train()
    model.summed(*batch()).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize(
    ("name", "reach"),
    [("brnn", (-9, 9)), ("rnn", (-9, 0)), ("rnn-delay", (-9, 2)), ("tdnn", (-2, 2)), ("mlp", (-3, 3))],
)
def test_how_far_each_network_sees(name: str, reach: tuple[int, int]) -> None:
    model, some = made(name), batch()
    other = some.source.clone()
    other[0, 3] += 1
    before, after = (model(x, LENGTHS)[0] for x in (some.source, other))
    seen = [bool((left != right).any()) for left, right in zip(before, after, strict=True)]
    assert seen == [reach[0] <= 3 - t <= reach[1] for t in range(S)]


def test_dropout_is_before_the_output_and_not_on_what_is_read() -> None:
    some = batch()
    for chosen in (0.0, 0.5):
        model = made(dropout=chosen).train()
        read_of: list[Tensor] = []
        model.network.register_forward_pre_hook(lambda layer, inputs, kept=read_of: kept.append(inputs[0]))
        first, second = model(some.source, LENGTHS), model(some.source, LENGTHS)
        assert torch.equal(first, second) == (chosen == 0)
        assert all(torch.equal(one, some.source) for one in read_of)


# Measures.


def test_r2_is_the_share_of_the_variance_and_of_several_outputs_the_mean() -> None:
    right, made_ = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]), np.array([[1.0, 5.0], [2.0, 6.0], [4.0, 5.0]])
    found_ = figures([right[:2], right[2:]], [made_[:2], made_[2:]])
    assert found_["rmse"] == pytest.approx(np.sqrt(2 / 6))
    assert found_["r2"] == pytest.approx(((1 - 1 / 2) + 0) / 2)
    assert figures([right[:, :1]], [right[:, :1]]) == {"rmse": 0.0, "r2": 1.0}
    assert figures([right[:, :1]], [np.full((3, 1), 2.0)])["r2"] == pytest.approx(0)


# Runs.


def drawn(seed: int, count: int) -> str:
    """Series of two inputs and two targets, in columns."""
    random = np.random.default_rng(seed)
    lots = [random.normal(3, 5, (int(random.integers(3, 12)), 2)) for _ in range(count)]
    return "\n".join(
        "".join(f"{a:.4f} {b:.4f} {a + b:.4f} {100 * (a - b):.4f}\n" for a, b in one.tolist()) for one in lots
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    for seed, name in enumerate(("train", "dev", "test")):
        (folder / f"{name}.txt").write_text(drawn(seed, 60), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "numbers"
    return package.train(NAME, corpus / "train.txt", out, dev=corpus / "dev.txt", **QUICK)


@pytest.mark.parametrize("network", ["brnn", "rnn", "tdnn", "mlp"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(network: str, corpus: Path, tmp_path: Path) -> None:
    chosen = {**QUICK, "model.network": network}
    whole = train(NAME, corpus / "train.txt", tmp_path / "whole", dev=corpus / "dev.txt", **chosen)
    train(NAME, corpus / "train.txt", tmp_path / "parts", dev=corpus / "dev.txt", **{**chosen, "training.steps": 3})
    more: dict[str, Any] = {"training.steps": 6}
    parts = train(None, None, tmp_path / "parts", resume=True, **more)
    first, second = (one.model((2, 2), 6).state_dict() for one in (whole, parts))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_series_are_held_out_by_what_they_are(corpus: Path, tmp_path: Path) -> None:
    turned = tmp_path / "turned.txt"
    blocks = (corpus / "train.txt").read_text(encoding="utf-8").strip().split("\n\n")
    turned.write_text("\n\n".join(reversed(blocks)), encoding="utf-8")

    def held(path: Path, seed: int = 1, **more: Any) -> list[str]:
        found_ = split(NumberSettings(train=(str(path),), inputs=2, **more), seed)
        assert len(found_.train) + len(found_.dev) == 60
        return sorted(str(one.inputs.tolist()) for one in found_.dev)

    assert held(corpus / "train.txt") == held(turned) != held(turned, 2)
    assert (len(held(turned)), len(held(turned, dev_series=2))) == (6, 2)


def test_long_series_are_left_out_of_training_and_only_there(corpus: Path) -> None:
    def of(longest: int) -> Split:
        return split(NumberSettings(train=(str(corpus / "train.txt"),), inputs=2, max_length=longest), 1)

    whole, cut = of(2000), of(5)
    assert max(len(one.inputs) for one in cut.train) == 5
    assert len(cut.train) + cut.too_long == len(whole.train)
    assert len(cut.dev) == len(whole.dev)
    with pytest.raises(UserError, match="no series has at most 1 steps"):
        of(1)
    with pytest.raises(UserError, match="nothing to train on"):
        split(NumberSettings(), 1)


def test_one_series_is_too_little(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 2\n", encoding="utf-8")
    with pytest.raises(UserError, match="there is one series"):
        split(NumberSettings(train=(str(tmp_path / "a.txt"),)), 1)


def test_dev_data_has_as_many_targets(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 2 3\n", encoding="utf-8")
    said = "2 numbers to read and 2 to find in the training data, not 2 and 1"
    with pytest.raises(UserError, match=said):
        train(NAME, corpus / "train.txt", tmp_path / "run", dev=tmp_path / "a.txt", **QUICK)


def test_a_loaded_run_gives_numbers_in_their_own_scale(run: Run, corpus: Path) -> None:
    follower: Follower = package.load(run.folder, device="cpu")
    every = series([corpus / "test.txt"], 2)
    made_ = follower.predict([one.inputs for one in every])
    scales = follower.scales
    for one, given_ in zip(every[:3], made_, strict=False):
        x = torch.tensor((one.inputs - np.array(scales.inputs.mean)) / np.array(scales.inputs.deviation))
        y = follower.model(x[None].float(), torch.tensor([len(x)]))[0].detach().double().numpy()
        expected = y * np.array(scales.targets.deviation) + np.array(scales.targets.mean)
        np.testing.assert_allclose(given_.outputs, expected, rtol=1e-4, atol=1e-4)
    told = follower.evaluate([corpus / "test.txt"])
    wanted = figures([one.targets for one in every if one.targets is not None], [one.outputs for one in made_])
    assert told == pytest.approx({"series": 60, "steps": sum(len(one.inputs) for one in every), **wanted})
    alone, nothing = follower.predict([every[0].inputs.tolist(), []])
    np.testing.assert_allclose(alone.outputs, made_[0].outputs, rtol=1e-4, atol=1e-4)
    assert (nothing.line(), nothing.document()) == ("", {"outputs": []})
    assert follower.predict([]) == []


@pytest.mark.parametrize(
    "wrong", [5, None, [[]], [[1.0]], [[1.0, float("nan")]], [1.0, 2.0], [["a", "b"]], [[1, 2], [3]], [[1, 10**400]]]
)
def test_a_series_that_cannot_be_read_is_refused(wrong: Any, run: Run) -> None:
    with pytest.raises(UserError, match="a series is a list of steps, each of 2 numbers"):
        package.load(run.folder).predict([wrong])


def test_evaluation_needs_as_many_targets(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 2 3\n", encoding="utf-8")
    with pytest.raises(UserError, match="has 1 targets in a step, and the model 2"):
        package.load(run.folder).evaluate([tmp_path / "a.txt"])
    with pytest.raises(UserError, match="a model that regresses works alone, not beside others"):
        package.load(run.folder, run.folder)


def test_validation_is_in_both_scales_and_leaves_the_model_as_it_was(corpus: Path) -> None:
    every = series([corpus / "dev.txt"], 2)
    scales = Scales.learn(every)
    torch.manual_seed(2)
    model = build(NAME, 2, 2, size=6, dropout=0.5).train()
    before = torch.get_rng_state()
    found_ = Validator(every, scales, 100, 10)(model, torch.device("cpu"))
    assert model.training
    assert torch.equal(before, torch.get_rng_state())
    everything = Examples(every, scales).batch(np.arange(60))
    loss = model.eval().summed(*everything) / model.count(*everything)
    assert found_.loss == pytest.approx(loss.item(), rel=1e-5)
    assert found_.score == found_.figures["r2"]
    outputs = Follower(model, scales, torch.device("cpu")).predict([one.inputs for one in every[:10]])
    gold = [one.targets for one in every[:10] if one.targets is not None]
    assert found_.figures == pytest.approx(figures(gold, [one.outputs for one in outputs]), rel=1e-4)
    assert found_.samples[0].told()["right"].split()[0].count(",") == 1
    assert found_.samples[0].picture() is not None


def test_the_report_draws_what_is_right_and_what_was_given(run: Run, regard: Command) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert page.count('<polyline class="right"') == 10, "two numbers of five series"
    assert "What it gave" in page
    assert "Dev R²" in page
    assert (run.folder / "samples" / "series-5.png").is_file()
    assert "r2" in regard("runs", run.folder).stdout


def test_the_command_line_from_training_to_numbers(corpus: Path, regard: Command, tmp_path: Path) -> None:
    keys = [f"{key}={json.dumps(value)}" for key, value in QUICK.items()]
    done = regard("train", corpus / "train.txt", "--recipe", NAME, "--out", "run", *keys)
    assert done.returncode == 0, done.stderr
    assert "regress with: regard predict run FILE" in done.stderr
    lines = regard("predict", "run", input="1 2\n3 4\n\n5 6 7 8\n").stdout.splitlines()
    assert [[step.count(",") for step in line.split()] for line in lines] == [[1, 1], [1]]
    (told,) = map(json.loads, regard("predict", "run", "--json", input='{"inputs": [[1, 2]]}').stdout.splitlines())
    assert np.array(told["outputs"]).shape == (1, 2)
    scored = json.loads(regard("evaluate", "run", corpus / "test.txt", "--json").stdout)
    assert set(scored) == {"system", "series", "steps", "rmse", "r2"}
    wrong = regard("predict", "run", input="1 2 3\n")
    assert wrong.returncode == 2
    assert "line 1: of a step this model reads 2 numbers and finds 2 more" in wrong.stderr


def test_a_run_starts_from_another_with_its_scales(corpus: Path, run: Run, tmp_path: Path) -> None:
    start: dict[str, Any] = {"training.init_from": str(run.folder), "training.steps": 1, "training.learning_rate": 0.0}
    child = train(None, corpus / "test.txt", tmp_path / "child", **start)
    assert Scales.load(child.folder / "tokenizer") == Scales.load(run.folder / "tokenizer")
    best = run.model((2, 2)).state_dict()
    assert all(torch.equal(best[name], tensor) for name, tensor in child.model((2, 2), 1).state_dict().items())


def test_the_keys_of_data_reach_the_job(corpus: Path, tmp_path: Path) -> None:
    def job(**changes: Any) -> Any:
        config = override(recipe(NAME), {**QUICK, "data.train": [str(corpus / "train.txt")], **changes})
        return TASKS["regress"].prepared(Run(tmp_path), config, False)

    assert job().sizes == (2, 2)
    assert job(**{"data.inputs": 3}).sizes == (3, 1)
    assert len(job(**{"data.dev_series": 2}).validate.gold) == 2
    assert len(job(**{"data.max_length": 5}).source) < len(job().source)
    assert job(**{"training.validate_pairs": 4}).validate.measured == 4
    assert job().about == "54 series, 6 dev series, 2 numbers to read and 2 to find in a step"


@pytest.mark.parametrize("key", ["inputs", "max_length", "dev_series"])
def test_settings_that_mean_nothing_are_refused(key: str) -> None:
    with pytest.raises(UserError, match="inputs, max_length and dev_series are at least 1"):
        parse(NumberSettings, {key: 0}, "data")


# The embedded series.


def test_the_embedded_target_is_a_sum_over_both_sides() -> None:
    x = np.random.default_rng(1).uniform(-1, 1, 50)
    for t, found_ in enumerate(target(x).tolist()):
        before = sum(x[t - d] * (1 - d / 10) / 10 for d in range(1, 11) if t >= d)
        behind = sum(x[t + d] * (1 - d / 20) / 20 for d in range(21) if t + d < 50)
        assert found_ == pytest.approx(before + behind)


def test_the_embedded_series_are_the_same_for_a_seed(tmp_path: Path) -> None:
    first, again, other = (embedded(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert first.test[0].read_bytes() == again.test[0].read_bytes() != other.test[0].read_bytes()
    lots = [series(paths, 1) for paths in (first.train, first.dev, first.test)]
    assert list(map(len, lots)) == [400, 40, 100]
    starts = [float(one.inputs[0, 0]) for one in itertools.chain(*lots)]
    assert len(set(starts)) > 530
    override(recipe(NAME), first.changes)


@pytest.mark.learn
def test_both_directions_find_what_one_cannot(tmp_path: Path) -> None:
    corpus = embedded(tmp_path / "data")
    scores = {}
    for network in ("brnn", "rnn"):
        changes = {**corpus.changes, "model.network": network}
        made_ = train(NAME, corpus.train, tmp_path / network, dev=corpus.dev, **changes)
        scores[network] = package.load(made_.folder).evaluate(corpus.test)["r2"]
    assert scores["brnn"] > 0.98
    assert scores["rnn"] < 0.7, "what lies behind is a third of the variance"
