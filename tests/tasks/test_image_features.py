"""Image features from torchvision networks, and captions from features or from the images themselves."""

from __future__ import annotations

import base64
import importlib
import io
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from support.combinations import slow_after
from support.commands import Command
from support.files import read_jsonl, write_file, write_jsonl
from support.tasks import SIX_STEPS, error_message
from torch import Tensor

import regard
from regard.cli import main
from regard.runs import Run
from regard.tasks.captioning import feature_extractor, image_files
from regard.tasks.captioning.backbone import BACKBONE_FILE, Backbone, find_common_backbone, read_backbone_file
from regard.tasks.captioning.extraction import extract_image_features, list_caption_files
from regard.tasks.captioning.feature_extractor import (
    SEED,
    FeatureExtractor,
    FeatureExtractorOptions,
    build_feature_extractor,
    build_torchvision_network,
    find_default_layer,
    rebuild_feature_extractor,
    truncate_network,
)
from regard.tasks.captioning.image_files import ImageFile
from regard.tasks.captioning.preprocessing import ImagePreprocessor
from regard.training import train

CPU = torch.device("cpu")
SMALL = FeatureExtractorOptions("squeezenet1_1", "features.5", "random", 64, "float32")
QUICK: dict[str, Any] = {
    **SIX_STEPS,
    "model.size": 12,
    "model.embedding": 8,
    "model.annotation": 10,
    "model.attention": 8,
    "training.steps": 2,
    "training.batch_tokens": 128,
    "training.validate_every": 2,
    "training.checkpoint_every": 2,
}


def make_photo(seed: int, height: int = 90, width: int = 120) -> Any:
    """Return coarse patches of colour, which scaling does not average to a uniform grey."""
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((width, height)))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write ten photos with two captions each, in an order that is not that of their names; read-only."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "photos").mkdir()
    order = [7, 2, 9, 0, 5, 1, 8, 3, 6, 4]
    for number in order:
        size = (120, 80) if number % 2 else (80, 120)
        Image.fromarray(make_photo(number, *size)).save(folder / "photos" / f"{number}.png")
    rows = [
        {
            "image": f"photos/{number}.png",
            "caption": f"{word} {'tall' if number % 2 else 'flat'} photo",
            "id": number,
        }
        for word in ("a", "one")
        for number in order
    ]
    write_jsonl(folder / "train.jsonl", rows[:7] + rows[10:17])
    write_jsonl(folder / "dev.jsonl", rows[7:10] + rows[17:])
    return folder


@pytest.fixture(scope="module")
def network() -> FeatureExtractor:
    return build_feature_extractor(SMALL, CPU)


@pytest.fixture(scope="module")
def features(data: Path, network: FeatureExtractor) -> Path:
    """Extract the features of the photos; read-only."""
    out = data / "features"
    extract_image_features(list_caption_files([data / "train.jsonl", data / "dev.jsonl"]), network, out, 4)
    return out


@pytest.fixture(scope="module")
def run(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train a caption recipe on the features for 2 updates, with a report; read-only."""
    out = tmp_path_factory.mktemp("runs") / "run"
    return regard.train("xu2015-soft-caption", features / "train.jsonl", out, dev=features / "dev.jsonl", **QUICK)


def build_reference(name: str, seed: int = SEED) -> Any:
    """Return torchvision's network with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return feature_extractor.import_torchvision_models(name).get_model(name, weights=None).eval()


def transform(name: str, path: Path, side: int = 64) -> Tensor:
    """Return an image after torchvision's own transforms, (1, 3, side, side)."""
    transforms = feature_extractor.import_torchvision_models(name).get_model_weights(name).DEFAULT.transforms
    own = transforms()
    scaled = round(side * own.resize_size[0] / own.crop_size[0])
    image: Tensor = transforms(crop_size=side, resize_size=scaled)(Image.open(path))
    return image[None]


# Features


@torch.inference_mode()
def test_features_equal_torchvision_layer_by_layer(data: Path, features: Path) -> None:
    model = build_reference("squeezenet1_1")
    table = np.load(features / "train.npy")
    assert table.shape == (7, 7, 7, 128)
    for line in read_jsonl(features / "train.jsonl"):
        x = transform("squeezenet1_1", features / line["original"]["image"])
        for number in range(6):
            x = model.features[number](x)
        np.testing.assert_allclose(table[line["row"]], x[0].permute(1, 2, 0).numpy(), atol=1e-5)


@pytest.mark.slow
@torch.inference_mode()
def test_layers_are_named_as_in_torchvision(data: Path) -> None:
    model, made = (
        build_reference("resnet18"),
        build_feature_extractor(FeatureExtractorOptions("resnet18", "layer3.0.conv1", "random", 64, "float32"), CPU),
    )
    path = data / "photos" / "3.png"
    x = model.maxpool(model.relu(model.bn1(model.conv1(transform("resnet18", path)))))
    x = model.layer3[0].conv1(model.layer2(model.layer1(x)))
    (found,) = made.extract_grids(made.backbone.resize_and_crop(ImageFile(path).load(), ImageFile(path))[None])
    np.testing.assert_allclose(found, x[0].permute(1, 2, 0).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "layer", "grid"),
    [
        ("mobilenet_v2", "features", (2, 2, 1280)),
        pytest.param("alexnet", "features.11", (3, 3, 256), marks=pytest.mark.slow),
        pytest.param("resnet18", "layer4", (2, 2, 512), marks=pytest.mark.slow),
    ],
)
def test_default_layer_is_the_last_grid_before_pooling(name: str, layer: str, grid: tuple[int, ...]) -> None:
    made = build_feature_extractor(FeatureExtractorOptions(name, None, "random", 64), CPU)
    assert (made.backbone.layer, made.backbone.grid) == (layer, grid)
    held = {name for name, one in made.model.named_parameters() if one.numel()}
    assert not [name for name in held if name.startswith(("classifier", "fc"))], (
        "layers behind the features take memory"
    )


def test_default_layer_of_vgg19_is_that_of_the_paper() -> None:
    """Xu et al. take the ReLU after the 16th convolution (block 5, layer 4), before the last pooling."""
    with torch.device("meta"):
        model = feature_extractor.import_torchvision_models("vgg19").get_model("vgg19", weights=None).features
    convolutions = [number for number, one in enumerate(model) if isinstance(one, torch.nn.Conv2d)]
    assert (len(convolutions), convolutions[-1]) == (16, 34)
    assert isinstance(model[36], torch.nn.MaxPool2d)
    bare = build_torchvision_network(
        feature_extractor.import_torchvision_models("vgg19"), FeatureExtractorOptions("vgg19")
    )
    assert find_default_layer(bare, "vgg19", 224) == "features.35"
    truncated, grid = truncate_network(bare, "vgg19", "features.35", 224)
    assert grid == (14, 14, 512)
    assert list(truncated.state_dict()) == [name for name in bare.state_dict() if name.startswith("features.")]


@pytest.mark.slow
def test_all_weights_are_kept_where_blocks_are_in_a_list() -> None:
    """MaxViT calls the blocks of a list one by one; the indices of its relative positions are buffers."""
    options = FeatureExtractorOptions("maxvit_t")
    bare = build_torchvision_network(feature_extractor.import_torchvision_models("maxvit_t"), options)
    assert find_default_layer(bare, "maxvit_t", 224) == "blocks.3"
    truncated, grid = truncate_network(bare, "maxvit_t", "blocks.3", 224)
    assert grid == (7, 7, 512)
    expected = {name for name in bare.state_dict() if name.startswith(("stem.", "blocks."))}
    assert set(truncated.state_dict()) == expected


@pytest.mark.parametrize("batch", slow_after(1, [3, 1, 100]))
def test_features_do_not_depend_on_the_batch_size(
    data: Path, network: FeatureExtractor, features: Path, batch: int, tmp_path: Path
) -> None:
    extract_image_features(list_caption_files([data / "train.jsonl"]), network, tmp_path / "out", batch)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "train.npy"), np.load(features / "train.npy"), atol=1e-5)


def test_feature_rows_follow_the_order_of_the_captions(data: Path, features: Path) -> None:
    before, after = read_jsonl(data / "train.jsonl"), read_jsonl(features / "train.jsonl")
    for old, new in zip(before, after, strict=True):
        assert (new["caption"], new["id"], new["image"]) == (old["caption"], old["id"], "train.npy")
        assert (features / new["original"]["image"]).samefile(data / old["image"])
    rows = [line["row"] for line in after]
    assert rows == [*range(7), *range(7)], "one row for each image, in the order of first mention"
    assert np.load(features / "dev.npy").shape[0] == 3
    assert sorted(path.name for path in features.iterdir()) == [
        BACKBONE_FILE,
        "dev.jsonl",
        "dev.npy",
        "train.jsonl",
        "train.npy",
    ]


def test_features_are_extracted_for_tsv_files_and_image_arrays(
    data: Path, network: FeatureExtractor, tmp_path: Path
) -> None:
    np.save(tmp_path / "many.npy", np.stack([make_photo(1), make_photo(2)]))
    table = write_file(tmp_path / "a.tsv", f"{data}/photos/1.png\ta cat\n\n{data}/photos/2.png\n")
    objects = write_jsonl(tmp_path / "b.jsonl", [{"image": "many.npy", "row": 1}])
    out = tmp_path / "out"
    extract_image_features(list_caption_files([table, objects]), network, out, 4)
    first, second = read_jsonl(out / "a.jsonl")
    assert first["caption"] == "a cat"
    assert "caption" not in second
    assert read_jsonl(out / "b.jsonl") == [{"image": "b.npy", "row": 0, "original": {"image": "../many.npy", "row": 1}}]
    expected = network.extract_grids(network.backbone.resize_and_crop(make_photo(2), ImageFile(Path("x")))[None])[0]
    np.testing.assert_allclose(np.load(out / "b.npy")[0], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["vgg19", "efficientnet_b0"])
@pytest.mark.parametrize("size", [(80, 120), (121, 77), (20, 300), (224, 224)], ids="{0[0]}x{0[1]}".format)
def test_image_is_resized_and_cropped_as_in_torchvision(name: str, size: tuple[int, int]) -> None:
    own = feature_extractor.import_torchvision_models(name).get_model_weights(name).DEFAULT.transforms()
    backbone = make_backbone(interpolation=own.interpolation.value, side=224, resize=own.resize_size[0])
    array = make_photo(1, *size)
    framed = backbone.resize_and_crop(array, ImageFile(Path("x"))).astype(np.float32) / 255
    expected = own(Image.fromarray(array)).permute(1, 2, 0).numpy() * np.array(own.std) + np.array(own.mean)
    np.testing.assert_allclose(framed, expected, atol=1e-5)
    left, top, right, bottom = backbone.compute_crop_window(*size)
    assert 0 <= left < right <= 1
    assert 0 <= top < bottom <= 1
    assert (right - left) * size[1] == pytest.approx((bottom - top) * size[0], rel=0.02), "the window is a square"
    assert min(right - left, bottom - top) <= max(right - left, bottom - top) == pytest.approx(224 / backbone.resize)


def make_backbone(**changes: Any) -> Backbone:
    values: dict[str, Any] = {
        "network": "squeezenet1_1",
        "layer": "features.5",
        "weights": "random",
        "checksum": "0",
        "grid": (7, 7, 128),
        "side": 64,
        "resize": 73,
        "interpolation": "bilinear",
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "precision": "float32",
    }
    return Backbone(**(values | changes))


def test_features_beyond_float16_are_refused(data: Path, tmp_path: Path) -> None:
    made = build_feature_extractor(SMALL._replace(precision="float16"), CPU)
    extract_image_features(list_caption_files([data / "dev.jsonl"]), made, tmp_path / "a", 4)
    assert np.load(tmp_path / "a" / "dev.npy").dtype == np.float16
    made.model.get_parameter("features.0.weight").data.mul_(1e9)
    message = error_message(extract_image_features, list_caption_files([data / "dev.jsonl"]), made, tmp_path / "b", 4)
    assert message.startswith(f"{data / 'dev.jsonl'}:1: ")
    assert "features that are NaN or inf in float16; try --precision float32" in message
    assert not [path for path in tmp_path.iterdir() if path.name != "a"], "files were left behind"


# Weights


def test_weight_files_may_lack_the_layers_behind_the_features(tmp_path: Path) -> None:
    state = build_reference("squeezenet1_1", 5).state_dict()
    save_file({key: one for key, one in state.items() if key.startswith("features")}, tmp_path / "w.safetensors")
    torch.save({"model": state, "epoch": 3}, tmp_path / "w.pth")
    frames = np.stack([make_photo(1, 64, 64), make_photo(2, 64, 64)])
    plain = build_feature_extractor(SMALL, CPU)
    safe, pickled = (
        build_feature_extractor(SMALL._replace(weights=str(tmp_path / name)), CPU)
        for name in ("w.safetensors", "w.pth")
    )
    assert safe.backbone.checksum == pickled.backbone.checksum != plain.backbone.checksum
    np.testing.assert_array_equal(safe.extract_grids(frames), pickled.extract_grids(frames))
    assert np.abs(safe.extract_grids(frames) - plain.extract_grids(frames)).max() > 0.01
    assert safe.backbone.is_compatible_with(pickled.backbone)
    assert not safe.backbone.is_compatible_with(plain.backbone)


def test_pretrained_weights_are_read_from_the_torch_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))

    def offline(*_: Any, **__: Any) -> None:
        raise URLError("no network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    message = error_message(build_feature_extractor, SMALL._replace(weights="pretrained"), CPU)
    assert "the weights IMAGENET1K_V1 of squeezenet1_1 are not on this machine and cannot be downloaded" in message
    address = feature_extractor.import_torchvision_models("x").get_model_weights("squeezenet1_1").DEFAULT.url
    assert address in message
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    state = build_reference("squeezenet1_1", 5).state_dict()
    torch.save(state, tmp_path / "checkpoints" / address.rsplit("/", 1)[-1])
    frames = np.stack([make_photo(1, 64, 64)])
    own, named = (
        build_feature_extractor(SMALL._replace(weights=name), CPU) for name in ("pretrained", "IMAGENET1K_V1")
    )
    assert own.backbone == named.backbone
    assert own.backbone.weights == "IMAGENET1K_V1"
    torch.save(state, tmp_path / "w.pth")
    ours = build_feature_extractor(SMALL._replace(weights=str(tmp_path / "w.pth")), CPU)
    np.testing.assert_array_equal(own.extract_grids(frames), ours.extract_grids(frames))


def test_pickled_objects_in_weight_files_are_not_executed(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    torch.save({"features.0.weight": Trap()}, tmp_path / "w.pth")
    message = error_message(build_feature_extractor, SMALL._replace(weights=str(tmp_path / "w.pth")), CPU)
    assert "w.pth cannot be read as a network's weights" in message
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "vgg91"}, "torchvision has no network 'vgg91'; did you mean 'vgg19'?"),
        ({"layer": "features.55"}, "has no layer 'features.55'; names like it are features.5, features."),
        ({"layer": "classifier"}, "1,000 × 1 × 1 numbers, is not a feature grid; try features"),
        ({"weights": "IMAGENET"}, "squeezenet1_1 has no weights 'IMAGENET'; did you mean 'IMAGENET1K_V1'?"),
        ({"weights": "gone.pth"}, "there is no file gone.pth, which should hold a network's weights"),
        ({"weights": "text.pth"}, "text.pth cannot be read as a network's weights"),
        ({"weights": "text.safetensors"}, "text.safetensors cannot be read as a network's weights"),
        ({"weights": "list.pth"}, "list.pth is not a state dict"),
        ({"weights": "other.pth"}, "does not fit squeezenet1_1: it has no features.0.weight, but conv1.weight"),
        ({"weights": "wide.pth"}, "features.0.weight has the shape 2 × 3 × 3 × 3, expected 64 × 3 × 3 × 3"),
        ({"side": 4, "layer": None}, "squeezenet1_1 cannot process images of 4 × 4 pixels"),
    ],
)
def test_unknown_networks_layers_and_weights_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text.pth", "text.safetensors"):
        Path(name).write_text("no weights")
    torch.save([1, 2], "list.pth")
    torch.save({"conv1.weight": torch.ones(2)}, "other.pth")
    torch.save({"features.0.weight": torch.ones(2, 3, 3, 3)}, "wide.pth")
    assert message in error_message(build_feature_extractor, SMALL._replace(**changes), CPU)


def test_missing_torchvision_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    message = error_message(build_feature_extractor, SMALL, CPU)
    assert (
        "extracting features with squeezenet1_1 needs torchvision and Pillow (pip install 'regard[vision]')" in message
    )


def test_torchvision_incompatible_with_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_name: str) -> Any:
        raise RuntimeError("operator torchvision::warp\ndoes not exist")

    monkeypatch.setattr(importlib, "import_module", broken)
    message = error_message(build_feature_extractor, SMALL, CPU)
    assert f"does not match torch {torch.__version__} (operator torchvision::warp does not exist)" in message


# Files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "a.jsonl does not name any image"),
        ('{"image": "gone.png"}', "a.jsonl:1: there is no file"),
        ('{"image": "grid.npy"}', "a.jsonl:1: {}/grid.npy: an array of 2 × 2 × 5 float32 is not an image"),
        ('{"image": "cut.png"}', "a.jsonl:1: {}/cut.png: it cannot be read as an image"),
        ('{"image": "text.jpg"}', "a.jsonl:1: {}/text.jpg: it cannot be read as an image"),
        ('{"image": "thin.npy"}', "pixels after scaling; the maximum is 64,000,000"),
    ],
)
def test_unreadable_images_are_reported_with_file_and_line(
    content: str, message: str, network: FeatureExtractor, tmp_path: Path
) -> None:
    np.save(tmp_path / "grid.npy", np.zeros((2, 2, 5), dtype=np.float32))
    np.save(tmp_path / "thin.npy", np.zeros((1, 30_000, 3), dtype=np.uint8))
    whole = io.BytesIO()
    Image.fromarray(make_photo(1)).save(whole, "PNG")
    write_file(tmp_path / "cut.png", whole.getvalue()[:-300])
    write_file(tmp_path / "text.jpg", "no image")
    path = write_file(tmp_path / "a.jsonl", content + "\n")
    found = error_message(lambda: extract_image_features(list_caption_files([path]), network, tmp_path / "out", 4))
    assert message.format(tmp_path) in found
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


def test_extraction_does_not_start_without_enough_disk_space(
    data: Path, network: FeatureExtractor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=40_000))
    message = error_message(
        extract_image_features, list_caption_files([data / "dev.jsonl"]), network, tmp_path / "out", 4
    )
    assert message == f"{tmp_path / 'out'}: the features take 0.1 MB, but the disk has 0.0 MB left"
    assert not list(tmp_path.iterdir())


def test_equal_output_names_and_existing_folders_are_refused(
    data: Path, network: FeatureExtractor, tmp_path: Path
) -> None:
    table = write_file(tmp_path / "train.tsv", f"{data}/photos/1.png\ta\n")
    assert "two of the files would both become train.jsonl" in error_message(
        list_caption_files, [data / "train.jsonl", table]
    )
    message = error_message(list_caption_files, [data / "photos" / "1.png"])
    assert "1.png is an image; give a file that names images" in message
    tmp_path.joinpath("out").mkdir()
    message = error_message(extract_image_features, list_caption_files([table]), network, tmp_path / "out", 4)
    assert message == f"{tmp_path / 'out'} already exists; choose another --out"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"side": None}, "side is a whole number, not None"),
        ({"side": 300}, "side is at least 1 and at most resize, 73, not 300"),
        ({"grid": [1, 2]}, "grid must be [rows, columns, features], not [1, 2]"),
        ({"std": [0.0, 1.0, 1.0]}, "std must not be 0"),
        ({"colour": 1}, "unknown key"),
    ],
)
def test_invalid_backbone_description_is_refused(changes: Any, message: str, tmp_path: Path) -> None:
    write_file(tmp_path / BACKBONE_FILE, yaml.safe_dump(make_backbone().to_dict() | changes))
    assert message in error_message(read_backbone_file, tmp_path / "train.jsonl")


def test_backbone_description_round_trips(tmp_path: Path) -> None:
    assert read_backbone_file(tmp_path / "train.jsonl") is None
    make_backbone().write(tmp_path)
    assert read_backbone_file(tmp_path / "train.jsonl") == make_backbone()
    write_file(tmp_path / BACKBONE_FILE, "network: vgg19")
    assert f"{BACKBONE_FILE} has no layer" in error_message(read_backbone_file, tmp_path / "train.jsonl")
    write_file(tmp_path / BACKBONE_FILE, "vgg19")
    assert "describes a network, not 'vgg19'" in error_message(read_backbone_file, tmp_path / "train.jsonl")


def test_caption_line_may_name_the_original_image(tmp_path: Path) -> None:
    line = {"image": "f.npy", "row": 2, "caption": "a", "original": {"image": "../x.png"}}
    path = write_jsonl(tmp_path / "a.jsonl", [line])
    (one,) = image_files.read_captions([path])
    where = f"{path}:1"
    assert one.picture == ImageFile(tmp_path / "f.npy", 2, where, ImageFile(tmp_path / "../x.png", None, where))
    assert "original must name the image of the features" in error_message(
        image_files.parse_image, line | {"original": "x.png"}
    )


# Runs


def test_training_on_features_records_the_backbone_in_the_config(run: Run, network: FeatureExtractor) -> None:
    config = run.read_config()
    assert config["model"]["backbone"] == "none"
    assert config["data"]["features"] == 128
    assert config["data"]["backbone"] == network.backbone.to_dict()


def test_image_gets_the_same_caption_as_its_features(run: Run, data: Path, features: Path) -> None:
    model = regard.load(run.folder)
    pictures = list(model.read_inputs(features / "dev.jsonl"))
    for made, seen in zip(model.predict(pictures), model.predict([one.original.path for one in pictures]), strict=True):
        assert made.text == seen.text
        np.testing.assert_allclose(made.attention, seen.attention, atol=1e-4)
        np.testing.assert_array_equal(made.make_image_overlay().pixels, seen.make_image_overlay().pixels)
        assert seen.pixels.shape == (64, 64, 3)
        assert "seen" not in made.to_dict()
        left, top, right, bottom = seen.to_dict()["seen"]
        assert sorted((round(right - left, 1), round(bottom - top, 1))) == [0.6, 0.9], "the centre crop"
    sent = base64.b64encode((data / "photos" / "3.png").read_bytes()).decode()
    request = model.parse_json_input({"image": f"data:image/png;base64,{sent}"})  # as in a request to the service
    (made,), (seen,) = (model.predict([one]) for one in (request, data / "photos" / "3.png"))
    assert (made.text, made.window) == (seen.text, seen.window)
    of_features, of_images = (model.evaluate([folder / "dev.jsonl"]) for folder in (features, data))
    assert of_features["loss"] == pytest.approx(of_images["loss"], rel=1e-4)
    assert (of_features["bleu"], of_features["captions"]) == (of_images["bleu"], of_images["captions"])


def test_report_shows_the_original_images_of_features(run: Run) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 3
    assert "class=blank" not in page


def test_missing_original_image_leaves_the_overlay_empty(run: Run, features: Path, tmp_path: Path) -> None:
    model = regard.load(run.folder)
    gone, odd = tmp_path / "gone.png", tmp_path / "grid.npy"
    np.save(odd, np.zeros((2, 2), dtype=np.float32))
    for original in (gone, odd):
        (made,) = model.predict([ImageFile(features / "dev.npy", 0, "", ImageFile(original))])
        assert made.make_image_overlay().pixels is None
    eye = ImagePreprocessor(image=16, patch=4, max_side=99)  # features of an unknown network
    np.save(tmp_path / "large.npy", make_photo(1, 60, 40))
    small = eye.load_original_pixels(ImageFile(Path("f.npy"), 0, "", ImageFile(tmp_path / "large.npy")))
    assert small is not None
    assert small.shape == (16, 11, 3)


def load_with_backbone(run: Run, tmp_path: Path, **changes: Any) -> Any:
    """Load a copy of the run whose config describes another backbone, or none."""
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    config = run.read_config()
    config["data"]["backbone"] = config["data"]["backbone"] | changes if changes else None
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return regard.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checksum": "12"}, "(random) are not those that extracted the training features"),
        ({"weights": "/gone/w.pth"}, "/gone/w.pth is missing: the weights of squeezenet1_1"),
        ({}, "it is an image: extract features with `regard data features`"),
    ],
)
def test_image_is_refused_unless_the_weights_of_the_run_are_known(
    changes: dict[str, Any], message: str, run: Run, data: Path, features: Path, tmp_path: Path
) -> None:
    model = load_with_backbone(run, tmp_path, **changes)
    assert message in error_message(model.predict, [data / "photos" / "1.png"])
    assert len(model.predict([ImageFile(features / "dev.npy", 0)])) == 1, "features need no network"


def test_features_of_different_networks_cannot_be_mixed(run: Run, features: Path, data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(features, other)
    make_backbone(layer="features.3").write(other)
    message = "features of squeezenet1_1 features.3 (random, 64 pixels), but those of"
    model = regard.load(run.folder)
    assert message in error_message(model.read_inputs, other / "dev.jsonl")
    assert message in error_message(model.evaluate, [other / "dev.jsonl"])

    def train(data: Path, dev: Path, **changes: Any) -> None:
        recipe = None if changes else "xu2015-soft-caption"
        regard.train(recipe, data, tmp_path / "new", dev=dev, **QUICK | changes)

    assert message in error_message(train, features / "train.jsonl", other / "dev.jsonl")
    tuned = {"training.init_from": str(run.folder)}
    assert message in error_message(train, other / "train.jsonl", other / "dev.jsonl", **tuned)
    message = error_message(train, features / "train.jsonl", data / "dev.jsonl")
    assert "it is an image: extract features with `regard data features`" in message
    assert find_common_backbone([features / "train.jsonl", other.parent / "x.jsonl"]) == read_backbone_file(
        features / "train.jsonl"
    )


def test_init_from_keeps_the_backbone(run: Run, features: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"training.init_from": str(run.folder), "training.steps": 1}
    tuned = train(None, features / "dev.jsonl", tmp_path / "run", dev=features / "train.jsonl", **more)
    assert tuned.read_config()["data"]["backbone"] == run.read_config()["data"]["backbone"]


def test_network_is_built_once_for_all_images(run: Run) -> None:
    backbone = regard.load(run.folder).data.backbone
    assert rebuild_feature_extractor(backbone, CPU) is rebuild_feature_extractor(backbone, CPU)


def test_features_command_writes_features_and_says_how_to_train(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the command in this process, which has imported torchvision already."""
    options = ["--backbone", "squeezenet1_1", "--layer", "features.5", "--weights", "random", "--side", "64"]
    caption_files = [str(data / "train.jsonl"), str(data / "dev.jsonl")]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["regard", "data", "features", *caption_files, "--out", "f", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (0, "f/train.jsonl\nf/dev.jsonl\n"), err
    assert "10 images, 7 × 7 × 128 numbers each, of squeezenet1_1 features.5 (random, 64 pixels): 0.1 MB" in err
    assert "train on them: regard train f/train.jsonl --recipe xu2015-soft-caption" in err


@pytest.mark.slow
def test_predict_command_captions_an_image_by_its_features(run: Run, data: Path, regard: Command) -> None:
    done = regard("predict", run.folder, data / "photos" / "1.png", "--json")
    assert json.loads(done.stdout)["grid"] == [7, 7], done.stderr
