"""Word tokenizer: whole words, with `<unk>` for rare ones, as in papers before subwords; and vocabularies of labels."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError, format_suggestion, short_repr
from regard.special_tokens import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from regard.tokenizers.segmentation import (
    has_unspaced_script,
    is_segmenter_installed,
    split_graphemes,
    split_words,
)
from regard.tokenizers.tokenizer import Tokenizer, format_tag

_TAG = re.compile(r"<\w+>")
CLOSING_MARKS = frozenset(".,;:!?…)]}%»")  # no space before
OPENING_MARKS = frozenset("([{«„")  # no space after
JOINER = "‿"  # on the side of a punctuation mark that lacks its usual space
SPACER = "␣"  # on a lone closing or opening mark, on the side that usually has no space

VOCABULARY_VERSION = 3
# The last line of a vocabulary file; files of version 1 have none.
_VERSION_LINE = re.compile(r"# regard words, version ([23])(, segmented by ICU)?")
_VERSION_1_TOKEN = re.compile(r"<unk>|\w+(?:[-'’]\w+)*|[^\w\s]")

# `re` has no class for combining marks (\p{M}): each is replaced by this one before the text is matched.
_ACCENT = "\u0301"
_LETTER = rf"[\w{_ACCENT}\u200c\u200d]"  # with the zero-width joiners, which occur inside words
_EMOJI = r"[\U0001f1e6-\U0001f1ff]{2}|[^\w\s](?:[%s\U0001f3fb-\U0001f3ff]|\u200d[^\w\s])*"
_WORD = rf"(?P<word><unk>|{_LETTER}+(?:[-'’]{_LETTER}+)*)|"
# Version 3 has the tags in flags of regions as well.
_TOKENS = {2: re.compile(_WORD + _EMOJI % _ACCENT), 3: re.compile(_WORD + _EMOJI % f"{_ACCENT}\U000e0020-\U000e007f")}


class _CombiningToAccent(dict[int, int]):
    """Translation table for `str.translate` that replaces each combining mark by `_ACCENT`."""

    def __missing__(self, code: int) -> int:
        self[code] = ord(_ACCENT) if unicodedata.category(chr(code)).startswith("M") else code
        return self[code]


_COMBINING_TO_ACCENT = _CombiningToAccent()


class Token(NamedTuple):
    """A word or a punctuation mark."""

    text: str
    is_word: bool


class _Spacing(NamedTuple):
    """A vocabulary entry without its joiners, and whether it joins the previous and the next token."""

    joins_before: bool
    text: str
    joins_after: bool


def find_tokens(text: str, version: int = VOCABULARY_VERSION, with_icu: bool | None = None) -> list[Token]:
    """Return the words and punctuation marks of a text, as they are written."""
    if version == 1:
        return [Token(token, any(map(str.isalnum, token))) for token in _VERSION_1_TOKEN.findall(text)]
    matches = _TOKENS[version].finditer(text.translate(_COMBINING_TO_ACCENT))
    tokens = [Token(text[match.start() : match.end()], match.lastgroup == "word") for match in matches]
    if version == 2 or not has_unspaced_script(text):
        return tokens
    return [part for token in tokens for part in (_divide_word(token.text, with_icu) if token.is_word else [token])]


def _divide_word(text: str, with_icu: bool | None) -> list[Token]:
    """Return the words of a run of letters; joined, they are the run."""
    words = split_words(text, with_icu)
    words = words if "".join(words) == text else split_graphemes(text)  # invisible characters belong to no word
    return [Token(word, any(map(str.isalnum, word))) for word in words]


def _tokenize_word(word: str, version: int, with_icu: bool) -> tuple[str, ...]:
    """Return the tokens of a white-space word; those with unusual spacing get joiners or a spacer.

    Without these, CLOSING_MARKS and characters of scripts without spaces join the previous token, OPENING_MARKS the
    next one, and other marks neither. Of two neighbouring marks the second gets the joiner. A mark that contains JOINER
    itself becomes `<unk>`: with joiners it could not be decoded. A word that begins with a space follows another one.
    """
    if word in CLOSING_MARKS:
        return (SPACER + word,)
    if word in OPENING_MARKS:
        return (word + SPACER,)
    tokens = find_tokens(word, version, with_icu)
    is_unspaced = version > 2 and has_unspaced_script(word)
    entries: list[str] = []
    is_joined = False  # the previous token joins this one
    for index, (text, is_word) in enumerate(tokens):
        before, after = index > 0, index + 1 < len(tokens)
        word_after = after and tokens[index + 1].is_word
        if is_unspaced and JOINER not in text and has_unspaced_script(text[0]):
            entries.append(text if before or word[0] != " " else SPACER + text)
        elif is_word:
            is_after_unspaced = is_unspaced and before and not is_joined and text != SPECIAL_TOKENS[UNK]
            entries.append(JOINER * is_after_unspaced + text)
        elif JOINER in text or (is_unspaced and text[0] == SPACER and len(text) > 1):
            entries.append(SPECIAL_TOKENS[UNK])
        elif text in CLOSING_MARKS:
            usual = (before and not word_after) or not after
            entries.append(text if usual else JOINER * before + text + JOINER)
        elif text in OPENING_MARKS:
            usual = (is_joined and after) or not before
            entries.append(text if usual else JOINER + text + JOINER * after)
        else:
            entries.append(JOINER * (before and not is_joined) + text + JOINER * word_after)
        is_joined = _parse_spacing(entries[-1], version).joins_after
    return tuple(entries)


def _parse_spacing(entry: str, version: int) -> _Spacing:
    """Separate a vocabulary entry from its joiners or spacer."""
    if version > 2 and has_unspaced_script(entry[:1] + entry[1:2] * (entry[0] == SPACER)):
        return _Spacing(entry[0] != SPACER, entry.lstrip(SPACER), False)
    if entry in CLOSING_MARKS or entry in OPENING_MARKS:
        return _Spacing(entry in CLOSING_MARKS, entry, entry in OPENING_MARKS)
    if (entry[:1] == SPACER and entry[1:] in CLOSING_MARKS) or (entry[-1:] == SPACER and entry[:-1] in OPENING_MARKS):
        return _Spacing(False, entry.strip(SPACER), False)
    before = len(entry) > 1 and entry.startswith(JOINER)
    after = len(entry) > 1 + before and entry.endswith(JOINER)
    return _Spacing(before, entry[before : len(entry) - after], after)


class WordTokenizer(Tokenizer):
    """Words and punctuation marks, the most frequent first; `it's` and `well-kept` are one word each.

    Version 1 splits words at combining marks and has no joiners. In version 2 words are between spaces in all scripts.
    Vocabularies of these versions still load and encode text that way.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        lowercase: bool = False,
        version: int = VOCABULARY_VERSION,
        with_icu: bool = False,
    ) -> None:
        self.vocabulary = list(vocabulary)
        self.lowercase = lowercase
        self.version = version
        self.normalization = max(1, version - 1)
        self.with_icu = with_icu  # ICU finds words of scripts without spaces
        self.ids = {word: id for id, word in enumerate(self.vocabulary)}
        self.spacing = [_parse_spacing(word, version) for word in self.vocabulary]
        self._ids_by_token = dict(self.ids)  # also of tokens that the vocabulary has only with other spacing
        for word, (_, text, _) in zip(self.vocabulary, self.spacing, strict=True):
            if JOINER in text or (text == word and text[:1].isalnum()):
                continue
            forms = (text, JOINER + text, text + JOINER, JOINER + text + JOINER, SPACER + text, text + SPACER)
            nearest = next(self.ids[form] for form in forms if form in self.ids)
            self._ids_by_token.update((form, nearest) for form in forms if form not in self.ids)
        self._encode_cached_word = lru_cache(maxsize=300_000)(self._encode_word)

    def __reduce__(self) -> tuple[type[WordTokenizer], tuple[Any, ...], dict[str, bool]]:
        state = {"has_dotless_i": self.has_dotless_i}
        return type(self), (self.vocabulary, self.lowercase, self.version, self.with_icu), state

    @classmethod
    def train(
        cls, lines: Iterable[str], size: int, lowercase: bool = False, tags: Sequence[str] = (), spacing: bool = True
    ) -> WordTokenizer:
        """Build a vocabulary of the `size` most frequent words; ties sort alphabetically.

        `size` includes tags and special tokens. Without `spacing` marks have neither joiners nor spacers, for
        vocabularies that are used with `find_tokens`.
        """
        counts, learner = Counter[str](), cls((), lowercase, with_icu=is_segmenter_installed())
        find_entries = lru_cache(maxsize=300_000)(learner.find_entries)  # few words make up most of a text
        for line in lines:
            if spacing:
                counts.update(entry for chunk in learner.split_chunks(line) for entry in find_entries(chunk))
            else:
                counts.update(map(learner.normalize, learner.split_words(line)))
        learnt = counts.keys() - {*SPECIAL_TOKENS, ""}
        ranked = sorted(learnt, key=lambda word: (-counts[word], word))
        reserved = [*SPECIAL_TOKENS, *map(format_tag, tags)]
        vocabulary = [*reserved, *ranked[: max(0, size - len(reserved))]]
        with_icu = learner.with_icu and any(map(has_unspaced_script, vocabulary))
        return cls(vocabulary, lowercase, with_icu=with_icu)

    @classmethod
    def load(cls, path: Path, lowercase: bool = False) -> WordTokenizer:
        """Read the vocabulary that `save` wrote."""
        try:
            *vocabulary, rest = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not a vocabulary: it is not UTF-8") from error
        found = _VERSION_LINE.fullmatch("".join(vocabulary[-1:]))
        version, with_icu = found.groups("") if found else ("1", "")
        vocabulary = vocabulary[:-1] if found else vocabulary
        is_valid = len(set(vocabulary)) == len(vocabulary) and all(word.split() == [word] for word in vocabulary)
        if rest or tuple(vocabulary[:4]) != SPECIAL_TOKENS or not is_valid:
            raise UserError(
                f"{path} is not a vocabulary: one word a line, each once, the first four {' '.join(SPECIAL_TOKENS)}"
            )
        if with_icu and not is_segmenter_installed():
            raise UserError(
                f"{path} has words of a script without spaces, which ICU found: install it: pip install 'regard[asian]'"
            )
        return cls(vocabulary, lowercase, int(version), bool(with_icu))

    def save(self, path: Path) -> None:
        """Write one word a line; the line number, counted from 0, is the id. The last line names the version."""
        version = f"# regard words, version {self.version}{', segmented by ICU' * self.with_icu}"
        lines = self.vocabulary if self.version == 1 else [*self.vocabulary, version]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self.vocabulary)

    def encode_by_word(self, text: str) -> list[list[int]]:
        """Return the ids of each white-space word, without BOS and EOS."""
        if self.version == 1:
            words = (text.lower() if self.lowercase else text).split()
            return [[self.ids.get(token, UNK) for token in _VERSION_1_TOKEN.findall(word)] for word in words]
        return [self._encode_cached_word(word) for word in self.split_chunks(text)]

    def split_chunks(self, text: str) -> list[str]:
        """Return the chunks between white space; later ones with an unspaced script first begin with a space."""
        chunks = self.lower_dotless_i(text).split()
        if self.version > 2 and has_unspaced_script(text):
            chunks = list(map(self.normalize, chunks))
            chunks[1:] = [" " * has_unspaced_script(chunk[:1]) + chunk for chunk in chunks[1:]]
        return chunks

    def find_entries(self, chunk: str) -> tuple[str, ...]:
        """Return the vocabulary entries for a chunk of `split_chunks`."""
        return _tokenize_word(self.normalize(chunk), self.version, self.with_icu)

    def split_words(self, text: str) -> list[str]:
        """Return the words and punctuation marks of a text, as they are written."""
        return [token.text for token in find_tokens(text, self.version, self.with_icu)]

    def _encode_word(self, word: str) -> list[int]:
        """Return the ids of a chunk; a token that occurs only with other spacing has that one's id."""
        ids, entries = self._ids_by_token, self.find_entries(word)
        return [ids[entry] if entry in ids else ids.get(entry.strip(JOINER + SPACER), UNK) for entry in entries]

    def is_tag(self, id: int) -> bool:
        """Return True if the id is that of a tag: no word of a text is written like one."""
        return id >= len(SPECIAL_TOKENS) and _TAG.fullmatch(self.vocabulary[id]) is not None

    def decode(self, ids: Sequence[int]) -> str:
        """Return words separated by spaces, with punctuation spaced by its joiners and spacers or else as usual."""
        parts, last = list[str](), -1
        for id, word in zip(ids, self.find_word_ids(ids), strict=True):
            if not self._is_silent(id):
                parts.append((" " if word > last else "") + self.spacing[id].text)
            last = word
        return "".join(parts).strip()

    def find_word_ids(self, ids: Sequence[int]) -> list[int]:
        """Return the index of each id's word of `decode(ids)`; an id without text belongs to the previous word."""
        word_ids, word_id, is_joined = [], -1, False
        for id in ids:
            if not self._is_silent(id):
                spacing = self.spacing[id]
                word_id += word_id < 0 or not (is_joined or spacing.joins_before)
                is_joined = spacing.joins_after
            word_ids.append(max(word_id, 0))
        return word_ids

    def measure_tokens(self, ids: Sequence[int]) -> list[int]:
        """Return the number of UTF-8 bytes, without spaces, that each id adds to a text."""
        return [0 if self._is_silent(id) else len(self.spacing[id].text.encode()) for id in ids]

    def _is_silent(self, id: int) -> bool:
        """Return True if an id adds no text."""
        return id in (PAD, BOS, EOS) or self.is_tag(id)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the words; marks with their joiners and spacers."""
        return [self.vocabulary[id] for id in ids]


_MAX_LABELS = 1_000_000  # with more, texts were probably read as labels


class LabelVocabulary:
    """Labels in sorted order; a label's id is its index."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(set(names))
        self.ids = {name: number for number, name in enumerate(self.names)}
        for name in self.names:
            if not is_valid_label(name):
                raise UserError(f"a label is one line of text without tabs, not {short_repr(name)}")
        if not 0 < len(self.names) <= _MAX_LABELS:
            raise UserError(f"the number of labels is between 1 and {_MAX_LABELS:,}, not {len(self.names):,}")

    @classmethod
    def load(cls, path: Path) -> LabelVocabulary:
        """Read the labels that `save` wrote."""
        if not path.is_file():
            raise UserError(f"{path} is missing: the run has no labels")
        try:
            *names, rest = path.read_bytes().decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} does not hold labels: it is not UTF-8") from error
        if rest or not names or names != sorted(set(names)) or not all(map(is_valid_label, names)):
            raise UserError(f"{path} does not hold labels: one a line, each once, in order")
        return cls(names)

    def save(self, path: Path) -> None:
        """Write one label a line; the line number, counted from 0, is the id."""
        path.write_bytes("".join(name + "\n" for name in self.names).encode("utf-8"))

    def find_id(self, name: str) -> int:
        """Return the id of a label; raise a UserError if the vocabulary does not contain it."""
        if name not in self.ids:
            raise UserError(f"there is no label {short_repr(name)}{format_suggestion(name, self.names[:100])}")
        return self.ids[name]


def is_valid_label(name: str) -> bool:
    """Return True if a label is one line without tabs and without white space around it."""
    return name.splitlines() == [name] and name == name.strip() and "\t" not in name
