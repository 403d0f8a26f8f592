"""From files and a recipe to pictures and captions that can be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from regard.config import parse
from regard.data.pair import Pair
from regard.errors import UserError
from regard.recipes import Recipe, override
from regard.runs import Run
from regard.tasks.captioning.backbone import Backbone, common
from regard.tasks.captioning.examples import Captions, Encoded
from regard.tasks.captioning.eye import Eye
from regard.tasks.captioning.files import Example, read
from regard.tasks.captioning.grouping import digests, grouped
from regard.tasks.captioning.settings import CaptionSettings
from regard.tasks.captioning.validation import Validator
from regard.tasks.captioning.vocabulary import encoded, kept, learnt, save
from regard.tasks.holding import parted
from regard.tasks.task import Asked, Job
from regard.tasks.text_scores import report_measure
from regard.text import Tokenizer, VocabularySettings


class Survey(NamedTuple):
    """What there is to train and to validate on, and what tells the pictures apart."""

    train: list[Example]
    digests: list[str]  # of the pictures to train on
    dev: list[Example]
    empty: int  # lines without a caption, which are left out


def prepared(run: Run, config: Recipe, resume: bool) -> Job:
    """Captions, encoded, and a vocabulary; and the config with the number of features that the data have."""
    data = parse(CaptionSettings, config["data"], "data")
    settings = parse(VocabularySettings, config["text"], "text")
    model, training = config["model"], config["training"]
    start = training["init_from"]
    before = run if resume else Run(Path(start)) if start else None
    eye = Eye(data.image, data.patch, int(model["max_side"]))
    found = survey(data, training["seed"])
    tokenizer = kept(before) if before else learnt(found.train, settings)
    every = encoded(found.train, eye, tokenizer, data.features, found.digests)
    features = every[0].extent.features
    reads = readable(model["backbone"], every)
    backbone = None if every[0].extent.of_pixels else made_by(data, before)
    dev = encoded(found.dev, eye, tokenizer, features)
    train = [one for one in every if len(one.caption) <= data.max_length]
    if not train:
        raise UserError(
            f"no caption is left to train on: all {len(every):,} have more than {data.max_length:,} tokens "
            "(data.max_length)"
        )
    resolved = {
        "data.features": features,
        "data.backbone": None if backbone is None else backbone.mapping(),
        "model.backbone": reads,
    }
    validator = Validator(
        found.dev,
        Captions(dev, eye._replace(backbone=backbone)),
        tokenizer,
        int(training["batch_tokens"]),
        int(training["validate_pairs"]),
        data.max_length,
    )
    report_measure(validator.measure, training["best"])
    return Job(
        run,
        override(config, resolved),
        Captions(train, eye, tokenizer, settings.dropout),
        validator,
        (features, tokenizer.size),
        partial(save, tokenizer, settings),
        about(found, train, len(every) - len(train), tokenizer),
    )


def readable(backbone: str, examples: Sequence[Encoded]) -> str:
    """What reads the places, of which `auto` is that which can; refuses features where the model reads pixels."""
    if backbone == "auto":
        backbone = "cnn" if all(one.extent.of_pixels for one in examples) else "none"
    for one in examples:
        if backbone == "cnn" and not one.extent.of_pixels:
            raise one.picture.wrong("it holds features, and model.backbone cnn reads pixels: model.backbone=none")
    return backbone


def made_by(data: CaptionSettings, before: Run | None) -> Backbone | None:
    """The network whose features are trained on: the same for all, and for the run that this one starts from."""
    theirs = None if before is None else parse(CaptionSettings, before.config()["data"], "data").backbone
    paths = [Path(name) for name in (*(data.train or ()), *(data.dev or ()))]
    return common(paths, data.backbone or theirs)


def survey(data: CaptionSettings, seed: int) -> Survey:
    """Reads the captions, and holds some pictures out where no dev set is named: by their content, not by order."""
    if not data.train:
        raise UserError('nothing to train on: name a file of captions, {"image": "path", "caption": "…"} a line')
    every = list(read([Path(name) for name in data.train]))
    full = [one for one in every if one.caption.strip()]
    if not full:
        raise UserError(f"{' and '.join(data.train)}: no captions in there, nothing to work with")
    names = digests(full)
    if data.dev:
        dev = [one for one in read([Path(name) for name in data.dev]) if one.caption.strip()]
        if not dev:
            raise UserError(f"{' and '.join(data.dev)}: no captions in there, nothing to validate on")
        return Survey(full, names, dev, len(every) - len(full))
    both = list(zip(full, names, strict=True))
    train, held = parted(both, as_pair, seed, data.dev_pairs, "all captions are of one picture")
    empty = len(every) - len(full)
    return Survey([one for one, _ in train], [name for _, name in train], [one for one, _ in held], empty)


def as_pair(both: tuple[Example, str]) -> Pair:
    """A picture's content and a caption, for what is held out by its picture."""
    return Pair(both[1], both[0].caption)


def dev(run: Run) -> list[Asked]:
    """The pictures that a run was validated on, each with all that is said of it."""
    config = run.config()
    found = survey(parse(CaptionSettings, config["data"], "data"), config["training"]["seed"])
    return [Asked(picture, " / ".join(said)) for picture, said in grouped(found.dev).items()]


def about(found: Survey, train: Sequence[Encoded], long: int, tokenizer: Tokenizer) -> str:
    """What there is to train on."""
    reasons = ((long, "too long"), (found.empty, "empty"))
    left_out = ", ".join(f"{count:,} {reason}" for count, reason in reasons if count)
    images = len({one.digest for one in train})
    return (
        f"{len(train):,} captions{f' (left out: {left_out})' if left_out else ''} of {images:,} images, "
        f"{len(found.dev):,} dev captions, a vocabulary of {tokenizer.size:,}"
    )
