"""The captioning task: data preparation, dev split, and validation with loss, BLEU or chrF, and attention metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from regard.config import parse_settings
from regard.data.readers.text import Pair
from regard.errors import UserError
from regard.evaluate.translation_metrics import choose_selection_metric, report_selection_metric
from regard.recipes import RunConfig
from regard.runs import Run, choose_inference_device
from regard.synthetic.captioning import write_captioning_corpus
from regard.synthetic.corpus import SyntheticCorpus
from regard.tasks.base import (
    DevExample,
    PreparedRun,
    Task,
    Validator,
    find_vocabulary_run,
    format_left_out,
    get_single_run,
    split_dev_examples,
)
from regard.tasks.captioning.caption_files import (
    CaptionExample,
    add_image_digests,
    group_captions_by_image,
    read_captions,
)
from regard.tasks.captioning.dataset import (
    CaptionDataset,
    CaptionSettings,
    EncodedCaption,
    encode_captions,
    learn_caption_vocabulary,
    load_caption_vocabulary,
    save_caption_vocabulary,
)
from regard.tasks.captioning.predictor import CaptioningPredictor
from regard.tasks.captioning.preprocessing import Backbone, ImagePreprocessor, find_common_backbone
from regard.tokenizers import Tokenizer, VocabularySettings


class _CaptionSplit(NamedTuple):
    """Training and dev captions, with digests of their images."""

    train: list[CaptionExample]
    dev: list[CaptionExample]
    empty: int  # number of lines left out because they have no caption


class CaptioningTask(Task):
    """Describe images."""

    verb = "captions"
    demo_recipe = "xu2015-soft-caption"
    data_settings = CaptionSettings
    text_settings = VocabularySettings

    def prepare(self, run: Run, config: RunConfig, resume: bool) -> PreparedRun:
        """Split and encode captions, train or load the vocabulary, and resolve features and backbone in the config."""
        data: CaptionSettings = config.data
        settings: VocabularySettings = config.text
        model, training = config.model, config.training
        parent_run = find_vocabulary_run(run, config, resume)
        preprocessor = ImagePreprocessor(data.image, data.patch, int(model["max_side"]))
        split = split_caption_data(data, training.seed)
        tokenizer = (
            load_caption_vocabulary(parent_run) if parent_run else learn_caption_vocabulary(split.train, settings)
        )
        encoded = encode_captions(split.train, preprocessor, tokenizer, data.features)
        features = encoded[0].grid_shape.features
        model_backbone = _choose_model_backbone(model["backbone"], encoded)
        backbone = None if encoded[0].grid_shape.is_pixels else _find_feature_backbone(data, parent_run)
        dev = encode_captions(split.dev, preprocessor, tokenizer, features)
        train = [example for example in encoded if len(example.caption) <= data.max_length]
        if not train:
            raise UserError(
                f"no caption is left to train on: all {len(encoded):,} have more than {data.max_length:,} tokens "
                "(data.max_length)"
            )
        resolved = {
            "data.features": features,
            "data.backbone": None if backbone is None else backbone.to_dict(),
            "model.backbone": model_backbone,
        }
        dev_dataset = CaptionDataset(dev, preprocessor._replace(backbone=backbone))
        resolved_data = replace(data, features=features)

        def make_predictor(model: nn.Module, device: torch.device) -> CaptioningPredictor:
            arguments = tokenizer, resolved_data, device, training.batch_tokens, dev_dataset.preprocessor
            return CaptioningPredictor(model, *arguments)

        references = group_captions_by_image(split.dev, training.validate_pairs).values()
        report_selection_metric(choose_selection_metric([one for some in references for one in some]), training.best)
        return PreparedRun(
            run,
            config.override(resolved),
            CaptionDataset(train, preprocessor, tokenizer, settings.dropout),
            Validator(make_predictor, split.dev, dev_dataset, training.validate_pairs),
            (features, tokenizer.vocab_size),
            partial(save_caption_vocabulary, tokenizer, settings),
            _describe_caption_data(split, train, len(encoded) - len(train), tokenizer),
        )

    def load(self, *runs: str | Path, device: str | torch.device | None = None) -> CaptioningPredictor:
        """Load the best checkpoint of a run; by default on a GPU if there is one."""
        run = get_single_run(runs, self.verb)
        config = self.make_config(run.read_config())
        data: CaptionSettings = config.data
        if data.features is None:
            raise UserError(f"{run.folder}: data.features, the features per position, is missing from its config")
        tokenizer, device = load_caption_vocabulary(run), choose_inference_device(device)
        preprocessor = ImagePreprocessor(data.image, data.patch, int(config.model["max_side"]), data.backbone, device)
        model = run.load_model((data.features, tokenizer.vocab_size))
        return CaptioningPredictor(model, tokenizer, data, device, config.training.batch_tokens, preprocessor)

    def load_dev_set(self, config: RunConfig) -> list[DevExample]:
        """Return the dev images of a run, each with all its references."""
        groups = group_captions_by_image(split_caption_data(config.data, config.training.seed).dev)
        return [DevExample(picture, " / ".join(captions)) for picture, captions in groups.items()]

    def write_synthetic_corpus(self, folder: Path) -> SyntheticCorpus:
        """Write images of coloured shapes with captions, the data of the demo, into a folder."""
        return write_captioning_corpus(folder)


def _choose_model_backbone(backbone: str, examples: Sequence[EncodedCaption]) -> str:
    """Resolve `model.backbone: auto`; raise UserError if the model reads pixels but the data are features."""
    if backbone == "auto":
        backbone = "cnn" if all(example.grid_shape.is_pixels for example in examples) else "none"
    for example in examples:
        if backbone == "cnn" and not example.grid_shape.is_pixels:
            raise example.picture.make_error(
                "it holds features, but model.backbone=cnn reads pixels; use model.backbone=none"
            )
    return backbone


def _find_feature_backbone(data: CaptionSettings, parent: Run | None) -> Backbone | None:
    """Return the network of the training features; all files and the parent run must agree."""
    parent_backbone = (
        None if parent is None else parse_settings(CaptionSettings, parent.read_config()["data"], "data").backbone
    )
    paths = [Path(name) for name in (*(data.train or ()), *(data.dev or ()))]
    return find_common_backbone(paths, data.backbone or parent_backbone)


def split_caption_data(data: CaptionSettings, seed: int) -> _CaptionSplit:
    """Read the captions; without a dev set, hold out images by a hash of their content."""
    if not data.train:
        raise UserError('nothing to train on: name a file of captions, {"image": "path", "caption": "…"} a line')
    train, empty = _read_nonempty_captions(data.train, "train")
    if data.dev:
        return _CaptionSplit(train, _read_nonempty_captions(data.dev, "validate")[0], empty)
    train, dev = split_dev_examples(train, _caption_to_pair, seed, data.dev_pairs, "all captions are of one image")
    return _CaptionSplit(train, dev, empty)


def _read_nonempty_captions(files: Sequence[str], activity: str) -> tuple[list[CaptionExample], int]:
    """Return the examples with captions, and how many have none; `activity` completes "no captions to …"."""
    examples = list(read_captions([Path(name) for name in files]))
    nonempty = [example for example in examples if example.caption.strip()]
    if not nonempty:
        raise UserError(f"{' and '.join(files)}: no captions to {activity} on")
    return add_image_digests(nonempty), len(examples) - len(nonempty)


def _caption_to_pair(example: CaptionExample) -> Pair:
    """Return (image digest, caption), so that the dev set is split by image."""
    return Pair(example.digest, example.caption)


def _describe_caption_data(
    split: _CaptionSplit, train: Sequence[EncodedCaption], num_too_long: int, tokenizer: Tokenizer
) -> str:
    left_out = format_left_out({"too long": num_too_long, "empty": split.empty})
    images = len({example.digest for example in train})
    return (
        f"{len(train):,} captions{left_out} of {images:,} images, "
        f"{len(split.dev):,} dev captions, a vocabulary of {tokenizer.vocab_size:,}"
    )
