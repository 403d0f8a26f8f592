"""Pictures with their encoded captions to train on, and their batches."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import parse_settings
from regard.data.batch import Seq2SeqBatch, pad_and_shift_targets
from regard.data.indexed_dataset import Indices, RaggedArray
from regard.data.sampler import DatasetPart
from regard.models import Decoded, Seq2Seq
from regard.models.xu2015_hard import attention_entropy
from regard.runs import Run
from regard.special_tokens import PAD
from regard.tasks.base import map_batches
from regard.tasks.captioning.caption_files import CaptionExample
from regard.tasks.captioning.images import ImageFile
from regard.tasks.captioning.preprocessing import GridShape, ImageInput, ImagePreprocessor
from regard.tokenizers import Tokenizer, VocabularySettings, load_tokenizer, make_vocabulary_file_name, train_tokenizer


class EncodedCaption(NamedTuple):
    """A picture, the places that it has, the ids of a caption, and a digest of the picture."""

    picture: ImageFile
    grid_shape: GridShape
    caption: Sequence[int]
    digest: str = ""


class CaptionDataset:
    """Captions in memory; pictures are read, batch by batch, from where they are."""

    parts: Sequence[DatasetPart] = ()

    def __init__(
        self,
        encoded: Sequence[EncodedCaption],
        preprocessor: ImagePreprocessor,
        tokenizer: Tokenizer | None = None,
        dropout: float = 0.0,
    ) -> None:
        """With `dropout`, which is BPE's, the words of each batch are cut by `tokenizer` into other pieces."""
        self.image_files = [one.picture for one in encoded]
        self.grid_shapes = [one.grid_shape for one in encoded]
        self.captions = RaggedArray.from_rows(one.caption for one in encoded)
        self.preprocessor = preprocessor
        self.tokenizer = tokenizer if dropout else None
        self.dropout = dropout
        num_positions = np.array([one.grid_shape.num_positions for one in encoded], dtype=np.int64)
        self.sizes = np.maximum(num_positions, self.captions.lengths + 1).astype(np.int32)
        found = hashlib.sha256("".join(f"{one.digest} {one.grid_shape.fingerprint()}\n" for one in encoded).encode())
        found.update(np.ascontiguousarray(self.captions.values, dtype=np.int64).tobytes())
        found.update(self.captions.offsets.tobytes())
        self.fingerprint = found.hexdigest()

    def __len__(self) -> int:
        return len(self.image_files)

    def make_batch(self, rows: Indices, seed: int = 0) -> Seq2SeqBatch:
        """The pictures and captions at `rows`; with dropout, as the seed has it."""
        source, lengths = pad_image_inputs([self.load_image_input(int(row)) for row in rows])
        if self.tokenizer is None:
            before, after = pad_and_shift_targets(self.captions, rows)
        else:
            some = [self.captions[int(row)].tolist() for row in rows]
            other = RaggedArray.from_rows(self.tokenizer.apply_bpe_dropout(some, self.dropout, seed))
            before, after = pad_and_shift_targets(other, np.arange(len(rows)))
        return Seq2SeqBatch(source, lengths, torch.from_numpy(before), torch.from_numpy(after))

    def load_image_input(self, row: int) -> ImageInput:
        """What is seen of a picture, which is still as large as it was."""
        picture = self.image_files[row]
        seen = self.preprocessor.preprocess(picture.load(), picture)
        known = self.grid_shapes[row]
        if (seen.grid_shape.num_positions, seen.grid_shape.features) != (known.num_positions, known.features):
            raise picture.make_error("it is not the picture that it was when training began")
        return seen

    def release_memory(self) -> None:
        """Pictures are not kept."""


def pad_image_inputs(image_inputs: Sequence[ImageInput]) -> tuple[Tensor, Tensor]:
    """Places B,L,F+2, right-padded with zeros, and how many each picture has B."""
    lengths = [len(one.position_features) for one in image_inputs]
    table = np.zeros((len(image_inputs), max(lengths), image_inputs[0].position_features.shape[1]), dtype=np.float32)
    for row, (one, length) in enumerate(zip(image_inputs, lengths, strict=True)):
        table[row, :length] = one.position_features
    return torch.from_numpy(table), torch.tensor(lengths)


GroundedTokens = Mapping[int, Sequence[int]]  # the number of a token: the cells that it names


class CaptionScores(NamedTuple):
    """Sums over captions: −log p, the entropy of the looks, and the tokens that both are of; and looks at objects."""

    loss: float = 0.0
    entropy: float = 0.0
    tokens: int = 0
    on_object: float = 0.0  # weight on the cells that a token names …
    num_grounded: int = 0  # … and tokens that name any

    def compute_metrics(self) -> dict[str, float]:
        """The means: how unsure the looks are, and how many of a hundred parts lie where they should."""
        found = {"perplexity": math.exp(min(self.mean_loss, 100.0)), "entropy": self.entropy / max(1, self.tokens)}
        return found | ({"on_object": 100 * self.on_object / self.num_grounded} if self.num_grounded else {})

    @property
    def mean_loss(self) -> float:
        """Cross-entropy per token."""
        return self.loss / max(1, self.tokens)


@torch.inference_mode()
def score_captions(
    model: Seq2Seq,
    dataset: CaptionDataset,
    grounded_tokens: Sequence[GroundedTokens],
    device: torch.device,
    batch_tokens: int,
) -> CaptionScores:
    """What a model that is not being trained thinks of the captions."""

    def score_batch(rows: Indices) -> CaptionScores:
        batch = dataset.make_batch(rows).to(device)
        decoded: Decoded = model.decoder(model.encode(batch.source, batch.lengths), batch.target_in)
        assert decoded.attended is not None
        real, weights = batch.target_out != PAD, decoded.attended.dense(batch.source.shape[1]).float()
        logits = decoded.logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD, reduction="sum")
        drawn_from = decoded.attended.probabilities  # where one place alone has the weight
        unsure = attention_entropy(weights if drawn_from is None else drawn_from.float())
        grounded_weights = [
            float(weights[index, token, list(cells)].sum())
            for index, row in enumerate(rows.tolist())
            for token, cells in grounded_tokens[row].items()
        ]
        return CaptionScores(
            loss.item(), (unsure * real).sum().item(), int(real.sum()), sum(grounded_weights), len(grounded_weights)
        )

    found = map_batches(score_batch, dataset.sizes, batch_tokens)
    return CaptionScores(*(sum(figures) for figures in zip(*found, strict=True)))


_VOCABULARY_NAME = "caption"


def learn_caption_vocabulary(examples: Sequence[CaptionExample], settings: VocabularySettings) -> Tokenizer:
    """A vocabulary of captions."""
    lines = [" ".join(one.caption.split()) for one in examples]
    return train_tokenizer(settings, lambda: lines)


def save_caption_vocabulary(tokenizer: Tokenizer, settings: VocabularySettings, folder: Path) -> None:
    """Writes it into a folder."""
    tokenizer.save(folder / make_vocabulary_file_name(_VOCABULARY_NAME, settings))


def load_caption_vocabulary(run: Run) -> Tokenizer:
    """That of a run."""
    settings = parse_settings(VocabularySettings, run.read_config()["text"], "text")
    return load_tokenizer(settings, run.folder / "tokenizer" / make_vocabulary_file_name(_VOCABULARY_NAME, settings))


def encode_captions(
    examples: Sequence[CaptionExample],
    preprocessor: ImagePreprocessor,
    tokenizer: Tokenizer,
    features: int | None,
    digests: Sequence[str] = (),
) -> list[EncodedCaption]:
    """Examples whose places have so many features each, or as many as those of the first, with their captions' ids."""
    found: list[EncodedCaption] = []
    for number, one in enumerate(examples):
        grid_shape = preprocessor.compute_grid_shape(*one.picture.read_shape_and_dtype(), one.picture.display_name)
        features = features or grid_shape.features
        if grid_shape.features != features:
            image = (
                "; it is an image, and `regard data features` makes features of images" if grid_shape.is_pixels else ""
            )
            raise one.picture.make_error(
                f"{grid_shape.features:,} numbers for each place, and the others have {features:,}{image}"
            )
        digest = digests[number] if digests else ""
        found.append(EncodedCaption(one.picture, grid_shape, tokenizer.encode(one.caption), digest))
    return found


def find_grounded_tokens(
    examples: Sequence[CaptionExample], dataset: CaptionDataset, tokenizer: Tokenizer
) -> list[GroundedTokens]:
    """Which tokens of each caption name which cells, where that is known."""
    return [_find_tokens_of_caption(one, dataset, row, tokenizer) for row, one in enumerate(examples)]


def _find_tokens_of_caption(
    example: CaptionExample, dataset: CaptionDataset, row: int, tokenizer: Tokenizer
) -> GroundedTokens:
    """Those of one caption, if its cells are of the grid that the model looks at."""
    grid_shape = dataset.grid_shapes[row]
    if example.grounding is None or example.grounding.grid != (grid_shape.rows, grid_shape.columns):
        return {}
    _, words = tokenizer.encode_with_word_ids(example.caption)
    cells = example.grounding.cells
    return {token: cells[word] for token, word in enumerate(words) if word in cells}


def compute_exact_match(captions: Sequence[str], references: Sequence[Sequence[str]], tokenizer: Tokenizer) -> float:
    """How many of a hundred captions are one of the references, as far as the vocabulary can write it."""
    right = sum(
        text in {tokenizer.decode(tokenizer.encode(one)) for one in some}
        for text, some in zip(captions, references, strict=True)
    )
    return 100 * right / max(1, len(captions))
