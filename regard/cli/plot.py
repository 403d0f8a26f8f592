"""`regard plot`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.errors import UserError
from regard.special_tokens import EOS, SPECIAL_TOKENS

if TYPE_CHECKING:
    from regard.translate import Translation, Translator


def plot(
    what: Annotated[
        list[str],
        typer.Argument(help="A run and a sentence; with --by-length, runs and a test set.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="The picture: .png, .svg, .pdf …; .gif shows each step.")] = Path(
        "attention.png"
    ),
    heads: Annotated[
        bool, typer.Option("--heads", help="Attention over the source of all layers and heads of a Transformer.")
    ] = False,
    steps: Annotated[bool, typer.Option("--steps", help="A row of bars for each step.")] = False,
    by_length: Annotated[bool, typer.Option("--by-length", help="BLEU by the length of the source.")] = False,
    source: options.Source = None,
    target: options.Target = None,
    beam: options.Beam = 5,
) -> None:
    """Translate a sentence and draw where the model looked.

    Example: regard plot runs/demo "The old teacher gives the child a book ." --out picture.png
    """
    from regard.translate import load

    if heads + steps + by_length > 1:
        raise UserError("one picture at a time: --heads, --steps or --by-length")
    if by_length:
        _plot_bleu_by_length([Path(name) for name in what], out, beam, source, target)
        return
    if source or target:
        raise UserError("--source and --target name the languages of a test set: they need --by-length")
    if len(what) != 2:
        raise UserError(f"a run and a sentence in quotes, not {len(what)} arguments")
    run, sentence = what
    moving = out.suffix.lower() == ".gif"
    if moving and (heads or steps):
        raise UserError("a .gif shows each step of one attention; --heads and --steps are still pictures")
    translator = load(run)
    made = translator.translate([sentence], beam=beam)[0]
    if not made.tokens:
        raise UserError("there is nothing to translate in an empty sentence")
    if made.attention is None and not moving:
        raise UserError(f"{run} has no attention to draw")
    if (moving or heads) and made.source_tokens.count(SPECIAL_TOKENS[EOS]) > 1:
        raise UserError("this text is translated in several pieces; a .gif and --heads show one sentence")
    _plot_sentence(translator, made, out, heads, steps)
    typer.echo(made.text)
    typer.echo(str(out))


def _plot_sentence(translator: Translator, translation: Translation, out: Path, heads: bool, steps: bool) -> None:
    """One translation, in the way that was asked for."""
    from regard import plot
    from regard.translate import compute_attention_by_head, trace_decoding

    if out.suffix.lower() == ".gif":
        plot.write_decoding_animation(
            trace_decoding(translator, translation.source, translation.text), translation.source_tokens, out
        )
        return
    if heads:
        looks = compute_attention_by_head(translator, translation.source, translation.text)
        if not looks:
            raise UserError("this model looks from one place only; leave --heads out")
        target = translator.tokenizers.target.convert_ids_to_tokens(
            translator.score_pairs([(translation.source, translation.text)])[0].hypothesis.tokens
        )
        plot.write_figure(plot.plot_heatmaps(looks, translation.source_tokens, target), out)
        return
    assert translation.attention is not None
    draw = plot.plot_decoding_steps if steps else plot.plot_heatmap
    plot.write_figure(draw(translation.attention, translation.source_tokens, translation.tokens), out)


def _plot_bleu_by_length(paths: list[Path], out: Path, beam: int, source: str | None, target: str | None) -> None:
    """BLEU by length of each run on one test set."""
    from regard import plot
    from regard.cli.options import load_pairs, resolve_languages, split_runs
    from regard.evaluate import bleu_by_length
    from regard.evaluate.translation_metrics import warn_about_bleu
    from regard.translate import load

    runs, files = split_runs(paths)
    if not files:
        raise UserError("nothing to score on: name, after the runs, one file that holds pairs or two text files")
    corpus = load_pairs(runs, files, source, target)
    sources, references = [pair.source for pair in corpus], [pair.target for pair in corpus]
    warn_about_bleu(references, resolve_languages(runs, source, target)[1])
    systems = {}
    for run in runs:
        written = [made.text for made in load(run).translate(sources, beam=beam, alignments=False)]
        systems[str(run)] = bleu_by_length(sources, written, references)
        for group in systems[str(run)]:
            typer.echo(f"{run}  {group.words} words: {group.bleu:.1f} ({group.pairs:,} pairs)")
    plot.write_figure(plot.plot_bleu_by_length(systems), out)
    typer.echo(str(out))
