"""Configuration of JoeyNMT's Transformer for a corpus of some hundred thousand pairs and a short time.

Sizes, dropout, label smoothing, norm, tied embeddings and beam are those of the configurations that it publishes for
SentencePiece (IWSLT'14, WMT'17). Three things differ from those, for the sake of a short time:

- the learning rate is at its highest, 0.001, after 1,000 updates, as with regard; theirs rises to 0.0002 over 4,000;
- a batch is 32,768 tokens with padding, not 8,192: sentences are not sorted by length, so that most of it is padding,
  and an update sees about as many target tokens as one of regard's;
- mixed precision (fp16), without clipping: JoeyNMT would clip gradients while they are scaled up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece


class StackSize(NamedTuple):
    """Size of the encoder, and of the decoder."""

    layers: int
    heads: int
    size: int
    feedforward: int


SIZES = {"tiny": StackSize(1, 2, 32, 64), "small": StackSize(6, 4, 256, 1024), "base": StackSize(6, 8, 512, 2048)}
DROPOUT = 0.1
MAX_LENGTH = 256  # subwords of a training sentence


class JoeyNmtFiles(NamedTuple):
    """Files that JoeyNMT reads and writes; `train`, `dev` and `test` are stems of one file per language."""

    folder: Path
    train: Path
    dev: Path
    test: Path
    codes: tuple[str, str]

    @property
    def sentencepiece_model(self) -> Path:
        """The SentencePiece model."""
        return self.folder / "pieces.model"

    @property
    def vocabulary_file(self) -> Path:
        """Its subwords, one per line."""
        return self.folder / "pieces.txt"

    @property
    def model_folder(self) -> Path:
        """The folder that JoeyNMT writes."""
        return self.folder / "model"


class TrainingSchedule(NamedTuple):
    """Batch size, warm-up and validation."""

    batch_tokens: int = 32_768
    warmup: int = 1000
    validate_every: int = 500
    test_batch_sentences: int = 500  # sentences that are translated together


def train_sentencepiece(files: JoeyNmtFiles, vocabulary_size: int) -> None:
    """Train one SentencePiece model for both languages."""
    sentencepiece.SentencePieceTrainer.train(
        input=[f"{files.train}.{code}" for code in files.codes],
        model_prefix=str(files.sentencepiece_model.with_suffix("")),
        model_type="bpe",
        vocab_size=vocabulary_size,
        character_coverage=1.0,
        unk_id=0,
        pad_id=1,
        bos_id=2,
        eos_id=3,
        max_sentence_length=1_000_000,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(files.sentencepiece_model))
    pieces = (processor.id_to_piece(id) for id in range(processor.get_piece_size()))
    files.vocabulary_file.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")


def make_config(files: JoeyNmtFiles, size: StackSize, schedule: TrainingSchedule, fp16: bool) -> dict[str, Any]:
    """Return the whole configuration."""
    return {
        "name": "technical",
        "joeynmt_version": "2.3.0",
        "model_dir": str(files.model_folder),
        "use_cuda": True,  # if there is one
        "fp16": fp16,
        "num_workers": 0,
        "random_seed": 42,
        "data": {
            "train": str(files.train),
            "dev": str(files.dev),
            "test": str(files.test),
            "dataset_type": "plain",
            "src": make_language_config(files, files.codes[0]),
            "trg": make_language_config(files, files.codes[1]),
        },
        "testing": {
            "n_best": 1,
            "beam_size": 5,
            "beam_alpha": 1.0,
            "batch_size": schedule.test_batch_sentences,
            "batch_type": "sentence",
            "max_output_length": -1,
            "eval_metrics": ["bleu"],
            "generate_unk": False,
            "sacrebleu_cfg": {"tokenize": "13a"},
        },
        "training": make_training_config(schedule),
        "model": {
            "initializer": "xavier_uniform",
            "bias_initializer": "zeros",
            "init_gain": 1.0,
            "embed_initializer": "xavier_uniform",
            "embed_init_gain": 1.0,
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": make_stack_config(size),
            "decoder": make_stack_config(size),
        },
    }


def make_language_config(files: JoeyNmtFiles, code: str) -> dict[str, Any]:
    """Return the section of one language."""
    return {
        "lang": code,
        "max_length": MAX_LENGTH,
        "lowercase": False,
        "normalize": False,
        "level": "bpe",
        "voc_file": str(files.vocabulary_file),
        "tokenizer_type": "sentencepiece",
        "tokenizer_cfg": {"model_file": str(files.sentencepiece_model), "pretokenizer": "none"},
    }


def make_training_config(schedule: TrainingSchedule) -> dict[str, Any]:
    """Return the `training` section; training lasts until it is stopped."""
    return {
        "optimizer": "adam",
        "adam_betas": [0.9, 0.98],
        "normalization": "tokens",
        "scheduling": "warmupinversesquareroot",
        "learning_rate": 0.001,
        "learning_rate_warmup": schedule.warmup,
        "learning_rate_min": 1e-8,  # below which it ends, in the warm-up as well
        "weight_decay": 0.0,
        "label_smoothing": 0.1,
        "loss": "crossentropy",
        "batch_size": schedule.batch_tokens,
        "batch_type": "token",
        "batch_multiplier": 1,
        "early_stopping_metric": "bleu",
        "epochs": 100_000,
        "validation_freq": schedule.validate_every,
        "logging_freq": min(100, schedule.validate_every),
        "overwrite": True,
        "shuffle": True,
        "print_valid_sents": [0],
        "keep_best_ckpts": 1,
    }


def make_stack_config(size: StackSize) -> dict[str, Any]:
    """Return the section of the encoder or the decoder."""
    return {
        "type": "transformer",
        "num_layers": size.layers,
        "num_heads": size.heads,
        "hidden_size": size.size,
        "ff_size": size.feedforward,
        "dropout": DROPOUT,
        "layer_norm": "pre",
        "activation": "relu",
        "embeddings": {"embedding_dim": size.size, "scale": True, "dropout": DROPOUT},
    }
