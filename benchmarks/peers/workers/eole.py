"""Worker of Eole."""

from __future__ import annotations

import logging
from typing import Any

import pyonmttok
import torch
from eole.config.run import PredictConfig, TrainConfig
from eole.constants import DefaultTokens
from eole.models.model import get_model_class
from eole.predict import GNMTGlobalScorer, Translator
from eole.utils.loss import LossCompute
from eole.utils.optimizers import build_torch_optimizer

from benchmarks.peers.workers.worker_protocol import Run, answer_requests, make_update_run
from benchmarks.peers.workloads import DROPOUT, LENGTH, PAIRS, SENTENCES, SMOOTHING, TOKENS, ModelSizes, Workload

SPECIALS = [DefaultTokens.PAD, DefaultTokens.UNK, DefaultTokens.BOS, DefaultTokens.EOS]
NAMES = {"pad_token": SPECIALS[0], "unk_token": SPECIALS[1], "bos_token": SPECIALS[2], "eos_token": SPECIALS[3]}


def build_run(work: Workload) -> Run:
    """Return a function that runs the workload once; None if the toolkit has no such model."""
    logging.disable(logging.INFO)
    vocabulary = pyonmttok.build_vocab_from_tokens(
        [*SPECIALS, *map(str, range(len(SPECIALS), work.sizes.vocabulary_size))]
    )
    vocabularies = {"src": vocabulary, "tgt": vocabulary, "decoder_start_token": SPECIALS[2], "specials": NAMES}
    config = make_config(work)
    model = get_model_class(config.model).for_training(config.model, vocabularies, config.training, device_id=-1)
    if work.task == "train":
        return make_training_run(model.train(), config, vocabularies, work)
    return make_decoding_run(model.eval(), config, vocabularies, work)


def make_config(work: Workload) -> Any:
    """Return the configuration."""
    rnn = work.model == "rnn"
    model = make_rnn_config(work.sizes) if rnn else make_transformer_config(work.sizes)
    training = {
        "dropout": [0.0 if rnn else DROPOUT],
        "attention_dropout": [0.0],
        "label_smoothing": 0.0 if rnn else SMOOTHING,
        "optim": "adam",
        "learning_rate": 1e-6,
        "log_attention_entropy": False,
    }
    return TrainConfig(src_vocab="-", tgt_vocab="-", data={}, model=model, training=training, share_vocab=not rnn)


def make_rnn_config(sizes: ModelSizes) -> dict[str, Any]:
    """Return the `model` section of the recurrent model; general score and input feeding are the defaults."""
    return {
        "architecture": "custom",
        "hidden_size": sizes.size,
        "layers": sizes.layers,
        "embeddings": {"word_vec_size": sizes.size},
        "encoder": {"encoder_type": "brnn"},
        "decoder": {"decoder_type": "rnn"},
    }


def make_transformer_config(sizes: ModelSizes) -> dict[str, Any]:
    """Return the `model` section of a Transformer."""
    return {
        "architecture": "transformer",
        "hidden_size": sizes.size,
        "layers": sizes.layers,
        "heads": sizes.heads,
        "transformer_ff": sizes.feedforward,
        "embeddings": {"word_vec_size": sizes.size, "position_encoding": True},
        "share_embeddings": True,
        "share_decoder_embeddings": True,
        "add_qkvbias": True,
        "add_final_linear_bias": True,
        "add_ffnbias": True,
    }


def make_decoding_run(model: Any, config: Any, vocabularies: Any, work: Workload) -> Run:
    """Return a decoding run of its `Translator`, without attention, with one product for queries, keys and values."""
    asked = PredictConfig(
        model_path=["-"],
        src="-",
        beam_size=work.beam,
        min_length=LENGTH,
        max_length=LENGTH,
        length_penalty="wu",
        alpha=0.6,
        fuse_kvq=work.model != "rnn",
    )
    scorer = GNMTGlobalScorer.from_config(asked)
    translator = Translator(
        model, vocabularies, asked, config.model, device_id=-1, global_scorer=scorer, report_score=False
    )
    translator.step0_time, translator.warmup_time = [], []
    batch = {"src": work.make_sources(), "srclen": torch.full((SENTENCES,), LENGTH)}

    def run() -> list[int]:
        return [len(some[0]) for some in translator.predict_batch(batch, attn_debug=False)["predictions"]]

    return run


def make_training_run(model: Any, config: Any, vocabularies: Any, work: Workload) -> Run:
    """Return a training run with its loss and its optimizer, as its trainer calls them."""
    loss_of = LossCompute.from_config(config, model, vocabularies)
    adam = build_torch_optimizer(model, config.training)
    lengths = torch.full((PAIRS,), TOKENS)
    batch = {"src": work.make_sources(), "srclen": lengths, "tgt": work.make_targets(), "cid": ["-"] * PAIRS}
    batch["cid_line_number"] = list(range(PAIRS))

    def loss() -> Any:
        output, attention, _ = model(batch["src"], batch["tgt"], lengths)
        return loss_of(batch, output, attention)[0] / work.tokens

    return make_update_run(adam, loss)


if __name__ == "__main__":
    answer_requests(build_run)
