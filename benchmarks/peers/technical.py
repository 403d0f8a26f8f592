"""Technical prose, split by document, beside JoeyNMT's Transformer: the same pairs, the same time, one after the other.

    sh benchmarks/peers/setup.sh joeynmt
    REGARD_DATA=data python -m benchmarks.peers.technical de --seconds 600
    REGARD_DATA=data python -m benchmarks.peers.technical fr --seconds 600 training.tensorboard=false

regard trains the recipe `default`; keys that are given change it. JoeyNMT's configuration is in joeynmt.py. The clock
of each starts with its first epoch, when all text is cut into pieces, and counts its validations; a validation that is
under way at the end is still finished. Both take the best checkpoint by BLEU of the first 500 dev sentences, decoded
greedily, and translate the test set with a beam of 5.

Without an environment of its own JoeyNMT is looked for in the folder that `--joeynmt` names, beside regard's packages.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any

import torch
import yaml

from regard.evaluate import bleu, chrf
from regard.recipes import override, parse_override, read, sized
from regard.reproduce.corpora import Corpus, prepared
from regard.runs import Run

from . import joeynmt
from .contest import ROOT, Contestant

JOEY = Contestant("joeynmt_command", environment="joeynmt")
SIDES = ("regard", "joeynmt")
VALIDATED = 500  # dev sentences of which each measures BLEU


def main() -> None:
    """Trains, translates and measures."""
    given = arguments()
    given.folder, given.results = given.folder.resolve(), given.results.resolve()
    corpus = prepared(f"technical-en{given.target}", given.folder / "corpora")
    given.results.mkdir(parents=True, exist_ok=True)
    for name in given.sides:
        print(f"{name}, en-{given.target}: {given.seconds:.0f} s of training", flush=True)
        found = {"regard": with_regard, "joeynmt": with_joeynmt}[name](given, corpus)
        measured = {"target": given.target, "seconds": given.seconds, **found, **scores(given, name, corpus)}
        write(given.results / f"{name}.{given.target}.json", json.dumps(measured, indent=2) + "\n")
    table(given)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=["de", "fr"], help="the language to translate English into")
    parser.add_argument("keys", nargs="*", metavar="key=value", help="changes to regard's recipe `default`")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long each is trained")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="one of the two alone, or both")
    parser.add_argument("--size", choices=joeynmt.SIZES, default="base", help="of JoeyNMT's Transformer")
    parser.add_argument("--batch", type=int, default=joeynmt.Pace().batch, help="JoeyNMT's, in tokens with padding")
    parser.add_argument("--validate", type=int, default=500, help="updates between two validations of JoeyNMT")
    parser.add_argument("--joeynmt", type=Path, help="a folder with JoeyNMT's packages")
    parser.add_argument("--folder", type=Path, default=Path("runs/technical"), help="for corpora and runs")
    parser.add_argument("--results", type=Path, default=Path("runs/technical/results"), help="for what was found")
    return parser.parse_intermixed_args()


def with_regard(given: argparse.Namespace, corpus: Corpus) -> dict[str, Any]:
    """The recipe `default`, by the commands that everybody has."""
    run = Run(given.folder / f"regard-{given.target}")
    shutil.rmtree(run.folder, ignore_errors=True)
    command = [sys.executable, "-m", "regard"]
    named = [str(path) for path in (*corpus.train, "--dev", *(corpus.dev or ()), "--out", run.folder)]
    log = given.results / f"regard.{given.target}.log"
    took = stopped([*command, "train", *named, *given.keys], " parameters, ", given.seconds, signal.SIGTERM, log, {})
    translate = [*command, "translate", str(run.folder), str(corpus.test[0]), "--beam", "5"]
    searched = translated(translate, log, {}, translations(given, "regard"))
    shutil.copy(run.config_path, given.results / f"regard.{given.target}.yaml")
    metrics = run.metrics()
    return {
        "took": took,
        "searched": searched,
        "updates": run.newest(),
        "best": run.best(),
        "tokens_per_second": median([line["tokens_per_second"] for line in metrics if line["kind"] == "train"]),
        "dev": {line["step"]: line["bleu"] for line in metrics if line["kind"] == "dev"},
        "keys": given.keys,
    }


def with_joeynmt(given: argparse.Namespace, corpus: Corpus) -> dict[str, Any]:
    """Its own commands with its own configuration, on as many pieces as regard has."""
    command, settings = joeynmt_command(given.joeynmt)
    folder = given.folder / f"joeynmt-{given.target}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    train, test = (paths[0].with_suffix("") for paths in (corpus.train, corpus.test))
    files = joeynmt.Files(folder, train, folder / "dev", test, ("en", given.target))
    for path in corpus.dev or ():
        write(folder / path.name, "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:VALIDATED]))
    joeynmt.learn(files, vocabulary(given.keys, corpus))
    pace = joeynmt.Pace(given.batch, validate_every=given.validate)
    config = joeynmt.configuration(files, joeynmt.SIZES[given.size], pace, fp16=True)
    write(folder / "train.yaml", yaml.safe_dump(config))
    # Its search adds up scores in the precision of the model: in fp16 beams would be told apart badly.
    exact = joeynmt.configuration(files, joeynmt.SIZES[given.size], pace, fp16=False)
    del exact["data"]["dev"]
    write(folder / "test.yaml", yaml.safe_dump(exact))
    log = given.results / f"joeynmt.{given.target}.log"
    train_it = [*command, "train", str(folder / "train.yaml"), "--skip-test"]
    took = stopped(train_it, "EPOCH 1", given.seconds, signal.SIGINT, log, settings)
    output = folder / "translations"
    searched = translated([*command, "test", str(folder / "test.yaml"), "--output-path", str(output)], log, settings)
    shutil.copy(f"{output}.test", translations(given, "joeynmt"))
    shutil.copy(folder / "train.yaml", given.results / f"joeynmt.{given.target}.yaml")
    return {"took": took, "searched": searched, **said_by_joeynmt(log.read_text(encoding="utf-8"))}


def joeynmt_command(folder: Path | None) -> tuple[list[str], dict[str, str]]:
    """JoeyNMT's command, in its own environment or by a folder of packages, and what its processes are to know."""
    settings = {
        "TQDM_DISABLE": "1",
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",  # it reads back what it has written itself
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if folder is not None:
        settings["PYTHONPATH"] = os.pathsep.join([str(folder.resolve()), os.environ.get("PYTHONPATH", "")])
    elif not JOEY.ready:
        raise SystemExit("JoeyNMT is not there: sh benchmarks/peers/setup.sh joeynmt, or --joeynmt FOLDER")
    python = str(JOEY.python) if folder is None else sys.executable
    return [python, "-W", "ignore", "-m", f"{__package__}.workers.{JOEY.worker}"], settings


def said_by_joeynmt(log: str) -> dict[str, Any]:
    """What its log has of updates, speed and validations."""
    updates = re.findall(r"Interrupt at epoch +\d+, step (\d+)", log)
    speeds = re.findall(r"Tokens per Sec: +(\d+)", log)
    dev = re.findall(r"Evaluation result \(greedy\): bleu: +([\d.]+)", log)
    best = re.findall(r"Loading model from .*", log)
    return {
        "updates": int(updates[-1]) if updates else None,
        "best": Path(best[-1].split()[-1]).resolve().stem if best else None,
        "tokens_per_second": median([float(speed) for speed in speeds]),
        "dev": [float(score) for score in dev],
    }


def stopped(
    command: Sequence[str], begins: str, seconds: float, sign: signal.Signals, log: Path, settings: Mapping[str, str]
) -> float:
    """Runs a command and asks it to stop so long after it says that it begins; the seconds from there to its end."""
    timer, began = None, 0.0
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            file.flush()
            if timer is None and begins in line:
                timer, began = Timer(seconds, process.send_signal, [sign]), time.monotonic()
                timer.start()
    took = time.monotonic() - began
    alone = timer is None or timer.is_alive()  # nobody has asked it to stop
    if timer is not None:
        timer.cancel()
    if timer is None or (alone and process.returncode):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{tail(log)}")
    return round(took, 1)


def translated(command: Sequence[str], log: Path, settings: Mapping[str, str], output: Path | None = None) -> float:
    """Runs a command that translates, where `output` is given to there; the seconds that it takes from start to end."""
    print("  translates", flush=True)
    began = time.monotonic()
    with log.open("a", encoding="utf-8") as said, (output or Path(os.devnull)).open("w", encoding="utf-8") as written:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **settings}, stdout=written, stderr=said, check=False
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{tail(log)}")
    return round(time.monotonic() - began, 1)


def vocabulary(keys: Sequence[str], corpus: Corpus) -> int:
    """How many pieces regard has on this corpus."""
    with corpus.train[0].open(encoding="utf-8") as file:
        pairs = sum(1 for _ in file)
    changed = override(read("default"), dict(map(parse_override, keys)))
    return int(sized(changed, pairs)["text"]["vocabulary"])


def scores(given: argparse.Namespace, name: str, corpus: Corpus) -> dict[str, Any]:
    """BLEU and chrF of the test set, with letters' case and punctuation as they are."""
    found, wanted = (
        path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        for path in (translations(given, name), corpus.test[1])
    )
    measured = {"bleu": bleu(found, wanted), "chrf": chrf(found, wanted)}
    return {
        **{metric: round(score.value, 2) for metric, score in measured.items()},
        "signatures": {metric: score.signature for metric, score in measured.items()},
        "sentences": len(wanted),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU",
    }


def table(given: argparse.Namespace) -> None:
    """All that was found for a language, of either run."""
    print(f"\ntechnical prose, en-{given.target}")
    print(f"  {'':<10} {'BLEU':>6} {'chrF':>6} {'updates':>8} {'best':>8} {'target tokens/s':>16} {'seconds':>8}")
    for name in SIDES:
        path = given.results / f"{name}.{given.target}.json"
        if path.exists():
            one = json.loads(path.read_text(encoding="utf-8"))
            figures = f"{one['bleu']:>6.2f} {one['chrf']:>6.2f} {one['updates']!s:>8} {one['best']!s:>8}"
            print(f"  {name:<10} {figures} {one['tokens_per_second']:>16,.0f} {one['took']:>8}")
            print(f"    dev BLEU {one['dev']}\n    {one['signatures']}")


def translations(given: argparse.Namespace, name: str) -> Path:
    """Where the translations of the test set are."""
    return Path(given.results / f"{name}.{given.target}")


def median(speeds: Sequence[float]) -> float:
    """The middle one; 0 where training was too short to say."""
    return statistics.median(speeds) if speeds else 0.0


def tail(log: Path) -> str:
    """The end of what was said."""
    return "\n".join(log.read_text(encoding="utf-8").splitlines()[-30:])


def write(path: Path, text: str) -> None:
    """A file of text."""
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
