"""A caption, and where the model looked for each of its words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.config import parse_settings
from regard.data.indexed_dataset import Indices
from regard.data.readers.text_io import format_path, iterate_lines
from regard.errors import UserError
from regard.evaluate import bleu_multi_reference, chrf_multi_reference
from regard.evaluate.translation_metrics import warn_about_bleu
from regard.models import Seq2Seq
from regard.plot import AttentionOverlay, WeightedWords
from regard.search import Floats, Hypothesis, search
from regard.tasks.base import choose_inference_device, get_single_run, map_batches_in_order, require_list
from regard.tasks.captioning import caption_files, images
from regard.tasks.captioning.backbone import CaptionSettings, CropWindow, Pixels, find_common_backbone
from regard.tasks.captioning.caption_files import group_captions_by_image
from regard.tasks.captioning.dataset import (
    CaptionDataset,
    compute_exact_match,
    encode_captions,
    find_grounded_tokens,
    load_caption_vocabulary,
    pad_image_inputs,
    score_captions,
)
from regard.tasks.captioning.images import ARRAY_SUFFIX, IMAGE_SUFFIXES, Array, ImageFile
from regard.tasks.captioning.preprocessing import ImageInput, ImagePreprocessor
from regard.tokenizers import Tokenizer


class CaptionPrediction(NamedTuple):
    """A sentence about a picture."""

    picture: ImageFile
    text: str
    score: float  # what the search ranked it by
    tokens: Sequence[str]  # with the one that ends a sentence
    attention: Floats  # tokens × rows × columns
    pixels: Pixels | None  # the image as the model saw it, if it was one
    window: CropWindow | None = None  # the part of the image that this is, if it is not all of it
    preprocessor: ImagePreprocessor | None = None  # through which the picture was seen

    def to_text(self) -> str:
        """The sentence."""
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """The sentence, its tokens, and a grid of weights for each."""
        named = {"image": str(self.picture.path)} | ({} if self.picture.row is None else {"row": self.picture.row})
        caption_fields = {"caption": self.text, "score": self.score, "tokens": list(self.tokens)}
        seen = {} if self.window is None else {"seen": list(self.window)}
        return (
            named | caption_fields | seen | {"grid": list(self.attention.shape[1:]), "weights": self.attention.tolist()}
        )

    def make_attention_lines(self) -> list[WeightedWords]:
        """A line for each token: the places, by row and column from 1, with their weights."""
        rows, columns = self.attention.shape[1:]
        names = [f"{row + 1},{column + 1}" for row, column in np.ndindex(rows, columns)]
        weights = self.attention.reshape(len(self.tokens), -1)
        both = zip(self.tokens, weights, strict=True)
        return [WeightedWords(token, names, row.tolist(), darkest_weight=float(row.max())) for token, row in both]

    def make_image_overlay(self) -> AttentionOverlay | None:
        """The weights of each token over the image, also over that which features are of."""
        pixels = self.pixels
        if pixels is None and self.preprocessor is not None:
            pixels = self.preprocessor.load_original_pixels(self.picture)
        return AttentionOverlay(pixels, self.tokens, self.attention)


ImageSource = (
    str | Path | Mapping[str, Any] | ImageFile | Array
)  # a picture, by its path, as in a line of JSON, or itself


class CaptioningPredictor:
    """A model with its vocabulary: pictures in, sentences out."""

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        data: CaptionSettings,
        preprocessor: ImagePreprocessor,
        batch_tokens: int,
        device: torch.device,
    ) -> None:
        """`data` are the settings of the run, with the number of features that a place has."""
        self.model = model.to(device).eval()
        self.tokenizer = tokenizer
        self.data = data
        self.preprocessor = preprocessor
        self.batch_tokens = batch_tokens
        self.device = device

    def parse_lines(self, lines: Iterable[str]) -> Iterator[ImageFile]:
        """A line is a path, or an object with an image."""
        return caption_files.parse_image_lines(lines)

    def read_inputs(self, path: Path) -> Iterator[ImageFile]:
        """The picture that a file is, by its name, or all that it holds; or those that its lines name."""
        if path.suffix.lower() in (ARRAY_SUFFIX, *IMAGE_SUFFIXES):
            return iter(ImageFile(path).split_rows())
        find_common_backbone([path], self.data.backbone)
        return caption_files.parse_image_lines(iterate_lines(path), path.parent, format_path(path))

    def parse_json_input(self, given: Any) -> Array:
        """A picture that comes with its question, never one of this machine's."""
        return images.decode_data_url(given)

    def predict(self, inputs: Sequence[ImageSource], beam: int = 5) -> list[CaptionPrediction]:
        """A caption for each picture, in order: its path, an object as in a line of JSON, or an array."""
        named = [_to_image_file(one) for one in require_list(inputs, "picture")]
        image_inputs = [
            self._preprocess_image(one if isinstance(one, np.ndarray) else picture.load(), picture)
            for one, picture in zip(inputs, named, strict=True)
        ]
        found = search_captions(self.model, image_inputs, self.device, self.batch_tokens, self.data.max_length, beam)
        return [
            make_caption_prediction(*one, self.tokenizer, self.preprocessor)
            for one in zip(named, image_inputs, found, strict=True)
        ]

    def _preprocess_image(self, array: Array, picture: ImageFile) -> ImageInput:
        """What the model sees of a picture, whose places have as many features as those that it learnt from."""
        image_input = self.preprocessor.preprocess(array, picture)
        if image_input.grid_shape.features != self.data.features:
            image = "; it is an image, and the run does not know which network made its features"
            raise picture.make_error(
                f"{image_input.grid_shape.features:,} numbers for each place, and the model reads {self.data.features:,}"
                f"{image if image_input.grid_shape.is_pixels else ''}"
            )
        return image_input

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """BLEU and chrF against all captions of an image, exact matches, perplexity, and where the model looked."""
        find_common_backbone(paths, self.data.backbone)
        examples = list(caption_files.read_captions(paths))
        if not examples:
            raise UserError(f"{' and '.join(map(str, paths))}: no captions in there, nothing to score on")
        groups = group_captions_by_image(examples)
        made = [one for batch in iterate_image_batches(list(groups)) for one in self.predict(batch)]
        captions = CaptionDataset(
            encode_captions(examples, self.preprocessor, self.tokenizer, self.data.features), self.preprocessor
        )
        truths = find_grounded_tokens(examples, captions, self.tokenizer)
        found = score_captions(self.model, captions, truths, self.device, self.batch_tokens)
        references, texts = list(groups.values()), [one.text for one in made]
        warn_about_bleu([caption for captions in references for caption in captions])
        bleu = bleu_multi_reference(texts, references, self.tokenizer.lowercase)
        chrf = chrf_multi_reference(texts, references, self.tokenizer.lowercase)
        return {
            "images": len(groups),
            "captions": len(examples),
            "bleu": bleu.value,
            "chrf": chrf.value,
            "bleu_signature": bleu.signature,
            "chrf_signature": chrf.signature,
            "exact": compute_exact_match(texts, references, self.tokenizer),
            "loss": found.mean_loss,
            **found.compute_metrics(),
        }


def _to_image_file(source: ImageSource) -> ImageFile:
    """A picture by whatever names it."""
    if isinstance(source, ImageFile):
        return source
    if isinstance(source, np.ndarray):
        return ImageFile(Path("array"))
    return caption_files.parse_image(source) if isinstance(source, Mapping) else ImageFile(Path(source))


def iterate_image_batches(pictures: Sequence[ImageFile], batch_size: int = 256) -> Iterator[Sequence[ImageFile]]:
    """Some at a time: pictures take room."""
    for start in range(0, len(pictures), batch_size):
        yield pictures[start : start + batch_size]


def search_captions(
    model: Seq2Seq,
    image_inputs: Sequence[ImageInput],
    device: torch.device,
    batch_tokens: int,
    max_length: int,
    beam: int,
) -> list[Hypothesis]:
    """The best caption of each, in order; those of one size are searched together."""

    def search_batch(rows: Indices) -> list[Hypothesis]:
        source, lengths = pad_image_inputs([image_inputs[row] for row in rows.tolist()])
        made = search(model, source.to(device), lengths.to(device), beam=beam, max_length=max_length + 1)
        return [hypotheses[0] for hypotheses in made]

    return map_batches_in_order(
        search_batch, np.array([len(one.position_features) for one in image_inputs], dtype=np.int64), batch_tokens
    )


def make_caption_prediction(
    picture: ImageFile,
    image_input: ImageInput,
    hypothesis: Hypothesis,
    tokenizer: Tokenizer,
    preprocessor: ImagePreprocessor,
) -> CaptionPrediction:
    """What a search found, in words."""
    assert hypothesis.attention is not None
    grid_shape = image_input.grid_shape
    attention = hypothesis.attention.reshape(len(hypothesis.tokens), grid_shape.rows, grid_shape.columns)
    tokens = tokenizer.convert_ids_to_tokens(hypothesis.tokens)
    text = tokenizer.decode(hypothesis.tokens)
    return CaptionPrediction(
        picture, text, hypothesis.score, tokens, attention, image_input.pixels, image_input.window, preprocessor
    )


def load(*runs: str | Path, device: str | None = None) -> CaptioningPredictor:
    """The best model of a run, ready to caption, on a GPU where there is one."""
    run = get_single_run(runs, "captions")
    config = run.read_config()
    data = parse_settings(CaptionSettings, config["data"], "data")
    if data.features is None:
        raise UserError(f"{run.folder}: its config does not say how many features a place has (data.features)")
    tokenizer, torch_device = load_caption_vocabulary(run), choose_inference_device(device)
    return CaptioningPredictor(
        run.load_model((data.features, tokenizer.vocab_size)),
        tokenizer,
        data,
        ImagePreprocessor(data.image, data.patch, int(config["model"]["max_side"]), data.backbone, torch_device),
        int(config["training"]["batch_tokens"]),
        torch_device,
    )
