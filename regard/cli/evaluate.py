"""`regard evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import options
from regard.cli.runs import load_pairs, resolve_languages, split_runs
from regard.errors import UserError
from regard.strict_json import dumps

if TYPE_CHECKING:
    from regard.data.corpus import Pair
    from regard.evaluate import Score


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
    from regard.data.corpus import pairs
    from regard.evaluate.scores import warn_about_bleu

    if gold_first is not None and gold is None:
        raise UserError("--gold-first says how --gold counts; there is no --gold")
    if hypothesis:
        if gold or compare or beam:
            raise UserError("--gold, --compare and --beam need runs, not files of translations")
        corpus = pairs(paths, source, target, names=False)
        systems = {str(path): read(path, corpus) for path in hypothesis}
        if len(systems) < len(hypothesis):
            raise UserError("the same --hypothesis is given twice")
        reports = {name: {"system": name, **scores(written, corpus, lowercase)} for name, written in systems.items()}
    else:
        folders, files = split_runs(paths)
        if answers(folders[0]):
            translation_only = {"--gold": gold, "--beam": beam, "--lowercase": lowercase}
            for name, value in {**translation_only, "--source": source, "--target": target}.items():
                if value:
                    raise UserError(f"{name} is for runs that translate, and {folders[0]} does not")
            typer.echo(of_answers(paths, as_json))
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
            systems[name], report = of_run(some, corpus, gold, gold_first, beam or 5)
            reports[name] = {"system": name, **report}
    warn_about_bleu([pair.target for pair in corpus], target)
    told = side_by_side(systems, corpus, reports, lowercase) if len(systems) > 1 else next(iter(reports.values()))
    typer.echo(dumps(told) if as_json else listed(told))


def answers(folder: Path) -> bool:
    """Whether a run's model does something else than translate."""
    from regard.runs import Run

    return bool(Run(folder).config().get("task", "translate") != "translate")


def of_answers(paths: Sequence[Path], as_json: bool) -> str:
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
    return "\n\n".join("\n".join(f"{name:<{width}} {plain(value)}" for name, value in one.items()) for one in told)


def plain(value: Any) -> str:
    """A figure as people read it; a table has a line for each row."""
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 1 else f"{value:.4f}"
    if isinstance(value, dict):
        return "".join(f"\n  {name:<12} {row(inner)}" for name, inner in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def row(value: Any) -> str:
    """What stands in one line of a table."""
    return (
        ", ".join(f"{name} {plain(inner)}" for name, inner in value.items())
        if isinstance(value, dict)
        else plain(value)
    )


def read(path: Path, corpus: Sequence[Pair]) -> list[str]:
    """The translations in a file, one a pair."""
    from regard.data.files import lines

    written = list(lines(path))
    if len(written) != len(corpus):
        raise UserError(f"{path} has {len(written)} lines for {len(corpus)} pairs; there is one a pair")
    return written


def of_run(
    folders: list[Path], corpus: Sequence[Pair], gold: Path | None, first: int | None, beam: int
) -> tuple[list[str], dict[str, Any]]:
    """What a model writes, and what it scores."""
    from regard.evaluate import read_gold
    from regard.translate import assess, load

    links = read_gold(gold, corpus, first) if gold else None
    found = assess(load(*folders), corpus, links, beam)
    figures = {
        "pairs": len(corpus),
        **measured({"bleu": found.bleu, "chrf": found.chrf, "ter": found.ter}),
        "perplexity": found.perplexity,
        "accuracy": found.accuracy,
        "by_length": [group._asdict() for group in found.by_length],
        "aer": found.alignment and found.alignment.aer,
        "precision": found.alignment and found.alignment.precision,
        "recall": found.alignment and found.alignment.recall,
    }
    return [made.text for made in found.translations], figures


def scores(written: Sequence[str], corpus: Sequence[Pair], lowercase: bool) -> dict[str, Any]:
    """What a file of translations scores."""
    from regard.evaluate import bleu, by_length, chrf, ter

    sources, references = [pair.source for pair in corpus], [pair.target for pair in corpus]
    found = {
        "bleu": bleu(written, references, lowercase),
        "chrf": chrf(written, references, lowercase),
        "ter": ter(written, references),
    }
    groups = by_length(sources, written, references, lowercase)
    return {"pairs": len(corpus), **measured(found), "by_length": [group._asdict() for group in groups]}


def measured(scores: dict[str, Score]) -> dict[str, Any]:
    """Figures with their signatures."""
    values = {name: score.value for name, score in scores.items()}
    return values | {f"{name}_signature": score.signature for name, score in scores.items()}


def side_by_side(
    systems: dict[str, list[str]], corpus: Sequence[Pair], reports: dict[str, dict[str, Any]], lowercase: bool
) -> dict[str, Any]:
    """All systems, each with the test against the first."""
    from regard.evaluate import compare

    tested = {one.name: one for one in compare(systems, [pair.target for pair in corpus], lowercase)}
    for name, report in reports.items():
        one = tested[name]
        report["bootstrap"] = {"mean": one.mean, "interval": one.interval, "p": one.p}
    return {"pairs": len(corpus), "systems": list(reports.values())}


def listed(told: dict[str, Any]) -> str:
    """The figures for people."""
    if "systems" in told:
        return "\n\n".join(listed(one) for one in told["systems"])
    rows = [("system", told["system"]), ("pairs", f"{told['pairs']:,}")]
    rows += [(name, f"{told[name]:.2f}  {told[f'{name}_signature']}") for name in ("bleu", "chrf", "ter")]
    if "bootstrap" in told:
        test = told["bootstrap"]
        chance = "the baseline" if test["p"] is None else f"p = {test['p']:.4f} against the baseline"
        rows.append(("", f"bleu {test['mean']:.2f} ± {test['interval']:.2f} by bootstrap, {chance}"))
    if "perplexity" in told:
        rows.append(("perplexity", f"{told['perplexity']:.2f}"))
        rows.append(("accuracy", f"{told['accuracy']:.4f}  of tokens"))
    if told.get("aer") is not None:
        more = f"precision {told['precision']:.4f}, recall {told['recall']:.4f}"
        rows.append(("aer", f"{told['aer']:.4f}  {more}"))
    lengths = [f"{group['words']} words: {group['bleu']:.1f} ({group['pairs']:,})" for group in told["by_length"]]
    rows.append(("by length", "bleu of sources with " + ", ".join(lengths)))
    return "\n".join(f"{name:<10} {text}".rstrip() for name, text in rows)
