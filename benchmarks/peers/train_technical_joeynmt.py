"""Technical prose, split by document, beside JoeyNMT's Transformer: the same pairs, the same time, one after the other.

    sh benchmarks/peers/setup.sh joeynmt
    REGARD_DATA=data python -m benchmarks.peers.train_technical_joeynmt de --seconds 600
    REGARD_DATA=data python -m benchmarks.peers.train_technical_joeynmt fr --seconds 600 training.tensorboard=false

regard trains the recipe `default`; keys on the command line change it. JoeyNMT's is in joeynmt_config.py. The clock
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

from benchmarks.peers import joeynmt_config
from benchmarks.peers.comparison import ROOT, Contestant
from benchmarks.peers.technical_corpus import prepare_technical_corpus
from regard.evaluate.translation_metrics import bleu, chrf
from regard.recipes.recipe import override, parse_override, read_recipe, resolve_auto_sizes
from regard.reproduce.corpora import CorpusFiles
from regard.runs import Run

JOEYNMT = Contestant("joeynmt_command", environment="joeynmt")
TOOLKITS = ("regard", "joeynmt")
DEV_SENTENCES = 500  # dev sentences of which each measures BLEU


def main() -> None:
    """Train, translate and measure."""
    options = parse_arguments()
    options.folder, options.results = options.folder.resolve(), options.results.resolve()
    corpus = prepare_technical_corpus(options.target, options.folder / "corpora")
    options.results.mkdir(parents=True, exist_ok=True)
    for name in options.sides:
        print(f"{name}, en-{options.target}: {options.seconds:.0f} s of training", flush=True)
        found = {"regard": run_regard, "joeynmt": run_joeynmt}[name](options, corpus)
        measured = {
            "target": options.target,
            "seconds": options.seconds,
            **found,
            **compute_scores(options, name, corpus),
        }
        write_text_file(options.results / f"{name}.{options.target}.json", json.dumps(measured, indent=2) + "\n")
    print_table(options)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=["de", "fr"], help="the language to translate English into")
    parser.add_argument("keys", nargs="*", metavar="key=value", help="changes to regard's recipe `default`")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long each is trained")
    parser.add_argument("--sides", nargs="+", choices=TOOLKITS, default=TOOLKITS, help="one of the two alone, or both")
    parser.add_argument("--size", choices=joeynmt_config.SIZES, default="base", help="of JoeyNMT's Transformer")
    parser.add_argument(
        "--batch",
        type=int,
        default=joeynmt_config.TrainingSchedule().batch_tokens,
        help="JoeyNMT's, in tokens with padding",
    )
    parser.add_argument("--validate", type=int, default=500, help="updates between two validations of JoeyNMT")
    parser.add_argument("--joeynmt", type=Path, help="a folder with JoeyNMT's packages")
    parser.add_argument("--folder", type=Path, default=Path("runs/technical"), help="for corpora and runs")
    parser.add_argument("--results", type=Path, default=Path("runs/technical/results"), help="for what was found")
    return parser.parse_intermixed_args()


def run_regard(options: argparse.Namespace, corpus: CorpusFiles) -> dict[str, Any]:
    """Train and translate with the recipe `default`, by the usual commands."""
    run = Run(options.folder / f"regard-{options.target}")
    shutil.rmtree(run.folder, ignore_errors=True)
    command = [sys.executable, "-m", "regard"]
    named = [str(path) for path in (*corpus.train, "--dev", *(corpus.dev or ()), "--out", run.folder)]
    log = options.results / f"regard.{options.target}.log"
    took = run_for_seconds(
        [*command, "train", *named, *options.keys], " parameters, ", options.seconds, signal.SIGTERM, log, {}
    )
    translate = [*command, "translate", str(run.folder), str(corpus.test[0]), "--beam", "5"]
    searched = run_translation(translate, log, {}, find_translations_file(options, "regard"))
    shutil.copy(run.config_path, options.results / f"regard.{options.target}.yaml")
    metrics = run.read_metrics()
    return {
        "took": took,
        "searched": searched,
        "updates": run.find_newest_step(),
        "best": run.find_best_step(),
        "tokens_per_second": compute_median([line["tokens_per_second"] for line in metrics if line["kind"] == "train"]),
        "dev": {line["step"]: line["bleu"] for line in metrics if line["kind"] == "dev"},
        "keys": options.keys,
    }


def run_joeynmt(options: argparse.Namespace, corpus: CorpusFiles) -> dict[str, Any]:
    """Train and translate with its own commands and configuration, with as many subwords as regard."""
    command, settings = find_joeynmt_command(options.joeynmt)
    folder = options.folder / f"joeynmt-{options.target}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    train, test = (paths[0].with_suffix("") for paths in (corpus.train, corpus.test))
    files = joeynmt_config.JoeyNmtFiles(folder, train, folder / "dev", test, ("en", options.target))
    for path in corpus.dev or ():
        write_text_file(
            folder / path.name, "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:DEV_SENTENCES])
        )
    joeynmt_config.train_sentencepiece(files, choose_vocabulary_size(options.keys, corpus))
    pace = joeynmt_config.TrainingSchedule(options.batch, validate_every=options.validate)
    config = joeynmt_config.make_config(files, joeynmt_config.SIZES[options.size], pace, fp16=True)
    write_text_file(folder / "train.yaml", yaml.safe_dump(config))
    # Its search adds scores in the precision of the model, which is too low in fp16.
    exact = joeynmt_config.make_config(files, joeynmt_config.SIZES[options.size], pace, fp16=False)
    del exact["data"]["dev"]
    write_text_file(folder / "test.yaml", yaml.safe_dump(exact))
    log = options.results / f"joeynmt.{options.target}.log"
    train_it = [*command, "train", str(folder / "train.yaml"), "--skip-test"]
    took = run_for_seconds(train_it, "EPOCH 1", options.seconds, signal.SIGINT, log, settings)
    output = folder / "translations"
    searched = run_translation(
        [*command, "test", str(folder / "test.yaml"), "--output-path", str(output)], log, settings
    )
    shutil.copy(f"{output}.test", find_translations_file(options, "joeynmt"))
    shutil.copy(folder / "train.yaml", options.results / f"joeynmt.{options.target}.yaml")
    return {"took": took, "searched": searched, **parse_joeynmt_log(log.read_text(encoding="utf-8"))}


def find_joeynmt_command(folder: Path | None) -> tuple[list[str], dict[str, str]]:
    """Return JoeyNMT's command, in its own environment or with a folder of packages, and its environment variables."""
    settings = {
        "TQDM_DISABLE": "1",
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",  # for checkpoints that it has written itself
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if folder is not None:
        settings["PYTHONPATH"] = os.pathsep.join([str(folder.resolve()), os.environ.get("PYTHONPATH", "")])
    elif not JOEYNMT.is_ready:
        raise SystemExit("JoeyNMT is not there: sh benchmarks/peers/setup.sh joeynmt, or --joeynmt FOLDER")
    python = str(JOEYNMT.python) if folder is None else sys.executable
    return [python, "-W", "ignore", "-m", f"{__package__}.workers.{JOEYNMT.worker}"], settings


def parse_joeynmt_log(log: str) -> dict[str, Any]:
    """Parse updates, speed and validations from its log."""
    updates = re.findall(r"Interrupt at epoch +\d+, step (\d+)", log)
    speeds = re.findall(r"Tokens per Sec: +(\d+)", log)
    dev = re.findall(r"Evaluation result \(greedy\): bleu: +([\d.]+)", log)
    best = re.findall(r"Loading model from .*", log)
    return {
        "updates": int(updates[-1]) if updates else None,
        "best": Path(best[-1].split()[-1]).resolve().stem if best else None,
        "tokens_per_second": compute_median([float(speed) for speed in speeds]),
        "dev": [float(score) for score in dev],
    }


def run_for_seconds(
    command: Sequence[str],
    start_marker: str,
    seconds: float,
    stop_signal: signal.Signals,
    log: Path,
    settings: Mapping[str, str],
) -> float:
    """Run a command, and stop it `seconds` after it prints the marker; return the seconds since the marker."""
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
            if timer is None and start_marker in line:
                timer, began = Timer(seconds, process.send_signal, [stop_signal]), time.monotonic()
                timer.start()
    took = time.monotonic() - began
    alone = timer is None or timer.is_alive()  # it was not stopped
    if timer is not None:
        timer.cancel()
    if timer is None or (alone and process.returncode):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{read_log_tail(log)}")
    return round(took, 1)


def run_translation(
    command: Sequence[str], log: Path, settings: Mapping[str, str], output: Path | None = None
) -> float:
    """Run a command that translates, with its output in a file if one is given, and return its seconds."""
    print("  translates", flush=True)
    began = time.monotonic()
    with log.open("a", encoding="utf-8") as said, (output or Path(os.devnull)).open("w", encoding="utf-8") as written:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **settings}, stdout=written, stderr=said, check=False
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{read_log_tail(log)}")
    return round(time.monotonic() - began, 1)


def choose_vocabulary_size(keys: Sequence[str], corpus: CorpusFiles) -> int:
    """Return regard's vocabulary size for this corpus."""
    with corpus.train[0].open(encoding="utf-8") as file:
        pairs = sum(1 for _ in file)
    changed = override(read_recipe("default"), dict(map(parse_override, keys)))
    return int(resolve_auto_sizes(changed, pairs)["text"]["vocabulary"])


def compute_scores(options: argparse.Namespace, name: str, corpus: CorpusFiles) -> dict[str, Any]:
    """Compute BLEU and chrF of the test set, case-sensitive and with punctuation."""
    found, wanted = (
        path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        for path in (find_translations_file(options, name), corpus.test[1])
    )
    measured = {"bleu": bleu(found, wanted), "chrf": chrf(found, wanted)}
    return {
        **{metric: round(score.value, 2) for metric, score in measured.items()},
        "signatures": {metric: score.signature for metric, score in measured.items()},
        "sentences": len(wanted),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU",
    }


def print_table(options: argparse.Namespace) -> None:
    """Print the results of both for a language."""
    print(f"\ntechnical prose, en-{options.target}")
    print(f"  {'':<10} {'BLEU':>6} {'chrF':>6} {'updates':>8} {'best':>8} {'target tokens/s':>16} {'seconds':>8}")
    for name in TOOLKITS:
        path = options.results / f"{name}.{options.target}.json"
        if path.exists():
            one = json.loads(path.read_text(encoding="utf-8"))
            figures = f"{one['bleu']:>6.2f} {one['chrf']:>6.2f} {one['updates']!s:>8} {one['best']!s:>8}"
            print(f"  {name:<10} {figures} {one['tokens_per_second']:>16,.0f} {one['took']:>8}")
            print(f"    dev BLEU {one['dev']}\n    {one['signatures']}")


def find_translations_file(options: argparse.Namespace, name: str) -> Path:
    """Return the path of the translations of the test set."""
    return Path(options.results / f"{name}.{options.target}")


def compute_median(speeds: Sequence[float]) -> float:
    """Return the median; 0 if training was too short."""
    return statistics.median(speeds) if speeds else 0.0


def read_log_tail(log: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(encoding="utf-8").splitlines()[-30:])


def write_text_file(path: Path, text: str) -> None:
    """Write a text file."""
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
