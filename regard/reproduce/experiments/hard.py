"""Hard, soft and marginal: one place, all places weighed, or all places one at a time."""

from __future__ import annotations

from typing import Any

from regard.reproduce.experiment import Bars, Claim, Experiment, Row
from regard.reproduce.measures import translation
from regard.reproduce.scales import translator
from regard.reproduce.verdict import less, more

CORPUS = {"small": "simple", "full": "multi30k"}
PUBLISHED = {
    "soft": {"perplexity": 7.17, "bleu": 32.77, "entropy": 1.24},
    "marginal": {"perplexity": 6.34, "bleu": 33.29, "entropy": 0.82},
    "hard, soft baseline": {"perplexity": 7.38, "bleu": 31.00, "entropy": 0.07},
}
MARGINAL = {"model.estimator": "marginal", "model.decode": "marginal"}


def rows(scale: str) -> list[Row]:
    """One decoder, four ways to look."""
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "soft": ("xu2015-soft", {"model.doubly_stochastic": 0.0}),
        "soft, doubly stochastic": ("xu2015-soft", {}),
        "hard, moving baseline": ("xu2015-hard", {}),
        "hard, soft baseline": ("xu2015-hard", {"model.estimator": "soft-baseline"}),
        "marginal": ("xu2015-hard", MARGINAL),
    }
    return [
        Row(name, [translator(recipe, CORPUS[scale], changes)], {}, PUBLISHED.get(name, {}))
        for name, (recipe, changes) in ways.items()
    ]


HARD = Experiment(
    name="hard",
    title="Hard, soft, marginal",
    source="Deng et al. 2018, table 1 (IWSLT'14 German–English): soft, exact marginal, and hard attention by samples "
    "with the soft model as baseline. Xu et al. 2015, section 4, have the decoder and the moving baseline; in their "
    "captions hard attention is ahead of soft (BLEU-4 25.0 against 24.3 on COCO), against what Deng finds",
    about="Show, attend and tell's decoder over words. Entropy is that of the distribution that places are drawn from "
    "or weighed by.",
    rows=rows,
    measure=translation,
    columns=("perplexity", "bleu", "entropy", "aer"),
    claims=(
        Claim("the exact marginal has less perplexity than soft", less("perplexity", "marginal", than="soft")),
        Claim("the exact marginal has more BLEU than soft", more("bleu", "marginal", than="soft")),
        Claim("soft has more BLEU than hard with a soft baseline", more("bleu", "soft", than="hard, soft baseline")),
        Claim(
            "soft has less perplexity than hard with a soft baseline",
            less("perplexity", "soft", than="hard, soft baseline"),
        ),
        Claim("the marginal looks more sharply than soft (entropy)", less("entropy", "marginal", than="soft")),
        Claim(
            "hard with a soft baseline looks most sharply (entropy)",
            less("entropy", "hard, soft baseline", than="marginal"),
        ),
        Claim(
            "a soft baseline is better than a moving one (BLEU)",
            more("bleu", "hard, soft baseline", than="hard, moving baseline"),
            "ours",
        ),
    ),
    charts=(Bars("bleu", "BLEU"), Bars("perplexity", "perplexity"), Bars("entropy", "Entropy, nats")),
    minutes=5,
)
