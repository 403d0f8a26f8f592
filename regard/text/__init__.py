"""Text and ids: SentencePiece (BPE, unigram, characters) and whole words."""

from regard.symbols import BOS, EOS, NAMES, PAD, UNK
from regard.text.labels import Labels
from regard.text.settings import (
    TextSettings,
    Tokenizers,
    VocabularySettings,
    file_name,
    learn,
    learn_one,
    load,
    load_one,
    save,
)
from regard.text.subwords import Subwords
from regard.text.tokenizer import Tokenizer
from regard.text.words import Words

__all__ = [
    "BOS",
    "EOS",
    "NAMES",
    "PAD",
    "UNK",
    "Labels",
    "Subwords",
    "TextSettings",
    "Tokenizer",
    "Tokenizers",
    "VocabularySettings",
    "Words",
    "file_name",
    "learn",
    "learn_one",
    "load",
    "load_one",
    "save",
]
