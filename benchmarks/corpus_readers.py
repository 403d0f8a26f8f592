"""Reading speed of 200,000 pairs in each format, and memory while a large TMX file is streamed.

python -m benchmarks.corpus_readers
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import pyarrow
from pyarrow import parquet

from benchmarks.timing import measure_in_turns
from regard.data.readers.dispatch import iterate_pairs
from regard.synthetic.translation import generate_corpus

PAIRS = 200_000
LARGE_TMX_UNITS = 3_000_000  # units of the memory that is streamed through a pipe, about 1 GB
TMX_HEAD = '<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="en"/><body>\n'
TMX_TAIL = "</body></tmx>\n"


def format_tmx_unit(source: str, target: str) -> str:
    """Format a unit of a translation memory."""
    sides = (
        f'<tuv xml:lang="{code}"><seg>{escape(text)}</seg></tuv>' for code, text in (("en", source), ("de", target))
    )
    return f"<tu>{''.join(sides)}</tu>\n"


def make_sentence_pairs() -> list[tuple[str, str]]:
    """Return PAIRS distinct pairs, made of a few thousand sentences."""
    sentences = [(pair.source, pair.target) for pair in generate_corpus(train=5000, dev=10, test=10)["train"]]
    return [
        (f"{source} {number}", f"{target} {number}")
        for number in range(PAIRS // len(sentences))
        for source, target in sentences
    ]


def write_corpora(folder: Path) -> Iterator[Path]:
    """Write one file in each format."""
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
    """Print pairs per second of processor time, the best of three."""
    run = {"read": lambda: deque(iterate_pairs([path]), maxlen=0)}
    best = min(measure_in_turns(run, 3, time.process_time, warmup=0)["read"])
    print(f"{path.suffix:<9} {PAIRS / best:>9,.0f} pairs/s   {path.stat().st_size / best / 1e6:6.1f} MB/s")


def measure_streaming_memory() -> None:
    """Print how much memory grows while a translation memory of a gigabyte is read from a pipe."""
    writer = subprocess.Popen([sys.executable, "-m", "benchmarks.corpus_readers", "write"], stdout=subprocess.PIPE)
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
    """Write a large translation memory to standard output."""
    text = "a sentence that is about as long as sentences in translation memories tend to be, number"
    sys.stdout.write(TMX_HEAD)
    for number in range(LARGE_TMX_UNITS):
        sys.stdout.write(format_tmx_unit(f"{text} {number}", f"{text} {number}"))
    sys.stdout.write(TMX_TAIL)


def main() -> None:
    """Measure all formats, then streaming."""
    with tempfile.TemporaryDirectory() as folder:
        for path in write_corpora(Path(folder)):
            measure_reading_speed(path)
    measure_streaming_memory()


if __name__ == "__main__":
    write_large_tmx() if sys.argv[1:] == ["write"] else main()
