"""Captioning inference: beam search over images, and attention weights of each caption word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.dataset import Indices
from regard.data.readers.text import format_path, iterate_lines
from regard.errors import UserError
from regard.evaluate import bleu, chrf
from regard.evaluate.translation_metrics import choose_selection_metric, score_texts, warn_about_bleu
from regard.models import Seq2Seq
from regard.plot import AttentionOverlay, WeightedWords
from regard.search import Floats, Hypothesis, search
from regard.tasks.base import SAMPLES, Prediction, Predictor, Validation, ValidationSample, require_list
from regard.tasks.batched_inference import map_batches_in_order
from regard.tasks.captioning import caption_files
from regard.tasks.captioning.dataset import (
    CaptionDataset,
    CaptionSettings,
    compute_exact_match,
    encode_captions,
    pad_image_inputs,
    score_captions,
)
from regard.tasks.captioning.images import ARRAY_SUFFIX, IMAGE_SUFFIXES, Array, ImageFile, decode_data_url
from regard.tasks.captioning.preprocessing import (
    CropWindow,
    ImageInput,
    ImagePreprocessor,
    Pixels,
    find_common_backbone,
)
from regard.tokenizers import Tokenizer

_IMAGES_IN_MEMORY = 256


@dataclass(frozen=True)
class CaptionPrediction(Prediction):
    """A caption with the attention weights of its tokens over the image."""

    picture: ImageFile
    text: str
    score: float  # of the hypothesis, as the beam search ranks it
    tokens: Sequence[str]  # including EOS
    attention: Floats  # (tokens, rows, columns)
    pixels: Pixels | None  # preprocessed image; None if the input was features
    window: CropWindow | None  # part of the image that `pixels` show, if cropped
    preprocessor: ImagePreprocessor

    def to_text(self) -> str:
        """Return the caption."""
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return image, caption, score, tokens, and the grid of attention weights of each token."""
        return {
            "image": str(self.picture.path),
            **({} if self.picture.row is None else {"row": self.picture.row}),
            "caption": self.text,
            "score": self.score,
            "tokens": list(self.tokens),
            **({} if self.window is None else {"seen": list(self.window)}),
            "grid": list(self.attention.shape[1:]),
            "weights": self.attention.tolist(),
        }

    def make_attention_lines(self) -> list[WeightedWords]:
        """Return a line for each token: grid cells, by row and column from 1, with their attention weights."""
        rows, columns = self.attention.shape[1:]
        names = [f"{row + 1},{column + 1}" for row, column in np.ndindex(rows, columns)]
        weights = self.attention.reshape(len(self.tokens), -1)
        return [
            WeightedWords(token, names, row.tolist(), darkest_weight=float(row.max()))
            for token, row in zip(self.tokens, weights, strict=True)
        ]

    def make_image_overlay(self) -> AttentionOverlay | None:
        """Return the attention weights over the image, or over the original image of features."""
        pixels = self.pixels
        if pixels is None:
            pixels = self.preprocessor.load_original_pixels(self.picture)
        return AttentionOverlay(pixels, self.tokens, self.attention)


# A path, a JSON object that names an image, or an array of pixels or features.
ImageSource = str | Path | Mapping[str, Any] | ImageFile | Array


class CaptioningPredictor(Predictor):
    """A captioning model with its tokenizer as the vocabulary, and its image preprocessing."""

    model: Seq2Seq

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        data: CaptionSettings,
        device: torch.device,
        batch_tokens: int,
        preprocessor: ImagePreprocessor,
    ) -> None:
        """`data` are the run's settings, with `features` resolved."""
        super().__init__(model, tokenizer, data, device, batch_tokens)
        self.preprocessor = preprocessor

    def parse_lines(self, lines: Iterable[str]) -> Iterator[ImageFile]:
        """Yield images from lines: a path, or a JSON object with an image."""
        return caption_files.parse_image_lines(lines)

    def read_inputs(self, path: Path) -> Iterator[ImageFile]:
        """Yield the images of an image or .npy file, or those that the lines of a text file name."""
        if path.suffix.lower() in (ARRAY_SUFFIX, *IMAGE_SUFFIXES):
            return iter(ImageFile(path).split_rows())
        find_common_backbone([path], self.data.backbone)
        return caption_files.parse_image_lines(iterate_lines(path), path.parent, format_path(path))

    def parse_json_input(self, given: Any) -> Array:
        """Return the pixels or features of a data URL; files on this machine cannot be named."""
        return decode_data_url(given)

    def predict(self, inputs: Sequence[ImageSource], beam: int = 5) -> list[CaptionPrediction]:
        """Return a caption for each image: a path, an object as in a line of JSON, or an array."""
        pictures = [_to_image_file(source) for source in require_list(inputs, "image")]
        image_inputs = [
            self._preprocess_image(source if isinstance(source, np.ndarray) else picture.load(), picture)
            for source, picture in zip(inputs, pictures, strict=True)
        ]

        def search_rows(rows: Indices) -> list[Hypothesis]:
            return self.run_batch(pad_image_inputs([image_inputs[row] for row in rows.tolist()]), beam)

        sizes = np.array([image_input.grid_shape.num_positions for image_input in image_inputs], dtype=np.int64)
        hypotheses = map_batches_in_order(search_rows, sizes, self.batch_tokens)
        return [self._make_prediction(*fields) for fields in zip(pictures, image_inputs, hypotheses, strict=True)]

    def run_batch(self, batch: tuple[Tensor, Tensor], beam: int = 5) -> list[Hypothesis]:
        """Return the best caption of each image of a batch, as `pad_image_inputs` makes it."""
        source, lengths = (part.to(self.device) for part in batch)
        nbest_lists = search(self.model, source, lengths, beam=beam, max_length=self.data.max_length + 1)
        return [hypotheses[0] for hypotheses in nbest_lists]

    def caption_images(self, pictures: Sequence[ImageFile], beam: int = 5) -> list[CaptionPrediction]:
        """Return a caption for each image; only some images are in memory at a time."""
        slices = (pictures[start : start + _IMAGES_IN_MEMORY] for start in range(0, len(pictures), _IMAGES_IN_MEMORY))
        return [prediction for batch in slices for prediction in self.predict(batch, beam)]

    def _preprocess_image(self, array: Array, picture: ImageFile) -> ImageInput:
        """Preprocess an image; raise UserError if its features per position are not those of training."""
        image_input = self.preprocessor.preprocess(array, picture)
        if image_input.grid_shape.features != self.data.features:
            hint = "; it is an image, and the run does not say which network extracts its features"
            raise picture.make_error(
                f"{image_input.grid_shape.features:,} features per position, but the model "
                f"reads {self.data.features:,}{hint if image_input.grid_shape.is_pixels else ''}"
            )
        return image_input

    def _make_prediction(
        self, picture: ImageFile, image_input: ImageInput, hypothesis: Hypothesis
    ) -> CaptionPrediction:
        """Convert a hypothesis to text and a grid of attention weights."""
        assert hypothesis.attention is not None
        grid_shape = image_input.grid_shape
        return CaptionPrediction(
            picture,
            self.vocabulary.decode(hypothesis.tokens),
            hypothesis.score,
            self.vocabulary.convert_ids_to_tokens(hypothesis.tokens),
            hypothesis.attention.reshape(len(hypothesis.tokens), grid_shape.rows, grid_shape.columns),
            image_input.pixels,
            image_input.window,
            self.preprocessor,
        )

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Return multi-reference BLEU and chrF, exact matches, loss, perplexity, and attention metrics."""
        find_common_backbone(paths, self.data.backbone)
        examples = list(caption_files.read_captions(paths))
        if not examples:
            raise UserError(f"{' and '.join(map(str, paths))}: no captions to score on")
        groups = caption_files.group_captions_by_image(examples)
        references, texts = list(groups.values()), [one.text for one in self.caption_images(list(groups))]
        encoded = encode_captions(examples, self.preprocessor, self.vocabulary, self.data.features)
        dataset = CaptionDataset(encoded, self.preprocessor)
        scores = score_captions(self.model, dataset, self.device, self.batch_tokens)
        warn_about_bleu([caption for captions in references for caption in captions])
        bleu_score = bleu(texts, references, self.vocabulary.lowercase)
        chrf_score = chrf(texts, references, self.vocabulary.lowercase)
        return {
            "images": len(groups),
            "captions": len(examples),
            "bleu": bleu_score.value,
            "chrf": chrf_score.value,
            "bleu_signature": bleu_score.signature,
            "chrf_signature": chrf_score.signature,
            "exact": compute_exact_match(texts, references, self.vocabulary),
            "loss": scores.mean_loss,
            **scores.compute_metrics(),
        }

    def validate(
        self, examples: Sequence[caption_files.CaptionExample], dataset: CaptionDataset, max_measured: int
    ) -> Validation:
        """Return the cross-entropy of all dev captions, and metrics of greedy captions of `max_measured` images.

        Captions are scored against all references of their image. BLEU chooses the best checkpoint, or chrF if the
        references are in a script without spaces between words.
        """
        groups = caption_files.group_captions_by_image(examples, max_measured)
        references, predictions = list(groups.values()), self.caption_images(list(groups), beam=1)
        texts = [prediction.text for prediction in predictions]
        selection_metric = choose_selection_metric([caption for captions in references for caption in captions])
        scores = score_captions(self.model, dataset, self.device, self.batch_tokens)
        metrics = score_texts(texts, references, selection_metric, self.vocabulary.lowercase)
        metrics["exact"] = compute_exact_match(texts, references, self.vocabulary)
        samples = [
            ValidationSample({"image": one.picture.name, "right": " / ".join(captions), "caption": one.text}, one.plot)
            for one, captions in zip(predictions[:SAMPLES], references, strict=False)
        ]
        return Validation(scores.mean_loss, metrics | scores.compute_metrics(), selection_metric, samples)


def _to_image_file(source: ImageSource) -> ImageFile:
    if isinstance(source, ImageFile):
        return source
    if isinstance(source, np.ndarray):
        return ImageFile(Path("array"))
    return caption_files.parse_image(source) if isinstance(source, Mapping) else ImageFile(Path(source))
