"""Overrides that fit the papers' recipes to two CPU cores (small scale) or to one GPU and real corpora (full scale).

All models of a scale are trained alike, as far as possible, so that only the mechanisms are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.reproduce.experiment import TrainingSpec, read_recipe_cached

SCALES = ("small", "full")

SHARED_OVERRIDES: dict[str, Any] = {
    "loss.per": "token",
    "training.optimizer": "adam",
    "training.betas": [0.9, 0.98],
    "training.epsilon": 1e-8,
    "training.schedule": "cosine",
    "training.epochs": None,
    "training.clip": 1.0,
    "training.ema": 0.0,
    "training.average": 1,
    "training.patience": None,
    "training.keep": 1,
    "model.initialisation": "torch",
}
SMALL_SCALE_OVERRIDES: dict[str, Any] = {
    **SHARED_OVERRIDES,
    "text.kind": "word",
    "text.vocabulary": 350,  # a few per cent of the German words are unknown
    "text.shared": False,
    "loss.label_smoothing": 0.0,
    "model.size": 64,
    "model.layers": 1,
    "model.dropout": 0.0,
    "model.window": 3,
    "training.learning_rate": 0.008,
    "training.warmup": 40,
    "training.batch_tokens": 500,
    "training.steps": 600,
    "training.pool": 20,
    "training.validate_every": 600,
    "training.validate_pairs": 20,
    "training.checkpoint_every": 200,
    "training.log_every": 20,
    "training.tensorboard": False,
    "training.device": "cpu",
}
FULL_SCALE_OVERRIDES: dict[str, Any] = {
    **SHARED_OVERRIDES,
    "text.kind": "word",
    "text.vocabulary": 30_000,
    "text.shared": False,
    "loss.label_smoothing": 0.0,
    "model.size": 512,
    "model.layers": 2,
    "model.dropout": 0.2,
    "data.max_length": 50,
    "training.learning_rate": 0.002,
    "training.warmup": 400,
    "training.batch_tokens": 4000,
    "training.steps": 6000,  # about five epochs of the mixed corpora
    "training.validate_every": 1500,
    "training.checkpoint_every": 1500,
}
MULTI30K_OVERRIDES: dict[str, Any] = {  # for a corpus of 29,000 short pairs
    "text.kind": "bpe",
    "text.vocabulary": 6000,
    "text.shared": True,
    "text.lowercase": True,
    "loss.label_smoothing": 0.1,
    "model.size": 256,
    "model.layers": 1,
    "model.dropout": 0.3,
    "training.learning_rate": 0.003,
    "training.batch_tokens": 6000,
    "training.steps": 3000,
    "training.validate_every": 500,
    "training.checkpoint_every": 500,
}
# Transformers override some of these.
TRANSFORMER_OVERRIDES: dict[str, dict[str, Any]] = {
    "simple": {
        "model.layers": 2,
        "model.heads": 4,
        "model.feedforward": 128,
        "model.norm": "pre",
        "training.learning_rate": 0.005,
    },
    "mixed-ende": {
        "model.layers": 5,
        "model.heads": 8,
        "model.feedforward": 2048,
        "model.norm": "pre",
        "training.learning_rate": 0.001,
    },
    "multi30k": {
        "model.layers": 4,
        "model.heads": 4,
        "model.feedforward": 1024,
        "model.norm": "pre",
        "training.learning_rate": 0.002,
    },
}
OVERRIDES_BY_CORPUS = {
    "simple": SMALL_SCALE_OVERRIDES,
    "joined": {**SMALL_SCALE_OVERRIDES, "data.max_length": 100, "training.batch_tokens": 1200},
    "mixed-ende": FULL_SCALE_OVERRIDES,
    "mixed-enfr": FULL_SCALE_OVERRIDES,
    "multi30k": {**FULL_SCALE_OVERRIDES, **MULTI30K_OVERRIDES},
}


def make_translation_training(recipe: str, corpus: str, changes: Mapping[str, Any] | None = None) -> TrainingSpec:
    """Fit a translation recipe to a corpus; `changes` take precedence."""
    recipe_values = read_recipe_cached(recipe)
    transformer = TRANSFORMER_OVERRIDES.get(corpus, {}) if recipe_values["model"]["kind"] == "transformer" else {}
    overrides = {**OVERRIDES_BY_CORPUS[corpus], **transformer}
    applicable = {
        key: value for key, value in overrides.items() if key.split(".")[1] in recipe_values[key.split(".")[0]]
    }
    return TrainingSpec(recipe, corpus, {**applicable, **(changes or {})})
