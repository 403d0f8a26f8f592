"""A translation looked at while it is made."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import torch
from support.server import ask_in_process
from support.training import TINY, corpus_files

from regard.runs import Run
from regard.serve.settings import Settings
from regard.training import train
from regard.translate import load, trace

TEXT = "the old house"


@pytest.fixture(scope="module")
def luong(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "luong"
    few = {"training.steps": 6, "training.validate_every": 6, "training.checkpoint_every": 6}
    return train(
        "luong2015-global", corpus_files(corpus, "train"), out, dev=corpus_files(corpus, "dev"), **{**TINY, **few}
    )


@torch.inference_mode()
def test_the_attentional_vector_is_what_decides_the_token(luong: Run) -> None:
    translator = load(luong.folder)
    decoder = translator.models[0].decoder
    assert decoder.order[-1] == "h̃_t"
    steps = trace.traced(translator, TEXT, "das alte Haus")
    for step in steps:
        assert step.attentional is not None
        assert step.state is not None
        assert step.attentional.shape == step.state.shape
        chances = decoder.W_s(torch.from_numpy(step.attentional)).softmax(-1)  # type: ignore[operator]
        assert chances.topk(5).values.tolist() == pytest.approx([chance for _, chance in step.candidates], abs=1e-5)


def test_the_service_tells_it_of_models_that_have_one(luong: Run, fluent_run: Run) -> None:
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/trace", json={"q": TEXT})

    found = ask_in_process(luong.folder, Settings(), ask).json()
    assert found["order"] == ["h_t", "a_t", "c_t", "h̃_t"]
    assert found["steps"]
    for step in found["steps"]:
        assert len(step["attentional"]) == len(step["state"])
        assert all(-1 <= number <= 1 for number in step["attentional"]), "a hyperbolic tangent"
    assert {step["attentional"] for step in ask_in_process(fluent_run.folder, Settings(), ask).json()["steps"]} == {
        None
    }
