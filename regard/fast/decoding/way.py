"""When a search goes this way: on a GPU with Triton, in fp32 or bf16, with one model that is known here."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from regard.console import say
from regard.fast.decoding import luong, transformer
from regard.fast.decoding.board import LONGEST, Wish
from regard.fast.decoding.finder import Finder
from regard.fast.decoding.harvest import Found
from regard.fast.decoding.parts import Parts
from regard.fast.packed.way import precision
from regard.models.seq2seq import Seq2Seq

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
        self.sentences = 0
        self.able = True

    def __reduce__(self) -> tuple[type[Shortcut], tuple[()]]:
        """A copy begins anew: what is recorded is of one model's weights, where these are."""
        return Shortcut, ()

    def __call__(self, model: Seq2Seq, source: Tensor, lengths: Tensor, wish: Wish) -> list[list[Found]] | None:
        """The `n_best` targets of each source B,S, the best first; None where the readable way has to find them."""
        self.sentences += len(source)
        ready = self.able and source.is_cuda and self.sentences >= FIRST and takes(model, source, lengths, wish)
        fused = parts() if ready else None
        return None if fused is None else self.found(model, source, lengths, wish, fused)

    def found(
        self, model: Seq2Seq, source: Tensor, lengths: Tensor, wish: Wish, fused: Parts
    ) -> list[list[Found]] | None:
        """The same, unless something goes wrong on the way."""
        failed = ""
        try:
            return self.finder(model, fused)(source, lengths, wish)
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

    def finder(self, model: Seq2Seq, fused: Parts) -> Finder:
        """The one for the precision that is asked for now; weights that have moved leave all of it behind."""
        kind = precision(model)
        known = self.finders.get(kind)
        if known is None or known.watch.moved(model):
            self.finders[kind] = known = made(model, kind, fused)
        return known


def made(model: Seq2Seq, kind: torch.dtype, parts: Parts) -> Finder:
    """A finder for a model that is known here."""
    weights = transformer.TransformerWeights if transformer.covers(model) else luong.LuongWeights
    with torch.inference_mode():
        return Finder(model, weights(model, kind, parts), parts)


def takes(model: Seq2Seq, source: Tensor, lengths: Tensor, wish: Wish) -> bool:
    """Whether weights are whole and in fp32, and nothing is larger than kernels have at hand."""
    weights = list(model.parameters())
    whole = all(type(weight) is nn.Parameter and weight.dtype == torch.float32 for weight in weights)
    return (
        whole
        and covers(model)
        and not any(weight.is_inference() for weight in weights)
        and precision(model) in (torch.float32, torch.bfloat16)
        and wish.beam <= WIDEST
        and max(wish.limits) <= LONGEST
        and source.shape[1] <= SOURCE
        and bool((lengths > 0).all())
        and head_size(model) <= HEAD
    )


def head_size(model: Seq2Seq) -> int:
    """Numbers of a Transformer's heads; other decoders have none."""
    decoder = model.decoder
    if not isinstance(decoder, transformer.TransformerDecoder):
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
