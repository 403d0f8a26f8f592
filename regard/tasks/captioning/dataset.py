"""Captioning data: encoded captions, batches of padded images, vocabulary, loss and attention metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from regard.config import Count
from regard.data.dataset import Indices, RaggedArray, Seq2SeqBatch, TrainingDataset, hash_arrays, pad_and_shift_targets
from regard.data.loader import map_batches
from regard.data.split import BaseDataSettings
from regard.models import Seq2Seq
from regard.models.base import Decoded
from regard.models.xu2015_hard import attention_entropy
from regard.special_tokens import PAD
from regard.tasks.captioning.backbone import Backbone
from regard.tasks.captioning.image_files import CaptionExample, ImageFile
from regard.tasks.captioning.preprocessing import GridShape, ImageInput, ImagePreprocessor
from regard.tokenizers.tokenizer import Tokenizer, VocabularySettings, find_units_of_text, save_tokenizer


@dataclass(frozen=True, kw_only=True)
class CaptionSettings(BaseDataSettings):
    """The `data` section of a captioning recipe: files, image size, patches, and length limits."""

    image: Count = 224
    patch: Count = 16
    features: Count | None = None
    backbone: Backbone | None = None
    max_length: Count = 50
    dev_pairs: Count = 1000

    def __post_init__(self) -> None:
        if self.patch > self.image:
            raise ValueError(f"patch must be at most image ({self.image} pixels), not {self.patch}")


GroundedTokens = Mapping[int, Sequence[int]]  # index of a token -> grid cells that it names


class CaptionVocabulary(NamedTuple):
    """Tokens of the captions, the size of the images' grid features, and how images become grids."""

    tokenizer: Tokenizer
    settings: VocabularySettings
    preprocessor: ImagePreprocessor
    features: int  # per position

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of features per position, and number of tokens."""
        return self.features, self.tokenizer.vocab_size

    def describe(self) -> str:
        """Return the number of tokens as text."""
        return f"a vocabulary of {self.tokenizer.vocab_size:,}"

    def check_features(self, grid_shape: GridShape, picture: ImageFile) -> None:
        """Raise UserError if an image has another number of features per position."""
        if grid_shape.features != self.features:
            hint = "; it is an image: extract features with `regard data features`" if grid_shape.is_pixels else ""
            raise picture.make_error(
                f"{grid_shape.features:,} features per position, but the model reads {self.features:,}{hint}"
            )

    def save(self, folder: Path) -> None:
        """Write the tokenizer into a folder."""
        save_tokenizer(self.tokenizer, self.settings, folder, "caption")


class CaptionDataset(TrainingDataset):
    """Captions in memory; images are loaded from disk batch by batch."""

    def __init__(
        self,
        examples: Sequence[CaptionExample],
        vocabulary: CaptionVocabulary,
        dropout: float = 0.0,
        max_length: int | None = None,
    ) -> None:
        """Leave out captions of more than `max_length` tokens. With BPE `dropout`, captions are segmented anew."""
        self.tokenizer = vocabulary.tokenizer
        self.preprocessor = vocabulary.preprocessor
        self.dropout = dropout
        encoded = ((example, self.tokenizer.encode(example.caption)) for example in examples)
        kept = [(example, ids) for example, ids in encoded if max_length is None or len(ids) <= max_length]
        self.left_out = {"too long": len(examples) - len(kept)}
        self.examples = [example for example, _ in kept]
        self.captions = RaggedArray.from_rows(ids for _, ids in kept)
        self.grid_shapes = [self.preprocessor.read_grid_shape(example.picture) for example in self.examples]
        self.grounded_tokens: list[GroundedTokens] = []
        for example, grid_shape in zip(self.examples, self.grid_shapes, strict=True):
            vocabulary.check_features(grid_shape, example.picture)
            self.grounded_tokens.append(find_grounded_tokens(example, grid_shape, self.tokenizer))
        num_positions = np.array([grid_shape.num_positions for grid_shape in self.grid_shapes], dtype=np.int64)
        self.sizes = np.maximum(num_positions, self.captions.lengths + 1).astype(np.int32)
        pairs = zip(self.examples, self.grid_shapes, strict=True)
        images = "".join(f"{one.digest} {shape.fingerprint()}\n" for one, shape in pairs).encode()
        captions = self.captions.values.astype(np.int64), self.captions.offsets
        self.fingerprint = hash_arrays(np.frombuffer(images, dtype=np.uint8), *captions)

    def make_batch(self, rows: Indices, seed: int = 0) -> Seq2SeqBatch:
        """Return the images and captions at `rows`; `seed` determines BPE dropout."""
        source, lengths = pad_image_inputs([self.load_image_input(int(row)) for row in rows])
        captions = self.captions
        if self.dropout:
            captions = captions.apply_bpe_dropout(rows, self.tokenizer, self.dropout, seed)
            rows = np.arange(len(rows))
        target_in, target_out = pad_and_shift_targets(captions, rows)
        return Seq2SeqBatch(source, lengths, torch.from_numpy(target_in), torch.from_numpy(target_out))

    def load_image_input(self, row: int) -> ImageInput:
        """Load and preprocess an image; raise UserError if its size has changed since training began."""
        picture = self.examples[row].picture
        image_input = self.preprocessor.preprocess(picture.load(), picture)
        found, expected = image_input.grid_shape, self.grid_shapes[row]
        if (found.num_positions, found.features) != (expected.num_positions, expected.features):
            raise picture.make_error("the image has changed since training began")
        return image_input


def pad_image_inputs(image_inputs: Sequence[ImageInput]) -> tuple[Tensor, Tensor]:
    """Return grid features (B, L, F+2), right-padded with zeros, and the number of positions of each image (B,)."""
    rows = [torch.from_numpy(image_input.position_features) for image_input in image_inputs]
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


class CaptionScores(NamedTuple):
    """Sums over the tokens of captions: −log p, attention entropy, and attention weight on named objects."""

    loss: float = 0.0
    entropy: float = 0.0
    tokens: int = 0
    on_object: float = 0.0  # attention weight on the cells that a token names
    num_grounded: int = 0  # number of tokens that name cells

    def compute_metrics(self) -> dict[str, float]:
        """Return perplexity, mean attention entropy, and the percentage of attention weight on named objects."""
        metrics = {"perplexity": math.exp(min(self.mean_loss, 100.0)), "entropy": self.entropy / max(1, self.tokens)}
        return metrics | ({"on_object": 100 * self.on_object / self.num_grounded} if self.num_grounded else {})

    @property
    def mean_loss(self) -> float:
        """Cross-entropy per token."""
        return self.loss / max(1, self.tokens)


@torch.inference_mode()
def score_captions(model: Seq2Seq, dataset: CaptionDataset, device: torch.device, batch_tokens: int) -> CaptionScores:
    """Score the reference captions with teacher forcing; the model must be in evaluation mode."""

    def score_batch(rows: Indices) -> CaptionScores:
        batch = dataset.make_batch(rows).to(device)
        decoded: Decoded = model.decoder(model.encode(batch.source, batch.lengths), batch.target_in)
        assert decoded.attended is not None
        real, weights = batch.target_out != PAD, decoded.attended.dense(batch.source.shape[1]).float()
        logits = decoded.logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD, reduction="sum")
        probabilities = decoded.attended.probabilities  # hard attention: the distribution it samples from
        entropy = attention_entropy(weights if probabilities is None else probabilities.float())
        grounded_weights = [
            float(weights[index, token, list(cells)].sum())
            for index, row in enumerate(rows.tolist())
            for token, cells in dataset.grounded_tokens[row].items()
        ]
        return CaptionScores(
            loss.item(), (entropy * real).sum().item(), int(real.sum()), sum(grounded_weights), len(grounded_weights)
        )

    batch_scores = map_batches(score_batch, dataset.sizes, batch_tokens)
    return CaptionScores(*(sum(values) for values in zip(*batch_scores, strict=True)))


def find_grounded_tokens(example: CaptionExample, grid_shape: GridShape, tokenizer: Tokenizer) -> GroundedTokens:
    """Return the tokens of a caption that name grid cells; none if the data do not say it for the model's grid."""
    if example.grounding is None or example.grounding.grid != (grid_shape.rows, grid_shape.columns):
        return {}
    caption, cells = find_units_of_text(tokenizer, example.caption), example.grounding.cells
    words_of_tokens = np.argwhere(caption.make_weights(len(caption.subwords))).tolist()
    return {token: cells[word] for token, word in words_of_tokens if word in cells}


def compute_exact_match(captions: Sequence[str], references: Sequence[Sequence[str]], tokenizer: Tokenizer) -> float:
    """Return the percentage of captions that equal a reference after tokenizing and detokenizing it."""
    matches = sum(
        text in {tokenizer.decode(tokenizer.encode(reference)) for reference in image_references}
        for text, image_references in zip(captions, references, strict=True)
    )
    return 100 * matches / max(1, len(captions))
