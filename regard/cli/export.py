"""`regard export`: write a model for ONNX Runtime, CTranslate2 or transformers, or a shortlist; `regard import`."""

from __future__ import annotations

import shutil
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.options import InferenceDevice, choose_device_of_option, describe_options
from regard.console import log_message
from regard.data.readers.dispatch import iterate_pairs
from regard.errors import UserError
from regard.runs import Run

if TYPE_CHECKING:
    from regard.translate import Translator
    from regard.translate.shortlist import Shortlist


HUGGINGFACE = "huggingface"


@describe_options
def export(
    run: Path,
    to: str = "onnx",
    precision: str = "fp32",
    shortlist: bool = False,
    data: list[Path] | None = None,
    out: Path | None = None,
    license: str | None = None,
    device: InferenceDevice = "auto",
) -> None:
    """Export a run's model to ONNX or CTranslate2, which makes `regard translate` faster, or for Hugging Face.

    Example: regard export runs/mine --to onnx --precision int8
    """
    from regard.translate import load
    from regard.translate.backends import CTRANSLATE2, FP32, INT8, ONNX, SHORTLIST, TORCH, check_engine_options
    from regard.translate.backends.exports import LoadedRun, export_ctranslate2, export_onnx, export_shortlist

    only_shortlist = to == SHORTLIST
    if license and to != HUGGINGFACE:
        raise UserError(f"--license is for the model card of --to {HUGGINGFACE}")
    if to == HUGGINGFACE:
        _export_for_transformers(run, out, license, has_other_options=shortlist or bool(data) or precision != FP32)
        return
    if to not in (ONNX, CTRANSLATE2, SHORTLIST):
        raise UserError(f"--to must be {ONNX}, {CTRANSLATE2}, {HUGGINGFACE} or {SHORTLIST}, not {to!r}")
    check_engine_options(TORCH if only_shortlist else to, precision)
    if only_shortlist and precision == INT8:
        raise UserError(f"--precision is for --to {ONNX} and {CTRANSLATE2}: a {SHORTLIST} has none")
    if shortlist and to != CTRANSLATE2:
        raise UserError(f"--shortlist is for --to {CTRANSLATE2}, not {to}")
    if data and not (shortlist or only_shortlist):
        raise UserError("--data is for learning a shortlist: it needs --shortlist")
    if out is not None and out.exists():
        raise UserError(f"{out} already exists; --out must be a new folder")
    torch_device = choose_device_of_option(device)
    translator = load(run, device="cpu")
    loaded = LoadedRun(Run(run), translator.models[0], translator.tokenizers)
    needs_shortlist = shortlist or only_shortlist
    learnt = _learn_shortlist_of_run(load(run, device=torch_device), run, data) if needs_shortlist else None
    if to == ONNX:
        export_onnx(loaded, precision, out)
    elif to == CTRANSLATE2:
        export_ctranslate2(loaded, precision, out, learnt)
    elif learnt is not None:
        export_shortlist(loaded, learnt, out)
    if out is not None:
        shutil.copytree(run / "tokenizer", out / "tokenizer")
        log_message(f"{out} contains the {'shortlist' if only_shortlist else 'model'} and the vocabularies")
    else:
        arguments = "--shortlist" if only_shortlist else f"--engine {to} --precision {precision}"
        log_message(f"use it with: regard translate {run} {arguments}")


def _export_for_transformers(run: Path, out: Path | None, license: str | None, has_other_options: bool) -> None:
    """Write a folder that transformers loads."""
    from regard.runs.huggingface import export_run
    from regard.translate import load

    if out is None:
        raise UserError(f"--to {HUGGINGFACE} needs a new folder: --out FOLDER")
    if out.exists():
        raise UserError(f"{out} already exists; --out must be a new folder")
    if has_other_options:
        raise UserError(f"--to {HUGGINGFACE} takes no other option than --out and --license")
    translator = load(run, device="cpu")
    export_run(Run(run), translator.models[0], translator.tokenizers, out, license)
    log_message(f"{out} contains a model for AutoModelForSeq2SeqLM, its tokenizer and a model card")


def _learn_shortlist_of_run(translator: Translator, run: Path, data: list[Path] | None) -> Shortlist:
    """Learn a shortlist from `data`, or from the run's training data."""
    from regard.data.split import group_paths
    from regard.translate.shortlist import MAX_TRAINING_PAIRS, learn_shortlist

    data_config = Run(run).read_config()["data"]
    paths = data or [Path(path) for path in data_config.get("train") or ()]
    if not paths:
        raise UserError(f"{run} does not record its training data; name pairs for the shortlist with --data")
    groups = group_paths(paths)
    log_message(f"learning a shortlist from {' and '.join(map(str, paths))} (at most {MAX_TRAINING_PAIRS:,} pairs)")
    pairs_of_groups = (iterate_pairs(group, data_config.get("source"), data_config.get("target")) for group in groups)
    return learn_shortlist(
        translator, chain.from_iterable(islice(pairs, MAX_TRAINING_PAIRS // len(groups)) for pairs in pairs_of_groups)
    )


@describe_options
def import_model(folder: Path, out: Path, source: str | None = None, target: str | None = None) -> None:
    """Read a MarianMT model of Hugging Face, such as one of OPUS-MT, as a run: translate with it, or fine-tune it.

    Example: regard import opus-mt-en-de --out runs/opus
    """
    from regard.runs.huggingface import import_run

    import_run(folder, out, (source, target))
    log_message(
        f"{out} is a run: translate with it (regard translate {out}), or fine-tune it "
        f"(regard train DATA --init-from {out} --out RUN)"
    )
