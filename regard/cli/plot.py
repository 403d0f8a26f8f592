"""`regard plot`: draw attention heat maps, decoding steps and BLEU by length."""

from __future__ import annotations

from pathlib import Path

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
from regard.errors import UserError
from regard.special_tokens import EOS, SPECIAL_TOKENS


@describe_options
def plot(
    what: list[str],
    out: Path = Path("attention.png"),
    heads: bool = False,
    steps: bool = False,
    by_length: bool = False,
    source: str | None = None,
    target: str | None = None,
    beam: int = 5,
    tokenize: str | None = None,
    device: InferenceDevice = "auto",
) -> None:
    """Translate a sentence and draw the attention of the model.

    Example: regard plot runs/demo "The old teacher gives the child a book ." --out picture.png
    """
    from regard.plot import heatmap
    from regard.translate import load
    from regard.translate.inspection import compute_attention_by_head, trace_decoding

    if heads + steps + by_length > 1:
        raise UserError("use only one of --heads, --steps and --by-length")
    if by_length:
        _plot_bleu_by_length([Path(name) for name in what], out, beam, source, target, tokenize, device)
        return
    if source or target or tokenize:
        raise UserError("--source, --target and --tokenize are for a test set and need --by-length")
    if len(what) != 2:
        raise UserError(f"give a run and a sentence in quotes, not {len(what)} arguments")
    run, sentence = what
    is_animation = out.suffix.lower() == ".gif"
    if is_animation and (heads or steps):
        raise UserError("a .gif animates a single attention; --heads and --steps need another format, such as .png")
    translator = load(run, device=choose_device_of_option(device))
    translation = translator.translate([sentence], beam=beam)[0]
    if not translation.tokens:
        raise UserError("the sentence is empty; there is nothing to translate")
    if translation.attention is None and not is_animation:
        raise UserError(f"{run} has no attention to draw")
    has_segments = translation.source_tokens.count(SPECIAL_TOKENS[EOS]) > 1
    if (is_animation or heads) and has_segments:
        raise UserError("this text is translated in several segments; a .gif and --heads show one sentence")
    source_ids, target_ids = translator.encode_pair(translation.source, translation.text)
    if is_animation:
        steps_of_decoding = trace_decoding(translator, source_ids, target_ids)
        heatmap.write_decoding_animation(steps_of_decoding, translation.source_tokens, out)
    elif heads:
        attentions = compute_attention_by_head(translator, source_ids, target_ids)
        if not attentions:
            raise UserError("this model has a single attention; leave out --heads")
        target_tokens = translator.tokenizers.target.convert_ids_to_tokens(target_ids)
        heatmap.write_figure(heatmap.plot_heatmaps(attentions, translation.source_tokens, target_tokens), out)
    elif translation.attention is not None:
        words = translation.source_tokens, translation.tokens
        if steps:
            figure = heatmap.plot_decoding_steps(translation.attention, *words)
        else:
            is_traceable = len(translator.models) == 1 and not has_segments
            traced = trace_decoding(translator, source_ids, target_ids) if is_traceable else []
            figure = heatmap.plot_heatmap(translation.attention, *words, steps=traced)
        heatmap.write_figure(figure, out)
    typer.echo(translation.text)
    typer.echo(str(out))


def _plot_bleu_by_length(
    paths: list[Path],
    out: Path,
    beam: int,
    source: str | None,
    target: str | None,
    tokenize: str | None,
    device: InferenceDevice,
) -> None:
    """Draw the BLEU of each run on a test set, by source length."""
    from regard.evaluate.translation_metrics import bleu, bleu_by_length
    from regard.plot import charts
    from regard.plot.heatmap import write_figure
    from regard.translate import load

    runs, files = split_runs(paths)
    corpus = load_pairs(runs, files, source, target)
    sources, references = [pair.source for pair in corpus], [pair.target for pair in corpus]
    tokenizer = resolve_tokenizer(runs, tokenize, references, resolve_languages(runs, source, target)[1])
    systems, torch_device = {}, choose_device_of_option(device)
    for run in runs:
        translations = load(run, device=torch_device).translate(sources, beam=beam, alignments=False)
        hypotheses = [translation.text for translation in translations]
        systems[str(run)] = bleu_by_length(sources, hypotheses, references, tokenize=tokenizer)
        score = bleu(hypotheses, references, tokenize=tokenizer)
        for group in systems[str(run)]:
            typer.echo(f"{run}  {group.words} words: {group.bleu:.1f} ({group.pairs:,} pairs)")
        typer.echo(f"{run}  BLEU {score.value:.2f}  {score.signature}")
    write_figure(charts.plot_bleu_by_length(systems), out)
    typer.echo(str(out))
