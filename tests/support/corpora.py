"""Small corpora as bytes in every supported format, and the errors of reading them."""

from __future__ import annotations

import gzip
import io
import json
import lzma
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from regard.data.readers.dispatch import read_all_pairs
from regard.errors import UserError
from regard.recipes.recipe import list_recipes, read_recipe

ROWS = [("a house", "ein Haus"), ("the tree is old", "der Baum ist alt"), ("is it?", "ist es so – nicht?")]

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
  <header creationtool="x" srclang="en-US" adminlang="en" o-tmf="x" datatype="plaintext" segtype="sentence"/>
  <body>
    <tu tuid="1">
      <prop type="x">p</prop>
      <tuv xml:lang="en-US"><seg>a house</seg></tuv>
      <tuv xml:lang="de"><note>n</note><seg>ein Haus</seg></tuv>
    </tu>
    <!-- a comment -->
    <tu><tuv xml:lang="EN-US"><seg>the <hi type="b">tree</hi>
        is <bpt i="1">&lt;b></bpt>old<ept i="1">&lt;/b></ept></seg></tuv>
      <tuv xml:lang="de"><seg>der Baum<ph x="1">&lt;br/></ph> ist alt</seg></tuv></tu>
    <tu><tuv xml:lang="de"><seg><![CDATA[ist es so – nicht?]]></seg></tuv>
      <tuv xml:lang="en-US"><seg>is it?</seg></tuv></tu>
  </body>
</tmx>
"""

XLIFF1 = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file original="a" source-language="en" target-language="de" datatype="plaintext">
    <header/>
    <body>
      <trans-unit id="1"><source>a house</source><target>ein Haus</target>
        <alt-trans><source>a mouse</source><target>eine Maus</target></alt-trans></trans-unit>
      <group id="g"><trans-unit id="2" approved="yes">
        <source>the <g id="1">tree</g> is<x id="2"/> <mrk mtype="seg">old</mrk></source>
        <target state="translated">der Baum<ph id="3">&lt;br/></ph>
          ist alt</target></trans-unit></group>
      <trans-unit id="3"><source>untranslated</source></trans-unit>
      <trans-unit id="4"><source>empty</source><target/></trans-unit>
      <trans-unit id="5"><source>a draft</source><target state="needs-translation">a draft</target></trans-unit>
      <trans-unit id="6" translate="no"><source>regard</source><target>regard</target></trans-unit>
    </body>
  </file>
  <file original="b" source-language="en" target-language="de" datatype="plaintext">
    <body><trans-unit id="7"><source>is it?</source><target>ist es so – nicht?</target></trans-unit></body>
  </file>
</xliff>
"""

XLIFF2 = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de">
  <file id="f1">
    <unit id="1"><segment><source>a house</source><target>ein Haus</target></segment>
      <ignorable><source> </source></ignorable>
      <segment state="final"><source>the <pc id="1">tree</pc> is<ph id="2"/> old</source>
        <target>der <mrk id="m1">Baum</mrk> ist<cp hex="0020"/>alt</target></segment>
      <segment state="initial"><source>a draft</source><target>a draft</target></segment>
    </unit>
    <group id="g" translate="no">
      <unit id="2"><segment><source>regard</source><target>regard</target></segment></unit></group>
  </file>
  <file id="f2"><unit id="3"><segment><source>is it?</source><target>ist es so – nicht?</target></segment></unit></file>
</xliff>
"""

PO = """# a comment
msgid ""
msgstr ""
"Language: de\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

#: somewhere.c:1
msgctxt "menu"
msgid "a house"
msgstr "ein Haus"

#, c-format
msgid ""
"the tree\\n"
"is old"
msgstr "der Baum\\tist alt"

msgid "untranslated"
msgstr ""

msgid "untranslated file"
msgid_plural "untranslated files"
msgstr[0] ""
msgstr[1] ""

#, fuzzy
msgid "a guess"
msgstr "ein Fehler"

msgid "is it?"
msgstr "ist es so – nicht?"

#~ msgid "gone"
#~ msgstr "weg"
"""


@cache
def translation_recipes() -> tuple[str, ...]:
    """Return the names of the translation recipes."""
    return tuple(name for name in list_recipes() if read_recipe(name)["task"] == "translate")


def corpus_error(paths: Path | Sequence[Path], source: str | None = None, target: str | None = None) -> str:
    """Return the message with which the files are refused; it is one line."""
    with pytest.raises(UserError) as caught:
        read_all_pairs([paths] if isinstance(paths, Path) else paths, source, target)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def parquet_bytes(columns: dict[str, Any], **options: Any) -> bytes:
    """Return a Parquet file."""
    out = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), out, **options)
    return out.getvalue()


def compress_zstd(content: bytes) -> bytes:
    """Return a .zst file."""
    packed: bytes = pyarrow.Codec("zstd").compress(content, asbytes=True)
    return packed


FORMATS: dict[str, bytes] = {
    "pairs.tsv": "".join(f"{source}\t{target}\n" for source, target in ROWS).encode(),
    "pairs.jsonl": "".join(json.dumps({"source": s, "target": t}, ensure_ascii=False) + "\n" for s, t in ROWS).encode(),
    "pairs.parquet": parquet_bytes({"source": [row[0] for row in ROWS], "target": [row[1] for row in ROWS]}),
    "pairs.tmx": TMX.encode(),
    "pairs.xliff": XLIFF1.encode(),
    "pairs2.xlf": XLIFF2.encode(),
    "pairs.po": PO.encode(),
}


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda content: gzip.compress(content, mtime=0),
    ".xz": lzma.compress,
    ".zst": compress_zstd,
}
