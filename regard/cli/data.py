"""`regard data …`: inspect, clean, split, convert, download and create corpora."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from regard.cli.back_translate import back_translate, distill
from regard.cli.options import describe_options
from regard.cli.stdio import restore_default_sigpipe, show_item_progress
from regard.console import log_message, make_progress_bar
from regard.data.languages import LanguageRequest, check_script_name
from regard.data.readers import dispatch
from regard.data.readers.text import Pair
from regard.errors import UserError, format_suggestion

if TYPE_CHECKING:
    from regard.corpus.public_corpora import PublicCorpus, RemoteFile

BAR_WIDTH = 24
AUTO, ANY = "auto", "any"


@describe_options
def inspect(
    data: list[Path],
    source: str | None = None,
    target: str | None = None,
    samples: int = 5,
    seed: int = 1,
    as_json: bool = False,
) -> None:
    """Show statistics of a corpus: pairs, duplicates, lengths, scripts, samples, and what `clean` would remove.

    Example: regard data inspect memory.tmx
    """
    from regard.corpus.filters import find_main_scripts, make_default_filters
    from regard.corpus.split import find_named_languages
    from regard.corpus.statistics import CorpusStatistics

    restore_default_sigpipe()
    request = dispatch.make_language_request(data, source, target, allow_unnamed=False)
    first, pairs = _peek_corpus(data, request)
    statistics = CorpusStatistics(make_default_filters(find_main_scripts(first)), samples, seed)
    for pair in show_item_progress(pairs, "inspecting"):
        statistics.add_pair(pair)
    languages = request.chosen or find_named_languages(data, source, target)
    report = {"direction": languages, "incomplete": request.num_incomplete, **statistics.to_dict()}
    typer.echo(json.dumps(report, ensure_ascii=False) if as_json else _format_inspection(report))


def _peek_corpus(data: list[Path], request: LanguageRequest) -> tuple[list[Pair], Iterator[Pair]]:
    """Return the first pairs of a corpus, and an iterator over all of them; raise a UserError if there are none."""
    from regard.corpus.filters import peek_pairs

    first, pairs = peek_pairs(dispatch.iterate_pairs(data, request=request))
    if not first:
        raise dispatch.make_empty_corpus_error(data)
    return first, pairs


def _format_inspection(report: dict[str, Any]) -> str:
    """Format the report as text."""
    incomplete = f"; left out, because they lack one of the languages: {report['incomplete']:,}"
    rows = [
        ("direction", " → ".join(report["direction"] or ["unknown: the data name no languages"])),
        ("pairs", f"{report['pairs']:,}{incomplete if report['incomplete'] else ''}"),
        ("duplicates", f"{report['duplicates']:,} pairs, {report['duplicate_sources']:,} repeated sources"),
    ]
    for side in ("source", "target"):
        rows += [("", ""), *_format_side(side, report[side])]
    if ratio := report["ratio"]:
        labels = {"mean": "mean", "median": "median", "p5": "5 %", "p95": "95 %"}
        words = ", ".join(f"{label} {ratio[name]:.2f}" for name, label in labels.items())
        rows += [("", ""), ("ratio", f"{words} (target words per source word)")]
    dropped = ", ".join(f"{rule} {count:,}" for rule, count in report["clean"]["dropped"].items() if count)
    removed = f" and remove: {dropped}" if dropped else ", everything"
    rows += [("", ""), ("clean", f"would keep {report['clean']['kept']:,}{removed}")]
    for sample in report["samples"]:
        rows += [("", ""), (f"{sample['number']:,}", sample["source"]), ("", sample["target"])]
    return "\n".join(f"{name:<12}{text}".rstrip() for name, text in rows)


def _format_side(name: str, side: dict[str, Any]) -> list[tuple[str, str]]:
    """Format the statistics of one side, with a histogram of lengths."""
    figures = f"{side['characters']:,} characters, {side['distinct_characters']:,} distinct; {side['empty']:,} empty"
    rows = [(name, figures)]
    if side["scripts"]:
        percentages = {
            script: f"{100 * fraction:.1f} %" if fraction >= 0.001 else "< 0.1 %"
            for script, fraction in side["scripts"].items()
        }
        rows.append(("scripts", ", ".join(map(" ".join, percentages.items()))))
    if words := side["words"]:
        figures = f"mean {words['mean']:.1f}, median {words['median']}, 95 % {words['p95']}, longest {words['max']:,}"
        rows.append(("words", figures))
    most = max(side["histogram"].values(), default=0)
    for label, count in side["histogram"].items():
        rows.append((f"{label:>9}", f"{'█' * round(BAR_WIDTH * count / most):<{BAR_WIDTH}} {count:,}"))
    return rows


@describe_options
def clean(
    data: list[Path],
    out: list[Path],
    source: str | None = None,
    target: str | None = None,
    min_words: int = 1,
    max_words: int = 200,
    max_ratio: float = 3.0,
    min_letters: float = 0.5,
    source_script: str = AUTO,
    target_script: str = AUTO,
    unique_source: bool = False,
    without: list[str] | None = None,
    overwrite: bool = False,
    as_json: bool = False,
) -> None:
    """Remove pairs that harm training, and report how many for which reason.

    Example: regard data clean memory.tmx --out clean.tsv.gz --max-words 100
    """
    from regard.corpus import filters
    from regard.corpus.writers import STANDARD_OUTPUT, open_pair_writer

    restore_default_sigpipe()
    first, pairs = _peek_corpus(data, dispatch.make_language_request(data, source, target, allow_unnamed=False))
    detected = filters.find_main_scripts(first)
    scripts = _choose_script(source_script, detected[0]), _choose_script(target_script, detected[1])
    rules = filters.make_default_filters(
        scripts,
        min_words=min_words,
        max_words=max_words,
        max_ratio=max_ratio,
        min_letters=min_letters,
        unique_source=unique_source,
    )
    pipeline = filters.FilterPipeline(filters.exclude_filters(rules, without or []))
    with open_pair_writer(out, overwrite, _find_languages(data, source, target, out)) as write:
        for pair in show_item_progress(pairs, "cleaning"):
            if pipeline.accepts(pair):
                write(pair)
    report = {**pipeline.to_dict(), "scripts": dict(zip(("source", "target"), scripts, strict=True))}
    if as_json:
        typer.echo(json.dumps(report), err=out == [STANDARD_OUTPUT])
    else:
        typer.echo(_format_clean_report(report), err=True)


def _find_languages(
    data: list[Path], source: str | None, target: str | None, out: list[Path]
) -> tuple[str, str] | None:
    """Return the languages of a corpus if the output names them, as a TMX does."""
    from regard.corpus.split import find_named_languages

    return find_named_languages(data, source, target) if any(map(dispatch.is_bilingual_file, out)) else None


def _choose_script(name: str, detected: str | None) -> str | None:
    """Return the script that one side must have; None: any script."""
    return detected if name == AUTO else None if name == ANY else check_script_name(name)


def _format_clean_report(report: dict[str, Any]) -> str:
    """Format the counts as a table."""
    rows = [("read", report["read"]), *report["dropped"].items(), ("kept", report["kept"])]
    width = max(len(f"{count:,}") for _, count in rows)
    lines = [f"{name:<12}{count:>{width},}  {100 * count / report['read']:5.1f} %" for name, count in rows]
    scripts = ", ".join(f"{side} {name or 'any'}" for side, name in report["scripts"].items())
    return "\n".join([*lines, f"scripts     {scripts}"])


@describe_options
def split(
    data: list[Path],
    out: Path,
    test: int = 1000,
    dev: int = 1000,
    seed: int = 1,
    source: str | None = None,
    target: str | None = None,
    overwrite: bool = False,
    by_document: bool = False,
) -> None:
    """Split a corpus into train, dev and test; no source is in two of them.

    Example: regard data split memory.tmx --out corpus --test 500 --dev 500
    """
    from regard.corpus.split import split_corpus

    counts = split_corpus(data, out, test, dev, seed, source, target, overwrite, by_document)
    typer.echo(f"{out}: " + ", ".join(f"{name} {count:,} pairs" for name, count in counts.items()))


@describe_options
def convert(
    data: list[Path], out: list[Path], source: str | None = None, target: str | None = None, overwrite: bool = False
) -> None:
    """Convert a corpus to another format.

    Example: regard data convert train.en train.de --out memory.tmx
    """
    from regard.corpus.writers import open_pair_writer

    restore_default_sigpipe()
    _, pairs = _peek_corpus(data, dispatch.make_language_request(data, source, target))
    with open_pair_writer(out, overwrite, _find_languages(data, source, target, out)) as write:
        for pair in show_item_progress(pairs, "converting"):
            write(pair)


@describe_options
def get(
    name: str | None = None,
    out: Path | None = None,
    mirror: str | None = None,
    trust: bool = False,
    show_list: bool = False,
    all_experiments: bool = False,
) -> None:
    """Download a public corpus and verify it; an interrupted download is resumed.

    Example: regard data get multi30k-en-de --out multi30k
    """
    from regard.corpus.public_corpora import PUBLIC_CORPORA, download_test_set, find_test_set, list_test_sets

    if show_list:
        width = max(map(len, PUBLIC_CORPORA))
        for known, corpus in PUBLIC_CORPORA.items():
            typer.echo(f"{known:<{width}}  {corpus.size:<13}{corpus.description}")
            typer.echo(f"{'':<{width}}  {'':<13}{corpus.licence}")
        sets = ", ".join(dict.fromkeys(test_set.split("/")[0] for test_set in list_test_sets()))
        typer.echo(f"\nand sacreBLEU's test sets, followed by their languages (wmt14-de-en): {sets}")
        return
    if all_experiments:
        if name is not None:
            raise UserError(f"--all-experiments downloads a fixed list of corpora; leave out {name}")
        for file in _download_experiment_corpora(out or Path(os.environ.get("REGARD_DATA", "data")), mirror, trust):
            typer.echo(file)
        return
    if name is None:
        raise UserError("name a corpus; regard data get --list shows all of them")
    folder = out or Path(name.replace("/", "-"))
    if name in PUBLIC_CORPORA:
        files = _download_corpus(PUBLIC_CORPORA[name], folder, mirror, trust)
    elif test_set := find_test_set(name):
        typer.echo(f"{name}: a test set of sacreBLEU, free for research", err=True)
        files = download_test_set(*test_set, folder, mirror)
    elif (swapped := re.sub(r"([^-]*)-([^-]*)$", r"\2-\1", name)) in PUBLIC_CORPORA:
        raise UserError(f"unknown corpus {name!r}; use {swapped}, which serves both directions")
    else:
        raise UserError(f"unknown corpus {name!r}{format_suggestion(name, PUBLIC_CORPORA)}")
    for file in files:
        typer.echo(file)


def _download_corpus(corpus: PublicCorpus, folder: Path, mirror: str | None, trust: bool) -> list[Path]:
    """Download, verify and unpack a corpus; return its files. Without `trust`, every checksum must be known."""
    from regard.corpus.download import download_file, unpack_members

    downloads = _list_downloads(corpus, folder, mirror, trust)
    log_message(f"{corpus.description}; {corpus.size}")
    log_message(f"licence: {corpus.licence}")
    with make_progress_bar() as progress:
        for file, url, path in downloads:
            task = progress.add_task(f"{path.name}, KB", total=None, note="")

            def update_progress(done: int, total: int | None, task: Any = task) -> None:
                progress.update(task, completed=done >> 10, total=total and total >> 10)

            downloaded = download_file(url, path, file.sha256, update_progress)
            if not downloaded.had_known_checksum:
                log_message(
                    f"{path.name}: not verified, SHA-256 {downloaded.sha256}; recorded in {path}.sha256, and later "
                    f"downloads are verified against it"
                )
            unpack_members(path, {member: (folder / name, edit) for member, (name, edit) in file.members.items()})
    return [folder / name for name in corpus.list_files()]


def _list_downloads(
    corpus: PublicCorpus, folder: Path, mirror: str | None, trust: bool
) -> list[tuple[RemoteFile, str, Path]]:
    """Return the files of a corpus with their URLs and paths; without `trust`, refuse one without a known checksum."""
    from regard.corpus.download import read_recorded_checksum

    downloads = []
    for file in corpus.remote_files:
        path = folder / "downloads" / file.url.rsplit("/", 1)[-1]
        url = f"{mirror.rstrip('/')}/{path.name}" if mirror else file.url
        is_known = file.sha256 or read_recorded_checksum(path.with_name(f"{path.name}.sha256"))
        if not is_known and not trust:
            connection = " and plain HTTP can be tampered with" if url.startswith("http://") else ""
            raise UserError(
                f"no checksum is known for {url}{connection}, so it cannot be verified; use --trust to download it "
                f"anyway"
            )
        downloads.append((file, url, path))
    return downloads


def _download_experiment_corpora(folder: Path, mirror: str | None, trust: bool) -> list[Path]:
    """Download the public corpora of `regard reproduce --scale full`; return their files.

    A mirror has a folder for each folder of files, and in `newstest` one for each of sacreBLEU's test sets.
    """
    from regard.corpus.public_corpora import (
        EXPERIMENT_TEST_SETS,
        UNAVAILABLE_FOLDERS,
        download_test_set,
        find_test_set,
        list_experiment_corpora,
    )

    def find_mirror(name: str) -> str | None:
        return f"{mirror.rstrip('/')}/{name}" if mirror else None

    corpora = list_experiment_corpora()
    for name, corpus in corpora:  # refuse before the first download
        _list_downloads(corpus, folder / name, find_mirror(name), trust)
    files = []
    for name, corpus in corpora:
        files += _download_corpus(corpus, folder / name, find_mirror(name), trust)
    for stem, test_set in EXPERIMENT_TEST_SETS.items():
        if found := find_test_set(test_set):
            dataset, pair = found
            files += download_test_set(
                dataset, pair, folder / "newstest", find_mirror(f"newstest/{dataset.name}"), stem
            )
    missing = ", ".join(UNAVAILABLE_FOLDERS)
    log_message(f"not fetched, since no download of them is known: {missing} (docs/experiment-data.md describes them)")
    log_message(f"use them with REGARD_DATA={folder} regard reproduce --scale full")
    return files


@describe_options
def features(
    captions: list[Path],
    out: Path,
    backbone: str = "vgg19",
    layer: str | None = None,
    weights: str = "pretrained",
    side: int | None = None,
    batch: int = 32,
    precision: Literal["float16", "float32"] = "float16",
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto",
) -> None:
    """Extract image features with a torchvision network, once per image, for captioning.

    A run that is trained on them captions image files directly: it applies the same network.

    Example: regard data features train.jsonl dev.jsonl --out features --backbone resnet50 --layer layer3
    """
    from regard.tasks.captioning import extraction
    from regard.tasks.captioning.feature_extractor import FeatureExtractorOptions, build_feature_extractor
    from regard.training.distributed import choose_device

    extraction.check_output_is_new(out)
    files = extraction.list_caption_files(captions)
    extractor = build_feature_extractor(
        FeatureExtractorOptions(backbone, layer, weights, side, precision), choose_device(device, "--device ")
    )
    network, count = extractor.backbone, sum(len(file.images) for file in files)
    log_message(
        f"{count:,} images, {' × '.join(map(str, network.grid))} numbers each, of {network.describe()}: "
        f"{extraction.count_feature_bytes(files, network) / 1e6:,.1f} MB"
    )
    with make_progress_bar() as progress:
        task = progress.add_task("images", total=count, note="")
        extraction.extract_image_features(files, extractor, out, batch, partial(progress.advance, task))
    for file in files:
        typer.echo(out / f"{file.name}.jsonl")
    first = f"{out / files[0].name}.jsonl"
    captioned = any("caption" in fields for _, fields in files[0].lines)
    train = f"train on them: regard train {first} --recipe xu2015-soft-caption"
    log_message(train if captioned else f"caption them: regard predict RUN {first}")


@describe_options
def make(out: Path, pairs: int = 20_000, seed: int = 1, pair: Literal["en-de", "en-ja"] = "en-de") -> None:
    """Write a synthetic corpus: train, dev and test in English and German or Japanese, and gold alignments (Pharaoh).

    Example: regard data make --pairs 20000 --out corpus
    """
    from regard.synthetic.translation import write_translation_corpus

    counts = write_translation_corpus(out, pairs, seed, pair=pair)
    typer.echo(f"{out}: " + ", ".join(f"{name} {count:,} pairs" for name, count in counts.items()))


data = typer.Typer(help="Inspect, clean, split, convert, download and create corpora.", no_args_is_help=True)
for command in (inspect, clean, split, convert, get, features, make, back_translate, distill):
    data.command()(command)
