"""Accuracy of classifiers on small corpora, beside TF-IDF with logistic regression.

    sh benchmarks/peers/setup.sh scikit-learn
    REGARD_DATA=data python -m benchmarks.classification polarity trec6

Both train on the same texts and are tested on the same texts; the dev set chooses the checkpoint of one, and the
strength of the regularisation of the other.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import random
import re
import statistics
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.peers.comparison import HOME
from regard import load, train
from regard.recipes.recipe import parse_override

Rows = list[tuple[str, str]]  # label, text
Corpus = dict[str, Rows]  # train, dev, test

PEER = HOME / "scikit-learn"
PEER_SCRIPT = """
import sys
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
def read(name):
    with open(f"{sys.argv[1]}/{name}.tsv", encoding="utf-8") as file:
        return zip(*(line.rstrip("\\n").split("\\t", 1) for line in file))
(train_y, train_x), (dev_y, dev_x), (test_y, test_x) = map(read, ("train", "dev", "test"))
vectorizer = TfidfVectorizer(ngram_range=(1, 2))
train_x = vectorizer.fit_transform(train_x)
models = [LogisticRegression(C=c, max_iter=1000).fit(train_x, train_y) for c in (1, 3, 10, 30)]
sets = [(vectorizer.transform(x), y) for x, y in ((dev_x, dev_y), (test_x, test_y))]
scores = [[100 * model.score(x, y) for model in models] for x, y in sets]
best = max(range(len(models)), key=scores[0].__getitem__)
print(scores[1][0], scores[1][best])
"""


def read_polarity(data: Path) -> Corpus:
    """Read Pang & Lee's sentence polarity, shuffled."""
    with zipfile.ZipFile(data / "nltk" / "sentence_polarity.zip") as archive:
        rows = [
            (label, line)
            for label in ("pos", "neg")
            for line in archive.read(f"sentence_polarity/rt-polarity.{label}").decode("latin-1").strip().split("\n")
        ]
    random.Random(1).shuffle(rows)
    return {"train": rows[:8530], "dev": rows[8530:9596], "test": rows[9596:]}


def read_questions(data: Path, fine: bool = False) -> Corpus:
    """Read Li & Roth's question classes, the 6 coarse or the 50 fine ones; a tenth of the training set is for dev."""
    corpus = {}
    with zipfile.ZipFile(data / "nltk" / "qc.zip") as archive:
        for name in ("train", "test"):
            lines = archive.read(f"qc/{name}.txt").decode("latin-1").strip().split("\n")
            pairs = [line.split(" ", 1) for line in lines]
            corpus[name] = [(label if fine else label.split(":")[0], text) for label, text in pairs]
    random.Random(1).shuffle(corpus["train"])
    return {"train": corpus["train"][545:], "dev": corpus["train"][:545], "test": corpus["test"]}


_TREE_TOKEN = re.compile(r"\((\d) |\)|([^()\s]+)")
_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "\\/": "/", "\\*": "*"}


def _read_phrases(tree: str) -> Rows:
    """Return all phrases of a tree with their labels, the whole sentence last."""
    phrases: Rows = []
    stack: list[tuple[str, list[str]]] = []
    for token in _TREE_TOKEN.finditer(tree):
        if token[1]:
            stack.append((token[1], []))
        elif token[2]:
            stack[-1][1].append(token[2])
        else:
            label, words = stack.pop()
            text = " ".join(words)
            for escaped, character in _ESCAPES.items():
                text = text.replace(escaped, character)
            phrases.append((label, text))
            if stack:
                stack[-1][1].extend(words)
    return phrases


def read_sst(data: Path, with_phrases: bool = False, classes: int = 2) -> Corpus:
    """Read the Stanford sentiment treebank: sentences, and in the training set with `with_phrases` all phrases."""
    names = {"0": "negative", "1": "negative", "3": "positive", "4": "positive"}
    corpus = {}
    for name in ("train", "dev", "test"):
        with lzma.open(data / "sst" / f"{name}.txt.xz", "rt", encoding="utf-8") as file:
            trees = [_read_phrases(line) for line in file]
        rows = [row for tree in trees for row in (tree if with_phrases and name == "train" else tree[-1:])]
        if classes == 2:
            rows = [(names[label], text) for label, text in rows if label in names]
        corpus[name] = list(dict.fromkeys(rows))
    return corpus


def read_imdb(data: Path) -> Corpus:
    """Read the film reviews of Maas et al.; a tenth of the training set is for dev."""
    corpus: Corpus = {"train": [], "test": []}
    with tarfile.open(data / "imdb" / "aclImdb-labelled-49960.tar.xz") as archive:
        for member in archive:
            *_, name, label, _ = ("", "", "", *Path(member.name).parts)[-4:]
            if member.isfile() and name in corpus and label in ("pos", "neg"):
                file = archive.extractfile(member) or io.BytesIO()
                corpus[name].append((label, file.read().decode("utf-8", "replace")))
    random.Random(1).shuffle(corpus["train"])
    return {"train": corpus["train"][2500:], "dev": corpus["train"][:2500], "test": corpus["test"]}


CORPORA: dict[str, Callable[[Path], Corpus]] = {
    "polarity": read_polarity,
    "sst2": read_sst,
    "sst2-phrases": lambda data: read_sst(data, with_phrases=True),
    "sst5": lambda data: read_sst(data, classes=5),
    "trec6": read_questions,
    "trec50": lambda data: read_questions(data, fine=True),
    "imdb": read_imdb,
}


def write_corpus(corpus: Corpus, folder: Path) -> None:
    """Write `train.tsv`, `dev.tsv` and `test.tsv`."""
    for name, rows in corpus.items():
        lines = [f"{label}\t{' '.join(text.split())}\n" for label, text in rows]
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")


def score_peer(folder: Path) -> tuple[float, float]:
    """Return the test accuracy of TF-IDF with logistic regression: with its default C, and with the best on dev."""
    command = [str(PEER / "bin" / "python"), "-c", PEER_SCRIPT, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    default, tuned = map(float, done.stdout.split())
    return default, tuned


def score_regard(folder: Path, seed: int, recipe: str | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Train on a corpus and return the metrics on its test set."""
    given: dict[str, Any] = {"training.tensorboard": False, **overrides, "training.seed": seed}
    run = train(recipe, folder / "train.tsv", folder / f"run-{seed}", dev=folder / "dev.tsv", **given)
    metrics: dict[str, Any] = load(run.folder).evaluate([folder / "test.tsv"])
    return metrics


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line of JSON for each corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpora", nargs="*", help=f"of {', '.join(CORPORA)}; key=value overrides the recipe")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recipe", help="default: the one that regard chooses")
    options = parser.parse_args(arguments)
    overrides = dict(parse_override(one) for one in options.corpora if "=" in one)
    for name in [one for one in options.corpora if "=" not in one] or list(CORPORA):
        with TemporaryDirectory() as root:
            folder = Path(root)
            write_corpus(CORPORA[name](Path(os.environ["REGARD_DATA"])), folder)
            default, tuned = score_peer(folder)
            runs = [score_regard(folder, seed, options.recipe, overrides) for seed in range(1, options.seeds + 1)]
        accuracies = [run["accuracy"] for run in runs]
        result = {"corpus": name, "tf-idf": round(default, 2), "tf-idf, C tuned": round(tuned, 2)}
        result |= {"regard": round(statistics.mean(accuracies), 2), "seeds": [round(one, 2) for one in accuracies]}
        if "erasure" in runs[0]:
            result |= {
                key: round(statistics.mean(run["erasure"][key] for run in runs), 3) for key in runs[0]["erasure"]
            }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
