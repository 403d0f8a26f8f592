"""Step-by-step traces of a translation."""

from __future__ import annotations

import math
from pathlib import Path

import httpx
import pytest
import torch
from support.server import ask_in_process
from support.training import train_tiny

from regard.runs import Run
from regard.serve.settings import Settings
from regard.translate import load
from regard.translate.inspection import trace_decoding

TEXT = "the old house"


@pytest.fixture(scope="module")
def luong(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "luong"
    few = {"training.steps": 6, "training.validate_every": 6, "training.checkpoint_every": 6, "model.window": 2}
    return train_tiny("luong2015-local-p", corpus, out, **few)


@torch.inference_mode()
def test_the_traced_attentional_vector_predicts_the_candidates(luong: Run) -> None:
    translator = load(luong.folder)
    decoder = translator.models[0].decoder
    assert decoder.computation_order[-1] == "h̃_t"
    steps = trace_decoding(translator, *translator.encode_pair(TEXT, "das alte Haus"))
    for step in steps:
        assert step.attentional is not None
        assert step.state is not None
        assert step.attentional.shape == step.state.shape
        probabilities = decoder.W_s(torch.from_numpy(step.attentional)).softmax(-1)  # type: ignore[operator]
        assert probabilities.topk(5).values.tolist() == pytest.approx([p for _, p in step.candidates], abs=1e-5)


def test_the_trace_of_local_p_attention_has_window_and_gaussian_around_the_predicted_position(luong: Run) -> None:
    translator = load(luong.folder)
    source_ids, target_ids = translator.encode_pair("the old house and the dog", "das alte Haus")
    last = len(source_ids)  # the position of EOS
    for step in trace_decoding(translator, source_ids, target_ids):
        assert step.gaussian is not None
        centre, sigma = step.gaussian
        assert sigma == 1.0, "half of the window of 2 words"
        assert step.window == (max(0, math.floor(centre) - 2), min(last, math.floor(centre) + 2))
        assert step.weights is not None
        assert all(weight <= math.exp(-((s - centre) ** 2) / 2) + 1e-6 for s, weight in enumerate(step.weights))


def test_trace_endpoint_reports_attentional_vectors_of_luong_models(luong: Run, run: Run) -> None:
    async def request_trace(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/trace", json={"q": TEXT})

    found = ask_in_process(luong.folder, Settings(), request_trace).json()
    assert found["order"] == ["h_t", "a_t", "c_t", "h̃_t"]
    assert found["steps"]
    for step in found["steps"]:
        assert len(step["attentional"]) == len(step["state"])
        assert all(-1 <= number <= 1 for number in step["attentional"]), "outputs of tanh"
    assert {step["attentional"] for step in ask_in_process(run.folder, Settings(), request_trace).json()["steps"]} == {
        None
    }
