"""Whole words with `<unk>` for the rare ones, as the papers before subwords had them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError
from regard.special_tokens import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from regard.tokenizers.tokenizer import format_tag, make_missing_tag_error, normalize

_TAG = re.compile(r"<\w+>")
CLOSING_MARKS = frozenset(".,;:!?…)]}%»")  # no space before
OPENING_MARKS = frozenset("([{«„")  # no space after
JOINER = "‿"  # on a mark of punctuation, at the side on which there is no space although there usually is
SPACER = "␣"  # on a mark of CLOSES or OPENS that stands alone, at the side on which there usually is no space

VOCABULARY_VERSION = 2
_VERSION_LINE = (
    f"# regard words, version {VOCABULARY_VERSION}"  # the last line of a vocabulary; those of version 1 have none
)
_VERSION_1_TOKEN = re.compile(r"<unk>|\w+(?:[-'’]\w+)*|[^\w\s]")

# `re` has no class for combining marks (\p{M}), so that each is replaced by this one before tokens are searched for.
_ACCENT = "\u0301"
_LETTER = rf"[\w{_ACCENT}\u200c\u200d]"  # with the zero-width joiners, which stand inside words
_EMOJI = rf"[\U0001f1e6-\U0001f1ff]{{2}}|[^\w\s](?:[{_ACCENT}\U0001f3fb-\U0001f3ff]|\u200d[^\w\s])*"
_TOKEN = re.compile(rf"(?P<word><unk>|{_LETTER}+(?:[-'’]{_LETTER}+)*)|{_EMOJI}")


class _CombiningToAccent(dict[int, int]):
    """Code points with ACCENT instead of each combining mark, for `str.translate`."""

    def __missing__(self, code: int) -> int:
        self[code] = ord(_ACCENT) if unicodedata.category(chr(code)).startswith("M") else code
        return self[code]


_COMBINING_TO_ACCENT = _CombiningToAccent()


class Token(NamedTuple):
    """A word, or a mark of punctuation."""

    text: str
    is_word: bool


class _Spacing(NamedTuple):
    """The text of an entry of a vocabulary, and whether it joins the token before and the token after it."""

    joins_before: bool
    text: str
    joins_after: bool


def find_tokens(text: str, version: int = VOCABULARY_VERSION) -> list[Token]:
    """Return the words and the marks of punctuation of a text, as they are written."""
    if version == 1:
        return [Token(token, any(map(str.isalnum, token))) for token in _VERSION_1_TOKEN.findall(text)]
    found = _TOKEN.finditer(text.translate(_COMBINING_TO_ACCENT))
    return [Token(text[match.start() : match.end()], match.lastgroup == "word") for match in found]


@lru_cache(maxsize=300_000)
def _tokenize_word(word: str) -> tuple[str, ...]:
    """Return the tokens of a white-space word; marks that are not spaced as usual have joiners or a spacer.

    Without these a mark of CLOSES joins the token before it, one of OPENS the token after it, any other none. Of two
    neighbours that are marks, the second has the joiner. A mark that contains JOINER itself is `<unk>`: with joiners it
    could not be read back.
    """
    if word in CLOSING_MARKS:
        return (SPACER + word,)
    if word in OPENING_MARKS:
        return (word + SPACER,)
    tokens = find_tokens(word)
    entries: list[str] = []
    joined = False  # by the token before
    for number, (text, is_word) in enumerate(tokens):
        before, after = number > 0, number + 1 < len(tokens)
        word_after = after and tokens[number + 1].is_word
        if is_word:
            entries.append(text)
        elif JOINER in text:
            entries.append(SPECIAL_TOKENS[UNK])
        elif text in CLOSING_MARKS:
            usual = (before and not word_after) or not after
            entries.append(text if usual else JOINER * before + text + JOINER)
        elif text in OPENING_MARKS:
            usual = (joined and after) or not before
            entries.append(text if usual else JOINER + text + JOINER * after)
        else:
            entries.append(JOINER * (before and not joined) + text + JOINER * word_after)
        joined = _parse_spacing(entries[-1]).joins_after
    return tuple(entries)


def _parse_spacing(entry: str) -> _Spacing:
    """Read the joiners, or the spacer, of an entry of a vocabulary."""
    if entry in CLOSING_MARKS or entry in OPENING_MARKS:
        return _Spacing(entry in CLOSING_MARKS, entry, entry in OPENING_MARKS)
    if (entry[:1] == SPACER and entry[1:] in CLOSING_MARKS) or (entry[-1:] == SPACER and entry[:-1] in OPENING_MARKS):
        return _Spacing(False, entry.strip(SPACER), False)
    before = len(entry) > 1 and entry.startswith(JOINER)
    after = len(entry) > 1 + before and entry.endswith(JOINER)
    return _Spacing(before, entry[before : len(entry) - after], after)


class WordTokenizer:
    """Words and marks of punctuation, the most frequent first; `it's` and `well-kept` are one word each.

    Version 1 splits words at combining marks and has no joiners; its vocabularies still load and encode text that way.
    """

    def __init__(self, vocabulary: Sequence[str], lowercase: bool = False, version: int = VOCABULARY_VERSION) -> None:
        self.vocabulary = list(vocabulary)
        self.lowercase = lowercase
        self.version = version
        self.ids = {word: number for number, word in enumerate(self.vocabulary)}
        self.spacing = [_parse_spacing(word) for word in self.vocabulary]
        self._other_forms: dict[str, int] = {}  # marks that the vocabulary has only with other spaces around them
        for text in (text for _, text, _ in self.spacing if not text[:1].isalnum() and JOINER not in text):
            forms = (text, JOINER + text, text + JOINER, JOINER + text + JOINER, SPACER + text, text + SPACER)
            nearest = next(self.ids[form] for form in forms if form in self.ids)
            self._other_forms.update((form, nearest) for form in forms if form not in self.ids)

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        size: int,
        lowercase: bool = False,
        tags: Sequence[str] = (),
        spacing: bool = True,
    ) -> WordTokenizer:
        """The `size` most frequent words, tags and ids 0 to 3 included; among equals the alphabet decides.

        Without `spacing` marks have neither joiners nor spacers, for vocabularies that are looked up by `find_tokens`.
        """
        counts: Counter[str] = Counter()
        for line in lines:
            if spacing:
                counts.update(token for word in normalize(line, lowercase).split() for token in _tokenize_word(word))
            else:
                counts.update(normalize(token.text, lowercase) for token in find_tokens(line))
        ranked = sorted((word for word in counts if word not in SPECIAL_TOKENS), key=lambda word: (-counts[word], word))
        first = [*SPECIAL_TOKENS, *map(format_tag, tags)]
        return cls([*first, *ranked[: max(0, size - len(first))]], lowercase)

    @classmethod
    def load(cls, path: Path, lowercase: bool = False) -> WordTokenizer:
        """Reads what `save` wrote."""
        try:
            *vocabulary, rest = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not a vocabulary: it is not UTF-8") from error
        version = VOCABULARY_VERSION if vocabulary[-1:] == [_VERSION_LINE] else 1
        vocabulary = vocabulary[:-1] if version == VOCABULARY_VERSION else vocabulary
        each_once = len(set(vocabulary)) == len(vocabulary) and all(word.split() == [word] for word in vocabulary)
        if rest or tuple(vocabulary[:4]) != SPECIAL_TOKENS or not each_once:
            raise UserError(
                f"{path} is not a vocabulary: one word a line, each once, the first four {' '.join(SPECIAL_TOKENS)}"
            )
        return cls(vocabulary, lowercase, version)

    def save(self, path: Path) -> None:
        """One word a line; the line's number, from 0, is the id. The last line names the version."""
        lines = self.vocabulary if self.version == 1 else [*self.vocabulary, _VERSION_LINE]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self.vocabulary)

    def encode_with_word_ids(self, text: str) -> tuple[list[int], list[int]]:
        """Ids, and the white-space word of each."""
        by_word = self._encode_words(text)
        ids = [id for word in by_word for id in word]
        return ids, [number for number, word in enumerate(by_word) for _ in word]

    def encode(self, text: str) -> list[int]:
        """The ids alone."""
        return [id for word in self._encode_words(text) for id in word]

    def _encode_words(self, text: str) -> list[list[int]]:
        if self.version == 1:
            words = (text.lower() if self.lowercase else text).split()
            return [[self.ids.get(token, UNK) for token in _VERSION_1_TOKEN.findall(word)] for word in words]
        return [
            [self._find_id(token) for token in _tokenize_word(word)] for word in normalize(text, self.lowercase).split()
        ]

    def _find_id(self, token: str) -> int:
        found = self.ids.get(token)
        return self._other_forms.get(token, UNK) if found is None else found

    def find_tag_id(self, name: str) -> int:
        """The id of a tag that the vocabulary was learnt with."""
        id = self.ids.get(format_tag(name), UNK)
        if id < len(SPECIAL_TOKENS):
            raise make_missing_tag_error(
                name, [self.vocabulary[id][1:-1] for id in range(self.vocab_size) if self.is_tag(id)]
            )
        return id

    def is_tag(self, id: int) -> bool:
        """Whether an id is that of a tag: no word of a text has a form like that."""
        return id >= len(SPECIAL_TOKENS) and _TAG.fullmatch(self.vocabulary[id]) is not None

    def apply_bpe_dropout(self, sentences: Sequence[Sequence[int]], dropout: float, seed: int) -> list[list[int]]:
        """Words have no parts, so that there is nothing to leave out."""
        return [list(ids) for ids in sentences]

    def decode(self, ids: Sequence[int]) -> str:
        """Words with a space between, punctuation set as joiners and spacers say, else as in ordinary text."""
        words = self.find_word_ids(ids)
        spoken = zip(ids, words, [-1, *words], strict=False)
        return "".join(
            (" " if word > last else "") + self.spacing[id].text for id, word, last in spoken if not self._is_silent(id)
        ).strip()

    def find_word_ids(self, ids: Sequence[int]) -> list[int]:
        """The word of `decode(ids)` that each id is part of; a silent id counts with the word before it."""
        numbers, number, joined = [], -1, False
        for id in ids:
            if not self._is_silent(id):
                spacing = self.spacing[id]
                number += number < 0 or not (joined or spacing.joins_before)
                joined = spacing.joins_after
            numbers.append(max(number, 0))
        return numbers

    def _is_silent(self, id: int) -> bool:
        """Whether an id adds nothing to a text."""
        return id in (PAD, BOS, EOS) or self.is_tag(id)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """The words themselves; marks with their joiners and spacers."""
        return [self.vocabulary[id] for id in ids]

    def find_word_boundary_ids(self) -> None:
        """Every id is a whole word."""
        return
