"""The captioning task: captions by beam search with attention weights over the image, metrics, data preparation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config import parse_settings
from regard.data.dataset import Indices
from regard.data.loader import map_batches_in_order
from regard.data.readers.text import Pair, format_path, iterate_lines
from regard.errors import UserError
from regard.evaluate.translation_metrics import ValidationScorer, bleu, choose_tokenizer, chrf
from regard.models import Seq2Seq
from regard.models.hypothesis import Floats
from regard.plot.attention_overlay import AttentionOverlay, WeightedWords
from regard.recipes.recipe import RunConfig
from regard.runs import Run
from regard.search import Hypothesis, search
from regard.synthetic.corpora import write_captioning_corpus
from regard.tasks.base import (
    SAMPLES,
    DevExample,
    InMemoryTask,
    Prediction,
    Predictor,
    Split,
    Validation,
    ValidationSample,
    require_list,
)
from regard.tasks.captioning.backbone import Backbone, CropWindow, find_common_backbone
from regard.tasks.captioning.dataset import (
    CaptionDataset,
    CaptionSettings,
    CaptionVocabulary,
    compute_exact_match,
    pad_image_inputs,
    score_captions,
)
from regard.tasks.captioning.image_files import (
    KNOWN_SUFFIXES,
    Array,
    CaptionExample,
    ImageFile,
    Pixels,
    add_image_digests,
    decode_data_url,
    group_captions_by_image,
    parse_image,
    parse_image_lines,
    read_captions,
)
from regard.tasks.captioning.preprocessing import ImageInput, ImagePreprocessor
from regard.tokenizers.tokenizer import Tokenizer, VocabularySettings, load_tokenizer, train_tokenizer

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

    nouns = "captions"
    dataset = CaptionDataset
    model: Seq2Seq
    vocabulary: CaptionVocabulary
    tokenize = "auto"  # sacreBLEU's tokenizer for BLEU
    best = "score"  # the setting `training.best`

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the captions."""
        return self.vocabulary.tokenizer

    def parse_lines(self, lines: Iterable[str], name: str = "") -> Iterator[ImageFile]:
        """Yield images from lines: a path, or a JSON object with an image."""
        return parse_image_lines(lines, name=name)

    def read_inputs(self, path: Path) -> Iterator[ImageFile]:
        """Yield the images of an image or .npy file, or those that the lines of a text file name."""
        if path.suffix.lower() in KNOWN_SUFFIXES:
            return iter(ImageFile(path).split_rows())
        find_common_backbone([path], self.data.backbone)
        return parse_image_lines(iterate_lines(path), path.parent, format_path(path))

    def parse_json_input(self, given: Any) -> Array:
        """Return the pixels or features of a data URL; files on this machine cannot be named."""
        return decode_data_url(given)

    @classmethod
    def iterate_examples(cls, paths: Sequence[Path], data: CaptionSettings) -> list[CaptionExample]:
        """Return captions with digests of their images; those without text come last, and their images are not read."""
        captions = list(read_captions(paths))
        usable = list(filter(cls.is_usable, captions))
        return [*add_image_digests(usable), *filterfalse(cls.is_usable, captions)]

    @classmethod
    def is_usable(cls, example: CaptionExample) -> bool:
        """Return whether the caption is not empty."""
        return bool(example.caption.strip())

    def predict(self, inputs: Sequence[ImageSource], beam: int = 5) -> list[CaptionPrediction]:
        """Return a caption for each image: a path, an object as in a line of JSON, or an array."""
        pictures = [_to_image_file(source) for source in require_list(inputs, "image")]
        image_inputs = []
        for source, picture in zip(inputs, pictures, strict=True):
            array = source if isinstance(source, np.ndarray) else picture.load()
            image_inputs.append(self.vocabulary.preprocessor.preprocess(array, picture))
            self.vocabulary.check_features(image_inputs[-1].grid_shape, picture)

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

    def _make_prediction(self, picture: ImageFile, image_input: ImageInput, best: Hypothesis) -> CaptionPrediction:
        """Convert a hypothesis to text and a grid of attention weights."""
        assert best.attention is not None
        grid_shape = image_input.grid_shape
        return CaptionPrediction(
            picture,
            self.tokenizer.decode(best.tokens),
            best.score,
            self.tokenizer.convert_ids_to_tokens(best.tokens),
            best.attention.reshape(len(best.tokens), grid_shape.rows, grid_shape.columns),
            image_input.pixels,
            image_input.window,
            self.vocabulary.preprocessor,
        )

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Return multi-reference BLEU and chrF, exact matches, loss, perplexity, and attention metrics."""
        find_common_backbone(paths, self.data.backbone)
        examples, dataset = self.encode(self.read_examples(paths, self.data, "score on"), self.vocabulary)
        groups = group_captions_by_image(examples)
        references, texts = list(groups.values()), [one.text for one in self.caption_images(list(groups))]
        scores = score_captions(self.model, dataset, self.device, self.batch_tokens)
        tokenize = choose_tokenizer(references, requested=self.tokenize)
        bleu_score = bleu(texts, references, self.tokenizer.lowercase, tokenize)
        chrf_score = chrf(texts, references, self.tokenizer.lowercase)
        return {
            "images": len(groups),
            "captions": len(examples),
            "bleu": bleu_score.value,
            "chrf": chrf_score.value,
            "bleu_signature": bleu_score.signature,
            "chrf_signature": chrf_score.signature,
            "exact": compute_exact_match(texts, references, self.tokenizer),
            "loss": scores.mean_loss,
            **scores.compute_metrics(),
        }

    def validate(self, examples: Sequence[CaptionExample], dataset: CaptionDataset, max_measured: int) -> Validation:
        """Return the cross-entropy of all dev captions, and metrics of greedy captions of `max_measured` images.

        Captions are scored against all references of their image.
        """
        groups = group_captions_by_image(examples, max_measured)
        references, predictions = list(groups.values()), self.caption_images(list(groups), beam=1)
        texts = [prediction.text for prediction in predictions]
        scorer = ValidationScorer(references, None, self.tokenize, self.best, self.tokenizer.lowercase)
        scores = score_captions(self.model, dataset, self.device, self.batch_tokens)
        metrics = scorer.score(texts)
        metrics["exact"] = compute_exact_match(texts, references, self.tokenizer)
        samples = [
            ValidationSample({"image": one.picture.name, "right": " / ".join(captions), "caption": one.text}, one.plot)
            for one, captions in zip(predictions[:SAMPLES], references, strict=False)
        ]
        return Validation(scores.mean_loss, metrics | scores.compute_metrics(), scorer.selection_metric, samples)


def _to_image_file(source: ImageSource) -> ImageFile:
    if isinstance(source, ImageFile):
        return source
    if isinstance(source, np.ndarray):
        return ImageFile(Path("array"))
    return parse_image(source) if isinstance(source, Mapping) else ImageFile(Path(source))


class CaptioningTask(InMemoryTask[CaptionExample]):
    """Describe images."""

    verb = "captions"
    demo_recipe = "xu2015-soft-caption"
    data_settings = CaptionSettings
    text_settings = VocabularySettings
    writes_text = True
    predictor = CaptioningPredictor
    too_few = "all captions are of one image"
    dev_limit = "dev_pairs"
    data_hint = 'a file of captions, {"image": "path", "caption": "…"} a line'
    write_synthetic_corpus = staticmethod(write_captioning_corpus)

    def make_split_pair(self, example: CaptionExample) -> Pair:
        """Return (image digest, caption), so that the dev set is split by image."""
        return Pair(example.digest, example.caption)

    def learn_vocabulary(self, split: Split[CaptionExample], config: RunConfig) -> CaptionVocabulary:
        """Train a tokenizer on the captions; the first image gives the features per position."""
        lines = [" ".join(example.caption.split()) for example in split.train]
        preprocessor = _make_preprocessor(config)
        features = config.data.features or preprocessor.read_grid_shape(split.train[0].picture).features
        return CaptionVocabulary(train_tokenizer(config.text, lambda: lines), config.text, preprocessor, features)

    def load_vocabulary(self, run: Run, config: RunConfig) -> CaptionVocabulary:
        """Load the tokenizer of a run, and the features per position."""
        features = config.data.features or _read_data_settings(run).features
        if features is None:
            raise UserError(f"{run.folder}: data.features, the features per position, is missing from its config")
        settings = parse_settings(VocabularySettings, run.read_config()["text"], "text")
        tokenizer = load_tokenizer(settings, run.folder / "tokenizer", "caption")
        return CaptionVocabulary(tokenizer, config.text, _make_preprocessor(config), features)

    def make_training_set(
        self, split: Split[CaptionExample], vocabulary: CaptionVocabulary, config: RunConfig
    ) -> CaptionDataset:
        """Return the encoded captions that are short enough."""
        max_length = config.data.max_length
        dataset = CaptionDataset(split.train, vocabulary, config.text.dropout, max_length)
        if not len(dataset):
            raise UserError(
                f"no caption is left to train on: all {len(split.train):,} have more than {max_length:,} tokens "
                "(data.max_length)"
            )
        return dataset

    def resolve_config(
        self, config: RunConfig, split: Split[CaptionExample], dataset: CaptionDataset, parent: Run | None
    ) -> RunConfig:
        """Return the config with features and backbone of the images; log the metric that chooses the best model."""
        has_pixels = dataset.grid_shapes[0].is_pixels
        backbone = None if has_pixels else _find_feature_backbone(config.data, parent)
        references = list(group_captions_by_image(split.dev, config.training.validate_pairs).values())
        best = config.training.best
        scorer = ValidationScorer(references, None, config.evaluation.tokenize, best, config.text.lowercase)
        scorer.log_choice(best)
        return config.override(
            {
                "evaluation.tokenize": scorer.tokenizer,
                "data.features": dataset.grid_shapes[0].features,
                "data.backbone": None if backbone is None else backbone.to_dict(),
                "model.backbone": _choose_model_backbone(config.model["backbone"], dataset),
            }
        )

    def describe_training_set(self, split: Split[CaptionExample], dataset: CaptionDataset) -> list[str]:
        """Return the number of images."""
        return [f"{len({example.digest for example in dataset.examples}):,} images"]

    def make_predictor(
        self, vocabulary: CaptionVocabulary, config: RunConfig, model: Any, device: torch.device
    ) -> Predictor:
        """Return a predictor that passes images through the network of the training features."""
        preprocessor = vocabulary.preprocessor._replace(backbone=config.data.backbone, device=device)
        predictor = super().make_predictor(vocabulary._replace(preprocessor=preprocessor), config, model, device)
        assert isinstance(predictor, CaptioningPredictor)
        predictor.tokenize, predictor.best = config.evaluation.tokenize, config.training.best
        return predictor

    def load_dev_set(self, config: RunConfig) -> list[DevExample]:
        """Return the dev images of a run, each with all its references."""
        groups = group_captions_by_image(self.split(config.data, config.training.seed).dev)
        return [DevExample(picture, " / ".join(captions)) for picture, captions in groups.items()]


def _make_preprocessor(config: RunConfig) -> ImagePreprocessor:
    return ImagePreprocessor(config.data.image, config.data.patch, int(config.model["max_side"]))


def _read_data_settings(run: Run) -> CaptionSettings:
    return parse_settings(CaptionSettings, run.read_config()["data"], "data")


def _choose_model_backbone(backbone: str, dataset: CaptionDataset) -> str:
    """Resolve `model.backbone: auto`; raise UserError if the model reads pixels but the data are features."""
    if backbone == "auto":
        backbone = "cnn" if all(grid_shape.is_pixels for grid_shape in dataset.grid_shapes) else "none"
    for example, grid_shape in zip(dataset.examples, dataset.grid_shapes, strict=True):
        if backbone == "cnn" and not grid_shape.is_pixels:
            raise example.picture.make_error(
                "it holds features, but model.backbone=cnn reads pixels; use model.backbone=none"
            )
    return backbone


def _find_feature_backbone(data: CaptionSettings, parent: Run | None) -> Backbone | None:
    """Return the network of the training features; all files and the parent run must agree."""
    expected = data.backbone or (_read_data_settings(parent).backbone if parent else None)
    return find_common_backbone([Path(name) for name in (*(data.train or ()), *(data.dev or ()))], expected)
