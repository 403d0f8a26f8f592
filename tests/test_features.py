"""Features of images: torchvision's networks, layer by layer; captions from features, and from images themselves."""

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
from support.commands import Command
from torch import Tensor

import regard
from regard.errors import UserError
from regard.runs import Run
from regard.tasks.captioning import Picture, files, vision
from regard.tasks.captioning.backbone import NAME, Backbone, beside, common
from regard.tasks.captioning.extraction import extract, listed
from regard.tasks.captioning.eye import Eye
from regard.tasks.captioning.network import SEED, Network, Wanted, again, begun, built, trimmed, usual

CPU = torch.device("cpu")
SMALL = Wanted("squeezenet1_1", "features.5", "random", 64, "float32")
QUICK: dict[str, Any] = {
    "model.size": 12,
    "model.embedding": 8,
    "model.annotation": 10,
    "model.attention": 8,
    "training.steps": 2,
    "training.batch_tokens": 128,
    "training.learning_rate": 0.01,
    "training.validate_every": 2,
    "training.checkpoint_every": 2,
    "training.tensorboard": False,
}


def complaint(call: Any, *arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def photo(seed: int, height: int = 90, width: int = 120) -> Any:
    """Coarse patches of colour, so that scaling does not leave a uniform grey."""
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((width, height)))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten photos, two captions each, in an order that is not that of their names; nobody changes them."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "photos").mkdir()
    order = [7, 2, 9, 0, 5, 1, 8, 3, 6, 4]
    for number in order:
        tall = number % 2
        Image.fromarray(photo(number, *((120, 80) if tall else (80, 120)))).save(folder / "photos" / f"{number}.png")
    rows = [
        {"image": f"photos/{number}.png", "caption": f"{word} {'tall' if number % 2 else 'flat'} photo", "id": number}
        for word in ("a", "one")
        for number in order
    ]
    for name, some in (("train", rows[:7] + rows[10:17]), ("dev", rows[7:10] + rows[17:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def network() -> Network:
    return built(SMALL, CPU)


@pytest.fixture(scope="module")
def features(data: Path, network: Network) -> Path:
    """What becomes of the photos; nobody changes it."""
    out = data / "features"
    extract(listed([data / "train.jsonl", data / "dev.jsonl"]), network, out, 4)
    return out


@pytest.fixture(scope="module")
def run(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The recipe as it is, on features as they are written."""
    out = tmp_path_factory.mktemp("runs") / "run"
    return regard.train("xu2015-soft-caption", features / "train.jsonl", out, dev=features / "dev.jsonl", **QUICK)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def seeded(name: str, seed: int = SEED) -> Any:
    """torchvision's network with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return vision.models(name).get_model(name, weights=None).eval()


def shown(name: str, path: Path, side: int = 64) -> Tensor:
    """An image as torchvision's own transforms make it."""
    transforms = vision.models(name).get_model_weights(name).DEFAULT.transforms
    own = transforms()
    scaled = round(side * own.resize_size[0] / own.crop_size[0])
    image: Tensor = transforms(crop_size=side, resize_size=scaled)(Image.open(path))
    return image[None]


# Features


@torch.inference_mode()
def test_features_are_those_of_torchvision_layer_by_layer(data: Path, features: Path) -> None:
    model = seeded("squeezenet1_1")
    table = np.load(features / "train.npy")
    assert table.shape == (7, 7, 7, 128)
    for line in lines(features / "train.jsonl"):
        x = shown("squeezenet1_1", features / line["original"]["image"])
        for number in range(6):
            x = model.features[number](x)
        np.testing.assert_allclose(table[line["row"]], x[0].permute(1, 2, 0).numpy(), atol=1e-5)


@torch.inference_mode()
def test_layers_are_named_as_torchvision_names_them(data: Path) -> None:
    model, made = seeded("resnet18"), built(Wanted("resnet18", "layer3.0.conv1", "random", 64, "float32"), CPU)
    path = data / "photos" / "3.png"
    x = model.maxpool(model.relu(model.bn1(model.conv1(shown("resnet18", path)))))
    x = model.layer3[0].conv1(model.layer2(model.layer1(x)))
    (found,) = made.grids(made.backbone.framed(Picture(path).load(), Picture(path))[None])
    np.testing.assert_allclose(found, x[0].permute(1, 2, 0).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "layer", "grid"),
    [
        ("alexnet", "features.11", (3, 3, 256)),
        ("resnet18", "layer4", (2, 2, 512)),
        ("mobilenet_v2", "features", (2, 2, 1280)),
    ],
)
def test_the_usual_layer_is_the_last_grid_before_it_is_pooled(name: str, layer: str, grid: tuple[int, ...]) -> None:
    made = built(Wanted(name, None, "random", 64), CPU)
    assert (made.backbone.layer, made.backbone.grid) == (layer, grid)
    held = {name for name, one in made.model.named_parameters() if one.numel()}
    assert not [name for name in held if name.startswith(("classifier", "fc"))], "what is not asked takes no room"


def test_of_vgg19_it_is_the_paper_s() -> None:
    """The rectifier behind the sixteenth convolution, the fourth of the fifth block, before the last pooling."""
    with torch.device("meta"):
        model = vision.models("vgg19").get_model("vgg19", weights=None).features
    convolutions = [number for number, one in enumerate(model) if isinstance(one, torch.nn.Conv2d)]
    assert (len(convolutions), convolutions[-1]) == (16, 34)
    assert isinstance(model[36], torch.nn.MaxPool2d)
    bare = begun(vision.models("vgg19"), Wanted("vgg19"))
    assert usual(bare, "vgg19", 224) == "features.35"
    assert trimmed(bare, "vgg19", "features.35", 224) == (14, 14, 512)


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_the_batch_changes_nothing(data: Path, network: Network, features: Path, batch: int, tmp_path: Path) -> None:
    extract(listed([data / "train.jsonl"]), network, tmp_path / "out", batch)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "train.npy"), np.load(features / "train.npy"), atol=1e-5)


def test_rows_are_the_images_in_the_order_of_the_captions(data: Path, features: Path) -> None:
    before, after = lines(data / "train.jsonl"), lines(features / "train.jsonl")
    for old, new in zip(before, after, strict=True):
        assert (new["caption"], new["id"], new["image"]) == (old["caption"], old["id"], "train.npy")
        assert (features / new["original"]["image"]).samefile(data / old["image"])
    rows = [line["row"] for line in after]
    assert rows == [*range(7), *range(7)], "each image once, as it comes first"
    assert np.load(features / "dev.npy").shape[0] == 3
    assert sorted(path.name for path in features.iterdir()) == [
        NAME,
        "dev.jsonl",
        "dev.npy",
        "train.jsonl",
        "train.npy",
    ]


def test_tables_pipes_and_arrays_name_images_too(data: Path, network: Network, tmp_path: Path) -> None:
    np.save(tmp_path / "many.npy", np.stack([photo(1), photo(2)]))
    (tmp_path / "a.tsv").write_text(f"{data}/photos/1.png\ta cat\n\n{data}/photos/2.png\n", encoding="utf-8")
    row = {"image": "many.npy", "row": 1}
    (tmp_path / "b.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    out = tmp_path / "out"
    extract(listed([tmp_path / "a.tsv", tmp_path / "b.jsonl"]), network, out, 4)
    first, second = lines(out / "a.jsonl")
    assert first["caption"] == "a cat"
    assert "caption" not in second
    assert lines(out / "b.jsonl") == [{"image": "b.npy", "row": 0, "original": {"image": "../many.npy", "row": 1}}]
    expected = network.grids(network.backbone.framed(photo(2), Picture(Path("x")))[None])[0]
    np.testing.assert_allclose(np.load(out / "b.npy")[0], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["vgg19", "efficientnet_b0"])
@pytest.mark.parametrize("size", [(80, 120), (121, 77), (20, 300), (224, 224)])
def test_an_image_is_framed_as_torchvision_frames_it(name: str, size: tuple[int, int]) -> None:
    own = vision.models(name).get_model_weights(name).DEFAULT.transforms()
    backbone = example(interpolation=own.interpolation.value, side=224, resize=own.resize_size[0])
    array = photo(1, *size)
    framed = backbone.framed(array, Picture(Path("x"))).astype(np.float32) / 255
    expected = own(Image.fromarray(array)).permute(1, 2, 0).numpy() * np.array(own.std) + np.array(own.mean)
    np.testing.assert_allclose(framed, expected, atol=1e-5)
    left, top, right, bottom = backbone.window(*size)
    assert 0 <= left < right <= 1
    assert 0 <= top < bottom <= 1
    assert (right - left) * size[1] == pytest.approx((bottom - top) * size[0], rel=0.02), "a square"
    assert min(right - left, bottom - top) <= max(right - left, bottom - top) == pytest.approx(224 / backbone.resize)


def example(**changes: Any) -> Backbone:
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


def test_features_that_half_a_float_cannot_hold_are_refused(data: Path, tmp_path: Path) -> None:
    made = built(SMALL._replace(precision="float16"), CPU)
    extract(listed([data / "dev.jsonl"]), made, tmp_path / "a", 4)
    assert np.load(tmp_path / "a" / "dev.npy").dtype == np.float16
    made.model.get_parameter("features.0.weight").data.mul_(1e9)
    heard = complaint(extract, listed([data / "dev.jsonl"]), made, tmp_path / "b", 4)
    assert heard.startswith(f"{data / 'dev.jsonl'}:1: ")
    assert "features that float16 cannot hold: --precision float32" in heard
    assert not [path for path in tmp_path.iterdir() if path.name != "a"], "nothing is left behind"


# Weights


def test_weights_come_from_files_and_those_behind_the_layer_are_not_asked_for(tmp_path: Path) -> None:
    state = seeded("squeezenet1_1", 5).state_dict()
    save_file({key: one for key, one in state.items() if key.startswith("features")}, tmp_path / "w.safetensors")
    torch.save({"model": state, "epoch": 3}, tmp_path / "w.pth")
    frames = np.stack([photo(1, 64, 64), photo(2, 64, 64)])
    plain = built(SMALL, CPU)
    safe, pickled = (built(SMALL._replace(weights=str(tmp_path / name)), CPU) for name in ("w.safetensors", "w.pth"))
    assert safe.backbone.checksum == pickled.backbone.checksum != plain.backbone.checksum
    np.testing.assert_array_equal(safe.grids(frames), pickled.grids(frames))
    assert np.abs(safe.grids(frames) - plain.grids(frames)).max() > 0.01
    assert safe.backbone.makes_those_of(pickled.backbone)
    assert not safe.backbone.makes_those_of(plain.backbone)


def test_weights_of_torchvision_are_read_from_where_it_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))

    def offline(*_: Any, **__: Any) -> None:
        raise URLError("no network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    heard = complaint(built, SMALL._replace(weights="pretrained"), CPU)
    assert "the weights IMAGENET1K_V1 of squeezenet1_1 are not on this machine and cannot be downloaded" in heard
    address = vision.models("x").get_model_weights("squeezenet1_1").DEFAULT.url
    assert address in heard
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    torch.save(seeded("squeezenet1_1", 5).state_dict(), tmp_path / "checkpoints" / address.rsplit("/", 1)[-1])
    frames = np.stack([photo(1, 64, 64)])
    own, named = (built(SMALL._replace(weights=name), CPU) for name in ("pretrained", "IMAGENET1K_V1"))
    assert own.backbone == named.backbone
    assert own.backbone.weights == "IMAGENET1K_V1"
    torch.save(seeded("squeezenet1_1", 5).state_dict(), tmp_path / "w.pth")
    ours = built(SMALL._replace(weights=str(tmp_path / "w.pth")), CPU)
    np.testing.assert_array_equal(own.grids(frames), ours.grids(frames))


def test_nothing_in_a_file_of_weights_is_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    torch.save({"features.0.weight": Trap()}, tmp_path / "w.pth")
    assert "w.pth cannot be read as a network's weights" in complaint(
        built, SMALL._replace(weights=str(tmp_path / "w.pth")), CPU
    )
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"network": "vgg91"}, "torchvision has no network 'vgg91'; did you mean 'vgg19'?"),
        ({"layer": "features.55"}, "has no layer 'features.55'; names like it are features.5, features."),
        ({"layer": "classifier"}, "gives 1,000 × 1 × 1 numbers, and no grid of places, as features does"),
        ({"weights": "IMAGENET"}, "there are no weights 'IMAGENET' of squeezenet1_1; did you mean 'IMAGENET1K_V1'?"),
        ({"weights": "gone.pth"}, "there is no file gone.pth, which should hold a network's weights"),
        ({"weights": "text.pth"}, "text.pth cannot be read as a network's weights"),
        ({"weights": "text.safetensors"}, "text.safetensors cannot be read as a network's weights"),
        ({"weights": "list.pth"}, "list.pth holds no weights by their names"),
        ({"weights": "other.pth"}, "does not fit squeezenet1_1: it has no features.0.weight, but conv1.weight"),
        ({"weights": "wide.pth"}, "features.0.weight is 2 × 3 × 3 × 3 there, and 64 × 3 × 3 × 3 here"),
        ({"side": 4, "layer": None}, "squeezenet1_1 cannot read images of 4 pixels to a side"),
    ],
)
def test_what_cannot_be_had_is_said(
    changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text.pth", "text.safetensors"):
        Path(name).write_text("no weights")
    torch.save([1, 2], "list.pth")
    torch.save({"conv1.weight": torch.ones(2)}, "other.pth")
    torch.save({"features.0.weight": torch.ones(2, 3, 3, 3)}, "wide.pth")
    assert said in complaint(built, SMALL._replace(**changes), CPU)


def test_without_torchvision_it_is_said_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    heard = complaint(built, SMALL, CPU)
    assert "sending images through squeezenet1_1 takes torchvision and Pillow (pip install 'regard[vision]')" in heard


def test_a_torchvision_that_does_not_go_with_torch_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_name: str) -> Any:
        raise RuntimeError("operator torchvision::warp\ndoes not exist")

    monkeypatch.setattr(importlib, "import_module", broken)
    heard = complaint(built, SMALL, CPU)
    assert f"does not go with torch {torch.__version__} (operator torchvision::warp does not exist)" in heard


# Files


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "a.jsonl: no image is named in there"),
        ('{"image": "gone.png"}', "a.jsonl:1: there is no file"),
        ('{"image": "grid.npy"}', "a.jsonl:1: {}/grid.npy: 2 × 2 × 5 numbers of the kind float32 are no image"),
        ('{"image": "cut.png"}', "a.jsonl:1: {}/cut.png: it cannot be read as an image"),
        ('{"image": "text.jpg"}', "a.jsonl:1: {}/text.jpg: it cannot be read as an image"),
        ('{"image": "thin.npy"}', "pixels when scaled; an image has 64,000,000 at the most"),
    ],
)
def test_images_that_cannot_be_had_are_named(content: str, said: str, network: Network, tmp_path: Path) -> None:
    np.save(tmp_path / "grid.npy", np.zeros((2, 2, 5), dtype=np.float32))
    np.save(tmp_path / "thin.npy", np.zeros((1, 30_000, 3), dtype=np.uint8))
    whole = io.BytesIO()
    Image.fromarray(photo(1)).save(whole, "PNG")
    (tmp_path / "cut.png").write_bytes(whole.getvalue()[:-300])
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "a.jsonl").write_text(content + "\n", encoding="utf-8")
    heard = complaint(lambda: extract(listed([tmp_path / "a.jsonl"]), network, tmp_path / "out", 4))
    assert said.format(tmp_path) in heard
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


def test_features_that_the_disk_cannot_hold_are_not_begun(
    data: Path, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=40_000))
    heard = complaint(extract, listed([data / "dev.jsonl"]), network, tmp_path / "out", 4)
    assert heard == f"{tmp_path / 'out'}: the features take 0.1 MB, and the disk has 0.0 MB left"
    assert not list(tmp_path.iterdir())


def test_files_that_would_share_a_name_and_pictures_are_refused(data: Path, network: Network, tmp_path: Path) -> None:
    shutil.copy(data / "train.jsonl", tmp_path / "train.tsv")
    (tmp_path / "train.tsv").write_text(f"{data}/photos/1.png\ta\n", encoding="utf-8")
    both = [data / "train.jsonl", tmp_path / "train.tsv"]
    assert "two of the files would both become train.jsonl" in complaint(listed, both)
    assert "1.png is a picture; a file is wanted that names pictures" in complaint(listed, [data / "photos" / "1.png"])
    tmp_path.joinpath("out").mkdir()
    heard = complaint(extract, listed(both[1:]), network, tmp_path / "out", 4)
    assert heard == f"{tmp_path / 'out'} is there already; choose another --out"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"side": None}, "side is a whole number, not None"),
        ({"side": 300}, "side is at least 1 and at most resize, 73, not 300"),
        ({"grid": [1, 2]}, "grid is rows, columns and features, not [1, 2]"),
        ({"std": [0.0, 1.0, 1.0]}, "std is not 0"),
        ({"colour": 1}, "unknown key"),
    ],
)
def test_a_word_on_features_that_makes_no_sense_is_refused(changes: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(yaml.safe_dump(example().mapping() | changes), encoding="utf-8")
    assert said in complaint(beside, tmp_path / "train.jsonl")


def test_what_made_features_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert beside(tmp_path / "train.jsonl") is None
    example().write(tmp_path)
    assert beside(tmp_path / "train.jsonl") == example()
    (tmp_path / NAME).write_text("network: vgg19", encoding="utf-8")
    assert f"{NAME} has no layer" in complaint(beside, tmp_path / "train.jsonl")
    (tmp_path / NAME).write_text("vgg19", encoding="utf-8")
    assert "key by key, not 'vgg19'" in complaint(beside, tmp_path / "train.jsonl")


def test_an_original_is_an_image_that_an_object_names(tmp_path: Path) -> None:
    line = {"image": "f.npy", "row": 2, "caption": "a", "original": {"image": "../x.png"}}
    (tmp_path / "a.jsonl").write_text(json.dumps(line), encoding="utf-8")
    (one,) = files.read([tmp_path / "a.jsonl"])
    where = f"{tmp_path / 'a.jsonl'}:1"
    assert one.picture == Picture(tmp_path / "f.npy", 2, where, Picture(tmp_path / "../x.png", None, where))
    assert "original is the image that features are of" in complaint(files.picture, line | {"original": "x.png"})


# Runs


def test_a_recipe_reads_features_as_they_are_and_knows_what_made_them(run: Run, network: Network) -> None:
    config = run.config()
    assert config["model"]["backbone"] == "none"
    assert config["data"]["features"] == 128
    assert config["data"]["backbone"] == network.backbone.mapping()


def test_an_image_is_captioned_as_its_features_are(run: Run, data: Path, features: Path) -> None:
    model = regard.load(run.folder)
    pictures = list(model.inputs(features / "dev.jsonl"))
    for made, seen in zip(model.predict(pictures), model.predict([one.original.path for one in pictures]), strict=True):
        assert made.text == seen.text
        np.testing.assert_allclose(made.attention, seen.attention, atol=1e-4)
        np.testing.assert_array_equal(made.overlay().pixels, seen.overlay().pixels)
        assert seen.pixels.shape == (64, 64, 3)
        assert "seen" not in made.document()
        left, top, right, bottom = seen.document()["seen"]
        assert sorted((round(right - left, 1), round(bottom - top, 1))) == [0.6, 0.9], "the middle"
    sent = base64.b64encode((data / "photos" / "3.png").read_bytes()).decode()
    asked = model.asked({"image": f"data:image/png;base64,{sent}"})  # as a request to the service has it
    (made,), (seen,) = (model.predict([one]) for one in (asked, data / "photos" / "3.png"))
    assert (made.text, made.window) == (seen.text, seen.window)
    of_features, of_images = (model.evaluate([folder / "dev.jsonl"]) for folder in (features, data))
    assert of_features["loss"] == pytest.approx(of_images["loss"], rel=1e-4)
    assert (of_features["bleu"], of_features["captions"]) == (of_images["bleu"], of_images["captions"])


def test_the_report_has_the_images_that_features_are_of(run: Run) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 3
    assert "class=blank" not in page


def test_an_original_that_is_gone_is_left_out_of_the_picture(run: Run, features: Path, tmp_path: Path) -> None:
    model = regard.load(run.folder)
    gone, odd = tmp_path / "gone.png", tmp_path / "grid.npy"
    np.save(odd, np.zeros((2, 2), dtype=np.float32))
    for original in (gone, odd):
        (made,) = model.predict([Picture(features / "dev.npy", 0, "", Picture(original))])
        assert made.overlay().pixels is None
    eye = Eye(image=16, patch=4, max_side=99)  # features of a network that nobody named
    np.save(tmp_path / "large.npy", photo(1, 60, 40))
    small = eye.original(Picture(Path("f.npy"), 0, "", Picture(tmp_path / "large.npy")))
    assert small is not None
    assert small.shape == (16, 11, 3)


def changed(run: Run, tmp_path: Path, **changes: Any) -> Any:
    """The run with another word on its features."""
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    config = run.config()
    config["data"]["backbone"] = config["data"]["backbone"] | changes if changes else None
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return regard.load(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"checksum": "12"}, "(random) are not those that made the features which the model learnt from"),
        ({"weights": "/gone/w.pth"}, "/gone/w.pth is not there any more, the weights of squeezenet1_1"),
        ({}, "it is an image, and the run does not know which network made its features"),
    ],
)
def test_other_weights_are_not_taken_for_those_of_the_run(
    changes: dict[str, Any], said: str, run: Run, data: Path, features: Path, tmp_path: Path
) -> None:
    model = changed(run, tmp_path, **changes)
    assert said in complaint(model.predict, [data / "photos" / "1.png"])
    assert len(model.predict([Picture(features / "dev.npy", 0)])) == 1, "features need no network"


def test_features_of_different_networks_are_not_mixed(run: Run, features: Path, data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(features, other)
    example(layer="features.3").write(other)
    said = "features of squeezenet1_1 features.3 (random, 64 pixels), and those of"
    model = regard.load(run.folder)
    assert said in complaint(model.inputs, other / "dev.jsonl")
    assert said in complaint(model.evaluate, [other / "dev.jsonl"])
    new = tmp_path / "new"

    def trained(file: Path, dev: Path, **changes: Any) -> Any:
        return lambda: regard.train(None if changes else "xu2015-soft-caption", file, new, dev=dev, **QUICK | changes)

    assert said in complaint(trained(features / "train.jsonl", other / "dev.jsonl"))
    tuned = {"training.init_from": str(run.folder)}
    assert said in complaint(trained(other / "train.jsonl", other / "dev.jsonl", **tuned))
    heard = complaint(trained(features / "train.jsonl", data / "dev.jsonl"))
    assert "it is an image, and `regard data features` makes features of images" in heard
    assert common([features / "train.jsonl", other.parent / "x.jsonl"]) == beside(features / "train.jsonl")


def test_a_run_starts_from_one_that_read_the_same_features(run: Run, features: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"training.init_from": str(run.folder), "training.steps": 1}
    tuned = regard.train(None, features / "dev.jsonl", tmp_path / "run", dev=features / "train.jsonl", **more)
    assert tuned.config()["data"]["backbone"] == run.config()["data"]["backbone"]


def test_a_network_is_built_once_for_all_images(run: Run) -> None:
    backbone = regard.load(run.folder).data.backbone
    assert again(backbone, CPU) is again(backbone, CPU)


def test_the_command_line_from_images_to_captions(run: Run, data: Path, regard: Command) -> None:
    options = ["--backbone", "squeezenet1_1", "--layer", "features.5", "--weights", "random", "--side", "64"]
    made = regard("data", "features", data / "train.jsonl", data / "dev.jsonl", "--out", "f", *options)
    assert (made.returncode, made.stdout) == (0, "f/train.jsonl\nf/dev.jsonl\n"), made.stderr
    assert "10 images, 7 × 7 × 128 numbers each, of squeezenet1_1 features.5 (random, 64 pixels): 0.1 MB" in made.stderr
    assert "train on them: regard train f/train.jsonl --recipe xu2015-soft-caption" in made.stderr
    told = regard("predict", run.folder, data / "photos" / "1.png", "--json")
    assert json.loads(told.stdout)["grid"] == [7, 7], told.stderr
