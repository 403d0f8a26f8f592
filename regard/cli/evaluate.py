"""`regard evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import options
from regard.cli.options import load_pairs, resolve_languages, split_runs
from regard.errors import UserError
from regard.strict_json import dumps

if TYPE_CHECKING:
    from regard.data.readers.dispatch import Pair
    from regard.evaluate import MetricScore


def evaluate(
    paths: Annotated[list[Path], typer.Argument(help="One run, or several as an ensemble, then the data to score on.")],
    hypothesis: Annotated[
        list[Path] | None,
        typer.Option(help="Score this file of translations instead of a run; given again: side by side."),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Several runs: side by side, not as an ensemble; the first is the baseline."),
    ] = False,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Ignore case; always so for a run trained on lower-cased text.")
    ] = False,
    gold: options.Gold = None,
    gold_first: options.GoldFirst = None,
    source: options.Source = None,
    target: options.Target = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Hypotheses that are kept open, 5 as a rule; 1 is greedy.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a run, or files of translations, on a test set: BLEU, chrF, TER, perplexity, and AER with gold alignments.

    Several systems side by side come with a paired bootstrap test of each against the first.

    Example: regard evaluate runs/mine test.en test.de --gold test.align
    """
    from regard.data.readers.dispatch import read_all_pairs
    from regard.evaluate.translation_metrics import warn_about_bleu

    if gold_first is not None and gold is None:
        raise UserError("--gold-first says how --gold counts; there is no --gold")
    if hypothesis:
        if gold or compare or beam:
            raise UserError("--gold, --compare and --beam need runs, not files of translations")
        corpus = read_all_pairs(paths, source, target, allow_unnamed=False)
        systems = {str(path): _read_hypotheses(path, corpus) for path in hypothesis}
        if len(systems) < len(hypothesis):
            raise UserError("the same --hypothesis is given twice")
        reports = {
            name: {"system": name, **_score_hypotheses(written, corpus, lowercase)} for name, written in systems.items()
        }
    else:
        folders, files = split_runs(paths)
        if _is_predictor_run(folders[0]):
            translation_only = {"--gold": gold, "--beam": beam, "--lowercase": lowercase}
            for name, value in {**translation_only, "--source": source, "--target": target}.items():
                if value:
                    raise UserError(f"{name} is for runs that translate, and {folders[0]} does not")
            typer.echo(_evaluate_predictors(paths, as_json))
            return
        if not files:
            raise UserError("nothing to score on: name, after the run, one file that holds pairs or two text files")
        corpus = load_pairs(folders, files, source, target)
        target = resolve_languages(folders, source, target)[1]
        if compare and len({folder.resolve() for folder in folders}) < max(2, len(folders)):
            raise UserError("--compare is of at least two runs, each named once")
        lots = [[folder] for folder in folders] if compare else [folders]
        systems, reports = {}, {}
        for some in lots:
            name = " ".join(map(str, some))
            systems[name], report = _evaluate_run(some, corpus, gold, gold_first, beam or 5)
            reports[name] = {"system": name, **report}
    warn_about_bleu([pair.target for pair in corpus], target)
    told = _compare_systems(systems, corpus, reports, lowercase) if len(systems) > 1 else next(iter(reports.values()))
    typer.echo(dumps(told) if as_json else _format_report(told))


def _is_predictor_run(folder: Path) -> bool:
    """Whether a run's model does something else than translate."""
    from regard.runs import Run

    return bool(Run(folder).read_config().get("task", "translate") != "translate")


def _evaluate_predictors(paths: Sequence[Path], as_json: bool) -> str:
    """What models score that answer, one beside the other; a folder that is no run is data."""
    from regard.api import load
    from regard.runs import Run

    folders, files = ([path for path in paths if Run(path).exists == is_run] for is_run in (True, False))
    if not files:
        raise UserError("nothing to score on: name, after the run, data that says what is right")
    told = [{"system": str(folder), **load(folder).evaluate(files)} for folder in folders]
    if as_json:
        return dumps(told[0] if len(told) == 1 else {"systems": told})
    width = max(12, *(len(name) for one in told for name in one))
    return "\n\n".join(
        "\n".join(f"{name:<{width}} {_format_value(value)}" for name, value in one.items()) for one in told
    )


def _format_value(value: Any) -> str:
    """A figure as people read it; a table has a line for each row."""
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 1 else f"{value:.4f}"
    if isinstance(value, dict):
        return "".join(f"\n  {name:<12} {_format_table_row(inner)}" for name, inner in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _format_table_row(value: Any) -> str:
    """What stands in one line of a table."""
    return (
        ", ".join(f"{name} {_format_value(inner)}" for name, inner in value.items())
        if isinstance(value, dict)
        else _format_value(value)
    )


def _read_hypotheses(path: Path, corpus: Sequence[Pair]) -> list[str]:
    """The translations in a file, one a pair."""
    from regard.data.readers.text_io import iterate_lines

    written = list(iterate_lines(path))
    if len(written) != len(corpus):
        raise UserError(f"{path} has {len(written)} lines for {len(corpus)} pairs; there is one a pair")
    return written


def _evaluate_run(
    folders: list[Path], corpus: Sequence[Pair], gold: Path | None, gold_first: int | None, beam: int
) -> tuple[list[str], dict[str, Any]]:
    """What a model writes, and what it scores."""
    from regard.evaluate import read_gold_alignments
    from regard.translate import evaluate_translator, load

    links = read_gold_alignments(gold, corpus, gold_first) if gold else None
    found = evaluate_translator(load(*folders), corpus, links, beam)
    figures = {
        "pairs": len(corpus),
        **_flatten_scores({"bleu": found.bleu, "chrf": found.chrf, "ter": found.ter}),
        "perplexity": found.perplexity,
        "accuracy": found.accuracy,
        "by_length": [group._asdict() for group in found.by_length],
        "aer": found.alignment and found.alignment.aer,
        "precision": found.alignment and found.alignment.precision,
        "recall": found.alignment and found.alignment.recall,
    }
    return [made.text for made in found.translations], figures


def _score_hypotheses(hypotheses: Sequence[str], corpus: Sequence[Pair], lowercase: bool) -> dict[str, Any]:
    """What a file of translations scores."""
    from regard.evaluate import bleu, bleu_by_length, chrf, ter

    sources, references = [pair.source for pair in corpus], [pair.target for pair in corpus]
    found = {
        "bleu": bleu(hypotheses, references, lowercase),
        "chrf": chrf(hypotheses, references, lowercase),
        "ter": ter(hypotheses, references),
    }
    groups = bleu_by_length(sources, hypotheses, references, lowercase)
    return {"pairs": len(corpus), **_flatten_scores(found), "by_length": [group._asdict() for group in groups]}


def _flatten_scores(scores: dict[str, MetricScore]) -> dict[str, Any]:
    """Figures with their signatures."""
    values = {name: score.value for name, score in scores.items()}
    return values | {f"{name}_signature": score.signature for name, score in scores.items()}


def _compare_systems(
    systems: dict[str, list[str]], corpus: Sequence[Pair], reports: dict[str, dict[str, Any]], lowercase: bool
) -> dict[str, Any]:
    """All systems, each with the test against the first."""
    from regard.evaluate import compare_systems

    tested = {one.name: one for one in compare_systems(systems, [pair.target for pair in corpus], lowercase)}
    for name, report in reports.items():
        one = tested[name]
        report["bootstrap"] = {"mean": one.mean, "interval": one.interval, "p": one.p_value}
    return {"pairs": len(corpus), "systems": list(reports.values())}


def _format_report(report: dict[str, Any]) -> str:
    """The figures for people."""
    if "systems" in report:
        return "\n\n".join(_format_report(one) for one in report["systems"])
    rows = [("system", report["system"]), ("pairs", f"{report['pairs']:,}")]
    rows += [(name, f"{report[name]:.2f}  {report[f'{name}_signature']}") for name in ("bleu", "chrf", "ter")]
    if "bootstrap" in report:
        test = report["bootstrap"]
        chance = "the baseline" if test["p"] is None else f"p = {test['p']:.4f} against the baseline"
        rows.append(("", f"bleu {test['mean']:.2f} ± {test['interval']:.2f} by bootstrap, {chance}"))
    if "perplexity" in report:
        rows.append(("perplexity", f"{report['perplexity']:.2f}"))
        rows.append(("accuracy", f"{report['accuracy']:.4f}  of tokens"))
    if report.get("aer") is not None:
        more = f"precision {report['precision']:.4f}, recall {report['recall']:.4f}"
        rows.append(("aer", f"{report['aer']:.4f}  {more}"))
    lengths = [f"{group['words']} words: {group['bleu']:.1f} ({group['pairs']:,})" for group in report["by_length"]]
    rows.append(("by length", "bleu of sources with " + ", ".join(lengths)))
    return "\n".join(f"{name:<10} {text}".rstrip() for name, text in rows)
