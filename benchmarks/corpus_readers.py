"""How fast corpora are read: 200,000 pairs in each format, and what a large memory costs in room."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import pyarrow
from pyarrow import parquet

from regard.data.readers.dispatch import iterate_pairs
from regard.synthetic.grammar import generate_corpus

PAIRS = 200_000
LARGE_TMX_UNITS = 3_000_000  # units of the memory that is streamed through a pipe, about 1 GB
TMX_HEAD = '<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="en"/><body>\n'
TMX_TAIL = "</body></tmx>\n"


def format_tmx_unit(source: str, target: str) -> str:
    """A unit of a translation memory."""
    sides = (
        f'<tuv xml:lang="{code}"><seg>{escape(text)}</seg></tuv>' for code, text in (("en", source), ("de", target))
    )
    return f"<tu>{''.join(sides)}</tu>\n"


def make_sentence_pairs() -> list[tuple[str, str]]:
    """As many pairs as are wanted, from a few thousand sentences."""
    some = [(pair.source, pair.target) for pair in generate_corpus(train=5000, dev=10, test=10)["train"]]
    return [
        (f"{source} {number}", f"{target} {number}") for number in range(PAIRS // len(some)) for source, target in some
    ]


def write_corpora(folder: Path) -> Iterator[Path]:
    """One file of each format."""
    rows = make_sentence_pairs()
    (folder / "x.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    objects = (json.dumps({"source": a, "target": b}, ensure_ascii=False) for a, b in rows)
    (folder / "x.jsonl").write_text("\n".join(objects), encoding="utf-8")
    columns = {"source": [row[0] for row in rows], "target": [row[1] for row in rows]}
    parquet.write_table(pyarrow.table(columns), folder / "x.parquet")
    (folder / "x.tmx").write_text(
        TMX_HEAD + "".join(format_tmx_unit(*row) for row in rows) + TMX_TAIL, encoding="utf-8"
    )
    yield from (folder / f"x.{ending}" for ending in ("tsv", "jsonl", "parquet", "tmx"))


def measure_reading_speed(path: Path) -> None:
    """Pairs a second of the processor's time, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        count = sum(1 for _ in iterate_pairs([path]))
        best = min(best, time.process_time() - start)
    print(f"{path.suffix:<9} {count / best:>9,.0f} pairs/s   {path.stat().st_size / best / 1e6:6.1f} MB/s")


def measure_streaming_memory() -> None:
    """Growth of memory while a memory of a gigabyte goes through standard input's pipe."""
    writer = subprocess.Popen([sys.executable, __file__, "write"], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "large.tmx"
        link.symlink_to(f"/dev/fd/{writer.stdout.fileno()}")
        pairs = iterate_pairs([link])
        for _ in range(5000):
            next(pairs)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        count = 5000 + sum(1 for _ in pairs)
        growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    writer.stdout.close()
    writer.wait()
    print(f"streaming {count:,} units of TMX: {growth:,} KB more than after the first 5,000")


def write_large_tmx() -> None:
    """A large memory on standard output."""
    text = "a sentence that is about as long as sentences in translation memories tend to be, number"
    sys.stdout.write(TMX_HEAD)
    for number in range(LARGE_TMX_UNITS):
        sys.stdout.write(format_tmx_unit(f"{text} {number}", f"{text} {number}"))
    sys.stdout.write(TMX_TAIL)


def main() -> None:
    """All of it."""
    with tempfile.TemporaryDirectory() as folder:
        for path in write_corpora(Path(folder)):
            measure_reading_speed(path)
    measure_streaming_memory()


if __name__ == "__main__":
    write_large_tmx() if sys.argv[1:] == ["write"] else main()
