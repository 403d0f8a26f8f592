"""Subtitles (.srt, .vtt): cues, speakers and line breaks.

Speakers are marked as `- `, `>> `, `JOHN: ` or `<v John>` at the beginning of a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from regard.documents.base import DocumentError, EncodedText, ParsedDocument, decode_utf8
from regard.documents.escaping import escape_text, normalize_html_text, replace_line_breaks, unescape_markup
from regard.documents.tagged_text import EscapeFunction, TaggedText, iterate_tagged_nodes, join_parts
from regard.tokenizers.markup import remove_urls

MUSIC_NOTES = "♩♪♫♬"
VOICE_TAG = r"<v[.\s][^<>]*>"
MID_LINE_VOICE = re.compile(rf"(?<=\S)(?={VOICE_TAG})|(?<=\S[ \t])(?={VOICE_TAG})")  # new voice inside a line
LEADING_MARKUP = rf"(?:<[^<>]*+>|\{{\\[^{{}}]*+\}}|[\s{MUSIC_NOTES}])*+"
SPEAKER_DASH = r"(?:[-–—]+|(?:>|&gt;){2,})\s*(?=\S)"
SPEAKER_NAME = r"[\[(]?[^\W\d_][^:：<>]{0,40}?"
CLOSING_TAGS = r"(?:\s*</[^<>]*>)*"
SPEAKER_LABEL = rf"(?P<name>{SPEAKER_NAME}){CLOSING_TAGS}[ \xa0\u202f]?(?::(?=[\s<]|\Z)|：){CLOSING_TAGS}\s*"
SPEAKER_PREFIX = re.compile(rf"{LEADING_MARKUP}(?P<dash>{SPEAKER_DASH})?{LEADING_MARKUP}(?P<label>{SPEAKER_LABEL})?")
NAME_REMARK = re.compile(r"(?<=\S)\s*[\[(][^\[\]()]*[\])]")  # JOHN (on the phone)
MAX_NAME_WORDS = 4
MIN_TRANSCRIPT_LINES = 3  # lines with a name, and at least half of all lines


def _is_name(label: str, in_transcript: bool) -> bool:
    """Return True for a name in capitals, except for a remark: common words before a colon rarely are.

    In a file where nearly every line has a name, the first letter is enough.
    """
    name = NAME_REMARK.sub("", label)
    return len(name.split()) <= MAX_NAME_WORDS and (not name[0].islower() if in_transcript else name.isupper())


def _is_transcript(lines: Sequence[str]) -> bool:
    """Return True if so many lines begin with a name and a colon that these are speakers, in capitals or not."""
    names = [match["name"] for match in map(SPEAKER_PREFIX.match, lines) if match and match["label"]]
    count = sum(_is_name(name, in_transcript=True) for name in names)
    return count >= max(MIN_TRANSCRIPT_LINES, len(lines) / 2)


LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
CUE_TIME = re.compile(r"\s*(?:\d+:)?\d{1,2}:\d{1,2}[,.]\d{1,3}\s*-->\s*(?:\d+:)?\d{1,2}:\d{1,2}[,.]\d{1,3}")
SUBTITLE_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[biucv]|font|lang|ruby|rt)(?:[.\s][^<>]*)?>|<[\d:.]+>|\{\\[^{}]*\}", re.IGNORECASE
)
# Inline parts that are not words.
TAG_OR_MUSIC_NOTE = re.compile(rf"{SUBTITLE_TAG.pattern}|[{MUSIC_NOTES}]+", re.IGNORECASE)
BREAKABLE_SPACE = re.compile(
    rf"{SUBTITLE_TAG.pattern}|(?<=[^-–—{MUSIC_NOTES}\s])(?P<space> +)(?=[^{MUSIC_NOTES}\s])", re.IGNORECASE
)
# Without groups: inside a possessive repeat they may raise a SystemError in Python 3.11.
SUBTITLE_TAG_WITHOUT_GROUPS = re.sub(r"\?P<\w+>", "?:", SUBTITLE_TAG.pattern)
SONG_START = re.compile(rf"(?:{SUBTITLE_TAG_WITHOUT_GROUPS}|\s)*+[{MUSIC_NOTES}]", re.IGNORECASE)
MAX_CUE_LINES = 8  # a longer speech is joined to one line


class CueLine(NamedTuple):
    """A line of a cue: its speaker prefix, and the rest with its line end."""

    speaker_prefix: str
    text: str

    @property
    def is_standalone(self) -> bool:
        """True if it has no words, and stays a line by itself."""
        return not TAG_OR_MUSIC_NOTE.sub("", remove_urls(self.text)).strip()


def _split_off_speaker(line: str, in_transcript: bool) -> CueLine:
    """Split off the beginning of a line that marks a new speaker; it is empty if there is none."""
    match = SPEAKER_PREFIX.match(line)
    assert match  # every part of the pattern is optional
    if match["label"] and _is_name(match["name"], in_transcript):
        end = match.end("label")
    else:
        tags = line[: match.start("label") if match["label"] else match.end()]
        end = max(match.end("dash"), *(voice.end() for voice in re.finditer(VOICE_TAG, tags)), 0)
    return CueLine(line[:end], line[end:])


class Speech(TaggedText):
    """Consecutive lines of one speaker."""

    def __init__(self, lines: Sequence[CueLine], to_markup: EscapeFunction, escape: EscapeFunction | None) -> None:
        self.lines = lines
        text = "".join(line.text for line in lines).rstrip("\r\n")
        source = "".join(line.speaker_prefix + line.text for line in lines)
        super().__init__(iterate_tagged_nodes(text, TAG_OR_MUSIC_NOTE, to_markup), source, escape)

    def write(self) -> str:
        """Return the lines with a translation; a blank one leaves them, since an empty line would end the cue."""
        text = replace_line_breaks(super().write())
        return _split_into_lines(text, self.lines) if text.strip() else self.source


def parse_srt(content: bytes) -> ParsedDocument:
    """Parse an .srt file, whose text is plain."""
    source = decode_utf8(content)
    if source.text.strip() and not any(map(CUE_TIME.match, LINE.findall(source.text))):
        raise DocumentError("has no subtitle times like 00:00:01,000 --> 00:00:02,500")
    return _parse_cues(source, escape_text, unescape_markup)


def parse_vtt(content: bytes) -> ParsedDocument:
    """Parse a .vtt file, whose text is markup."""
    source = decode_utf8(content)
    if source.text.strip() and not re.match(r"WEBVTT(?!\S)", source.text):
        raise DocumentError("does not match its extension: it does not begin with WEBVTT")
    return _parse_cues(source, normalize_html_text)


def _parse_cues(source: EncodedText, to_markup: EscapeFunction, escape: EscapeFunction | None = None) -> ParsedDocument:
    """Parse the cues of a file; `to_markup` and `escape` convert its text to markup and back."""
    lines = [part for line in LINE.findall(source.text) for part in MID_LINE_VOICE.split(line)]
    return join_parts(list(_iterate_parts(lines, to_markup, escape)), source.encode_like_source)


def _iterate_parts(
    lines: Sequence[str], to_markup: EscapeFunction, escape: EscapeFunction | None
) -> Iterator[str | Speech]:
    """Yield the speeches of each cue, all its lines together, split where another speaker or a song begins."""
    cues, position = list(_iterate_cues(lines)), 0
    transcript = _is_transcript([lines[start] for start, _ in cues])
    for start, end in cues:
        yield from lines[position:start]
        position = end
        cue = [_split_off_speaker(line, transcript) for line in lines[start:end]]
        for first, last in pairwise([*(index for index in range(len(cue)) if _starts_speech(cue, index)), len(cue)]):
            yield Speech(cue[first:last], to_markup, escape)
    yield from lines[position:]


def _iterate_cues(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield first and last line of each cue: after its times, before an empty line or the next number."""
    times = [index for index, line in enumerate(lines) if CUE_TIME.match(line)]
    for time, following in pairwise([*times, len(lines)]):
        last = following - (following < len(lines) and lines[following - 1].strip().isdigit())
        end = next((index for index in range(time + 1, last) if not lines[index].strip()), last)
        if end > time + 1:
            yield time + 1, end


def _starts_speech(cue: Sequence[CueLine], index: int) -> bool:
    """Return True if a line of a cue does not continue the previous one."""
    line, previous = cue[index], cue[index - 1]
    begins = line.speaker_prefix or SONG_START.match(line.text)
    return not index or bool(begins) or line.is_standalone or previous.is_standalone


def _split_into_lines(text: str, lines: Sequence[CueLine]) -> str:
    """Split a translation into as many lines as the source if possible, of about equal length."""
    parts, remaining, prefix_length = [], text, len(lines[0].speaker_prefix)
    for lines_left in range(len(lines) if len(lines) <= MAX_CUE_LINES else 1, 1, -1):
        spaces = [match for match in BREAKABLE_SPACE.finditer(remaining) if match["space"]]
        if not spaces:
            break
        target = (prefix_length + len(remaining)) / lines_left - prefix_length
        best = min(spaces, key=lambda space: abs(space.start() - target))
        parts.append(remaining[: best.start()])
        remaining, prefix_length = remaining[best.end() :], 0
    parts.append(remaining)
    ends = [line.text[len(line.text.rstrip("\r\n")) :] for line in lines]
    out = [part + end for part, end in zip(parts, [*ends[: len(parts) - 1], ends[-1]], strict=True)]
    return lines[0].speaker_prefix + "".join(out)
