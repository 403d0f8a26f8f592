"""Eole."""

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

from ..works import DROPOUT, LENGTH, PAIRS, SENTENCES, SMOOTHING, TOKENS, Sizes, Work
from .line import Run, serve, updating

SPECIALS = [DefaultTokens.PAD, DefaultTokens.UNK, DefaultTokens.BOS, DefaultTokens.EOS]
NAMES = {"pad_token": SPECIALS[0], "unk_token": SPECIALS[1], "bos_token": SPECIALS[2], "eos_token": SPECIALS[3]}


def made(work: Work) -> Run:
    """The work."""
    logging.disable(logging.INFO)
    vocabulary = pyonmttok.build_vocab_from_tokens([*SPECIALS, *map(str, range(len(SPECIALS), work.sizes.words))])
    vocabularies = {"src": vocabulary, "tgt": vocabulary, "decoder_start_token": SPECIALS[2], "specials": NAMES}
    config = configured(work)
    model = get_model_class(config.model).for_training(config.model, vocabularies, config.training, device_id=-1)
    if work.task == "train":
        return training(model.train(), config, vocabularies, work)
    return decoding(model.eval(), config, vocabularies, work)


def configured(work: Work) -> Any:
    """Its configuration."""
    rnn = work.model == "rnn"
    model = recurrent(work.sizes) if rnn else deep(work.sizes)
    training = {
        "dropout": [0.0 if rnn else DROPOUT],
        "attention_dropout": [0.0],
        "label_smoothing": 0.0 if rnn else SMOOTHING,
        "optim": "adam",
        "learning_rate": 1e-6,
        "log_attention_entropy": False,
    }
    return TrainConfig(src_vocab="-", tgt_vocab="-", data={}, model=model, training=training, share_vocab=not rnn)


def recurrent(sizes: Sizes) -> dict[str, Any]:
    """Its `model` section for the recurrent model; attention is general, and fed, by default."""
    return {
        "architecture": "custom",
        "hidden_size": sizes.size,
        "layers": sizes.layers,
        "embeddings": {"word_vec_size": sizes.size},
        "encoder": {"encoder_type": "brnn"},
        "decoder": {"decoder_type": "rnn"},
    }


def deep(sizes: Sizes) -> dict[str, Any]:
    """Its `model` section for a Transformer."""
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


def decoding(model: Any, config: Any, vocabularies: Any, work: Work) -> Run:
    """Its `Translator`, without attention, queries, keys and values in one product."""
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
    batch = {"src": work.sources(), "srclen": torch.full((SENTENCES,), LENGTH)}

    def run() -> list[int]:
        return [len(some[0]) for some in translator.predict_batch(batch, attn_debug=False)["predictions"]]

    return run


def training(model: Any, config: Any, vocabularies: Any, work: Work) -> Run:
    """Its loss and its optimizer, as its trainer calls them."""
    loss_of = LossCompute.from_config(config, model, vocabularies)
    adam = build_torch_optimizer(model, config.training)
    lengths = torch.full((PAIRS,), TOKENS)
    batch = {"src": work.sources(), "srclen": lengths, "tgt": work.targets(), "cid": ["-"] * PAIRS}
    batch["cid_line_number"] = list(range(PAIRS))

    def loss() -> Any:
        output, attention, _ = model(batch["src"], batch["tgt"], lengths)
        return loss_of(batch, output, attention)[0] / work.tokens

    return updating(adam, loss)


if __name__ == "__main__":
    serve(made)
