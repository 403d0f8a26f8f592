"""Image captioning: images and feature grids, caption files, synthetic scenes, training, captions and attention."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tasks
from support.combinations import slow_after
from support.commands import Command
from support.files import read_jsonl, write_file, write_jsonl
from support.tasks import SIX_STEPS, error_message, prepare_job

import regard
from regard.config import parse_settings
from regard.errors import UserError
from regard.evaluate.translation_metrics import bleu, chrf
from regard.plot.attention_overlay import AttentionOverlay, plot_attention_overlay
from regard.report.html import format_overlay
from regard.runs import Run
from regard.special_tokens import BOS, EOS
from regard.synthetic.corpora import (
    BACKGROUND_GREY,
    CELL_PIXELS,
    COLOURS,
    CORPUS_WORDS,
    GRID_SIDE,
    SceneObject,
    is_scene_held_out,
    make_scene,
    write_captioning_corpus,
)
from regard.synthetic.corpora import make_caption_line as caption_of
from regard.tasks import TASKS
from regard.tasks.captioning import image_files
from regard.tasks.captioning.dataset import (
    CaptionDataset,
    CaptionSettings,
    CaptionVocabulary,
    find_grounded_tokens,
)
from regard.tasks.captioning.image_files import CaptionExample, ImageFile
from regard.tasks.captioning.preprocessing import GridShape, ImagePreprocessor
from regard.tasks.captioning.task import CaptioningPredictor, CaptioningTask
from regard.tokenizers.tokenizer import VocabularySettings
from regard.tokenizers.words import WordTokenizer
from regard.training import train

SPLIT_SIZES: dict[str, int] = CORPUS_WORDS["captioning"]["sizes"]
EYE = ImagePreprocessor(image=8, patch=4, max_side=16)
RECIPES = ("xu2015-soft-caption", "xu2015-hard-caption")
SMALL: dict[str, Any] = {
    **SIX_STEPS,
    "model.size": 12,
    "model.embedding": 8,
    "model.annotation": 10,
    "model.attention": 8,
    "model.channels": 4,
    "model.dropout": 0.2,
    "data.image": 16,
    "data.patch": 8,
    "training.batch_tokens": 64,
    "training.validate_pairs": 6,
}


def save_array(path: Path, array: Any) -> ImageFile:
    np.save(path, array)
    return ImageFile(path)


def random_pixels(height: int, width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png_bytes(array: Any) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


# Images


def test_image_is_cut_into_patches_with_their_coordinates(tmp_path: Path) -> None:
    image = random_pixels(8, 6)
    seen = EYE.preprocess(image, ImageFile(tmp_path / "a.npy"))
    assert (seen.grid_shape.rows, seen.grid_shape.columns, seen.grid_shape.features) == (2, 2, 48)
    assert seen.position_features[:, -2:].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    first = image[:4, :4].astype(np.float32) / 127.5 - 1
    np.testing.assert_allclose(seen.position_features[0, :48], first.reshape(-1), atol=1e-6)
    last = seen.position_features[3, :48].reshape(4, 4, 3)
    np.testing.assert_allclose(last[:, :2], image[4:, 4:].astype(np.float32) / 127.5 - 1, atol=1e-6)
    assert (last[:, 2:] == -1).all()
    assert seen.pixels is not None
    assert seen.pixels.shape == (8, 8, 3)


def test_feature_arrays_are_read_as_a_grid_or_a_single_row() -> None:
    grid = np.random.default_rng(1).normal(size=(2, 3, 5)).astype(np.float16)
    seen, flat = (EYE.preprocess(one, ImageFile(Path("a"))) for one in (grid, grid.reshape(6, 5)))
    np.testing.assert_array_equal(seen.position_features[:, :5], grid.reshape(6, 5).astype(np.float32))
    assert seen.position_features[:, 5:].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert flat.position_features[:, 5:].tolist() == [[0, n] for n in range(6)]
    assert seen.pixels is None


def test_large_images_are_scaled_down_and_small_ones_are_not() -> None:
    assert EYE._compute_scaled_shape(8, 8) == (8, 8)
    assert EYE._compute_scaled_shape(3, 5) == (3, 5)
    assert EYE._compute_scaled_shape(100, 50) == (8, 4)
    assert EYE._compute_scaled_shape(1, 1000) == (1, 8)
    grey = np.full((40, 20, 3), 100, dtype=np.uint8)
    seen = EYE.preprocess(grey, ImageFile(Path("a")))
    assert seen.pixels is not None
    assert (seen.pixels[:8, :4] == 100).all()
    assert seen.grid_shape.num_positions == 2


def test_png_and_jpeg_are_read_as_rgb_with_exif_rotation(tmp_path: Path) -> None:
    from PIL import Image

    image = random_pixels(6, 4)
    (tmp_path / "a.png").write_bytes(png_bytes(image))
    picture = ImageFile(tmp_path / "a.png")
    np.testing.assert_array_equal(picture.load(), image)
    assert picture.read_shape_and_dtype() == ((6, 4, 3), np.dtype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: rotated by 90 degrees
    Image.fromarray(image).save(tmp_path / "b.jpg", exif=exif)
    assert ImageFile(tmp_path / "b.jpg").load().shape == (4, 6, 3)
    Image.fromarray(image[..., 0]).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(ImageFile(tmp_path / "grey.png").load()[..., 2], image[..., 0])


def test_missing_pillow_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png_bytes(random_pixels(4, 4)))
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "images need Pillow (pip install 'regard[images]')" in error_message(ImageFile(tmp_path / "a.png").load)
    assert save_array(tmp_path / "a.npy", random_pixels(4, 4)).load().shape == (4, 4, 3)


def decompression_bomb(side: int) -> bytes:
    """Return a PNG whose header claims `side` × `side` pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    data = b"IDAT" + zlib.compress(b"")
    packed = (struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (chunk, data))
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.png", decompression_bomb(9_000), "a.png: 9,000 × 9,000 pixels; the maximum is 64,000,000"),
        ("b.png", decompression_bomb(60_000), "b.png: "),
        ("c.png", png_bytes(random_pixels(9, 9))[:-40], "c.png: it cannot be read as an image"),
        ("d.jpg", b"GIF89a\x01\x00\x01\x00", "d.jpg: it cannot be read as an image"),
        ("e.npy", b"\x93NUMPY\x01\x00v\x00{'descr'", "e.npy: it cannot be read as an array of numbers"),
        ("f.npy", b"", "f.npy: it cannot be read as an array of numbers"),
        ("g.gif", b"GIF89a", "g.gif: unknown image type; the name must end in .npy, .png, .jpg, .jpeg"),
    ],
)
def test_damaged_images_and_decompression_bombs_are_refused(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    assert message in error_message(ImageFile(write_file(tmp_path / name, content)).load)


def test_pickled_objects_in_arrays_are_not_executed(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    np.save(tmp_path / "a.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    assert "cannot be read as an array of numbers" in error_message(ImageFile(tmp_path / "a.npy").load)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 4), dtype=np.int64), "an array of 4 × 4 int64 is not an image"),
        (np.zeros((2, 4, 4, 3), dtype=np.uint8), "of a file with many images, name a row"),
        (np.zeros((0, 4, 3), dtype=np.uint8), "the image is empty"),
        (
            np.zeros((17, 2, 3), dtype=np.float32),
            "a grid of 17 × 2 positions, but the model supports 16 rows and columns",
        ),
        (np.full((2, 2), np.nan), "features that are NaN or inf"),
        (np.full((2, 2), 1e300), "features that are NaN or inf"),
        (np.array(3.0), "an array of one float64 is not an image"),
    ],
)
def test_arrays_that_are_no_image_or_feature_grid_are_refused(array: Any, message: str) -> None:
    assert message in error_message(EYE.preprocess, array, ImageFile(Path("a.npy")))


def test_row_selects_one_image_of_an_array_of_many(tmp_path: Path) -> None:
    many = np.stack([random_pixels(4, 4, seed) for seed in range(3)])
    np.save(tmp_path / "a.npy", many)
    np.testing.assert_array_equal(ImageFile(tmp_path / "a.npy", 2).load(), many[2])
    assert "a.npy, row 3: the array has 3 rows" in error_message(ImageFile(tmp_path / "a.npy", 3).load)
    alone = save_array(tmp_path / "b.npy", many[1])
    assert (
        alone.compute_image_digest()
        == ImageFile(tmp_path / "a.npy", 1).compute_image_digest()
        != ImageFile(tmp_path / "a.npy", 2).compute_image_digest()
    )
    (tmp_path / "c.png").write_bytes(png_bytes(many[0]))
    assert "only a .npy file has rows" in error_message(ImageFile(tmp_path / "c.png", 0).load)


def test_digest_is_recomputed_after_the_file_changes(tmp_path: Path) -> None:
    picture = save_array(tmp_path / "a.npy", random_pixels(4, 4, 1))
    before = picture.compute_image_digest()
    save_array(tmp_path / "a.npy", random_pixels(4, 4, 2))
    os.utime(tmp_path / "a.npy", ns=(1, 1))
    assert picture.compute_image_digest() != before


def is_read_or_refused(picture: ImageFile) -> bool:
    """Return False if a picture is refused without its name or with several lines."""
    try:
        EYE.preprocess(picture.load(), picture)
    except UserError as error:
        return picture.path.name in str(error) and "\n" not in str(error)
    return True


@given(st.binary(max_size=200), st.sampled_from(["a.npy", "a.png", "a.jpg"]), st.sampled_from([None, 0, 5]))
def test_arbitrary_image_bytes_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str, row: int | None
) -> None:
    start = {"a.npy": b"\x93NUMPY\x01\x00", "a.png": png_bytes(random_pixels(3, 3))[:50], "a.jpg": b"\xff\xd8\xff\xe0"}[
        name
    ]
    for bytes_ in (content, start + content):
        path = tmp_path_factory.mktemp("fuzz") / name
        path.write_bytes(bytes_)
        assert is_read_or_refused(ImageFile(path, row))


@given(st.text(max_size=60))
def test_arbitrary_array_header_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, header: str
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "a.npy"
    written = ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + header + ",)}\n").encode()
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(written)) + written + bytes(64))
    assert is_read_or_refused(ImageFile(path))


# Caption files


def test_tsv_and_jsonl_caption_files_give_the_same_examples(tmp_path: Path) -> None:
    table = write_file(tmp_path / "a.tsv", "x.png\ta cat\tmore\n\nsub/y.jpg\ta dog\n")
    lines: list[dict[str, Any]] = [
        {"image": "x.png", "caption": "a cat"},
        {"image": "sub/y.jpg", "caption": "a dog", "id": 7},
    ]
    rows, objects = (
        list(image_files.read_captions([path])) for path in (table, write_jsonl(tmp_path / "a.jsonl", lines))
    )
    assert [(one.picture.path, one.caption) for one in rows] == [(one.picture.path, one.caption) for one in objects]
    assert rows[1].picture == ImageFile(tmp_path / "sub/y.jpg", None, f"{table}:3")


def test_path_in_a_caption_table_may_begin_with_a_brace(tmp_path: Path) -> None:
    table = write_file(tmp_path / "a.tsv", "{x}.png\ta cat\n\ta dog\n")
    captions = image_files.read_captions([table])
    assert next(captions).picture.path == tmp_path / "{x}.png"
    assert error_message(next, captions) == f"{table}:2: there is no path of an image before the tab"


def test_cells_map_word_numbers_to_grid_cells(tmp_path: Path) -> None:
    line = {"image": "x.npy", "row": 4, "caption": "a red cat", "grid": [2, 3], "cells": {"1": [0, 5], "2": []}}
    (one,) = image_files.read_captions([write_jsonl(tmp_path / "a.jsonl", [line])])
    assert one.picture.row == 4
    assert one.grounding == image_files.WordGrounding((2, 3), {1: (0, 5), 2: ()})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "not an image with a caption"),
        ("a.png\ta cat", "not JSON"),
        ("{", "not JSON"),
        ('{"caption": "a"}', "there is no image"),
        ('{"image": 3, "caption": "a"}', "there is no image"),
        ('{"image": "a.png"}', "there is no caption"),
        (
            '{"image": "a.png", "caption": "a", "row": -1}',
            "row must be the index of an image in its file, from 0, not -1",
        ),
        ('{"image": "a.png", "caption": "a", "row": true}', "row must be the index"),
        ('{"image": "a.png", "caption": "a", "cells": {}}', "cells need a"),
        ('{"image": "a.png", "caption": "a", "cells": [], "grid": [1, 1]}', "cells must be {"),
        ('{"image": "a.png", "caption": "a", "cells": {"x": []}, "grid": [1, 1]}', "indices of words"),
        ('{"image": "a.png", "caption": "a", "cells": {"0": [4]}, "grid": [2, 2]}', "must be below 4"),
        ('{"image": "a.png", "caption": "\\ud800"}', "half a character"),
    ],
)
def test_malformed_caption_is_reported_with_file_and_line(line: str, message: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.jsonl", "\n" + line)
    found = error_message(lambda: list(image_files.read_captions([path])))
    assert message in found
    assert f"{path}:2: " in found


@given(st.one_of(st.binary(max_size=80), st.text(max_size=60).map(str.encode)), st.sampled_from([".jsonl", ".tsv"]))
def test_arbitrary_caption_file_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, ending: str
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"a{ending}"
    for text in (content, b'{"image": ' + content + b', "caption": "a"}', b'{"image":"a","caption":"b",' + content):
        path.write_bytes(text)
        assert are_read_or_refused(path)


def are_read_or_refused(path: Path) -> bool:
    """Return False if captions are refused with several lines; their images do not exist."""
    try:
        return all(error_message(one.picture.load) for one in image_files.read_captions([path]))
    except UserError as error:
        return "\n" not in str(error)


def test_files_of_other_kinds_are_refused_as_captions(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    assert error_message(lambda: list(image_files.read_captions([path]))) == f"there is no file {path}"
    write_file(path, "a.png a cat\n")
    message = error_message(lambda: list(image_files.read_captions([path])))
    assert "is not a caption file (.jsonl, .tsv" in message
    table = write_file(tmp_path / "a.tsv", "no tab\n")
    assert "a.tsv:1: there is no caption; expected a path, a tab and a caption" in error_message(
        lambda: list(image_files.read_captions([table]))
    )


def test_standard_input_names_images_by_path_or_json_object() -> None:
    lines = ["a.png\ta cat", "", '{"image": "b.npy", "row": 2}', " c.jpg "]
    found = list(image_files.parse_image_lines(lines, Path("here")))
    assert [(str(one.path), one.row) for one in found] == [
        ("here/a.png", None),
        ("here/b.npy", 2),
        ("here/c.jpg", None),
    ]


def test_array_of_many_images_yields_all_and_needs_a_row_for_one(tmp_path: Path) -> None:
    np.save(tmp_path / "many.npy", np.zeros((3, 4, 4, 3), dtype=np.uint8))
    np.save(tmp_path / "one.npy", np.zeros((4, 4, 3), dtype=np.uint8))
    many, one = ImageFile(tmp_path / "many.npy"), ImageFile(tmp_path / "one.npy")
    assert [each.row for each in many.split_rows()] == [0, 1, 2]
    assert one.split_rows() == [one]
    assert 'many.npy: it holds 3 images; choose one with "row", from 0' in error_message(many.compute_image_digest)


# Synthetic scenes


def test_synthetic_caption_maps_its_words_to_cells() -> None:
    things = [
        SceneObject("red", "circle", "large", 1, 0),
        SceneObject("blue", "cross", "small", 0, 2),
        SceneObject("red", "square", "large", 0, 3),
    ]
    line = caption_of(things, "x.npy", 3)
    assert line["caption"] == "a red circle below a small blue cross left of a red square"
    words = line["caption"].split()
    named = {words[int(word)]: cells for word, cells in line["cells"].items() if words[int(word)] != "red"}
    assert named == {"circle": [4], "blue": [2], "cross": [2], "square": [3]}
    assert line["cells"]["1"] == [4]
    assert line["cells"][str(len(words) - 2)] == [3]


@pytest.fixture(scope="module", params=[500, pytest.param(SPLIT_SIZES["train"], marks=pytest.mark.slow)])
def scenes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the synthetic scenes with a small or the full training set; read-only."""
    folder = tmp_path_factory.mktemp("scenes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SPLIT_SIZES, "train", request.param)
        write_captioning_corpus(folder)
    return folder


@pytest.mark.parametrize(
    "splits",
    [{"train": 40, "dev": 20, "test": 20}, pytest.param(dict(SPLIT_SIZES), marks=pytest.mark.slow)],
    ids=["small", "full"],
)
def test_synthetic_corpus_depends_on_the_seed(
    splits: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, count in splits.items():
        monkeypatch.setitem(SPLIT_SIZES, name, count)
    first = tasks.assert_synthetic_corpus_depends_on_seed(write_captioning_corpus, tmp_path, *RECIPES)
    assert first.overrides == CORPUS_WORDS["captioning"]["overrides"]
    assert {name: len(read_jsonl(tmp_path / "first" / f"{name}.jsonl")) for name in splits} == splits


def shapes_of(caption: str) -> tuple[tuple[str, str], ...]:
    """Return the (colour, shape) pairs that a caption names, sorted."""
    words = caption.split()
    return tuple(sorted((word, words[index + 1]) for index, word in enumerate(words) if word in COLOURS))


def test_combinations_of_shapes_in_dev_and_test_are_not_in_training(scenes: Path) -> None:
    train, dev, test = (
        [shapes_of(one["caption"]) for one in read_jsonl(scenes / f"{name}.jsonl")] for name in ("train", "dev", "test")
    )
    assert len(test) >= 500
    assert not set(train) & {*dev, *test}
    assert all(len(one) > 1 for one in test)
    assert {len(one) for one in train} == {1, 2, 3}


def test_synthetic_objects_are_painted_in_their_cells(scenes: Path) -> None:
    images, rows = np.load(scenes / "test.npy"), read_jsonl(scenes / "test.jsonl")
    tiles = (
        images.reshape(-1, GRID_SIDE, CELL_PIXELS, GRID_SIDE, CELL_PIXELS, 3)
        .transpose(0, 1, 3, 2, 4, 5)
        .reshape(len(images), GRID_SIDE**2, -1)
    )
    painted = (np.abs(tiles.astype(int) - BACKGROUND_GREY) > 60).any(-1)
    for row, found in zip(rows, painted, strict=True):
        assert set(np.flatnonzero(found)) == {cell for cells in row["cells"].values() for cell in cells}


def test_training_scenes_are_drawn_from_those_not_held_out() -> None:
    random = np.random.default_rng(3)
    assert not any(is_scene_held_out(make_scene(random, True, 1), 1) for _ in range(50))
    assert all(is_scene_held_out(make_scene(random, False, 1), 1) for _ in range(50))


# Batches and metrics


def make_vocabulary(features: int, preprocessor: ImagePreprocessor = EYE) -> CaptionVocabulary:
    return CaptionVocabulary(WordTokenizer.train(["a cat"], 9), VocabularySettings(), preprocessor, features)


def test_batch_pads_grids_of_different_shapes(tmp_path: Path) -> None:
    pictures = [
        save_array(tmp_path / f"{n}.npy", np.ones(shape, dtype=np.float32))
        for n, shape in enumerate([(2, 2, 3), (3, 3)])
    ]
    captions = CaptionDataset(list(map(CaptionExample, pictures, ("a", "cat"))), make_vocabulary(3))
    batch = captions.make_batch(np.array([1, 0]))
    assert batch.source.shape == (2, 4, 5)
    assert batch.lengths.tolist() == [3, 4]
    assert (batch.source[0, 3] == 0).all()
    assert batch.target_in.tolist() == [[BOS, 5], [BOS, 4]]
    assert captions.sizes.tolist() == [4, 3]
    assert [piece.num_rows for piece in batch.split_into(2)] == [1, 1]


def test_fingerprint_depends_on_image_content_and_caption(tmp_path: Path) -> None:
    picture = save_array(tmp_path / "a.npy", random_pixels(4, 4))

    def fingerprint(*examples: CaptionExample) -> str:
        return CaptionDataset(examples, make_vocabulary(48)).fingerprint

    one = CaptionExample(picture, "a cat", digest="x")
    moved = one._replace(picture=save_array(tmp_path / "elsewhere.npy", random_pixels(4, 4)))
    assert fingerprint(one) == fingerprint(moved)
    assert len({fingerprint(one), fingerprint(one._replace(digest="y")), fingerprint(one._replace(caption="a a"))}) == 3


def test_image_that_changed_during_training_is_refused(tmp_path: Path) -> None:
    picture = save_array(tmp_path / "a.npy", random_pixels(4, 4))
    captions = CaptionDataset([CaptionExample(picture, "a")], make_vocabulary(48))
    save_array(tmp_path / "a.npy", random_pixels(8, 4))
    os.utime(tmp_path / "a.npy", ns=(1, 1))
    assert "the image has changed" in error_message(captions.make_batch, np.array([0]))


def test_cells_of_a_word_apply_to_each_of_its_tokens(tmp_path: Path) -> None:
    picture = save_array(tmp_path / "a.npy", np.ones((2, 2, 3)))
    example = CaptionExample(picture, "a red, cat", image_files.WordGrounding((2, 2), {1: (3,)}))
    tokenizer = WordTokenizer.train([example.caption], 20)
    grid_shape = EYE.read_grid_shape(picture)
    found = find_grounded_tokens(example, grid_shape, tokenizer)
    assert found == {1: (3,), 2: (3,)}, "the comma belongs to the same word"
    other = example._replace(grounding=image_files.WordGrounding((1, 4), {}))
    assert find_grounded_tokens(other, grid_shape, tokenizer) == {}, "the truth is of another grid"


def test_bleu_takes_any_number_of_references() -> None:
    written, first = ["a cat on a mat today", "the old dog runs home"], ["a cat on the mat", "the old dog runs home"]
    assert bleu(written, [[one] for one in first]).value == pytest.approx(bleu(written, first).value)
    several = bleu(written, [[first[0], written[0]], [first[1]]])
    assert several.value == pytest.approx(100.0)
    with pytest.raises(ValueError, match="each needs one"):
        bleu(written, [["a"], []])
    assert chrf(written, [[one] for one in first]).value == pytest.approx(chrf(written, first).value)
    assert chrf(written, [[first[0], written[0]], [first[1]]]).value == pytest.approx(100.0)


# Runs


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 30 images of two sizes with two captions each: .npy files and a .png file; read-only."""
    folder = tmp_path_factory.mktemp("images")
    images = [random_pixels(16 if seed % 2 else 8, 16, seed) for seed in range(30)]
    rows: list[dict[str, Any]] = []
    for number, image in enumerate(images):
        np.save(folder / f"{number}.npy", image)
        rows += [
            {"image": f"{number}.npy", "caption": f"{word} {'tall' if number % 2 else 'flat'} picture"}
            for word in ("a", "one")
        ]
    (folder / "x.png").write_bytes(png_bytes(images[0]))
    rows[0]["image"] = rows[1]["image"] = "x.png"
    grid = [
        {"grid": [2, 2], "cells": {"1": [0]}} if number % 2 else {"grid": [1, 2], "cells": {"1": [1]}}
        for number in range(30)
    ]
    rows = [row | grid[index // 2] for index, row in enumerate(rows)]
    write_jsonl(folder / "train.jsonl", rows[:48])
    write_jsonl(folder / "dev.jsonl", rows[48:])
    return folder


each_recipe = pytest.mark.parametrize("run", RECIPES, indirect=True)
soft_or_slow = pytest.mark.parametrize("run", slow_after(1, RECIPES), indirect=True)


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train a recipe for 6 updates, with a report; read-only."""
    out = tmp_path_factory.mktemp("runs") / request.param
    return regard.train(request.param, data / "train.jsonl", out, dev=data / "dev.jsonl", **SMALL)


@each_recipe
def test_resume_is_bit_identical_to_an_uninterrupted_run(run: Run, tmp_path: Path) -> None:
    tasks.assert_resume_is_bit_identical(run, tmp_path / "run")


@soft_or_slow
def test_resume_with_changed_images_is_refused(run: Run, data: Path, tmp_path: Path) -> None:
    for path in data.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tasks.assert_resume_refuses_changed_data(
        run,
        tmp_path / "train.jsonl",
        tmp_path / "run",
        lambda: save_array(tmp_path / "3.npy", random_pixels(16, 16, 99)),
    )


@each_recipe
def test_captions_do_not_depend_on_the_rest_of_the_batch(run: Run, data: Path) -> None:
    model = regard.load(run.folder)
    assert isinstance(model, CaptioningPredictor)
    inputs = [data / "1.npy", str(data / "x.png"), {"image": str(data / "2.npy")}, np.load(data / "3.npy")]
    together = model.predict(inputs)
    for one, named in zip(together, inputs, strict=True):
        (alone,) = model.predict([named])
        assert one.text == alone.text
        np.testing.assert_allclose(one.attention, alone.attention, atol=1e-6)
    assert [one.attention.shape[1:] for one in together] == [(2, 2), (1, 2), (1, 2), (2, 2)]
    for one in together:
        np.testing.assert_allclose(one.attention.sum((1, 2)), 1.0, atol=1e-5)
        document = json.loads(json.dumps(one.to_dict()))
        assert np.array(document["weights"]).shape == (len(document["tokens"]), *document["grid"])
        assert document["caption"] == one.to_text() == one.text
        assert [line.label for line in one.make_attention_lines()] == document["tokens"]
    assert model.predict([]) == []


@soft_or_slow
def test_missing_images_wrong_features_and_ensembles_are_refused(run: Run, tmp_path: Path) -> None:
    model = regard.load(run.folder)
    assert "there is no file" in error_message(model.predict, [tmp_path / "gone.png"])
    assert "there is no file" in error_message(model.predict, ["a\0b.npy"])
    assert "5 features per position, but the model reads 192" in error_message(model.predict, [np.ones((2, 2, 5))])
    assert "cannot join an ensemble" in error_message(TASKS["caption"].load, run.folder, run.folder)


@each_recipe
def test_evaluation_agrees_with_predictions(run: Run, data: Path) -> None:
    model = regard.load(run.folder)
    found = model.evaluate([data / "dev.jsonl"])
    assert (found["images"], found["captions"]) == (6, 12)
    assert found["bleu_signature"].startswith("nrefs:2|")
    references: dict[str, list[str]] = {}
    for row in read_jsonl(data / "dev.jsonl"):
        references.setdefault(row["image"], []).append(row["caption"])
    made = model.predict([data / image for image in references])
    texts = [one.text for one in made]
    assert found["chrf"] == chrf(texts, list(references.values()), model.tokenizer.lowercase).value
    assert found["chrf_signature"].startswith("nrefs:2|")
    right = [one.text in captions for one, captions in zip(made, references.values(), strict=True)]
    assert found["exact"] == pytest.approx(100 * np.mean(right))
    assert 0 <= found["on_object"] <= 100
    assert found["entropy"] >= 0


@soft_or_slow
def test_on_object_is_the_mean_attention_on_cells_of_named_objects(run: Run, data: Path) -> None:
    from regard.search import score_targets

    model = regard.load(run.folder)
    examples = list(image_files.read_captions([data / "dev.jsonl"]))
    weights = []
    for one in examples:
        seen = model.vocabulary.preprocessor.preprocess(one.picture.load(), one.picture)
        target = [*model.tokenizer.encode(one.caption), EOS]
        source, lengths = torch.from_numpy(seen.position_features)[None], torch.tensor([len(seen.position_features)])
        (scored,) = score_targets(model.model, source, lengths, [target])
        assert scored.hypothesis.attention is not None
        assert one.grounding is not None
        weights += [scored.hypothesis.attention[word, list(cells)].sum() for word, cells in one.grounding.cells.items()]
    assert model.evaluate([data / "dev.jsonl"])["on_object"] == pytest.approx(100 * np.mean(weights), abs=1e-3)


@soft_or_slow
def test_dev_metrics_include_bleu_and_attention(run: Run) -> None:
    rows = [row for row in run.read_metrics() if row["kind"] == "dev"]
    assert [row["step"] for row in rows] == [3, 6]
    assert {"bleu", "exact", "perplexity", "entropy", "on_object"} <= set(rows[0])
    sample = read_jsonl(run.folder / "samples" / "step-6.jsonl")[0]
    assert sample["right"].count(" / ") == 1


@soft_or_slow
def test_report_embeds_each_image_once_and_an_overlay_for_each_word(run: Run) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 5
    assert page.count("<use href=") >= 5
    assert "fill-opacity" in page
    assert "http" not in page.replace("http://www.w3.org", "").partition("<h2>Configuration")[0]
    assert "Dev entropy of attention" in page
    assert (run.folder / "samples" / "attention-1.png").read_bytes().startswith(b"\x89PNG")


def test_overlay_is_lightest_where_attention_is_highest() -> None:
    attention = np.array([[[0.5, 0.25], [0.25, 0.0]], [[0, 0], [0, 0]]], dtype=np.float32)
    overlay = AttentionOverlay(random_pixels(4, 4), ["<b>", "dog"], attention)
    np.testing.assert_allclose(overlay.compute_opacity(0), [[0, 0.4], [0.4, 0.8]], atol=1e-6)
    np.testing.assert_allclose(overlay.compute_opacity(1), 0.8, atol=1e-6)
    html = format_overlay(overlay)
    assert "&lt;b&gt;" in html
    assert "<b><b>" not in html
    assert html.count("<rect") == 8
    assert html.count("<image ") == 1
    bare = format_overlay(overlay._replace(pixels=None))
    assert "<image" not in bare
    assert bare.count("class=blank") == 2
    for one in (
        overlay,
        overlay._replace(pixels=None),
        AttentionOverlay(None, [], np.zeros((0, 1, 1), dtype=np.float32)),
    ):
        plot_attention_overlay(one).savefig(io.BytesIO())


def test_dev_split_depends_on_content_and_seed_not_on_order(data: Path, tmp_path: Path) -> None:
    settings = CaptionSettings(train=(str(data / "train.jsonl"),), dev_pairs=4)
    found, again, other = (
        CaptioningTask().split(settings, 1),
        CaptioningTask().split(settings, 1),
        CaptioningTask().split(settings, 2),
    )
    assert found == again != other
    assert (len(found.train), len(found.dev)) == (44, 4)
    assert not {one.picture.path for one in found.train} & {one.picture.path for one in found.dev}
    rows = [row | {"image": str(data / row["image"])} for row in read_jsonl(data / "train.jsonl")][::-1]
    reordered = write_jsonl(tmp_path / "reordered.jsonl", rows)
    backwards = CaptioningTask().split(CaptionSettings(train=(str(reordered),), dev_pairs=4), 1)
    assert {one.picture.path for one in backwards.dev} == {one.picture.path for one in found.dev}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no captions to train on"),
        ([{"image": "1.npy", "caption": " "}], "no captions to train on"),
        ([{"image": "1.npy", "caption": "a"}] * 3, "all captions are of one image"),
        ([{"image": "gone.npy", "caption": "a"}, {"image": "1.npy", "caption": "a"}], "a.jsonl:1: there is no file"),
    ],
)
def test_corpora_too_small_to_train_on_are_refused(rows: list[dict[str, str]], message: str, tmp_path: Path) -> None:
    save_array(tmp_path / "1.npy", random_pixels(16, 16))
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    assert message in error_message(CaptioningTask().split, CaptionSettings(train=(str(path),)), 1)


def make_job(data: Path, out: Path, **changes: Any) -> Any:
    overrides = {**SMALL, "data.dev": [str(data / "dev.jsonl")], **changes}
    return prepare_job(RECIPES[0], data / "train.jsonl", out, **overrides)


@pytest.mark.parametrize(("caption", "measure"), [("一只红色的狗", "chrf"), ("a red dog", "bleu")])
def test_chrf_chooses_the_best_model_where_captions_have_no_spaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caption: str, measure: str
) -> None:
    for name in "abc":
        save_array(tmp_path / f"{name}.npy", np.full((2, 2, 3), ord(name), dtype=np.float32))
    rows = [{"image": f"{name}.npy", "caption": f"{caption} {name}"} for name in "abc"]
    file = str(write_jsonl(tmp_path / "train.jsonl", rows))
    overrides = {**SMALL, "text.kind": "char", "data.dev": [file], "training.steps": 1, "training.validate_every": 1}
    run = train(RECIPES[0], file, tmp_path / "run", **overrides)
    found = [row for row in run.read_metrics() if row["kind"] == "dev"][-1]
    assert (found["measure"], "chrf" in found) == (measure, True)
    assert ("zh (target language zh); chrF chooses the best" in capsys.readouterr().err) == (measure == "chrf")
    assert run.read_config()["evaluation"] == {"tokenize": "zh" if measure == "chrf" else "13a"}
    scores = regard.load(run.folder).evaluate([Path(file)])
    assert f"|tok:{'zh' if measure == 'chrf' else '13a'}|" in scores["bleu_signature"]


def test_images_of_empty_captions_are_not_read(data: Path, tmp_path: Path) -> None:
    rows = [{"image": str(data / f"{number}.npy"), "caption": "a tall picture"} for number in range(1, 9)]
    empty = {"image": "missing.npy", "caption": " "}
    file = write_jsonl(tmp_path / "train.jsonl", [empty, *rows])
    job = prepare_job(RECIPES[0], file, tmp_path / "run", **SMALL, **{"data.dev": [str(file)]})
    assert "8 captions" in job.description
    assert "1 empty" in job.description


def test_data_and_text_settings_take_effect(data: Path, tmp_path: Path) -> None:
    def job(**changes: Any) -> Any:
        return make_job(data, tmp_path, **changes)

    usual = job()
    assert usual.description == "48 captions (24 images), 12 dev captions, a vocabulary of 9"
    assert usual.vocabulary_sizes == (192, 9)
    assert usual.config.data.features == 192
    finer = {"data.patch": 4, "data.dev": None, "data.dev_pairs": 2}
    assert job(**finer).vocabulary_sizes == (48, 9)
    assert ", 2 dev captions" in job(**finer).description
    assert job(**finer).dataset.sizes.max() == 16
    assert job(**{**finer, "data.image": 8}).dataset.sizes.max() == 4
    assert "no caption is left" in error_message(job, **{"data.max_length": 2})
    assert "the model reads 100" in error_message(job, **{"data.features": 100})
    assert job(**{"text.vocabulary": 6}).vocabulary_sizes[1] == 6
    assert "model.max_side" in error_message(job, **{"model.max_side": 1})
    subwords = {"text.kind": "bpe", "text.vocabulary": 280, "text.dropout": 0.5}
    source, rows = job(**subwords).dataset, np.arange(20)
    first, again, other = (source.make_batch(rows, seed).target_out for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)


def test_feature_arrays_are_trained_on_without_a_backbone(data: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", np.random.default_rng(0).normal(size=(6, 2, 2, 5)).astype(np.float32))
    rows = [{"image": "f.npy", "row": n, "caption": f"picture {n % 2}"} for n in range(6)]
    path = write_jsonl(tmp_path / "train.jsonl", rows)
    dev = {"data.dev": [str(path)]}
    message = error_message(make_job, tmp_path, tmp_path, **dev, **{"model.backbone": "cnn"})
    assert "holds features, but model.backbone=cnn reads pixels" in message
    assert make_job(tmp_path, tmp_path, **dev).config.model["backbone"] == "none"
    assert make_job(data, tmp_path).config.model["backbone"] == "cnn"
    run = regard.train(RECIPES[0], path, tmp_path / "run", dev=path, **{**SMALL, "training.steps": 1})
    (made,) = regard.load(run.folder).predict([{"image": str(tmp_path / "f.npy"), "row": 3}])
    assert made.attention.shape[1:] == (2, 2)
    assert made.pixels is None
    assert "class=blank" in (run.folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image": 0}, "image must be at least 1, not 0"),
        ({"patch": 300}, "patch must be at most image"),
        ({"features": 0}, "features must be at least 1, not 0"),
        ({"max_length": 0}, "max_length must be at least 1, not 0"),
        ({"dev_pairs": 0}, "dev_pairs must be at least 1, not 0"),
    ],
)
def test_invalid_settings_are_refused(values: dict[str, Any], message: str) -> None:
    assert message in error_message(parse_settings, CaptionSettings, values, "data")


@soft_or_slow
def test_init_from_copies_weights(run: Run, data: Path, tmp_path: Path) -> None:
    loaded = regard.load(run.folder)
    sizes = (loaded.data.features, loaded.tokenizer.vocab_size)
    tasks.assert_init_from_copies_weights(run, sizes, data / "dev.jsonl", data / "train.jsonl", tmp_path / "run")


@pytest.mark.slow
def test_train_command_says_how_to_caption_and_lists_the_run(data: Path, regard: Command) -> None:
    overrides = {**SMALL, "training.tensorboard": True}
    tasks.check_train_command(regard, RECIPES[0], data / "train.jsonl", overrides, "caption")
    assert RECIPES[0] in regard("runs", ".").stdout


@pytest.mark.parametrize("run", RECIPES[:1], indirect=True)
def test_predict_command_captions_images_named_on_standard_input(run: Run, data: Path, regard: Command) -> None:
    images, message = f"{data / '1.npy'}\n{data / 'x.png'}\n", "line 1: there is no file 'gone.png'"
    lines, documents = tasks.check_predict_command(regard, run.folder, images, "gone.png\n", message)
    assert len(lines) == 2
    assert [document["grid"] for document in documents] == [[2, 2], [1, 2]]


@pytest.mark.slow
@pytest.mark.parametrize("run", RECIPES[:1], indirect=True)
def test_predict_and_evaluate_commands_read_files(run: Run, data: Path, regard: Command) -> None:
    assert regard("predict", run.folder, data / "x.png").stdout.count("\n") == 1
    captions = regard("predict", run.folder, data / "dev.jsonl")  # with image paths relative to the file
    assert (captions.returncode, captions.stdout.count("\n")) == (0, 12), captions.stderr
    metrics = tasks.check_evaluate_command(regard, run.folder, data / "dev.jsonl", {"exact"})
    assert {"bleu", "exact", "entropy", "on_object", "perplexity"} <= set(metrics)


def test_fingerprint_text_of_images_is_that_of_existing_runs() -> None:
    assert GridShape(2, 3, 4, True).fingerprint() == "Extent(rows=2, columns=3, features=4, of_pixels=True)"
