"""Captioning data: encoded captions, batches of padded images, vocabulary, loss and attention metrics."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from regard.config import parse_settings
from regard.data.dataset import Indices, RaggedArray, Seq2SeqBatch, TrainingDataset, pad_and_shift_targets
from regard.data.settings import BaseDataSettings
from regard.models import Decoded, Seq2Seq
from regard.models.xu2015_hard import attention_entropy
from regard.runs import Run
from regard.special_tokens import PAD
from regard.tasks.batched_inference import map_batches
from regard.tasks.captioning.caption_files import CaptionExample
from regard.tasks.captioning.images import ImageFile
from regard.tasks.captioning.preprocessing import Backbone, GridShape, ImageInput, ImagePreprocessor
from regard.tokenizers import Tokenizer, VocabularySettings, load_tokenizer, make_vocabulary_file_name, train_tokenizer


@dataclass(frozen=True, kw_only=True)
class CaptionSettings(BaseDataSettings):
    """The `data` section of a captioning recipe: files, image size, patches, and length limits."""

    image: int = 224
    patch: int = 16
    features: int | None = None
    backbone: Backbone | None = None
    max_length: int = 50
    dev_pairs: int = 1000

    def __post_init__(self) -> None:
        for name in ("image", "patch", "features", "max_length", "dev_pairs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, not {value}")
        if self.patch > self.image:
            raise ValueError(f"patch must be at most image ({self.image} pixels), not {self.patch}")


GroundedTokens = Mapping[int, Sequence[int]]  # index of a token -> grid cells that it names


class EncodedCaption(NamedTuple):
    """An image file, the shape of its grid, the token ids of a caption, a digest of the image, and grounded tokens."""

    picture: ImageFile
    grid_shape: GridShape
    caption: Sequence[int]
    digest: str = ""
    grounded_tokens: GroundedTokens = MappingProxyType({})


class CaptionDataset(TrainingDataset):
    """Captions in memory; images are loaded from disk batch by batch."""

    def __init__(
        self,
        encoded: Sequence[EncodedCaption],
        preprocessor: ImagePreprocessor,
        tokenizer: Tokenizer | None = None,
        dropout: float = 0.0,
    ) -> None:
        """With BPE `dropout`, `tokenizer` segments the captions of each batch anew."""
        self.image_files = [example.picture for example in encoded]
        self.grid_shapes = [example.grid_shape for example in encoded]
        self.grounded_tokens = [example.grounded_tokens for example in encoded]
        self.captions = RaggedArray.from_rows(example.caption for example in encoded)
        self.preprocessor = preprocessor
        self.tokenizer = tokenizer if dropout else None
        self.dropout = dropout
        num_positions = np.array([example.grid_shape.num_positions for example in encoded], dtype=np.int64)
        self.sizes = np.maximum(num_positions, self.captions.lengths + 1).astype(np.int32)
        digest = hashlib.sha256(
            "".join(f"{example.digest} {example.grid_shape.fingerprint()}\n" for example in encoded).encode()
        )
        digest.update(np.ascontiguousarray(self.captions.values, dtype=np.int64).tobytes())
        digest.update(self.captions.offsets.tobytes())
        self.fingerprint = digest.hexdigest()

    def make_batch(self, rows: Indices, seed: int = 0) -> Seq2SeqBatch:
        """Return the images and captions at `rows`; `seed` determines BPE dropout."""
        source, lengths = pad_image_inputs([self.load_image_input(int(row)) for row in rows])
        if self.tokenizer is None:
            target_in, target_out = pad_and_shift_targets(self.captions, rows)
        else:
            captions = [self.captions[int(row)].tolist() for row in rows]
            resegmented = RaggedArray.from_rows(self.tokenizer.apply_bpe_dropout(captions, self.dropout, seed))
            target_in, target_out = pad_and_shift_targets(resegmented, np.arange(len(rows)))
        return Seq2SeqBatch(source, lengths, torch.from_numpy(target_in), torch.from_numpy(target_out))

    def load_image_input(self, row: int) -> ImageInput:
        """Load and preprocess an image; raise UserError if its size has changed since training began."""
        picture = self.image_files[row]
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


_VOCABULARY_NAME = "caption"


def learn_caption_vocabulary(examples: Sequence[CaptionExample], settings: VocabularySettings) -> Tokenizer:
    """Train a tokenizer on captions."""
    lines = [" ".join(example.caption.split()) for example in examples]
    return train_tokenizer(settings, lambda: lines)


def save_caption_vocabulary(tokenizer: Tokenizer, settings: VocabularySettings, folder: Path) -> None:
    """Write the tokenizer into a folder."""
    tokenizer.save(folder / make_vocabulary_file_name(_VOCABULARY_NAME, settings))


def load_caption_vocabulary(run: Run) -> Tokenizer:
    """Load the tokenizer of a run."""
    settings = parse_settings(VocabularySettings, run.read_config()["text"], "text")
    return load_tokenizer(settings, run.folder / "tokenizer" / make_vocabulary_file_name(_VOCABULARY_NAME, settings))


def encode_captions(
    examples: Sequence[CaptionExample],
    preprocessor: ImagePreprocessor,
    tokenizer: Tokenizer,
    features: int | None,
) -> list[EncodedCaption]:
    """Encode captions and check that all images have the same number of features per position.

    Args:
        examples: Images with captions.
        preprocessor: Gives the grid shape of an image.
        tokenizer: Encodes the captions.
        features: Expected features per position; None: as many as the first image has.
    """
    encoded: list[EncodedCaption] = []
    for example in examples:
        grid_shape = preprocessor.compute_grid_shape(
            *example.picture.read_shape_and_dtype(), example.picture.display_name
        )
        features = features or grid_shape.features
        if grid_shape.features != features:
            hint = "; it is an image: extract features with `regard data features`" if grid_shape.is_pixels else ""
            raise example.picture.make_error(
                f"{grid_shape.features:,} features per position, but the others have {features:,}{hint}"
            )
        grounded_tokens = find_grounded_tokens(example, grid_shape, tokenizer)
        caption = tokenizer.encode(example.caption)
        encoded.append(EncodedCaption(example.picture, grid_shape, caption, example.digest, grounded_tokens))
    return encoded


def find_grounded_tokens(example: CaptionExample, grid_shape: GridShape, tokenizer: Tokenizer) -> GroundedTokens:
    """Return the tokens of a caption that name grid cells; none if the data do not say it for the model's grid."""
    if example.grounding is None or example.grounding.grid != (grid_shape.rows, grid_shape.columns):
        return {}
    _, words = tokenizer.encode_with_word_ids(example.caption)
    cells = example.grounding.cells
    return {token: cells[word] for token, word in enumerate(words) if word in cells}


def compute_exact_match(captions: Sequence[str], references: Sequence[Sequence[str]], tokenizer: Tokenizer) -> float:
    """Return the percentage of captions that equal a reference after tokenizing and detokenizing it."""
    matches = sum(
        text in {tokenizer.decode(tokenizer.encode(reference)) for reference in image_references}
        for text, image_references in zip(captions, references, strict=True)
    )
    return 100 * matches / max(1, len(captions))
