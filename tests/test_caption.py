"""Captions: pictures and files of captions, scenes that are known, a run from its files to captions."""

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
from support.commands import Command
from torch import Tensor

import regard
from regard.errors import UserError
from regard.evaluate import bleu, bleu_of_several
from regard.plot import Overlay, overlaid
from regard.recipes import override, read
from regard.report.overlays import overlays
from regard.runs import Run
from regard.symbols import BOS, EOS
from regard.tasks import TASKS
from regard.tasks.captioning import Captioner, Picture, embedded, files
from regard.tasks.captioning.embedded import CELL, CHANGES, COLOURS, PAPER, SIDE, Thing, is_held, scene, told
from regard.tasks.captioning.examples import Captions, Encoded
from regard.tasks.captioning.eye import Eye
from regard.tasks.captioning.files import Example
from regard.tasks.captioning.preparation import survey
from regard.tasks.captioning.settings import CaptionSettings
from regard.tasks.captioning.vocabulary import learnt, marks
from regard.text import VocabularySettings
from regard.training import train

EYE = Eye(image=8, patch=4, max_side=16)
RECIPES = ("xu2015-soft-caption", "xu2015-hard-caption")
SMALL: dict[str, Any] = {
    "model.size": 12,
    "model.embedding": 8,
    "model.annotation": 10,
    "model.attention": 8,
    "model.channels": 4,
    "model.dropout": 0.2,
    "data.image": 16,
    "data.patch": 8,
    "training.steps": 6,
    "training.batch_tokens": 64,
    "training.learning_rate": 0.01,
    "training.validate_every": 3,
    "training.checkpoint_every": 3,
    "training.validate_pairs": 6,
    "training.log_every": 1,
    "training.tensorboard": False,
}


def complaint(call: Any, *arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def saved(path: Path, array: Any) -> Picture:
    np.save(path, array)
    return Picture(path)


def pixels(height: int, width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png(array: Any) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


# Pictures


def test_patches_stand_row_by_row_with_their_places(tmp_path: Path) -> None:
    image = pixels(8, 6)
    seen = EYE.look(image, Picture(tmp_path / "a.npy"))
    assert (seen.extent.rows, seen.extent.columns, seen.extent.features) == (2, 2, 48)
    assert seen.places[:, -2:].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    first = image[:4, :4].astype(np.float32) / 127.5 - 1
    np.testing.assert_allclose(seen.places[0, :48], first.reshape(-1), atol=1e-6)
    last = seen.places[3, :48].reshape(4, 4, 3)
    np.testing.assert_allclose(last[:, :2], image[4:, 4:].astype(np.float32) / 127.5 - 1, atol=1e-6)
    assert (last[:, 2:] == -1).all()
    assert seen.pixels is not None
    assert seen.pixels.shape == (8, 8, 3)


def test_features_are_what_they_are_in_a_grid_or_in_a_row() -> None:
    grid = np.random.default_rng(1).normal(size=(2, 3, 5)).astype(np.float16)
    seen, flat = (EYE.look(one, Picture(Path("a"))) for one in (grid, grid.reshape(6, 5)))
    np.testing.assert_array_equal(seen.places[:, :5], grid.reshape(6, 5).astype(np.float32))
    assert seen.places[:, 5:].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert flat.places[:, 5:].tolist() == [[0, n] for n in range(6)]
    assert seen.pixels is None


def test_large_images_are_scaled_down_and_small_ones_are_not() -> None:
    assert EYE.scaled(8, 8) == (8, 8)
    assert EYE.scaled(3, 5) == (3, 5)
    assert EYE.scaled(100, 50) == (8, 4)
    assert EYE.scaled(1, 1000) == (1, 8)
    grey = np.full((40, 20, 3), 100, dtype=np.uint8)
    seen = EYE.look(grey, Picture(Path("a")))
    assert seen.pixels is not None
    assert (seen.pixels[:8, :4] == 100).all()
    assert seen.extent.places == 2


def test_images_are_read_as_they_look(tmp_path: Path) -> None:
    from PIL import Image

    image = pixels(6, 4)
    (tmp_path / "a.png").write_bytes(png(image))
    picture = Picture(tmp_path / "a.png")
    np.testing.assert_array_equal(picture.load(), image)
    assert picture.header() == ((6, 4, 3), np.dtype(np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held on its side
    Image.fromarray(image).save(tmp_path / "b.jpg", exif=turned)
    assert Picture(tmp_path / "b.jpg").load().shape == (4, 6, 3)
    Image.fromarray(image[..., 0]).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(Picture(tmp_path / "grey.png").load()[..., 2], image[..., 0])


def test_without_pillow_it_is_said_how_to_have_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(pixels(4, 4)))
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "images need Pillow (pip install 'regard[images]')" in complaint(Picture(tmp_path / "a.png").load)
    assert saved(tmp_path / "a.npy", pixels(4, 4)).load().shape == (4, 4, 3)


def bomb(side: int) -> bytes:
    """A PNG that claims to be large."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    data = b"IDAT" + zlib.compress(b"")
    packed = (struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (chunk, data))
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.png", bomb(9_000), "a.png: 9,000 × 9,000 pixels; an image has 64,000,000 at the most"),
        ("b.png", bomb(60_000), "b.png: "),
        ("c.png", png(pixels(9, 9))[:-40], "c.png: it cannot be read as an image"),
        ("d.jpg", b"GIF89a\x01\x00\x01\x00", "d.jpg: it cannot be read as an image"),
        ("e.npy", b"\x93NUMPY\x01\x00v\x00{'descr'", "e.npy: it cannot be read as an array of numbers"),
        ("f.npy", b"", "f.npy: it cannot be read as an array of numbers"),
        ("g.gif", b"GIF89a", "g.gif: a picture is a file of the kind .npy, .png, .jpg, .jpeg, by its name"),
    ],
)
def test_damaged_files_and_bombs_are_refused_by_name(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert said in complaint(Picture(tmp_path / name).load)


def test_nothing_in_an_array_is_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    np.save(tmp_path / "a.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    assert "cannot be read as an array of numbers" in complaint(Picture(tmp_path / "a.npy").load)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((4, 4), dtype=np.int64), "4 × 4 numbers of the kind int64 are no picture"),
        (np.zeros((2, 4, 4, 3), dtype=np.uint8), "a file of many pictures needs the row of one"),
        (np.zeros((0, 4, 3), dtype=np.uint8), "the picture is empty"),
        (np.zeros((17, 2, 3), dtype=np.float32), "a grid of 17 × 2 places, and the model knows 16 rows and columns"),
        (np.full((2, 2), np.nan), "features that are no finite numbers"),
        (np.full((2, 2), 1e300), "features that are no finite numbers"),
        (np.array(3.0), "one numbers of the kind float64 are no picture"),
    ],
)
def test_what_is_no_picture_is_refused(array: Any, said: str) -> None:
    assert said in complaint(EYE.look, array, Picture(Path("a.npy")))


def test_a_row_is_one_of_many_pictures(tmp_path: Path) -> None:
    many = np.stack([pixels(4, 4, seed) for seed in range(3)])
    np.save(tmp_path / "a.npy", many)
    np.testing.assert_array_equal(Picture(tmp_path / "a.npy", 2).load(), many[2])
    assert "a.npy, row 3: the array has 3 rows" in complaint(Picture(tmp_path / "a.npy", 3).load)
    alone = saved(tmp_path / "b.npy", many[1])
    assert alone.digest() == Picture(tmp_path / "a.npy", 1).digest() != Picture(tmp_path / "a.npy", 2).digest()
    (tmp_path / "c.png").write_bytes(png(many[0]))
    assert "only a .npy file has rows" in complaint(Picture(tmp_path / "c.png", 0).load)


def test_a_file_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    picture = saved(tmp_path / "a.npy", pixels(4, 4, 1))
    before = picture.digest()
    saved(tmp_path / "a.npy", pixels(4, 4, 2))
    os.utime(tmp_path / "a.npy", ns=(1, 1))
    assert picture.digest() != before


def is_read_or_refused(picture: Picture) -> bool:
    """Whether a picture can be read, or is refused in a sentence with its name."""
    try:
        EYE.look(picture.load(), picture)
    except UserError as error:
        return picture.path.name in str(error) and "\n" not in str(error)
    return True


@given(st.binary(max_size=200), st.sampled_from(["a.npy", "a.png", "a.jpg"]), st.sampled_from([None, 0, 5]))
def test_whatever_the_bytes_a_picture_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str, row: int | None
) -> None:
    start = {"a.npy": b"\x93NUMPY\x01\x00", "a.png": png(pixels(3, 3))[:50], "a.jpg": b"\xff\xd8\xff\xe0"}[name]
    for bytes_ in (content, start + content):
        path = tmp_path_factory.mktemp("fuzz") / name
        path.write_bytes(bytes_)
        assert is_read_or_refused(Picture(path, row))


@given(st.text(max_size=60))
def test_whatever_the_header_an_array_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, header: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "a.npy"
    written = ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + header + ",)}\n").encode()
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(written)) + written + bytes(64))
    assert is_read_or_refused(Picture(path))


# Files of captions


def test_both_forms_hold_the_same_examples(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("x.png\ta cat\tmore\n\nsub/y.jpg\ta dog\n", encoding="utf-8")
    lines = [{"image": "x.png", "caption": "a cat"}, {"image": "sub/y.jpg", "caption": "a dog", "id": 7}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    tab, objects = (list(files.read([tmp_path / name])) for name in ("a.tsv", "a.jsonl"))
    assert [(one.picture.path, one.caption) for one in tab] == [(one.picture.path, one.caption) for one in objects]
    assert tab[1].picture == Picture(tmp_path / "sub/y.jpg", None, f"{tmp_path / 'a.tsv'}:3")


def test_cells_are_of_words_by_their_numbers(tmp_path: Path) -> None:
    line = {"image": "x.npy", "row": 4, "caption": "a red cat", "grid": [2, 3], "cells": {"1": [0, 5], "2": []}}
    (tmp_path / "a.jsonl").write_text(json.dumps(line), encoding="utf-8")
    (one,) = files.read([tmp_path / "a.jsonl"])
    assert one.picture.row == 4
    assert one.truth == files.Truth((2, 3), {1: (0, 5), 2: ()})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "not an image with a caption"),
        ("{", "not JSON"),
        ('{"caption": "a"}', "there is no image"),
        ('{"image": 3, "caption": "a"}', "there is no image"),
        ('{"image": "a.png"}', "there is no caption"),
        ('{"image": "a.png", "caption": "a", "row": -1}', "row is the number of a picture in its file, from 0, not -1"),
        ('{"image": "a.png", "caption": "a", "row": true}', "row is the number"),
        ('{"image": "a.png", "caption": "a", "cells": {}}', "cells need a"),
        ('{"image": "a.png", "caption": "a", "cells": [], "grid": [1, 1]}', "cells are {"),
        ('{"image": "a.png", "caption": "a", "cells": {"x": []}, "grid": [1, 1]}', "by their numbers"),
        ('{"image": "a.png", "caption": "a", "cells": {"0": [4]}, "grid": [2, 2]}', "numbers below 4"),
        ('{"image": "a.png", "caption": "\\ud800"}', "half a character"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n" + line, encoding="utf-8")
    heard = complaint(lambda: list(files.read([tmp_path / "a.jsonl"])))
    assert said in heard
    assert f"{tmp_path / 'a.jsonl'}:2: " in heard


@given(st.one_of(st.binary(max_size=80), st.text(max_size=60).map(str.encode)), st.sampled_from([".jsonl", ".tsv"]))
def test_whatever_is_in_a_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, ending: str
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"a{ending}"
    for some in (content, b'{"image": ' + content + b', "caption": "a"}', b'{"image":"a","caption":"b",' + content):
        path.write_bytes(some)
        assert are_read_or_refused(path)


def are_read_or_refused(path: Path) -> bool:
    """Whether captions can be read, or are refused in a sentence; their pictures are not there."""
    try:
        return all(complaint(one.picture.load) for one in files.read([path]))
    except UserError as error:
        return "\n" not in str(error)


def test_other_files_are_no_captions(tmp_path: Path) -> None:
    assert complaint(files.examples, tmp_path / "a.txt") == f"there is no file {tmp_path / 'a.txt'}"
    (tmp_path / "a.txt").write_text("a.png a cat\n", encoding="utf-8")
    assert "is not of a kind that holds captions (.jsonl, .tsv" in complaint(files.examples, tmp_path / "a.txt")
    (tmp_path / "a.tsv").write_text("no tab\n", encoding="utf-8")
    assert "a.tsv:1: a line is a path, a tab and a caption" in complaint(lambda: list(files.read([tmp_path / "a.tsv"])))


def test_a_pipe_names_pictures_by_their_paths_or_as_objects() -> None:
    lines = ["a.png\ta cat", "", '{"image": "b.npy", "row": 2}', " c.jpg "]
    found = list(files.pictures(lines, Path("here")))
    assert [(str(one.path), one.row) for one in found] == [
        ("here/a.png", None),
        ("here/b.npy", 2),
        ("here/c.jpg", None),
    ]


def test_a_file_of_many_pictures_is_all_of_them_or_the_row_that_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "many.npy", np.zeros((3, 4, 4, 3), dtype=np.uint8))
    np.save(tmp_path / "one.npy", np.zeros((4, 4, 3), dtype=np.uint8))
    many, one = Picture(tmp_path / "many.npy"), Picture(tmp_path / "one.npy")
    assert [each.row for each in many.each()] == [0, 1, 2]
    assert one.each() == [one]
    assert 'many.npy: it holds 3 pictures, and "row", from 0, says which' in complaint(many.digest)


# Scenes


def test_a_scene_says_where_its_objects_are() -> None:
    things = [
        Thing("red", "circle", "large", 1, 0),
        Thing("blue", "cross", "small", 0, 2),
        Thing("red", "square", "large", 0, 3),
    ]
    line = told(things, "x.npy", 3)
    assert line["caption"] == "a red circle below a small blue cross left of a red square"
    words = line["caption"].split()
    named = {words[int(word)]: cells for word, cells in line["cells"].items() if words[int(word)] != "red"}
    assert named == {"circle": [4], "blue": [2], "cross": [2], "square": [3]}
    assert line["cells"]["1"] == [4]
    assert line["cells"][str(len(words) - 2)] == [3]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded scenes; nobody changes them."""
    folder = tmp_path_factory.mktemp("scenes")
    embedded(folder)
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_scenes_are_the_seeds(scenes: Path, tmp_path: Path) -> None:
    again, other = embedded(tmp_path / "a"), embedded(tmp_path / "b", 2)
    for name in ("dev.jsonl", "dev.npy", "test.npy"):
        assert (scenes / name).read_bytes() == (tmp_path / "a" / name).read_bytes()
        assert (scenes / name).read_bytes() != (tmp_path / "b" / name).read_bytes()
    assert again.changes == other.changes == CHANGES


def kinds(caption: str) -> tuple[tuple[str, str], ...]:
    words = caption.split()
    return tuple(sorted((word, words[place + 1]) for place, word in enumerate(words) if word in COLOURS))


def test_what_is_together_in_a_held_out_scene_never_is_in_training(scenes: Path) -> None:
    train, dev, test = (
        [kinds(one["caption"]) for one in lines(scenes / f"{name}.jsonl")] for name in ("train", "dev", "test")
    )
    assert len(test) >= 500
    assert not set(train) & {*dev, *test}
    assert all(len(one) > 1 for one in test)
    assert {len(one) for one in train} == {1, 2, 3}


def test_pixels_are_where_the_cells_are(scenes: Path) -> None:
    images, rows = np.load(scenes / "test.npy"), lines(scenes / "test.jsonl")
    tiles = images.reshape(-1, SIDE, CELL, SIDE, CELL, 3).transpose(0, 1, 3, 2, 4, 5).reshape(len(images), SIDE**2, -1)
    painted = (np.abs(tiles.astype(int) - PAPER) > 60).any(-1)
    for row, found in zip(rows, painted, strict=True):
        assert set(np.flatnonzero(found)) == {cell for cells in row["cells"].values() for cell in cells}


def test_scenes_to_train_on_are_drawn_from_those_not_held() -> None:
    random = np.random.default_rng(3)
    assert not any(is_held(scene(random, True, 1), 1) for _ in range(50))
    assert all(is_held(scene(random, False, 1), 1) for _ in range(50))


# Batches, measures


def test_a_batch_pads_grids_of_any_shape(tmp_path: Path) -> None:
    pictures = [
        saved(tmp_path / f"{n}.npy", np.ones(shape, dtype=np.float32)) for n, shape in enumerate([(2, 2, 3), (3, 3)])
    ]
    encoded = [Encoded(one, EYE.extent(*one.header(), ""), [4 + n]) for n, one in enumerate(pictures)]
    captions = Captions(encoded, EYE)
    batch = captions.batch(np.array([1, 0]))
    assert batch.source.shape == (2, 4, 5)
    assert batch.lengths.tolist() == [3, 4]
    assert (batch.source[0, 3] == 0).all()
    assert batch.target_in.tolist() == [[BOS, 5], [BOS, 4]]
    assert captions.sizes.tolist() == [4, 3]
    assert [piece.rows for piece in batch.pieces(2)] == [1, 1]


def test_a_fingerprint_is_of_pictures_and_captions(tmp_path: Path) -> None:
    picture = saved(tmp_path / "a.npy", pixels(4, 4))
    extent = EYE.extent(*picture.header(), "")

    def fingerprint(*encoded: Encoded) -> str:
        return Captions(encoded, EYE).fingerprint

    one = Encoded(picture, extent, [4, 5], "x")
    moved = one._replace(picture=Picture(tmp_path / "elsewhere.npy"))
    assert fingerprint(one) == fingerprint(moved)
    assert (
        len({fingerprint(one), fingerprint(one._replace(digest="y")), fingerprint(one._replace(caption=[4, 6]))}) == 3
    )


def test_a_picture_that_changed_since_is_refused(tmp_path: Path) -> None:
    picture = saved(tmp_path / "a.npy", pixels(4, 4))
    captions = Captions([Encoded(picture, EYE.extent(*picture.header(), ""), [4])], EYE)
    saved(tmp_path / "a.npy", pixels(8, 4))
    os.utime(tmp_path / "a.npy", ns=(1, 1))
    assert "it is not the picture that it was" in complaint(captions.batch, np.array([0]))


def test_marks_are_the_tokens_of_a_word(tmp_path: Path) -> None:
    picture = saved(tmp_path / "a.npy", np.ones((2, 2, 3)))
    example = Example(picture, "a red, cat", files.Truth((2, 2), {1: (3,)}))
    tokenizer = learnt([example], VocabularySettings(kind="word", vocabulary=20))
    captions = Captions([Encoded(picture, EYE.extent(*picture.header(), ""), [4])], EYE)
    assert marks([example], captions, tokenizer) == [{1: (3,), 2: (3,)}]  # the comma is of the same word
    other = example._replace(truth=files.Truth((1, 4), {}))
    assert marks([other], captions, tokenizer) == [{}]  # of another grid


def test_bleu_takes_as_many_references_as_there_are() -> None:
    written, first = ["a cat on a mat today", "the old dog runs home"], ["a cat on the mat", "the old dog runs home"]
    assert bleu_of_several(written, [[one] for one in first]).value == pytest.approx(bleu(written, first).value)
    several = bleu_of_several(written, [[first[0], written[0]], [first[1]]])
    assert several.value == pytest.approx(100.0)
    with pytest.raises(ValueError, match="each needs one"):
        bleu_of_several(written, [["a"], []])


# Runs


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty images of two shapes, two captions each, in one array, a .png among them; nobody changes them."""
    folder = tmp_path_factory.mktemp("images")
    every = [pixels(16, 16, seed) if seed % 2 else pixels(8, 16, seed) for seed in range(30)]
    rows: list[dict[str, Any]] = []
    for number, image in enumerate(every):
        np.save(folder / f"{number}.npy", image)
        rows += [
            {"image": f"{number}.npy", "caption": f"{word} {'tall' if number % 2 else 'flat'} picture"}
            for word in ("a", "one")
        ]
    (folder / "x.png").write_bytes(png(every[0]))
    rows[0]["image"] = rows[1]["image"] = "x.png"
    grid = [
        {"grid": [2, 2], "cells": {"1": [0]}} if number % 2 else {"grid": [1, 2], "cells": {"1": [1]}}
        for number in range(30)
    ]
    rows = [row | grid[place // 2] for place, row in enumerate(rows)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:48]), encoding="utf-8")
    (folder / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[48:]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=RECIPES)
def run(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / request.param
    return regard.train(request.param, data / "train.jsonl", out, dev=data / "dev.jsonl", **SMALL)


def weights(run: Run, step: int) -> dict[str, Tensor]:
    loaded = regard.load(run.folder)
    found: dict[str, Tensor] = run.model((loaded.data.features, loaded.tokenizer.size), step).state_dict()
    return found


def test_a_run_that_was_stopped_ends_as_one_that_was_not(run: Run, data: Path, tmp_path: Path) -> None:
    name = run.config()["recipe"]
    half: dict[str, Any] = {**SMALL, "training.steps": 3}
    stopped = train(name, data / "train.jsonl", tmp_path / "run", dev=data / "dev.jsonl", **half)
    more: dict[str, Any] = {"training.steps": 6}
    train(None, None, stopped.folder, resume=True, **more)
    whole, parts = weights(run, 6), weights(stopped, 6)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_a_run_does_not_go_on_with_other_pictures(run: Run, data: Path, tmp_path: Path) -> None:
    name = run.config()["recipe"]
    for path in data.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    half: dict[str, Any] = {**SMALL, "training.steps": 3}
    stopped = train(name, tmp_path / "train.jsonl", tmp_path / "run", dev=data / "dev.jsonl", **half)
    saved(tmp_path / "3.npy", pixels(16, 16, 99))
    with pytest.raises(UserError, match="the training data is not what"):
        train(None, None, stopped.folder, resume=True, **{"training.steps": 6})  # type: ignore[arg-type]


def test_captions_come_in_order_with_weights_and_depend_on_nothing_around_them(run: Run, data: Path) -> None:
    model = regard.load(run.folder)
    assert isinstance(model, Captioner)
    inputs = [data / "1.npy", str(data / "x.png"), {"image": str(data / "2.npy")}, np.load(data / "3.npy")]
    together = model.predict(inputs)
    for one, named in zip(together, inputs, strict=True):
        (alone,) = model.predict([named])
        assert one.text == alone.text
        np.testing.assert_allclose(one.attention, alone.attention, atol=1e-6)
    assert [one.attention.shape[1:] for one in together] == [(2, 2), (1, 2), (1, 2), (2, 2)]
    for one in together:
        np.testing.assert_allclose(one.attention.sum((1, 2)), 1.0, atol=1e-5)
        document = json.loads(json.dumps(one.document()))
        assert np.array(document["weights"]).shape == (len(document["tokens"]), *document["grid"])
        assert document["caption"] == one.line() == one.text
        assert [line.label for line in one.looks()] == document["tokens"]
    assert model.predict([]) == []


def test_what_a_model_cannot_see_is_refused(run: Run, data: Path, tmp_path: Path) -> None:
    model = regard.load(run.folder)
    assert "there is no file" in complaint(model.predict, [tmp_path / "gone.png"])
    assert "there is no file" in complaint(model.predict, ["a\0b.npy"])
    assert "5 numbers for each place, and the model reads 192" in complaint(model.predict, [np.ones((2, 2, 5))])
    with pytest.raises(UserError, match="works alone"):
        TASKS["caption"].load(run.folder, run.folder)


def test_evaluation_counts_what_captions_are(run: Run, data: Path) -> None:
    model = regard.load(run.folder)
    found = model.evaluate([data / "dev.jsonl"])
    assert (found["images"], found["captions"]) == (6, 12)
    assert found["bleu_signature"].startswith("nrefs:2|")
    said: dict[str, list[str]] = {}
    for row in lines(data / "dev.jsonl"):
        said.setdefault(row["image"], []).append(row["caption"])
    made = model.predict([data / image for image in said])
    right = [one.text in captions for one, captions in zip(made, said.values(), strict=True)]
    assert found["exact"] == pytest.approx(100 * np.mean(right))
    assert 0 <= found["on_object"] <= 100
    assert found["entropy"] >= 0


def test_weight_on_objects_is_the_mean_over_the_words_that_name_one(run: Run, data: Path) -> None:
    from regard.search import forced

    model = regard.load(run.folder)
    examples = list(files.read([data / "dev.jsonl"]))
    shares = []
    for one in examples:
        seen = model.eye.look(one.picture.load(), one.picture)
        target = [*model.tokenizer.encode(one.caption), EOS]
        source, lengths = torch.from_numpy(seen.places)[None], torch.tensor([len(seen.places)])
        (judged,) = forced(model.model, source, lengths, [target])
        assert judged.hypothesis.attention is not None
        assert one.truth is not None
        shares += [judged.hypothesis.attention[word, list(cells)].sum() for word, cells in one.truth.cells.items()]
    assert model.evaluate([data / "dev.jsonl"])["on_object"] == pytest.approx(100 * np.mean(shares), abs=1e-3)


def test_metrics_have_what_is_measured_of_attention(run: Run) -> None:
    rows = [row for row in run.metrics() if row["kind"] == "dev"]
    assert [row["step"] for row in rows] == [3, 6]
    assert {"bleu", "exact", "perplexity", "entropy", "on_object"} <= set(rows[0])
    sample = lines(run.folder / "samples" / "step-6.jsonl")[0]
    assert sample["right"].count(" / ") == 1


def test_the_report_has_the_image_once_and_a_layer_for_each_word(run: Run) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 5
    assert page.count("<use href=") >= 5
    assert "fill-opacity" in page
    assert "http" not in page.replace("http://www.w3.org", "").partition("<h2>Configuration")[0]
    assert "Dev entropy of attention" in page
    assert (run.folder / "samples" / "attention-1.png").read_bytes().startswith(b"\x89PNG")


def test_an_overlay_is_clearest_where_the_weight_is() -> None:
    looks = np.array([[[0.5, 0.25], [0.25, 0.0]], [[0, 0], [0, 0]]], dtype=np.float32)
    overlay = Overlay(pixels(4, 4), ["<b>", "dog"], looks)
    np.testing.assert_allclose(overlay.shade(0), [[0, 0.4], [0.4, 0.8]], atol=1e-6)
    np.testing.assert_allclose(overlay.shade(1), 0.8, atol=1e-6)
    html = overlays(overlay)
    assert "&lt;b&gt;" in html
    assert "<b><b>" not in html
    assert html.count("<rect") == 8
    assert html.count("<image ") == 1
    bare = overlays(overlay._replace(pixels=None))
    assert "<image" not in bare
    assert bare.count("class=blank") == 2
    for one in (overlay, overlay._replace(pixels=None), Overlay(None, [], np.zeros((0, 1, 1), dtype=np.float32))):
        overlaid(one).savefig(io.BytesIO())


def test_pictures_are_held_out_by_content_and_seed_not_by_order(data: Path, tmp_path: Path) -> None:
    settings = CaptionSettings(train=(str(data / "train.jsonl"),), dev_pairs=4)
    found, again, other = survey(settings, 1), survey(settings, 1), survey(settings, 2)
    assert found == again != other
    assert (len(found.train), len(found.dev)) == (44, 4)
    assert not {one.picture.path for one in found.train} & {one.picture.path for one in found.dev}
    turned = tmp_path / "turned.jsonl"
    rows = [row | {"image": str(data / row["image"])} for row in lines(data / "train.jsonl")][::-1]
    turned.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    backwards = survey(CaptionSettings(train=(str(turned),), dev_pairs=4), 1)
    assert {one.picture.path for one in backwards.dev} == {one.picture.path for one in found.dev}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "no captions in there"),
        ([{"image": "1.npy", "caption": " "}], "no captions in there"),
        ([{"image": "1.npy", "caption": "a"}] * 3, "all captions are of one picture"),
        ([{"image": "gone.npy", "caption": "a"}, {"image": "1.npy", "caption": "a"}], "a.jsonl:1: there is no file"),
    ],
)
def test_too_little_is_refused(rows: list[dict[str, str]], said: str, data: Path) -> None:
    path = data / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    try:
        assert said in complaint(survey, CaptionSettings(train=(str(path),)), 1)
    finally:
        path.unlink()


def job(data: Path, out: Path, **changes: Any) -> Any:
    wanted = {**SMALL, "data.train": [str(data / "train.jsonl")], "data.dev": [str(data / "dev.jsonl")], **changes}
    return TASKS["caption"].prepared(Run(out), override(read(RECIPES[0]), wanted), False)


def test_the_keys_of_data_and_text_reach_the_job(data: Path, tmp_path: Path) -> None:
    usual = job(data, tmp_path)
    assert usual.about == "48 captions of 24 images, 12 dev captions, a vocabulary of 9"
    assert usual.sizes == (192, 9)
    assert usual.config["data"]["features"] == 192
    finer = {"data.patch": 4, "data.dev": None, "data.dev_pairs": 2}
    assert job(data, tmp_path, **finer).sizes == (48, 9)
    assert ", 2 dev captions" in job(data, tmp_path, **finer).about
    assert job(data, tmp_path, **finer).source.sizes.max() == 16
    assert job(data, tmp_path, **{**finer, "data.image": 8}).source.sizes.max() == 4
    assert "no caption is left" in complaint(lambda: job(data, tmp_path, **{"data.max_length": 2}))
    assert "the others have 100" in complaint(lambda: job(data, tmp_path, **{"data.features": 100}))
    assert job(data, tmp_path, **{"text.vocabulary": 6}).sizes[1] == 6
    assert "model.max_side" in complaint(lambda: job(data, tmp_path, **{"model.max_side": 1}))
    pieces = {"text.kind": "bpe", "text.vocabulary": 280, "text.dropout": 0.5}
    source, rows = job(data, tmp_path, **pieces).source, np.arange(20)
    first, again, other = (source.batch(rows, seed).target_out for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)


def test_features_need_no_backbone(data: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", np.random.default_rng(0).normal(size=(6, 2, 2, 5)).astype(np.float32))
    rows = [{"image": "f.npy", "row": n, "caption": f"picture {n % 2}"} for n in range(6)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    call = {"data.dev": [str(tmp_path / "train.jsonl")]}
    wrong = {**call, "model.backbone": "cnn"}
    assert "holds features, and model.backbone cnn reads pixels" in complaint(lambda: job(tmp_path, tmp_path, **wrong))
    assert job(tmp_path, tmp_path, **call).config["model"]["backbone"] == "none"
    assert job(data, tmp_path).config["model"]["backbone"] == "cnn"
    run = regard.train(RECIPES[0], tmp_path / "train.jsonl", tmp_path / "run", dev=tmp_path / "train.jsonl", **SMALL)
    (made,) = regard.load(run.folder).predict([{"image": str(tmp_path / "f.npy"), "row": 3}])
    assert made.attention.shape[1:] == (2, 2)
    assert made.pixels is None
    assert "class=blank" in (run.folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"image": 0}, "image is at least 1, not 0"),
        ({"patch": 300}, "patch is a part of an image of 224 pixels, not 300"),
        ({"features": 0}, "features is at least 1, not 0"),
        ({"max_length": 0}, "max_length is at least 1, not 0"),
        ({"dev_pairs": 0}, "dev_pairs is at least 1, not 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CaptionSettings(**values)


def test_a_run_starts_from_another(run: Run, data: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "training.steps": 1,
        "training.init_from": str(run.folder),
        "training.learning_rate": 0.0,
    }
    began = train(None, data / "dev.jsonl", tmp_path / "run", dev=data / "train.jsonl", **changes)
    best = regard.load(run.folder).model.state_dict()
    own = {name: tensor for name, tensor in weights(began, 1).items() if name != "baseline"}
    assert all(torch.equal(best[name], tensor) for name, tensor in own.items())


@pytest.mark.thorough
def test_the_command_line_from_training_to_captions(data: Path, regard: Command) -> None:
    keys = [f"{key}={value}" for key, value in {**SMALL, "training.tensorboard": True}.items()]
    done = regard("train", data / "train.jsonl", "--recipe", RECIPES[0], "--out", "run", *keys)
    assert done.returncode == 0, done.stderr
    assert "caption with: regard predict run FILE" in done.stderr
    assert regard("predict", "run", input=f"{data / '1.npy'}\n{data / 'x.png'}\n").stdout.count("\n") == 2
    assert regard("predict", "run", data / "x.png").stdout.count("\n") == 1, "a picture is an input by itself"
    beside = regard("predict", "run", data / "dev.jsonl")  # whose paths are relative to it
    assert (beside.returncode, beside.stdout.count("\n")) == (0, 12), beside.stderr
    told = json.loads(regard("predict", "run", "--json", input=f"{data / '1.npy'}\n").stdout)
    assert told["grid"] == [2, 2]
    scored = json.loads(regard("evaluate", "run", data / "dev.jsonl", "--json").stdout)
    assert {"bleu", "exact", "entropy", "on_object", "perplexity"} <= set(scored)
    assert "exact" in regard("evaluate", "run", data / "dev.jsonl").stdout
    wrong = regard("predict", "run", input="gone.png\n")
    assert wrong.returncode == 2
    assert "line 1: there is no file 'gone.png'" in wrong.stderr
    assert RECIPES[0] in regard("runs", ".").stdout
