"""A trained model that says what is in a picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.config import parse
from regard.data.files import lines, name_of
from regard.data.ragged import Indices
from regard.errors import UserError
from regard.evaluate import bleu_of_several, chrf_of_several
from regard.evaluate.scores import warn_about_bleu
from regard.models import Seq2Seq
from regard.search import Hypothesis, search
from regard.tasks.asking import several
from regard.tasks.captioning import files, sent
from regard.tasks.captioning.backbone import common
from regard.tasks.captioning.examples import Captions, gathered
from regard.tasks.captioning.eye import Eye, Sight
from regard.tasks.captioning.grouping import grouped
from regard.tasks.captioning.judgement import judged
from regard.tasks.captioning.picture import ARRAY, IMAGES, Array, Picture
from regard.tasks.captioning.prediction import Caption
from regard.tasks.captioning.settings import CaptionSettings
from regard.tasks.captioning.vocabulary import encoded, exact, kept, marks
from regard.tasks.loading import only, where
from regard.tasks.memory import in_order
from regard.text import Tokenizer

Named = str | Path | Mapping[str, Any] | Picture | Array  # a picture, by its path, as in a line of JSON, or itself


class Captioner:
    """A model with its vocabulary: pictures in, sentences out."""

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        data: CaptionSettings,
        eye: Eye,
        batch_tokens: int,
        device: torch.device,
    ) -> None:
        """`data` are the settings of the run, with the number of features that a place has."""
        self.model = model.to(device).eval()
        self.tokenizer = tokenizer
        self.data = data
        self.eye = eye
        self.batch_tokens = batch_tokens
        self.device = device

    def read(self, lines: Iterable[str]) -> Iterator[Picture]:
        """A line is a path, or an object with an image."""
        return files.pictures(lines)

    def inputs(self, path: Path) -> Iterator[Picture]:
        """The picture that a file is, by its name, or all that it holds; or those that its lines name."""
        if path.suffix.lower() in (ARRAY, *IMAGES):
            return iter(Picture(path).each())
        common([path], self.data.backbone)
        return files.pictures(lines(path), path.parent, name_of(path))

    def asked(self, given: Any) -> Array:
        """A picture that comes with its question, never one of this machine's."""
        return sent.picture(given)

    def predict(self, inputs: Sequence[Named], beam: int = 5) -> list[Caption]:
        """A caption for each picture, in order: its path, an object as in a line of JSON, or an array."""
        named = [picture_of(one) for one in several(inputs, "picture")]
        sights = [
            self.seen(one if isinstance(one, np.ndarray) else picture.load(), picture)
            for one, picture in zip(inputs, named, strict=True)
        ]
        found = searched(self.model, sights, self.device, self.batch_tokens, self.data.max_length, beam)
        return [captioned(*one, self.tokenizer, self.eye) for one in zip(named, sights, found, strict=True)]

    def seen(self, array: Array, picture: Picture) -> Sight:
        """What the model sees of a picture, whose places have as many features as those that it learnt from."""
        sight = self.eye.look(array, picture)
        if sight.extent.features != self.data.features:
            image = "; it is an image, and the run does not know which network made its features"
            raise picture.wrong(
                f"{sight.extent.features:,} numbers for each place, and the model reads {self.data.features:,}"
                f"{image if sight.extent.of_pixels else ''}"
            )
        return sight

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """BLEU and chrF against all captions of an image, exact matches, perplexity, and where the model looked."""
        common(paths, self.data.backbone)
        examples = list(files.read(paths))
        if not examples:
            raise UserError(f"{' and '.join(map(str, paths))}: no captions in there, nothing to score on")
        groups = grouped(examples)
        made = [one for lot in lots(list(groups)) for one in self.predict(lot)]
        captions = Captions(encoded(examples, self.eye, self.tokenizer, self.data.features), self.eye)
        truths = marks(examples, captions, self.tokenizer)
        found = judged(self.model, captions, truths, self.device, self.batch_tokens)
        references, texts = list(groups.values()), [one.text for one in made]
        warn_about_bleu([caption for captions in references for caption in captions])
        bleu = bleu_of_several(texts, references, self.tokenizer.lowercase)
        chrf = chrf_of_several(texts, references, self.tokenizer.lowercase)
        return {
            "images": len(groups),
            "captions": len(examples),
            "bleu": bleu.value,
            "chrf": chrf.value,
            "bleu_signature": bleu.signature,
            "chrf_signature": chrf.signature,
            "exact": exact(texts, references, self.tokenizer),
            "loss": found.mean_loss,
            **found.figures(),
        }


def picture_of(given: Named) -> Picture:
    """A picture by whatever names it."""
    if isinstance(given, Picture):
        return given
    if isinstance(given, np.ndarray):
        return Picture(Path("array"))
    return files.picture(given) if isinstance(given, Mapping) else Picture(Path(given))


def lots(pictures: Sequence[Picture], at_once: int = 256) -> Iterator[Sequence[Picture]]:
    """Some at a time: pictures take room."""
    for start in range(0, len(pictures), at_once):
        yield pictures[start : start + at_once]


def searched(
    model: Seq2Seq, sights: Sequence[Sight], device: torch.device, batch_tokens: int, max_length: int, beam: int
) -> list[Hypothesis]:
    """The best caption of each, in order; those of one size are searched together."""

    def best(rows: Indices) -> list[Hypothesis]:
        source, lengths = gathered([sights[row] for row in rows.tolist()])
        made = search(model, source.to(device), lengths.to(device), beam=beam, max_length=max_length + 1)
        return [hypotheses[0] for hypotheses in made]

    return in_order(best, np.array([len(one.places) for one in sights], dtype=np.int64), batch_tokens)


def captioned(picture: Picture, sight: Sight, found: Hypothesis, tokenizer: Tokenizer, eye: Eye) -> Caption:
    """What a search found, in words."""
    assert found.attention is not None
    extent = sight.extent
    attention = found.attention.reshape(len(found.tokens), extent.rows, extent.columns)
    pieces = tokenizer.pieces(found.tokens)
    text = tokenizer.decode(found.tokens)
    return Caption(picture, text, found.score, pieces, attention, sight.pixels, sight.window, eye)


def load(*runs: str | Path, device: str | None = None) -> Captioner:
    """The best model of a run, ready to caption, on a GPU where there is one."""
    run = only(runs, "captions")
    config = run.config()
    data = parse(CaptionSettings, config["data"], "data")
    if data.features is None:
        raise UserError(f"{run.folder}: its config does not say how many features a place has (data.features)")
    tokenizer, place = kept(run), where(device)
    return Captioner(
        run.model((data.features, tokenizer.size)),
        tokenizer,
        data,
        Eye(data.image, data.patch, int(config["model"]["max_side"]), data.backbone, place),
        int(config["training"]["batch_tokens"]),
        place,
    )
