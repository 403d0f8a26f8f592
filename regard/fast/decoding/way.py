"""When a search goes this way: on a GPU with Triton, in fp32 or bf16, with one model that is known here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from threading import Lock

import torch
from torch import Tensor, nn

from regard.console import say
from regard.fast.decoding import luong, transformer
from regard.fast.decoding.board import LONGEST, Wish
from regard.fast.decoding.finder import Finder
from regard.fast.decoding.harvest import Found
from regard.fast.decoding.parts import Parts
from regard.fast.decoding.weights import Watch
from regard.fast.packed.way import precision
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import TransformerDecoder

FIRST = 256  # sentences that go the readable way: compiling kernels takes seconds, and is to pay off
WIDEST = 16  # beam; a program has a sentence's candidates at hand
SOURCE = 1024  # positions; a program has the scores of all of them at hand
HEAD = 128  # numbers of a head


def covers(model: Seq2Seq) -> bool:
    """Whether the model is one of those that are known here."""
    return transformer.covers(model) or luong.covers(model)


class Shortcut:
    """Searches on the device; where that cannot be, it says so by giving nothing."""

    def __init__(self) -> None:
        self.finders: dict[torch.dtype, Finder] = {}
        self.watch: Watch | None = None
        self.sentences = 0
        self.able = True
        self.lock = Lock()  # searches of several threads would write to the same addresses

    def __reduce__(self) -> tuple[type[Shortcut], tuple[()]]:
        """A copy begins anew: what is recorded is of one model's weights, where these are."""
        return Shortcut, ()

    def __call__(self, model: Seq2Seq, source: Tensor, lengths: Tensor, wish: Wish) -> list[list[Found]] | None:
        """The `n_best` targets of each source B,S, the best first; None where the readable way has to find them."""
        self.sentences += len(source)
        ready = self.able and source.is_cuda and self.sentences >= FIRST
        weights = list(model.parameters()) if ready else []
        ready = ready and whole(weights) and takes(model, source, lengths, wish)
        fused = parts() if ready else None
        if fused is None:
            return None
        failed = ""
        try:
            with self.lock, torch.cuda.device(source.device):
                return self.finder(model, weights, fused)(source, lengths, wish)
        except ArithmeticError:  # weights are damaged, whatever the way
            raise
        except torch.OutOfMemoryError:
            failed = "out of memory"
        except Exception as error:  # Triton has many ways to fail, and its own errors
            failed = " ".join(str(error).split())[:200]
        self.able = False
        self.finders.clear()
        torch.cuda.empty_cache()
        say(f"decoding goes on without kernels of its own, and more slowly: {failed}")
        return None

    def finder(self, model: Seq2Seq, weights: Sequence[Tensor], fused: Parts) -> Finder:
        """The one for the precision that is asked for now; weights that have moved leave all of them behind."""
        kind = precision(model)
        if self.watch is None or self.watch.moved(weights):
            self.watch = Watch(weights)
            self.finders.clear()
        elif self.watch.changed(weights):
            for finder in self.finders.values():
                finder.renew()
        if kind not in self.finders:
            self.finders[kind] = made(model, kind, fused)
        return self.finders[kind]


def made(model: Seq2Seq, kind: torch.dtype, parts: Parts) -> Finder:
    """A finder for a model that is known here."""
    weights = transformer.TransformerWeights if transformer.covers(model) else luong.LuongWeights
    with torch.inference_mode():
        return Finder(weights(model, kind, parts), parts)


def whole(weights: Sequence[Tensor]) -> bool:
    """Whether weights are all here, in fp32, and can tell whether they were written to."""
    return all(
        type(weight) is nn.Parameter and weight.dtype == torch.float32 and not weight.is_inference()
        for weight in weights
    )


def takes(model: Seq2Seq, source: Tensor, lengths: Tensor, wish: Wish) -> bool:
    """Whether it is counted as the kernels do, and nothing is larger than they have at hand."""
    return (
        precision(model) in (torch.float32, torch.bfloat16)
        and wish.beam <= WIDEST
        and max(wish.limits) <= LONGEST
        and source.shape[1] <= SOURCE
        and bool((lengths > 0).all())
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
        say(f"decoding goes without kernels of its own: {error}")
        return None
    return fused.FUSED
