"""Special tokens and tokenizers; `regard.tokenizers` holds the implementations."""

from regard.special_tokens import *  # noqa: F403
from regard.tokenizers.sentencepiece import SentencePieceTokenizer as SentencePieceTokenizer
from regard.tokenizers.tokenizer import TextSettings as TextSettings
from regard.tokenizers.tokenizer import Tokenizer as Tokenizer
from regard.tokenizers.tokenizer import Tokenizers as Tokenizers
from regard.tokenizers.tokenizer import VocabularySettings as VocabularySettings
from regard.tokenizers.tokenizer import load_tokenizer as load_tokenizer
from regard.tokenizers.tokenizer import load_tokenizers as load_tokenizers
from regard.tokenizers.tokenizer import save_tokenizer as save_tokenizer
from regard.tokenizers.tokenizer import save_tokenizers as save_tokenizers
from regard.tokenizers.tokenizer import train_tokenizer as train_tokenizer
from regard.tokenizers.tokenizer import train_tokenizers as train_tokenizers
from regard.tokenizers.words import LabelVocabulary as LabelVocabulary
from regard.tokenizers.words import WordTokenizer as WordTokenizer
