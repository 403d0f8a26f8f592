"""`regard data features`: extract image features for captioning."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from regard.console import log_message, make_progress_bar

_network_option = partial(Option, rich_help_panel="Network")


def features(
    captions: Annotated[
        list[Path], Argument(help="Files of captions (.jsonl, .tsv), or of image paths, one per line; - for a pipe.")
    ],
    out: Annotated[Path, Option(help="New folder, for an array and a .jsonl file per input file.")],
    backbone: Annotated[
        str, _network_option(help="Network by its torchvision name: vgg19, resnet50, and so on.")
    ] = "vgg19",
    layer: Annotated[
        str | None,
        _network_option(
            help="Layer whose feature grid is used, such as layer3 of resnet50; default: the last one with a grid (of "
            "vgg19 features.35, which is conv5_4, 14 × 14 × 512)."
        ),
    ] = None,
    weights: Annotated[
        str,
        _network_option(
            help="Weights. pretrained: torchvision's default weights, downloaded once; or a name of torchvision's; a "
            ".safetensors or .pth file; or random."
        ),
    ] = "pretrained",
    side: Annotated[
        int | None,
        _network_option(
            min=1,
            help="Side in pixels of the center crop that the network gets; default: that of its weights, mostly 224.",
        ),
    ] = None,
    batch: Annotated[int, Option(min=1, help="Images per batch.")] = 32,
    precision: Annotated[Literal["float16", "float32"], Option(help="Data type of the features.")] = "float16",
    device: Annotated[
        Literal["auto", "cuda", "mps", "cpu"], Option(help="Device; auto: a GPU if there is one.")
    ] = "auto",
) -> None:
    """Extract image features with a torchvision network, once per image, for captioning.

    A run that is trained on them captions image files directly: it applies the same network.

    Example: regard data features train.jsonl dev.jsonl --out features --backbone resnet50 --layer layer3
    """
    from regard.tasks.captioning.extraction import (
        check_output_is_new,
        count_feature_bytes,
        extract_image_features,
        list_caption_files,
    )
    from regard.tasks.captioning.feature_extractor import FeatureExtractorOptions, build_feature_extractor
    from regard.training import choose_device

    check_output_is_new(out)
    files = list_caption_files(captions)
    extractor = build_feature_extractor(
        FeatureExtractorOptions(backbone, layer, weights, side, precision), choose_device(device, "--device ")
    )
    network, count = extractor.backbone, sum(len(file.images) for file in files)
    log_message(
        f"{count:,} images, {' × '.join(map(str, network.grid))} numbers each, of {network.describe()}: "
        f"{count_feature_bytes(files, network) / 1e6:,.1f} MB"
    )
    with make_progress_bar() as progress:
        task = progress.add_task("images", total=count, note="")
        extract_image_features(files, extractor, out, batch, lambda count_done: progress.advance(task, count_done))
    for file in files:
        typer.echo(out / f"{file.name}.jsonl")
    first = f"{out / files[0].name}.jsonl"
    captioned = any("caption" in fields for _, fields in files[0].lines)
    train = f"train on them: regard train {first} --recipe xu2015-soft-caption"
    log_message(train if captioned else f"caption them: regard predict RUN {first}")
