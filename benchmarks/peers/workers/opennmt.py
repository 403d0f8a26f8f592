"""Worker of OpenNMT-py."""

from __future__ import annotations

from typing import Any

import pyonmttok
import torch
from onmt import opts
from onmt.constants import DefaultTokens
from onmt.model_builder import build_base_model
from onmt.translate import GNMTGlobalScorer
from onmt.translate.translator import Translator
from onmt.utils.loss import LossCompute
from onmt.utils.optimizers import build_torch_optimizer
from onmt.utils.parse import ArgumentParser

from benchmarks.peers.workers.worker_protocol import Run, answer_requests, make_update_run
from benchmarks.peers.workloads import DROPOUT, LENGTH, PAIRS, SENTENCES, SMOOTHING, TOKENS, Workload

SPECIALS = [DefaultTokens.PAD, DefaultTokens.UNK, DefaultTokens.BOS, DefaultTokens.EOS]


def build_run(work: Workload) -> Run:
    """Return a function that runs the workload once; None if the toolkit has no such model."""
    vocabulary = pyonmttok.build_vocab_from_tokens(
        [*SPECIALS, *map(str, range(len(SPECIALS), work.sizes.vocabulary_size))]
    )
    vocabularies = {"src": vocabulary, "tgt": vocabulary, "decoder_start_token": DefaultTokens.BOS}
    options = make_options(work)
    model = build_base_model(options, vocabularies)
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.1, 0.1)
    if work.task == "train":
        return make_training_run(model.train(), options, vocabulary, work)
    return make_decoding_run(model.eval(), vocabularies, work)


def make_options(work: Workload) -> Any:
    """Return the default options of its command line with the sizes."""
    sizes, deep = work.sizes, work.model != "rnn"
    options = ArgumentParser.defaults(opts.model_opts, make_options_optional(opts.train_opts))
    kind = {"encoder_type": "transformer", "decoder_type": "transformer"} if deep else {"encoder_type": "brnn"}
    vars(options).update(
        **kind,
        layers=sizes.layers,
        hidden_size=sizes.size,
        word_vec_size=sizes.size,
        heads=sizes.heads,
        transformer_ff=sizes.feedforward,
        position_encoding=deep,
        share_embeddings=deep,
        share_decoder_embeddings=deep,
        dropout=[DROPOUT if deep else 0.0],
        attention_dropout=[0.0],
        label_smoothing=SMOOTHING if deep else 0.0,
        optim="adam",
        learning_rate=1e-6,
    )
    ArgumentParser.update_model_opts(options)
    ArgumentParser.validate_model_opts(options)
    return options


def make_options_optional(options: Any) -> Any:
    """Return the parser without required options."""

    def add_optional_options(parser: Any) -> None:
        parser.conflict_handler = "resolve"
        options(parser)
        for action in parser._actions:
            action.required = False

    return add_optional_options


def make_decoding_run(model: Any, vocabularies: Any, work: Workload) -> Run:
    """Return a decoding run of its `Translator`, without attention."""
    scorer = GNMTGlobalScorer(alpha=0.6, beta=0.0, length_penalty="wu", coverage_penalty="none")
    translator = Translator(
        model,
        vocabularies,
        beam_size=work.beam,
        min_length=LENGTH,
        max_length=LENGTH,
        global_scorer=scorer,
        dump_beam="",
        report_score=False,
    )
    batch = {"src": work.make_sources()[..., None], "srclen": torch.full((SENTENCES,), LENGTH)}

    def run() -> list[int]:
        return [len(some[0]) for some in translator.translate_batch(batch, attn_debug=False)["predictions"]]

    return run


def make_training_run(model: Any, options: Any, vocabulary: Any, work: Workload) -> Run:
    """Return a training run with its loss and its optimizer, as its trainer calls them."""
    loss_of = LossCompute.from_opts(options, model, vocabulary)
    adam = build_torch_optimizer(model, options)
    targets = work.make_targets()[..., None]
    lengths = torch.full((PAIRS,), TOKENS)
    batch = {"src": work.make_sources()[..., None], "srclen": lengths, "tgt": targets}

    def loss() -> Any:
        output, attention = model(batch["src"], targets, lengths)
        return loss_of(batch, output, attention)[0] / work.tokens

    return make_update_run(adam, loss)


if __name__ == "__main__":
    answer_requests(build_run)
