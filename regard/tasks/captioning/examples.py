"""Pictures with their encoded captions to train on, and their batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import Batch, shifted
from regard.data.order import Part
from regard.data.ragged import Indices, Ragged
from regard.tasks.captioning.eye import Extent, Eye, Sight
from regard.tasks.captioning.picture import Picture
from regard.text import Tokenizer


class Encoded(NamedTuple):
    """A picture, the places that it has, the ids of a caption, and a digest of the picture."""

    picture: Picture
    extent: Extent
    caption: Sequence[int]
    digest: str = ""


class Captions:
    """Captions in memory; pictures are read, batch by batch, from where they are."""

    parts: Sequence[Part] = ()

    def __init__(
        self, encoded: Sequence[Encoded], eye: Eye, tokenizer: Tokenizer | None = None, dropout: float = 0.0
    ) -> None:
        """With `dropout`, which is BPE's, the words of each batch are cut by `tokenizer` into other pieces."""
        self.pictures = [one.picture for one in encoded]
        self.extents = [one.extent for one in encoded]
        self.captions = Ragged.of(one.caption for one in encoded)
        self.eye = eye
        self.tokenizer = tokenizer if dropout else None
        self.dropout = dropout
        places = np.array([one.extent.places for one in encoded], dtype=np.int64)
        self.sizes = np.maximum(places, self.captions.lengths + 1).astype(np.int32)
        found = hashlib.sha256("".join(f"{one.digest} {one.extent.fingerprint()}\n" for one in encoded).encode())
        found.update(np.ascontiguousarray(self.captions.numbers, dtype=np.int64).tobytes())
        found.update(self.captions.offsets.tobytes())
        self.fingerprint = found.hexdigest()

    def __len__(self) -> int:
        return len(self.pictures)

    def batch(self, rows: Indices, seed: int = 0) -> Batch:
        """The pictures and captions at `rows`; with dropout, as the seed has it."""
        source, lengths = gathered([self.sight(int(row)) for row in rows])
        if self.tokenizer is None:
            before, after = shifted(self.captions, rows)
        else:
            some = [self.captions[int(row)].tolist() for row in rows]
            other = Ragged.of(self.tokenizer.resample(some, self.dropout, seed))
            before, after = shifted(other, np.arange(len(rows)))
        return Batch(source, lengths, torch.from_numpy(before), torch.from_numpy(after))

    def sight(self, row: int) -> Sight:
        """What is seen of a picture, which is still as large as it was."""
        picture = self.pictures[row]
        seen = self.eye.look(picture.load(), picture)
        known = self.extents[row]
        if (seen.extent.places, seen.extent.features) != (known.places, known.features):
            raise picture.wrong("it is not the picture that it was when training began")
        return seen

    def release(self) -> None:
        """Pictures are not kept."""


def gathered(sights: Sequence[Sight]) -> tuple[Tensor, Tensor]:
    """Places B,L,F+2, right-padded with zeros, and how many each picture has B."""
    lengths = [len(one.places) for one in sights]
    table = np.zeros((len(sights), max(lengths), sights[0].places.shape[1]), dtype=np.float32)
    for row, (one, length) in enumerate(zip(sights, lengths, strict=True)):
        table[row, :length] = one.places
    return torch.from_numpy(table), torch.tensor(lengths)
