"""Experiment: soft, hard and marginal attention (Deng 2018, table 1; Xu 2015)."""

from __future__ import annotations

from regard.reproduce.experiment import BarChart, Claim, Experiment, ExperimentRow
from regard.reproduce.metrics import measure_translation
from regard.reproduce.presets import make_translation_row
from regard.reproduce.significance import expect_higher, expect_lower

CORPUS = {"small": "simple", "full": "multi30k"}
SOFT = {"model.doubly_stochastic": 0.0}
SOFT_BASELINE = {"model.estimator": "soft-baseline"}
MARGINAL = {"model.estimator": "marginal", "model.decode": "marginal"}


def _build_hard_attention_rows(scale: str) -> list[ExperimentRow]:
    """Return one decoder with each kind of attention."""
    soft, hard, corpus = "xu2015-soft", "xu2015-hard", CORPUS[scale]
    return [
        make_translation_row("soft", soft, corpus, SOFT, perplexity=7.17, bleu=32.77, entropy=1.24),
        make_translation_row("soft, doubly stochastic", soft, corpus),
        make_translation_row("hard, moving baseline", hard, corpus),
        make_translation_row(
            "hard, soft baseline", hard, corpus, SOFT_BASELINE, perplexity=7.38, bleu=31.00, entropy=0.07
        ),
        make_translation_row("marginal", hard, corpus, MARGINAL, perplexity=6.34, bleu=33.29, entropy=0.82),
    ]


HARD_ATTENTION = Experiment(
    name="hard",
    title="Hard, soft, marginal",
    source="Deng et al. 2018, table 1 (IWSLT'14 German–English): soft, exact marginal, and hard attention by samples "
    "with the soft model as baseline. Xu et al. 2015, section 4, have the decoder and the moving baseline; in their "
    "captions hard attention is ahead of soft (BLEU-4 25.0 against 24.3 on COCO), against what Deng finds",
    description="Show, attend and tell's decoder over words. Entropy is that of the distribution from which positions "
    "are sampled or by which they are weighted.",
    rows=_build_hard_attention_rows,
    measure=measure_translation,
    columns=("perplexity", "bleu", "entropy", "aer"),
    claims=(
        Claim("the exact marginal has less perplexity than soft", expect_lower("perplexity", "marginal", than="soft")),
        Claim("the exact marginal has more BLEU than soft", expect_higher("bleu", "marginal", than="soft")),
        Claim(
            "soft has more BLEU than hard with a soft baseline",
            expect_higher("bleu", "soft", than="hard, soft baseline"),
        ),
        Claim(
            "soft has less perplexity than hard with a soft baseline",
            expect_lower("perplexity", "soft", than="hard, soft baseline"),
        ),
        Claim("marginal attention is sharper than soft (entropy)", expect_lower("entropy", "marginal", than="soft")),
        Claim(
            "hard with a soft baseline is sharpest (entropy)",
            expect_lower("entropy", "hard, soft baseline", than="marginal"),
        ),
        Claim(
            "a soft baseline is better than a moving one (BLEU)",
            expect_higher("bleu", "hard, soft baseline", than="hard, moving baseline"),
            "ours",
        ),
    ),
    charts=(BarChart("bleu", "BLEU"), BarChart("perplexity", "perplexity"), BarChart("entropy", "Entropy, nats")),
    cpu_minutes=5,
)
