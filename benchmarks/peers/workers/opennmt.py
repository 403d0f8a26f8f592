"""OpenNMT-py."""

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

from ..works import DROPOUT, LENGTH, PAIRS, SENTENCES, SMOOTHING, TOKENS, Work
from .line import Run, serve, updating

SPECIALS = [DefaultTokens.PAD, DefaultTokens.UNK, DefaultTokens.BOS, DefaultTokens.EOS]


def made(work: Work) -> Run:
    """The work."""
    vocabulary = pyonmttok.build_vocab_from_tokens([*SPECIALS, *map(str, range(len(SPECIALS), work.sizes.words))])
    vocabularies = {"src": vocabulary, "tgt": vocabulary, "decoder_start_token": DefaultTokens.BOS}
    options = configured(work)
    model = build_base_model(options, vocabularies)
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.1, 0.1)
    if work.task == "train":
        return training(model.train(), options, vocabulary, work)
    return decoding(model.eval(), vocabularies, work)


def configured(work: Work) -> Any:
    """Its options: those of its command line, but for the sizes."""
    sizes, deep = work.sizes, work.model != "rnn"
    options = ArgumentParser.defaults(opts.model_opts, needless(opts.train_opts))
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


def needless(options: Any) -> Any:
    """Options none of which must be given."""

    def added(parser: Any) -> None:
        parser.conflict_handler = "resolve"
        options(parser)
        for action in parser._actions:
            action.required = False

    return added


def decoding(model: Any, vocabularies: Any, work: Work) -> Run:
    """Its `Translator`, without attention."""
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
    batch = {"src": work.sources()[..., None], "srclen": torch.full((SENTENCES,), LENGTH)}

    def run() -> list[int]:
        return [len(some[0]) for some in translator.translate_batch(batch, attn_debug=False)["predictions"]]

    return run


def training(model: Any, options: Any, vocabulary: Any, work: Work) -> Run:
    """Its loss and its optimizer, as its trainer calls them."""
    loss_of = LossCompute.from_opts(options, model, vocabulary)
    adam = build_torch_optimizer(model, options)
    targets = work.targets()[..., None]
    lengths = torch.full((PAIRS,), TOKENS)
    batch = {"src": work.sources()[..., None], "srclen": lengths, "tgt": targets}

    def loss() -> Any:
        output, attention = model(batch["src"], targets, lengths)
        return loss_of(batch, output, attention)[0] / work.tokens

    return updating(adam, loss)


if __name__ == "__main__":
    serve(made)
