"""Beam search over a batch against one sentence at a time, and memory over many lines.

    python -m benchmarks.beam_search

One sentence at a time is measured twice: by a plain loop, which steps one hypothesis after the other, and by the search
itself, which steps the whole beam. All search the same model with a beam of 5. A step reads every weight once, whether
it has one row or a hundred: up to where arithmetic takes longer than reading, a batch takes as long as one sentence.
Speeds are medians over rounds in which the three run in turns.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.timing import measure_in_turns
from regard.data.readers.dispatch import read_all_pairs
from regard.models.hypothesis import Scorer
from regard.recipes.recipe import read_recipe
from regard.search import Hypothesis, search
from regard.special_tokens import BOS, EOS, PAD
from regard.synthetic.corpora import CORPUS_WORDS, SyntheticCorpus
from regard.synthetic.translation import write_translation_corpus
from regard.training import train
from regard.translate import Translator, load

RECIPES = ("vaswani2017-base", "bahdanau2015", "luong2015-local-p")
BEAM, SENTENCES, ROUNDS = 5, 64, 3
LINES = (1_000, 100_000)


def main() -> None:
    """Print a table of speeds, then one of memory."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        write_translation_corpus(corpus, 2000)
        test = read_all_pairs([corpus / "test.en", corpus / "test.de"])
        print("sentences/s          plain loop  alone  batched   batched:loop  batched:alone")
        for recipe in RECIPES:
            translator = train_small_model(recipe, corpus, Path(folder) / recipe)
            loop, alone, batched = measure_decoding_speeds(translator, [pair.source for pair in test[:SENTENCES]])
            speeds = f"{loop:>10.1f} {alone:>6.1f} {batched:>8.1f}"
            print(f"{recipe:<20} {speeds} {batched / loop:>14.1f} {batched / alone:>14.1f}")
        measure_peak_memory(Path(folder) / RECIPES[0], corpus / "train.en", Path(folder))


def train_small_model(recipe: str, corpus: Path, out: Path) -> Translator:
    """Train a model of the demo's size long enough that it ends its sentences."""
    files = {name: [corpus / f"{name}.{side}" for side in ("en", "de")] for name in ("train", "dev")}
    quick = {"training.steps": 150, "training.validate_every": 150, "training.checkpoint_every": 150}
    overrides = SyntheticCorpus((), (), (), **CORPUS_WORDS["translation"]).select_overrides(read_recipe(recipe))
    train(recipe, files["train"], out, dev=files["dev"], **{**overrides, **quick})
    return load(out)


def measure_decoding_speeds(translator: Translator, texts: list[str]) -> list[float]:
    """Return the sentences per second of the plain loop, of the search one by one and in a batch, which must agree."""
    ids = [translator.tokenizers.source.encode(text) for text in texts]
    whole_batch = translator.make_batch(ids)

    def decode_by_loop() -> list[Hypothesis]:
        return [search_by_loop(translator, *translator.make_batch([sentence])) for sentence in ids]

    def decode_one_by_one() -> list[Hypothesis]:
        batches = [translator.make_batch([sentence]) for sentence in ids]
        return [search(translator.models[0], *batch, beam=BEAM)[0][0] for batch in batches]

    def decode_batched() -> list[Hypothesis]:
        return [hypotheses[0] for hypotheses in search(translator.models[0], *whole_batch, beam=BEAM)]

    agree = sum(left.tokens == right.tokens for left, right in zip(decode_by_loop(), decode_batched(), strict=True))
    assert agree >= 0.95 * len(texts), f"only {agree} of {len(texts)} translations agree"
    runs = {"loop": decode_by_loop, "one by one": decode_one_by_one, "batched": decode_batched}
    return [len(texts) / statistics.median(times) for times in measure_in_turns(runs, ROUNDS, warmup=0).values()]


@torch.inference_mode()
def search_by_loop(translator: Translator, source: torch.Tensor, lengths: torch.Tensor) -> Hypothesis:
    """Return the best hypothesis of a sentence by a plain beam search, which steps one hypothesis at a time."""
    model, scorer = translator.models[0], Scorer()
    start = model.decoder.start(model.encode(source, lengths))
    open_ = [(0.0, [BOS], start)]
    ended: list[Hypothesis] = []
    limit = 2 * int(lengths[0]) + 10
    for _ in range(limit):
        grown = []
        for log_prob, tokens, state in open_:
            log_probs, after, _ = model.decoder.step(state, torch.tensor([tokens[-1]]))
            log_probs[:, [PAD, BOS]] = -torch.inf
            top, ids = log_probs[0].topk(BEAM)
            grown += [(log_prob + float(p), [*tokens, int(id)], after) for p, id in zip(top, ids, strict=True)]
        grown.sort(key=lambda item: -item[0])
        best = grown[: BEAM - len(ended)]
        ended += [scorer.score(tokens[1:], log_prob, None) for log_prob, tokens, _ in best if tokens[-1] == EOS]
        open_ = [item for item in best if item[1][-1] != EOS]
        bound = max((scorer.upper_bound(log_prob, limit) for log_prob, _, _ in open_), default=-torch.inf)
        if not open_ or (ended and max(hypothesis.score for hypothesis in ended) >= bound):
            break
    ended = ended or [scorer.score(tokens[1:], log_prob, None) for log_prob, tokens, _ in open_]
    return max(ended, key=lambda hypothesis: hypothesis.score)


def measure_peak_memory(run: Path, text: Path, folder: Path) -> None:
    """Print the peak memory of `regard translate` over files of different lengths."""
    lines = text.read_text(encoding="utf-8").splitlines()
    peaks = []
    print("lines     peak memory of regard translate, MB")
    for count in LINES:
        file = folder / f"{count}.en"
        file.write_text("".join(lines[number % len(lines)] + "\n" for number in range(count)), encoding="utf-8")
        program = (
            "import resource, sys; from regard.cli import main\n"
            "try: main()\n"
            "finally: sys.stderr.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))"
        )
        command = [sys.executable, "-c", program, "translate", str(run), str(file), "--beam", "1"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
        peaks.append(int(done.stderr.split()[-1]) / (1 << 20 if sys.platform == "darwin" else 1 << 10))
        print(f"{count:<9,} {peaks[-1]:.0f}")
    print(f"ratio {peaks[-1] / peaks[0]:.3f}")


if __name__ == "__main__":
    main()
