"""When a search goes this way: on a GPU with Triton, in fp32 or bf16, with one model that is known here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from operator import attrgetter
from threading import Lock

import torch
from torch import Tensor, nn

from regard.console import log_message
from regard.fast.decoding import luong, transformer
from regard.fast.decoding.board import LONGEST, Wish
from regard.fast.decoding.finder import Finder
from regard.fast.decoding.parts import Parts
from regard.fast.hearing import heard
from regard.fast.outline import Outline
from regard.fast.output.way import precision
from regard.models.base import Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.models.vaswani2017 import TransformerDecoder

FIRST = 256  # sentences that go the readable way: compiling kernels takes seconds, and is to pay off
WIDEST = 16  # beam; a program has a sentence's candidates at hand
SOURCE = 1024  # positions; a program has the scores of all of them at hand
HEAD = 128  # numbers of a head
CHANCES = 3  # times that memory may not suffice
TRAINING = attrgetter("training")


def covers(model: Seq2Seq) -> bool:
    """Whether the model is one of those that are known here."""
    return transformer.covers(model) or luong.covers(model)


class Shortcut:
    """Searches on the device; where that cannot be, it says so by giving nothing."""

    def __init__(self) -> None:
        self.finders: dict[torch.dtype, Finder] = {}
        self.outline: Outline | None = None  # of the model that they were made of
        self.known = False  # whether that is one of those
        self.sentences = 0
        self.chances = CHANCES
        self.lock = Lock()  # searches of several threads would write to the same addresses

    def __reduce__(self) -> tuple[type[Shortcut], tuple[()]]:
        """A copy begins anew: what is recorded is of one model's weights, where these are."""
        return Shortcut, ()

    def __call__(self, model: Seq2Seq, source: Tensor, lengths: Tensor, wish: Wish) -> list[list[Hypothesis]] | None:
        """The `n_best` targets of each source B,S, the best first; None where the readable way has to find them."""
        self.sentences += len(source)
        ready = self.chances and source.is_cuda and self.sentences >= FIRST and takes(model, source, wish)
        fused = parts() if ready else None
        if fused is None:
            return None
        try:
            with self.lock, torch.cuda.device(source.device):
                finder = self.finder(model, fused)
                return None if finder is None else finder(source, lengths, wish)
        except ArithmeticError:  # weights are damaged, whatever the way
            raise
        except torch.OutOfMemoryError:
            failed, self.chances = "out of memory", self.chances - 1  # other sentences may need less
        except Exception as error:  # Triton has many ways to fail, and its own errors
            failed, self.chances = " ".join(f"{type(error).__name__}: {error}".split())[:200], 0
        self.release()
        torch.cuda.empty_cache()
        log_message(f"decoding goes on without kernels of its own, and more slowly: {failed}")
        return None

    def release(self) -> None:
        """Gives back all that is kept from one search to the next."""
        self.finders.clear()

    def finder(self, model: Seq2Seq, fused: Parts) -> Finder | None:
        """The one for the precision that is asked for now; none where somebody has changed what the model does."""
        if self.outline is None or not self.outline.fits(model):
            self.release()
            self.outline, self.known = Outline(model), whole(model.parameters()) and covers(model)
        if not self.known or not plain(self.outline.modules):
            return None
        kind = precision(self.outline.weights[0])
        if kind not in self.finders:
            self.finders[kind] = made(model, kind, fused)
        return self.finders[kind]


def plain(modules: Sequence[nn.Module]) -> bool:
    """Whether modules do what their classes say: nobody listens in, and nothing is dropped at random."""
    return not any(map(TRAINING, modules)) and not heard(*modules)


def made(model: Seq2Seq, kind: torch.dtype, parts: Parts) -> Finder:
    """A finder for a model that is known here."""
    weights = transformer.TransformerWeights if transformer.covers(model) else luong.LuongWeights
    with torch.inference_mode():
        return Finder(weights(model, kind, parts), parts)


def whole(weights: Iterable[Tensor]) -> bool:
    """Whether weights are all here, in fp32, and can tell whether they were written to."""
    return all(
        type(weight) is nn.Parameter and weight.dtype == torch.float32 and not weight.is_inference()
        for weight in weights
    )


def takes(model: Seq2Seq, source: Tensor, wish: Wish) -> bool:
    """Whether it is counted as the kernels do, and nothing is larger than they have at hand."""
    return (
        precision(next(model.parameters())) in (torch.float32, torch.bfloat16)
        and wish.beam <= WIDEST
        and max(wish.limits) <= LONGEST
        and source.shape[1] <= SOURCE
        and min(wish.sources) > 0
        and head_size(model) <= HEAD
    )


def head_size(model: Seq2Seq) -> int:
    """Numbers of a Transformer's heads; other decoders have none."""
    decoder = model.decoder
    if not isinstance(decoder, TransformerDecoder):
        return 0
    attention = decoder.decoder_layers()[0].attention
    return attention.size // attention.heads


@cache
def parts() -> Parts | None:
    """Those of Triton's kernels; where there is no Triton, that is said once."""
    try:
        from regard.fast.decoding import fused
    except ImportError as error:
        log_message(f"decoding goes without kernels of its own: {error}")
        return None
    return fused.FUSED
