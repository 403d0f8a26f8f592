"""`regard data features`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

NETWORK_PANEL = "Network"


def features(
    captions: Annotated[
        list[Path],
        typer.Argument(help="Files of captions (.jsonl, .tsv), or of images' paths, one a line; - for a pipe."),
    ],
    out: Annotated[Path, typer.Option(help="A new folder, for an array and a .jsonl file of each.")],
    backbone: Annotated[
        str, typer.Option(help="A network as torchvision calls it: vgg19, resnet50 …", rich_help_panel=NETWORK_PANEL)
    ] = "vgg19",
    layer: Annotated[
        str | None,
        typer.Option(
            help="The layer whose grid is kept, such as layer3 of resnet50; else the last that has one: of vgg19 "
            "features.35, conv5_4, 14 × 14 × 512.",
            rich_help_panel=NETWORK_PANEL,
        ),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            help="pretrained: torchvision's, downloaded once; or its name for them; a .safetensors or .pth file; or "
            "random.",
            rich_help_panel=NETWORK_PANEL,
        ),
    ] = "pretrained",
    side: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Pixels to a side of what the network sees, cut from the middle of an image; else as its weights want "
            "it, mostly 224.",
            rich_help_panel=NETWORK_PANEL,
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images that go through the network together.")] = 32,
    precision: Annotated[Literal["float16", "float32"], typer.Option(help="Of the features.")] = "float16",
    device: Annotated[
        Literal["auto", "cuda", "mps", "cpu"], typer.Option(help="Where to compute; auto: a GPU where there is one.")
    ] = "auto",
) -> None:
    """Make features of images by a network that torchvision has, for captions: each image is seen once.

    A run that is trained on them captions images as they are: it sends them through the same network.

    Example: regard data features train.jsonl dev.jsonl --out features --backbone resnet50 --layer layer3
    """
    from regard.console import log_message, make_progress_bar
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
    network = build_feature_extractor(
        FeatureExtractorOptions(backbone, layer, weights, side, precision), choose_device(device, "--device ")
    )
    made = network.backbone
    count = sum(len(file.images) for file in files)
    grid = " × ".join(map(str, made.grid))
    log_message(
        f"{count:,} images, {grid} numbers each, of {made.describe()}: {count_feature_bytes(files, made) / 1e6:,.1f} MB"
    )
    with make_progress_bar() as progress:
        task = progress.add_task("images", total=count, note="")
        extract_image_features(files, network, out, batch, lambda some: progress.advance(task, some))
    for file in files:
        typer.echo(out / f"{file.name}.jsonl")
    first = f"{out / files[0].name}.jsonl"
    captioned = any("caption" in rest for _, rest in files[0].lines)
    train = f"train on them: regard train {first} --recipe xu2015-soft-caption"
    log_message(train if captioned else f"caption them: regard predict RUN {first}")
