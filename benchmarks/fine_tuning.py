"""BLEU of a general model adapted to technical text, against training from nothing in the same minutes.

    REGARD_DATA=data python -m benchmarks.fine_tuning general --out runs/adapt
    REGARD_DATA=data python -m benchmarks.fine_tuning libreoffice --out runs/adapt --minutes 30
    REGARD_DATA=data python -m benchmarks.fine_tuning manpages --out runs/adapt --minutes 30

The general model learns English to German from everyday sentences, parliament and news (`default`, dev newstest2013).
A domain is 8,000 segments of whole documents; the documents of its dev and test set are others. Each training takes the
same minutes, on the CPU and with the threads of OMP_NUM_THREADS. Every model is scored on the domain's test set and on
newstest2014, which shows what it has forgotten.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

from benchmarks.peers.technical_corpus import DocumentLine, merge_splits, read_document_lines, split_by_document
from regard.data.readers.text import Pair
from regard.paths import create_folder_atomically
from regard.reproduce.corpora import (
    EARLY_NEWSTESTS,
    LATE_NEWSTESTS,
    read_parallel_files,
    read_tatoeba,
    write_pairs,
    write_split,
)

CODES = ("en", "de")
SEGMENTS = 8_000
MIXED_SENTENCES = 8_000  # of the general text, for --mix
STARTS = ("nothing", "general", "general-mix")
DOMAINS = {"libreoffice": "libreoffice/libreoffice", "manpages": "manpages/manpages"}


def write_general_corpus(folder: Path) -> None:
    """Write everyday sentences, parliament and news; dev newstest2013, test newstest2014."""
    news = [read_parallel_files(f"newstest/{year}.de-en", *CODES) for year in (*EARLY_NEWSTESTS, *LATE_NEWSTESTS)]
    dev, test = (list(read_parallel_files(f"newstest/newstest{year}.de-en", *CODES)) for year in (2013, 2014))
    parts = [read_tatoeba("eng-deu"), read_parallel_files("europarl20k-de-en/train", *CODES), *news]
    write_split(folder, parts, dev, test, CODES)
    lines = list(map(Pair, *((folder / f"train.{code}").read_text(encoding="utf-8").splitlines() for code in CODES)))
    write_pairs(folder, "sample", Random(1).sample(lines, MIXED_SENTENCES), CODES)


def write_domain_corpus(folder: Path, stem: str) -> None:
    """Write a domain's dev and test set, and about 8,000 training pairs of random other documents."""
    parts = merge_splits([split_by_document(list(read_document_lines(stem, "de")))])
    documents: dict[str, list[DocumentLine]] = {}
    for line in parts["train"]:
        documents.setdefault(line.document, []).append(line)
    names = Random(1).sample(sorted(documents), len(documents))
    parts["train"] = [line for name in names for line in documents[name]][:SEGMENTS]
    for name, lines in parts.items():
        write_pairs(folder, name, (Pair(line.source, line.target) for line in lines), CODES)


def prepare(folder: Path, stem: str | None = None) -> Path:
    """Write the corpus of a domain, by default the general one, if it does not exist."""
    if not folder.is_dir():
        with create_folder_atomically(folder) as partial_folder:
            write_domain_corpus(partial_folder, stem) if stem else write_general_corpus(partial_folder)
    return folder


def find_files(folder: Path, name: str) -> list[str]:
    """Return the paths of a split, source first."""
    return [str(folder / f"{name}.{code}") for code in CODES]


def train(corpus: Path, run: Path, arguments: list[str], **environment: str) -> None:
    """Train a run with `regard train`, unless it exists."""
    if not run.is_dir():
        files = [*find_files(corpus, "train"), "--dev", *find_files(corpus, "dev")]
        command = [sys.executable, "-m", "regard", "train", *files, "--out", str(run), *arguments]
        subprocess.run(command, check=True, env={**os.environ, **environment})


def score(run: Path, corpus: Path) -> float:
    """Return the BLEU of a run on the test set of a corpus, by `regard evaluate`."""
    command = [sys.executable, "-m", "regard", "evaluate", str(run), *find_files(corpus, "test"), "--json"]
    return float(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["bleu"])


def main() -> None:
    """Train and score the models of one corpus; print their rows of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["general", *DOMAINS])
    parser.add_argument("--out", type=Path, default=Path("runs/fine-tuning"))
    parser.add_argument("--minutes", default="30")
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=STARTS)
    parser.add_argument("keys", nargs="*", help="further recipe keys")
    options = parser.parse_intermixed_args()
    out: Path = options.out
    news, general = prepare(out / "corpus-general"), out / "general"
    if options.corpus == "general":
        train(news, general, options.keys)
        print(f"| general model | newstest2014 | {score(general, news):.2f} |")
        return
    domain = prepare(out / f"corpus-{options.corpus}", DOMAINS[options.corpus])
    arguments = {
        "nothing": [],
        "general": ["--init-from", str(general)],
        "general-mix": ["--init-from", str(general), "--mix", *find_files(news, "sample")],
    }
    print(f"| start | minutes | {options.corpus} | newstest2014 |\n|---|---|---|---|")
    print(f"| general model, not adapted | 0 | {score(general, domain):.2f} | {score(general, news):.2f} |", flush=True)
    for name in options.starts:
        run = out / f"{options.corpus}-{name}"
        keys = [*arguments[name], "--minutes", options.minutes, *options.keys]
        train(domain, run, keys, CUDA_VISIBLE_DEVICES="")  # the time is that of a CPU
        print(f"| {name} | {options.minutes} | {score(run, domain):.2f} | {score(run, news):.2f} |", flush=True)


if __name__ == "__main__":
    main()
