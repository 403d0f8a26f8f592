"""Demo of translation: BLEU, alignment error rate, a heat map, and translations with their alignments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.readers.dispatch import read_all_pairs
from regard.data.readers.text import Pair
from regard.demo.next_steps import format_next_steps
from regard.evaluate import LengthGroup, read_gold_alignments
from regard.plot import format_alignment_matrix
from regard.report import ReportSample, compute_head_attention, write_heatmap, write_translation_page
from regard.runs import Run
from regard.synthetic.corpus import SyntheticCorpus
from regard.translate import Translation, evaluate_translator, load, score_alignments

MAX_SAMPLES = 5
SAMPLE_LENGTHS = range(6, 13)  # long enough to show something, short enough for a screen


@dataclass(frozen=True)
class TranslationDemo:
    """A trained model's metrics, BLEU by sentence length, and sample translations."""

    run: Run
    metrics: dict[str, Any]
    by_length: Sequence[LengthGroup]
    samples: list[ReportSample]

    @classmethod
    def evaluate(cls, run: Run, corpus: SyntheticCorpus) -> TranslationDemo:
        """Translate and align the test set."""
        test = read_all_pairs(corpus.test)
        translator = load(run.folder)
        evaluation = evaluate_translator(translator, test, None)
        gold = read_gold_alignments(corpus.test[0].with_name("test.align"), test)
        has_attention = evaluation.translations[0].alignment is not None
        metrics = {
            "bleu": evaluation.bleu.value,
            "signature": evaluation.bleu.signature,
            "chrf": evaluation.chrf.value,
            "aer": score_alignments(translator.align(test), gold).aer if has_attention else None,
            "test_pairs": len(test),
        }
        samples = [
            ReportSample(translation, reference, compute_head_attention(translator, translation))
            for translation, reference in _choose_samples(evaluation.translations, test)
        ]
        return cls(run, metrics, evaluation.by_length, samples)

    def write_report(self, results: Mapping[str, Any]) -> None:
        """Write the heat map of the sample with the most reordering, and the report."""
        most_reordered = max((sample.translation for sample in self.samples), key=_count_crossing_links)
        write_heatmap(most_reordered, self.run.folder / "attention.png")
        write_translation_page(self.run, results, self.samples, self.by_length)

    def format(self, results: Mapping[str, Any]) -> str:
        """Format samples, metrics and suggested commands for the end of a demo."""
        folder = self.run.folder
        alignment_error = "none: this model has no attention" if results["aer"] is None else f"{results['aer']:.3f}"
        figures = [
            f"BLEU      {results['bleu']:.1f}  ({results['signature']})",
            f"AER       {alignment_error}  (against the gold alignments of {results['test_pairs']:,} held-out pairs)",
            f"heat map  {folder / 'attention.png'}",
            f"report    {folder / 'report.html'}",
        ]
        run, picture = shlex.quote(str(folder)), shlex.quote(str(folder / "picture.png"))
        commands = format_next_steps(
            f'{{regard}} plot {run} "The old teacher gives the child a book ." --out {picture}',
            f'echo "We can not see the dog ." | {{regard}} translate {run} --alignments pharaoh',
            "{regard} demo --recipe bahdanau2015 --out runs/bahdanau",
            f"{{regard}} serve {run}",
        )
        return "\n\n".join([*map(_format_translation_sample, self.samples), "\n".join(figures), commands])


def _choose_samples(translations: Sequence[Translation], test: Sequence[Pair]) -> list[tuple[Translation, str]]:
    """Return the first test sentences of a length that fits on a screen, with their references."""
    pairs = zip(translations, test, strict=True)
    return [(one, pair.target) for one, pair in pairs if len(pair.source.split()) in SAMPLE_LENGTHS][:MAX_SAMPLES]


def _count_crossing_links(translation: Translation) -> int:
    """Count crossing pairs of alignment links; the more reordering, the more the heat map shows."""
    links = translation.alignment.pairs if translation.alignment else []
    return sum(left[0] < right[0] and left[1] > right[1] for left in links for right in links)


def _format_translation_sample(sample: ReportSample) -> str:
    translation = sample.translation
    lines = [
        f"source       {translation.source}",
        f"reference    {sample.reference}",
        f"translation  {translation.text}",
    ]
    alignment = translation.alignment
    if alignment is not None:
        lines.append(format_alignment_matrix(alignment.soft, alignment.source, alignment.target))
    return "\n".join(lines)
