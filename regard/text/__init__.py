"""Text and ids: SentencePiece (BPE, unigram, characters) and whole words."""

from regard.symbols import BOS, EOS, NAMES, PAD, UNK
from regard.text.settings import TextSettings, Tokenizers, learn, load, save
from regard.text.subwords import Subwords
from regard.text.tokenizer import Tokenizer
from regard.text.words import Words

__all__ = [
    "BOS",
    "EOS",
    "NAMES",
    "PAD",
    "UNK",
    "Subwords",
    "TextSettings",
    "Tokenizer",
    "Tokenizers",
    "Words",
    "learn",
    "load",
    "save",
]
