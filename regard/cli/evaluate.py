"""`regard evaluate`: score runs or translations on a test set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from regard.cli.options import (
    InferenceDevice,
    choose_device_of_option,
    describe_options,
    load_pairs,
    resolve_languages,
    resolve_tokenizer,
    split_runs,
)
from regard.data.readers.dispatch import find_corpus_languages, read_all_pairs
from regard.data.readers.text import Pair, iterate_lines
from regard.errors import UserError
from regard.paths import format_json
from regard.runs import Run
from regard.tokenizers.segmentation import join_words

if TYPE_CHECKING:
    import torch

    from regard.evaluate.translation_metrics import TranslationScores


@describe_options
def evaluate(
    paths: list[Path],
    hypothesis: list[Path] | None = None,
    compare: bool = False,
    lowercase: bool = False,
    tokenize: str | None = None,
    gold: Path | None = None,
    gold_first: int | None = None,
    presegmented: bool = False,
    source: str | None = None,
    target: str | None = None,
    beam: int | None = None,
    device: InferenceDevice = "auto",
    as_json: bool = False,
) -> None:
    """Score a run, or files of translations, on a test set: BLEU, chrF, TER, perplexity, and AER with gold alignments.

    Several systems are compared with the first by a paired bootstrap test.

    Example: regard evaluate runs/mine test.en test.de --gold test.align
    """
    from regard.evaluate.translation_metrics import compare_systems, score_translations

    if gold_first is not None and gold is None:
        raise UserError("--gold-first is the index of the first word in --gold: it needs --gold")
    translations: dict[str, list[str]] = {}  # by system
    reports: list[dict[str, Any]] = []
    lower: Callable[[str], str] = str  # of references in Turkish
    if hypothesis:
        if gold or compare or beam or presegmented:
            raise UserError("--gold, --presegmented, --compare and --beam need runs, not files of translations")
        corpus = read_all_pairs(paths, source, target, allow_unnamed=False)
        sources, targets = zip(*corpus, strict=True)
        tokenizer = resolve_tokenizer([], tokenize, targets, target or find_corpus_languages(paths, source, target)[1])
        for path in hypothesis:
            lines = list(iterate_lines(path))
            if str(path) in translations:
                raise UserError("the same --hypothesis file is given twice")
            if len(lines) != len(corpus):
                raise UserError(f"{path} has {len(lines)} lines for {len(corpus)} pairs; it needs one line per pair")
            translations[str(path)] = lines
            scores = score_translations(sources, lines, targets, lowercase, tokenizer)
            reports.append(_make_report(str(path), scores, corpus))
    else:
        from regard.evaluate.alignment_error_rate import read_gold_alignments
        from regard.tasks import get_task  # imports PyTorch
        from regard.translate import load
        from regard.translate.evaluation import evaluate_translator

        folders, files = split_runs(paths)
        torch_device = choose_device_of_option(device)
        if get_task(Run(folders[0]).read_config()).command == "predict":
            given = {"gold": gold, "beam": beam, "lowercase": lowercase, "source": source, "target": target}
            for name, value in {**given, "tokenize": tokenize}.items():
                if value:
                    raise UserError(f"--{name} is for runs that translate, but {folders[0]} does not")
            typer.echo(_evaluate_predictors(folders, files, torch_device, as_json))
            return
        corpus = load_pairs(folders, files, source, target)
        target = resolve_languages(folders, source, target)[1]
        tokenizer = resolve_tokenizer(folders, tokenize, [pair.target for pair in corpus], target)
        if compare and len({folder.resolve() for folder in folders}) < max(2, len(folders)):
            raise UserError("--compare needs at least two different runs")
        links = read_gold_alignments(gold, corpus, gold_first, presegmented) if gold else None
        segmented = corpus if presegmented else None
        if presegmented:
            corpus = [Pair(*(join_words(side.split()) for side in pair)) for pair in corpus]
        ensembles = [[folder] for folder in folders] if compare else [folders]
        translators = {" ".join(map(str, ensemble)): load(*ensemble, device=torch_device) for ensemble in ensembles}
        vocabularies = [translator.tokenizers.target for translator in translators.values()]
        # Systems are compared by the same references: without capital letters if one of them has none.
        lowercase = lowercase or any(vocabulary.lowercase for vocabulary in vocabularies)
        lower = next((one.lower_dotless_i for one in vocabularies if one.has_dotless_i), str)
        for name, translator in translators.items():
            result = evaluate_translator(translator, corpus, links, beam or 5, tokenizer, segmented, lowercase)
            translations[name] = [lower(translation.text) for translation in result.translations]
            report = {
                **_make_report(name, result.scores, corpus),
                "perplexity": result.perplexity,
                "accuracy": result.accuracy,
                **{key: result.alignment and getattr(result.alignment, key) for key in ("aer", "precision", "recall")},
            }
            reports.append(report)
    references = [lower(pair.target) for pair in corpus]
    if len(reports) > 1:
        for report, test in zip(reports, compare_systems(translations, references, lowercase, tokenizer), strict=True):
            report["bootstrap"] = {"mean": test.mean, "interval": test.interval, "p": test.p_value}
    if as_json:
        typer.echo(format_json({"pairs": len(corpus), "systems": reports} if len(reports) > 1 else reports[0]))
    else:
        typer.echo("\n\n".join(map(_format_report, reports)))


def _evaluate_predictors(
    folders: Sequence[Path], files: Sequence[Path], device: torch.device | None, as_json: bool
) -> str:
    """Evaluate runs of other tasks than translation, whose data may be folders."""
    from regard.api import load

    if not files:
        raise UserError("no test set: name, after the run, data with the right answers")
    reports = [{"system": str(folder), **load(folder, device=device).evaluate(files)} for folder in folders]
    if as_json:
        return format_json(reports[0] if len(reports) == 1 else {"systems": reports})
    width = max(12, *(len(name) for report in reports for name in report))
    tables = ([f"{name:<{width}} {_format_value(value)}" for name, value in report.items()] for report in reports)
    return "\n\n".join(map("\n".join, tables))


def _format_value(value: Any, is_nested: bool = False) -> str:
    """Format a value as text; a table has one line per row."""
    if isinstance(value, dict):
        rows = {name: _format_value(inner, is_nested=True) for name, inner in value.items()}
        if is_nested:
            return ", ".join(f"{name} {text}" for name, text in rows.items())
        return "".join(f"\n  {name:<12} {text}" for name, text in rows.items())
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 1 else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _make_report(system: str, scores: TranslationScores, corpus: Sequence[Pair]) -> dict[str, Any]:
    """Return the values of the metrics, their signatures, and BLEU by length."""
    metrics = {"bleu": scores.bleu, "chrf": scores.chrf, "ter": scores.ter}
    return {
        "system": system,
        "pairs": len(corpus),
        **{name: score.value for name, score in metrics.items()},
        **{f"{name}_signature": score.signature for name, score in metrics.items()},
        "by_length": [group._asdict() for group in scores.by_length],
    }


def _format_report(report: dict[str, Any]) -> str:
    """Format the report of a system as text."""
    rows = [("system", report["system"]), ("pairs", f"{report['pairs']:,}")]
    rows += [(name, f"{report[name]:.2f}  {report[f'{name}_signature']}") for name in ("bleu", "chrf", "ter")]
    if "bootstrap" in report:
        test = report["bootstrap"]
        significance = "the baseline" if test["p"] is None else f"p = {test['p']:.4f} against the baseline"
        rows.append(("", f"bleu {test['mean']:.2f} ± {test['interval']:.2f} by bootstrap, {significance}"))
    if "perplexity" in report:
        rows.append(("perplexity", f"{report['perplexity']:.2f}"))
        rows.append(("accuracy", f"{report['accuracy']:.4f}  of tokens"))
    if report.get("aer") is not None:
        more = f"precision {report['precision']:.4f}, recall {report['recall']:.4f}"
        rows.append(("aer", f"{report['aer']:.4f}  {more}"))
    lengths = [f"{group['words']} words: {group['bleu']:.1f} ({group['pairs']:,})" for group in report["by_length"]]
    rows.append(("by length", "bleu by source length, " + ", ".join(lengths)))
    return "\n".join(f"{name:<10} {text}".rstrip() for name, text in rows)
