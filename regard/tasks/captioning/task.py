"""How good the model is on the dev set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from regard.config import parse_settings
from regard.data.sentence_pair import Pair
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.plot import plot_attention_overlay
from regard.recipes import Recipe, override
from regard.runs import Run
from regard.tasks.base import (
    DevExample,
    PreparedRun,
    Validation,
    choose_selection_metric,
    report_selection_metric,
    score_texts,
    split_dev_examples,
)
from regard.tasks.captioning.backbone import Backbone, CaptionSettings, find_common_backbone
from regard.tasks.captioning.caption_files import (
    CaptionExample,
    compute_image_digests,
    group_captions_by_image,
    read_captions,
)
from regard.tasks.captioning.dataset import (
    CaptionDataset,
    EncodedCaption,
    compute_exact_match,
    encode_captions,
    find_grounded_tokens,
    learn_caption_vocabulary,
    load_caption_vocabulary,
    save_caption_vocabulary,
    score_captions,
)
from regard.tasks.captioning.predictor import (
    CaptionPrediction,
    iterate_image_batches,
    make_caption_prediction,
    search_captions,
)
from regard.tasks.captioning.preprocessing import ImagePreprocessor
from regard.tokenizers import Tokenizer, VocabularySettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SAMPLES = 5


class CaptionSample(NamedTuple):
    """A picture of the dev set as the model captions it now."""

    prediction: CaptionPrediction
    references: Sequence[str]

    def to_dict(self) -> dict[str, str]:
        """The picture, what people say of it, and what the model does."""
        picture = self.prediction.picture
        named = str(picture.path) if picture.row is None else f"{picture.path}, row {picture.row}"
        return {"image": named, "right": " / ".join(self.references), "caption": self.prediction.text}

    def plot(self) -> Figure | None:
        """The looks of each word over the image."""
        overlay = self.prediction.make_image_overlay()
        return None if overlay is None else plot_attention_overlay(overlay)


class CaptionValidator:
    """Cross-entropy of all captions of the dev set; greedy captions of some images, held against all that have been.

    BLEU says which model is the best, or chrF if the captions are in a script without spaces between words.
    """

    def __init__(
        self,
        examples: Sequence[CaptionExample],
        dataset: CaptionDataset,
        tokenizer: Tokenizer,
        batch_tokens: int,
        max_images: int,
        max_length: int,
    ) -> None:
        """`images` is how many are captioned at the most."""
        self.dataset = dataset
        self.grounded_tokens = find_grounded_tokens(examples, dataset, tokenizer)
        self.tokenizer = tokenizer
        self.batch_tokens = batch_tokens
        self.references_by_image = dict(list(group_captions_by_image(examples).items())[:max_images])
        self.max_length = max_length
        self.selection_metric = choose_selection_metric(
            [caption for captions in self.references_by_image.values() for caption in captions]
        )

    def __call__(self, model: Seq2Seq, device: torch.device) -> Validation:
        """Measures the model; leaves it as it was, and takes nothing from the random generators."""
        training = model.training
        model.eval()
        found = score_captions(model, self.dataset, self.grounded_tokens, device, self.batch_tokens)
        made = self._caption_greedily(model, device)
        model.train(training)
        references, texts = list(self.references_by_image.values()), [one.text for one in made]
        measured = score_texts(texts, references, self.selection_metric, self.tokenizer.lowercase)
        measured["exact"] = compute_exact_match(texts, references, self.tokenizer)
        samples = [CaptionSample(*one) for one in zip(made[:SAMPLES], references, strict=False)]
        return Validation(found.mean_loss, measured | found.compute_metrics(), self.selection_metric, samples)

    def _caption_greedily(self, model: Seq2Seq, device: torch.device) -> list[CaptionPrediction]:
        """Greedy captions."""
        made: list[CaptionPrediction] = []
        for batch in iterate_image_batches(list(self.references_by_image)):
            image_inputs = [self.dataset.preprocessor.preprocess(picture.load(), picture) for picture in batch]
            found = search_captions(model, image_inputs, device, self.batch_tokens, self.max_length, 1)
            made += [
                make_caption_prediction(*one, self.tokenizer, self.dataset.preprocessor)
                for one in zip(batch, image_inputs, found, strict=True)
            ]
        return made


class _CaptionSplit(NamedTuple):
    """What there is to train and to validate on, and what tells the pictures apart."""

    train: list[CaptionExample]
    digests: list[str]  # of the pictures to train on
    dev: list[CaptionExample]
    empty: int  # lines without a caption, which are left out


def prepare_captioning(run: Run, config: Recipe, resume: bool) -> PreparedRun:
    """Captions, encoded, and a vocabulary; and the config with the number of features that the data have."""
    data = parse_settings(CaptionSettings, config["data"], "data")
    settings = parse_settings(VocabularySettings, config["text"], "text")
    model, training = config["model"], config["training"]
    start = training["init_from"]
    before = run if resume else Run(Path(start)) if start else None
    preprocessor = ImagePreprocessor(data.image, data.patch, int(model["max_side"]))
    found = split_caption_data(data, training["seed"])
    tokenizer = load_caption_vocabulary(before) if before else learn_caption_vocabulary(found.train, settings)
    every = encode_captions(found.train, preprocessor, tokenizer, data.features, found.digests)
    features = every[0].grid_shape.features
    reads = _choose_model_backbone(model["backbone"], every)
    backbone = None if every[0].grid_shape.is_pixels else _find_feature_backbone(data, before)
    dev = encode_captions(found.dev, preprocessor, tokenizer, features)
    train = [one for one in every if len(one.caption) <= data.max_length]
    if not train:
        raise UserError(
            f"no caption is left to train on: all {len(every):,} have more than {data.max_length:,} tokens "
            "(data.max_length)"
        )
    resolved = {
        "data.features": features,
        "data.backbone": None if backbone is None else backbone.to_dict(),
        "model.backbone": reads,
    }
    validator = CaptionValidator(
        found.dev,
        CaptionDataset(dev, preprocessor._replace(backbone=backbone)),
        tokenizer,
        int(training["batch_tokens"]),
        int(training["validate_pairs"]),
        data.max_length,
    )
    report_selection_metric(validator.selection_metric, training["best"])
    return PreparedRun(
        run,
        override(config, resolved),
        CaptionDataset(train, preprocessor, tokenizer, settings.dropout),
        validator,
        (features, tokenizer.vocab_size),
        partial(save_caption_vocabulary, tokenizer, settings),
        _describe_caption_data(found, train, len(every) - len(train), tokenizer),
    )


def _choose_model_backbone(backbone: str, examples: Sequence[EncodedCaption]) -> str:
    """What reads the places, of which `auto` is that which can; refuses features where the model reads pixels."""
    if backbone == "auto":
        backbone = "cnn" if all(one.grid_shape.is_pixels for one in examples) else "none"
    for one in examples:
        if backbone == "cnn" and not one.grid_shape.is_pixels:
            raise one.picture.make_error("it holds features, and model.backbone cnn reads pixels: model.backbone=none")
    return backbone


def _find_feature_backbone(data: CaptionSettings, parent: Run | None) -> Backbone | None:
    """The network whose features are trained on: the same for all, and for the run that this one starts from."""
    parent_backbone = (
        None if parent is None else parse_settings(CaptionSettings, parent.read_config()["data"], "data").backbone
    )
    paths = [Path(name) for name in (*(data.train or ()), *(data.dev or ()))]
    return find_common_backbone(paths, data.backbone or parent_backbone)


def split_caption_data(data: CaptionSettings, seed: int) -> _CaptionSplit:
    """Reads the captions, and holds some pictures out where no dev set is named: by their content, not by order."""
    if not data.train:
        raise UserError('nothing to train on: name a file of captions, {"image": "path", "caption": "…"} a line')
    every = list(read_captions([Path(name) for name in data.train]))
    full = [one for one in every if one.caption.strip()]
    if not full:
        raise UserError(f"{' and '.join(data.train)}: no captions in there, nothing to work with")
    names = compute_image_digests(full)
    if data.dev:
        dev = [one for one in read_captions([Path(name) for name in data.dev]) if one.caption.strip()]
        if not dev:
            raise UserError(f"{' and '.join(data.dev)}: no captions in there, nothing to validate on")
        return _CaptionSplit(full, names, dev, len(every) - len(full))
    both = list(zip(full, names, strict=True))
    train, held = split_dev_examples(both, _caption_to_pair, seed, data.dev_pairs, "all captions are of one picture")
    empty = len(every) - len(full)
    return _CaptionSplit([one for one, _ in train], [name for _, name in train], [one for one, _ in held], empty)


def _caption_to_pair(both: tuple[CaptionExample, str]) -> Pair:
    """A picture's content and a caption, for what is held out by its picture."""
    return Pair(both[1], both[0].caption)


def load_captioning_dev_set(run: Run) -> list[DevExample]:
    """The pictures that a run was validated on, each with all that is said of it."""
    config = run.read_config()
    found = split_caption_data(parse_settings(CaptionSettings, config["data"], "data"), config["training"]["seed"])
    return [
        DevExample(picture, " / ".join(captions)) for picture, captions in group_captions_by_image(found.dev).items()
    ]


def _describe_caption_data(
    split: _CaptionSplit, train: Sequence[EncodedCaption], num_too_long: int, tokenizer: Tokenizer
) -> str:
    """What there is to train on."""
    reasons = ((num_too_long, "too long"), (split.empty, "empty"))
    left_out = ", ".join(f"{count:,} {reason}" for count, reason in reasons if count)
    images = len({one.digest for one in train})
    return (
        f"{len(train):,} captions{f' (left out: {left_out})' if left_out else ''} of {images:,} images, "
        f"{len(split.dev):,} dev captions, a vocabulary of {tokenizer.vocab_size:,}"
    )
