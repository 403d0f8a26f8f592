"""How good the model is on the dev set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from regard.models import Seq2Seq
from regard.plot import overlaid
from regard.tasks.captioning.captioner import captioned, lots, searched
from regard.tasks.captioning.examples import Captions
from regard.tasks.captioning.files import Example
from regard.tasks.captioning.grouping import grouped
from regard.tasks.captioning.judgement import judged
from regard.tasks.captioning.prediction import Caption
from regard.tasks.captioning.vocabulary import exact, marks
from regard.tasks.task import Validation
from regard.tasks.text_scores import choose_measure, score_texts
from regard.text import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 5


class Sample(NamedTuple):
    """A picture of the dev set as the model captions it now."""

    made: Caption
    references: Sequence[str]

    def told(self) -> dict[str, str]:
        """The picture, what people say of it, and what the model does."""
        picture = self.made.picture
        named = str(picture.path) if picture.row is None else f"{picture.path}, row {picture.row}"
        return {"image": named, "right": " / ".join(self.references), "caption": self.made.text}

    def picture(self) -> Figure | None:
        """The looks of each word over the image."""
        overlay = self.made.overlay()
        return None if overlay is None else overlaid(overlay)


class Validator:
    """Cross-entropy of all captions of the dev set; greedy captions of some images, held against all that have been.

    BLEU says which model is the best, or chrF if the captions are in a script without spaces between words.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        captions: Captions,
        tokenizer: Tokenizer,
        batch_tokens: int,
        images: int,
        max_length: int,
    ) -> None:
        """`images` is how many are captioned at the most."""
        self.captions = captions
        self.marks = marks(examples, captions, tokenizer)
        self.tokenizer = tokenizer
        self.batch_tokens = batch_tokens
        self.groups = dict(list(grouped(examples).items())[:images])
        self.max_length = max_length
        self.measure = choose_measure([caption for captions in self.groups.values() for caption in captions])

    def __call__(self, model: Seq2Seq, device: torch.device) -> Validation:
        """Measures the model; leaves it as it was, and takes nothing from the random generators."""
        training = model.training
        model.eval()
        found = judged(model, self.captions, self.marks, device, self.batch_tokens)
        made = self.captioned(model, device)
        model.train(training)
        references, texts = list(self.groups.values()), [one.text for one in made]
        measured = score_texts(texts, references, self.measure, self.tokenizer.lowercase)
        measured["exact"] = exact(texts, references, self.tokenizer)
        samples = [Sample(*one) for one in zip(made[:SAMPLES], references, strict=False)]
        return Validation(found.mean_loss, measured | found.figures(), self.measure, samples)

    def captioned(self, model: Seq2Seq, device: torch.device) -> list[Caption]:
        """Greedy captions."""
        made: list[Caption] = []
        for lot in lots(list(self.groups)):
            sights = [self.captions.eye.look(picture.load(), picture) for picture in lot]
            found = searched(model, sights, device, self.batch_tokens, self.max_length, 1)
            made += [captioned(*one, self.tokenizer, self.captions.eye) for one in zip(lot, sights, found, strict=True)]
        return made
