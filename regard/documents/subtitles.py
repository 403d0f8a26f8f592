"""Who speaks, as lines of subtitles say it: `- `, `>> `, `JOHN: `, `<v John>`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from regard.documents.base import DocumentError, EncodedText, ParsedDocument, decode_utf8
from regard.documents.escaping import escape_text, normalize_html_text, replace_line_breaks, unescape_markup
from regard.documents.tagged_text import EscapeFunction, InlineNode, TaggedText, make_literal
from regard.tokenizers.urls import remove_urls

MUSIC_NOTES = "♩♪♫♬"
VOICE_TAG = r"<v[.\s][^<>]*>"
MID_LINE_VOICE = re.compile(
    rf"(?<=\S)(?={VOICE_TAG})|(?<=\S[ \t])(?={VOICE_TAG})"
)  # where another begins in the middle of a line
LEADING_MARKUP = rf"(?:<[^<>]*+>|\{{\\[^{{}}]*+\}}|[\s{MUSIC_NOTES}])*+"
SPEAKER_DASH = r"(?:[-–—]+|(?:>|&gt;){2,})\s*(?=\S)"
SPEAKER_NAME = r"[\[(]?[^\W\d_][^:：<>]{0,40}?"
CLOSING_TAGS = r"(?:\s*</[^<>]*>)*"
SPEAKER_LABEL = rf"(?P<name>{SPEAKER_NAME}){CLOSING_TAGS}[ \xa0\u202f]?(?::(?=[\s<]|\Z)|：){CLOSING_TAGS}\s*"
SPEAKER_PREFIX = re.compile(rf"{LEADING_MARKUP}(?P<dash>{SPEAKER_DASH})?{LEADING_MARKUP}(?P<label>{SPEAKER_LABEL})?")
NAME_REMARK = re.compile(r"(?<=\S)\s*[\[(][^\[\]()]*[\])]")  # JOHN (on the phone)
MAX_NAME_WORDS = 4  # that a name may have
MIN_TRANSCRIPT_LINES = 3  # lines with a name make a transcript, where they are half of all


def _find_speaker_prefix(line: str, in_transcript: bool) -> str:
    """What a line begins with where that says that another speaks, else nothing."""
    found = SPEAKER_PREFIX.match(line)
    if found is None:
        return ""
    if found["label"] and (_is_uppercase_name(found["name"]) or (in_transcript and _is_possible_name(found["name"]))):
        return line[: found.end("label")]
    tags = line[: found.start("label") if found["label"] else found.end()]
    voices = [voice.end() for voice in re.finditer(VOICE_TAG, tags)]
    return line[: max(found.end("dash"), *voices, 0)]


def _is_uppercase_name(name: str) -> bool:
    """Whether a name is written in capitals, but for a remark behind it: common words with a colon seldom are."""
    return _has_name_length(name) and NAME_REMARK.sub("", name).isupper()


def _is_possible_name(name: str) -> bool:
    """Whether it may be a name where nearly every line has one."""
    return _has_name_length(name) and not name[0].islower()


def _has_name_length(name: str) -> bool:
    """Whether it has no more words than a name has."""
    return len(NAME_REMARK.sub("", name).split()) <= MAX_NAME_WORDS


def _is_transcript(lines: Sequence[str]) -> bool:
    """Whether so many lines begin with a name and a colon that those are who speaks, capitals or not."""
    openings = [SPEAKER_PREFIX.match(line) for line in lines]
    count = sum(bool(found and found["label"] and _is_possible_name(found["name"])) for found in openings)
    return count >= max(MIN_TRANSCRIPT_LINES, len(lines) / 2)


LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
CUE_TIME = re.compile(r"\s*(?:\d+:)?\d{1,2}:\d{1,2}[,.]\d{1,3}\s*-->\s*(?:\d+:)?\d{1,2}:\d{1,2}[,.]\d{1,3}")
SUBTITLE_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[biucv]|font|lang|ruby|rt)(?:[.\s][^<>]*)?>|<[\d:.]+>|\{\\[^{}]*\}", re.IGNORECASE
)
TAG_OR_MUSIC_NOTE = re.compile(
    rf"{SUBTITLE_TAG.pattern}|[{MUSIC_NOTES}]+", re.IGNORECASE
)  # what stands among the words and is none
BREAKABLE_SPACE = re.compile(
    rf"{SUBTITLE_TAG.pattern}|(?<=[^-–—{MUSIC_NOTES}\s])(?P<space> +)(?=[^{MUSIC_NOTES}\s])", re.IGNORECASE
)
# Without groups: inside a possessive repeat, Python 3.11 may end in a SystemError by them.
SUBTITLE_TAG_WITHOUT_GROUPS = re.sub(r"\?P<\w+>", "?:", SUBTITLE_TAG.pattern)
SONG_START = re.compile(rf"(?:{SUBTITLE_TAG_WITHOUT_GROUPS}|\s)*+[{MUSIC_NOTES}]", re.IGNORECASE)
MAX_CUE_LINES = 8  # of a cue; more are not shown at once, and come back as one

MarkupFunction = Callable[[str], str]


class CueLine(NamedTuple):
    """A line of a cue: what it begins with that says who speaks, and the rest with its end."""

    speaker_prefix: str
    text: str

    @property
    def is_standalone(self) -> bool:
        """Whether there is nothing to say in it, and it stays a line by itself."""
        return not TAG_OR_MUSIC_NOTE.sub("", remove_urls(self.text)).strip()


class Speech(NamedTuple):
    """Lines that are said by one, from a place in the file on."""

    first_line: int
    lines: Sequence[CueLine]
    tagged_text: TaggedText

    def format_lines(self, translation: str) -> list[str]:
        """The lines with something else said in them; one that would be empty would end the cue."""
        return (
            _split_into_lines(translation, self.lines)
            if translation.strip()
            else [line.speaker_prefix + line.text for line in self.lines]
        )


def parse_srt(content: bytes) -> ParsedDocument:
    """An .srt file, whose text is text."""
    source = decode_utf8(content)
    if source.text.strip() and not any(map(CUE_TIME.match, LINE.findall(source.text))):
        raise DocumentError("has no times as subtitles have them, like 00:00:01,000 --> 00:00:02,500")
    return _parse_cues(source, escape_text, unescape_markup)


def parse_vtt(content: bytes) -> ParsedDocument:
    """A .vtt file, whose text is markup."""
    source = decode_utf8(content)
    if source.text.strip() and not re.match(r"WEBVTT(?!\S)", source.text):
        raise DocumentError("is not what its ending says: it does not begin with WEBVTT")
    return _parse_cues(source, normalize_html_text)


def _parse_cues(source: EncodedText, to_markup: MarkupFunction, escape: EscapeFunction | None = None) -> ParsedDocument:
    """A file whose words are read, and spelled again, in a certain way."""
    lines = [piece for line in LINE.findall(source.text) for piece in MID_LINE_VOICE.split(line)]
    speeches = [speech for speech in _iterate_speeches(lines, to_markup) if speech.tagged_text.text]

    def write(translations: Sequence[str]) -> bytes:
        made = list(lines)
        for speech, answer in zip(speeches, translations, strict=True):
            parts = speech.format_lines(replace_line_breaks(speech.tagged_text.write(answer, escape)) if answer else "")
            count = len(speech.lines)
            made[speech.first_line : speech.first_line + count] = [*parts, *[""] * (count - len(parts))]
        return source.encode_like_source("".join(made))

    return ParsedDocument([speech.tagged_text.text for speech in speeches], write)


def _iterate_speeches(lines: Sequence[str], to_markup: MarkupFunction) -> Iterator[Speech]:
    """What is said, cue by cue: all its lines together, but for those where another begins to speak or to sing."""
    cues = list(_iterate_cues(lines))
    transcript = _is_transcript([lines[start] for start, _ in cues])
    for start, end in cues:
        cue = [
            CueLine(begun := _find_speaker_prefix(line, transcript), line[len(begun) :]) for line in lines[start:end]
        ]
        for first, last in pairwise([*(place for place in range(len(cue)) if _starts_speech(cue, place)), len(cue)]):
            said = cue[first:last]
            text = "".join(line.text for line in said)
            yield Speech(start + first, said, TaggedText(_iterate_subtitle_nodes(text.rstrip("\r\n"), to_markup)))


def _iterate_cues(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where the lines of each cue begin and end: behind its times, before an empty line or the next number."""
    times = [place for place, line in enumerate(lines) if CUE_TIME.match(line)]
    for time, following in pairwise([*times, len(lines)]):
        last = following - (following < len(lines) and lines[following - 1].strip().isdigit())
        end = next((place for place in range(time + 1, last) if not lines[place].strip()), last)
        if end > time + 1:
            yield time + 1, end


def _starts_speech(cue: Sequence[CueLine], index: int) -> bool:
    """Whether a line of a cue does not go on with what the one before it says."""
    line = cue[index]
    return (
        not index
        or bool(line.speaker_prefix or SONG_START.match(line.text))
        or line.is_standalone
        or cue[index - 1].is_standalone
    )


def _iterate_subtitle_nodes(text: str, to_markup: MarkupFunction) -> Iterator[InlineNode]:
    """Words, and what stands among them."""
    place = 0
    for found in TAG_OR_MUSIC_NOTE.finditer(text):
        yield InlineNode(to_markup(text[place : found.start()]))
        place = found.end()
        name = (found["name"] or "").lower()
        yield InlineNode(opening=[make_literal(found[0])], pair_key=name, is_opening=not found["close"])
    yield InlineNode(to_markup(text[place:]))


def _split_into_lines(text: str, lines: Sequence[CueLine]) -> list[str]:
    """What is said, in as many lines as before where it has the words, of about the same length, with their ends."""
    parts, rest, before = [], text, len(lines[0].speaker_prefix)
    for left in range(len(lines) if len(lines) <= MAX_CUE_LINES else 1, 1, -1):
        spaces = [found for found in BREAKABLE_SPACE.finditer(rest) if found["space"]]
        if not spaces:
            break
        wanted = (before + len(rest)) / left - before
        middle = min(spaces, key=lambda space: abs(space.start() - wanted))
        parts.append(rest[: middle.start()])
        rest, before = rest[middle.end() :], 0
    parts.append(rest)
    ends = [line.text[len(line.text.rstrip("\r\n")) :] for line in lines]
    made = [part + end for part, end in zip(parts, [*ends[: len(parts) - 1], ends[-1]], strict=True)]
    return [lines[0].speaker_prefix + made[0], *made[1:]]
