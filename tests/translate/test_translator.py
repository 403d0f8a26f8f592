"""The Python interface `regard.load(run).translate(…)`: search options, alignments, constraints and errors."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.combinations import slow_after
from support.training import TINY, corpus_files, train_tiny

import regard
from regard.data.readers.dispatch import read_all_pairs
from regard.errors import UserError
from regard.evaluate.alignment_error_rate import aer, read_gold_alignments
from regard.models.base import AlignmentHead
from regard.runs import Run
from regard.special_tokens import SPECIAL_TOKENS
from regard.tokenizers.words import WordTokenizer
from regard.training import train
from regard.translate import Translator, load
from regard.translate.evaluation import evaluate_translator
from regard.translate.inspection import rank_alignment_heads
from regard.translate.options import ForbiddenWords, compile_forbidden, replace_unknown
from regard.translate.translator import STREAM_CHUNK_SIZE, stream_words

ONE_STEP = {"training.steps": 1}


@pytest.fixture(scope="module")
def translator(run: Run) -> Translator:
    loaded: Translator = regard.load(run.folder)
    return loaded


@pytest.fixture(scope="module")
def sources(corpus: Path) -> list[str]:
    return [pair.source for pair in read_all_pairs(corpus_files(corpus, "test"))]


def test_translations_keep_input_order_and_empty_lines(translator: Translator, sources: list[str]) -> None:
    texts = [sources[0], "", sources[1], "   ", *sources[2:8]]
    together = translator.translate(texts)
    assert [made.source for made in together] == texts
    assert (together[1].text, together[3].text) == ("", "   ")
    for text, made in zip(texts, together, strict=True):
        if text.strip():
            alone = translator.translate([text])[0]
            assert alone.text == made.text
            assert alone.score == pytest.approx(made.score, rel=1e-4)


def test_translation_has_attention_and_word_alignment(translator: Translator, sources: list[str]) -> None:
    for made in translator.translate(sources[:10]):
        assert made.attention is not None
        assert made.attention.shape == (len(made.tokens), len(made.source_tokens))
        np.testing.assert_allclose(made.attention.sum(1), 1, atol=1e-4)
        assert made.source_tokens[-1] == "</s>"
        alignment = made.alignment
        assert alignment is not None
        assert alignment.source == made.source.split()
        assert alignment.target == made.text.split()
        assert alignment.soft.shape == (len(alignment.target), len(alignment.source))
        assert (alignment.soft.sum(1) <= 1 + 1e-4).all()
        for target, row in enumerate(alignment.soft):
            if row.max() > 0:
                assert (int(row.argmax()), target) in alignment.pairs


DOMAIN_TEXTS = [f"the {word} sleeps" for word in ("dog", "cat", "cow", "horse", "mouse", "bird", "fish", "lion")]


@pytest.fixture(scope="module")
def domain_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train on a corpus whose targets end in "." and one, tagged "loud", whose targets end in "!"; read-only."""
    folder = tmp_path_factory.mktemp("domains")
    for name, end in (("plain.tsv", "."), ("loud.tsv", "!")):
        lines = (f"{text} {'again' * (n % 2)}\t{text} {end}\n" for text in DOMAIN_TEXTS for n in range(4))
        (folder / name).write_text("".join(lines), encoding="utf-8")
    changes = {
        **TINY,
        "training.steps": 80,
        "training.validate_every": 80,
        "training.schedule": "constant",
        "training.learning_rate": 0.02,
        "data.tags": [None, "loud"],
        "model.initialisation": "torch",
    }
    return train("bahdanau2015", [folder / "plain.tsv", folder / "loud.tsv"], folder / "run", **changes)


def test_alignment_can_use_attention_of_the_next_decoding_step(domain_run: Run) -> None:
    translator, other = load(domain_run.folder), load(domain_run.folder)
    other.models[0].decoder.alignment_head = AlignmentHead(shifted=True)
    for before, made in zip(*(each.translate(DOMAIN_TEXTS, beam=1) for each in (translator, other)), strict=True):
        assert made.text == before.text != ""
        assert made.ended
        assert made.attention is not None
        assert before.attention is not None
        assert made.alignment is not None
        np.testing.assert_allclose(made.attention[:-1], before.attention[1:], atol=1e-6)
        np.testing.assert_allclose(made.attention[-1], before.attention[-1], atol=1e-6)
        weights = np.array([word.weights for word in stream_words(other, made.source) if word.text], dtype=np.float32)
        np.testing.assert_allclose(weights, made.alignment.soft, atol=1e-5)
    pair = (DOMAIN_TEXTS[0], DOMAIN_TEXTS[1])
    plain, after = (each.score_pairs([pair])[0].hypothesis.attention for each in (translator, other))
    assert plain is not None
    assert after is not None
    np.testing.assert_allclose(after[:-1], plain[1:], atol=1e-6)


def test_n_best_alternatives_are_sorted_by_score(translator: Translator, sources: list[str]) -> None:
    made = translator.translate(sources[:3], beam=4, n_best=3)
    for translation in made:
        scores = [translation.score, *(other.score for other in translation.alternatives)]
        assert 1 <= len(scores) <= 3
        assert scores == sorted(scores, reverse=True)
    assert any(translation.alternatives for translation in made)


def test_alignments_can_be_switched_off(translator: Translator, sources: list[str]) -> None:
    assert translator.translate(sources[:2], alignments=False)[0].alignment is None


def test_single_string_instead_of_a_list_is_a_type_error(translator: Translator) -> None:
    with pytest.raises(TypeError, match=r"a text to translate is a str, not bytes: b'x'"):
        translator.translate(["a", b"x"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="list of texts"):
        translator.translate("one text")


def test_out_of_vocabulary_words_become_unknown_tokens(translator: Translator) -> None:
    made = translator.translate(["Zyxw 漢字 \x00 🙂 ."])[0]
    assert made.source_tokens == ["<unk>", "<unk>", "<unk>", "<unk>", "<unk>", "␣.", "</s>"]
    assert made.tokens


def test_alignments_of_given_pairs_agree_with_assessed_aer_and_perplexity(translator: Translator, corpus: Path) -> None:
    test = read_all_pairs(corpus_files(corpus, "test"))
    gold = read_gold_alignments(corpus / "test.align", test)
    found = [alignment.pairs for alignment in translator.align(test) if alignment is not None]
    assert len(found) == len(test)
    for (source, target), links in zip(test, found, strict=True):
        assert {link[1] for link in links} <= set(range(len(target.split())))
        assert {link[0] for link in links} <= set(range(len(source.split())))
    result = evaluate_translator(translator, test, gold, beam=1)
    expected = aer([set(links) for links in found], [links.sure for links in gold], [links.possible for links in gold])
    assert result.alignment is not None
    assert result.alignment.aer == pytest.approx(expected)
    assert 0 < result.alignment.aer < 1
    log_probs = [log_prob for judged in translator.score_pairs(test) for log_prob in judged.log_probs]
    assert result.perplexity == pytest.approx(math.exp(-np.mean(log_probs)))
    assert 0 <= result.accuracy <= 1
    assert sum(group.pairs for group in result.scores.by_length) == len(test)
    assert len(result.translations) == len(test)


def test_ensemble_needs_identical_vocabularies(run: Run, corpus: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(run.folder, twin)
    text = ["The dog sleeps ."]
    one, two = load(run.folder).translate(text), load(run.folder, twin).translate(text)
    assert one[0].text == two[0].text
    assert one[0].score == pytest.approx(two[0].score, rel=1e-4)
    other = train_tiny("bahdanau2015", corpus, tmp_path / "other", **{"text.vocabulary": 99, **ONE_STEP})
    with pytest.raises(UserError, match="different vocabularies"):
        load(run.folder, other.folder)


@pytest.mark.parametrize("kind", slow_after(1, ["bpe", "unigram", "char"]))
def test_subword_attention_is_merged_into_word_alignment(kind: str, corpus: Path, tmp_path: Path) -> None:
    size = {"bpe": 500, "unigram": 500, "char": 200}[kind]
    settings = {"text.kind": kind, "text.vocabulary": size, "training.steps": 2, "text.shared": True}
    run = train_tiny("bahdanau2015", corpus, tmp_path / "run", **settings)
    for made in load(run.folder).translate(["The old dog sleeps .", "A café ☕ ."]):
        assert made.alignment is not None
        assert made.alignment.target == made.text.split()
        assert made.alignment.soft.shape == (len(made.text.split()), len(made.source.split()))


@pytest.fixture(scope="module")
def python_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train a Transformer with two heads by `regard.train`, with two heatmaps in its report; read-only."""
    data, dev = corpus_files(corpus, "train"), corpus_files(corpus, "dev")
    folder, changes = tmp_path_factory.mktemp("python") / "run", {**TINY, "model.heads": 2, "training.steps": 5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.report.html.SAMPLES", 2)
        made: Run = regard.train("default", data, folder, dev=dev, **changes)
    return made


def test_training_from_python_writes_a_report(python_run: Run) -> None:
    assert "<h2>Attention</h2>" in (python_run.folder / "report.html").read_text(encoding="utf-8")
    assert Path(python_run.read_config()["data"]["train"][0]).is_absolute()


def test_training_selects_the_best_alignment_head(python_run: Run, corpus: Path, tmp_path: Path) -> None:
    ranked = rank_alignment_heads(load(python_run.folder), read_all_pairs(corpus_files(corpus, "dev")))
    costs = {one.alignment_head: one.cost for one in ranked}
    assert len(costs) == 2 * 3 * python_run.read_config()["model"]["layers"]
    assert python_run.read_config()["model"]["align_layer"] == "auto", "resumed training must choose a head again"
    assert costs[load(python_run.folder).models[0].decoder.alignment_head] == min(costs.values())
    damaged = shutil.copytree(python_run.folder, tmp_path / "damaged")
    for damage in ("{", "[]", '{"layer": 9, "head": null, "after": false}', '{"layer": 0, "head": "1", "after": true}'):
        (damaged / "viewpoint.json").write_text(damage, encoding="utf-8")
        with pytest.raises(UserError, match=r"viewpoint\.json is damaged"):
            load(damaged)


def test_ensemble_attention_ignores_members_without_attention(corpus: Path, tmp_path: Path) -> None:
    runs = [train_tiny(name, corpus, tmp_path / name, **ONE_STEP) for name in ("sutskever2014", "bahdanau2015")]
    attentions = []
    for order in (runs, runs[::-1]):
        translator = load(*(run.folder for run in order))
        attentive = next(model for model in translator.models if "a_t" in model.decoder.computation_order)
        attentive.decoder.alignment_head = AlignmentHead(shifted=True)
        attentions.append(translator.score_pairs([("The dog sleeps .", "Der Hund .")])[0].hypothesis.attention)
    assert attentions[0] is not None
    assert attentions[1] is not None
    np.testing.assert_allclose(attentions[0], attentions[1], atol=1e-6)


def test_loading_an_incomplete_run_is_an_error(tmp_path: Path, run: Run) -> None:
    with pytest.raises(UserError, match="is not a run"):
        load(tmp_path)
    incomplete = tmp_path / "incomplete"
    shutil.copytree(run.folder, incomplete)
    shutil.rmtree(incomplete / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint yet"):
        load(incomplete)
    shutil.rmtree(incomplete / "tokenizer")
    with pytest.raises(UserError, match="no vocabulary"):
        load(incomplete)


@pytest.fixture(scope="module")
def subword_translator(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    settings = {"text.kind": "bpe", "text.vocabulary": 400, "text.shared": True, "training.steps": 12}
    return load(train_tiny("bahdanau2015", corpus, tmp_path_factory.mktemp("subwords") / "run", **settings).folder)


@pytest.fixture(params=["translator", "subword_translator"], ids=["words", "subwords"])
def any_translator(request: pytest.FixtureRequest) -> Translator:
    """Provide the translator of a word vocabulary, then the one of a shared BPE vocabulary."""
    found: Translator = request.getfixturevalue(request.param)
    return found


def test_lone_surrogate_is_a_user_error(any_translator: Translator) -> None:
    with pytest.raises(UserError, match=r"'a \\ud800 dog' has half a character \('\\ud800' at position 2\)"):
        any_translator.translate(["a dog", "a \ud800 dog"])
    for options in ({"prefix": "\ud800"}, {"force": ["\ud800"]}, {"glossary": {"dog": "\ud800"}}):
        with pytest.raises(UserError, match=r"ud800"):
            any_translator.translate(["a dog"], **options)


def test_white_space_and_line_breaks_are_kept(any_translator: Translator, sources: list[str]) -> None:
    text = f"  {sources[0]}\n\n\t{sources[1]} \r\n{sources[2]}\n"
    made = any_translator.translate([text])[0]
    alone = [one.text for one in any_translator.translate(sources[:3])]
    assert made.text == f"  {alone[0]}\n\n\t{alone[1]} \r\n{alone[2]}\n"
    assert made.source == text
    assert made.alignment is not None
    assert made.alignment.source == text.split()
    assert made.alignment.target == made.text.split()


def test_text_longer_than_training_data_is_split_into_sentences(any_translator: Translator, sources: list[str]) -> None:
    assert any_translator.max_source_tokens is not None
    long = " ".join(sources[:40])
    assert len(any_translator.tokenizers.source.encode(long)) > any_translator.max_source_tokens
    made = any_translator.translate([long])[0]
    assert made.source_tokens.count("</s>") > 1
    ids = any_translator.tokenizers.source.encode(long)
    assert [
        token for token in made.source_tokens if token != "</s>"
    ] == any_translator.tokenizers.source.convert_ids_to_tokens(ids)
    assert made.alignment is not None
    assert made.alignment.source == long.split()
    unlimited = Translator(any_translator.models, any_translator.tokenizers, any_translator.device)
    assert unlimited.translate([long], max_length=5)[0].source_tokens.count("</s>") == 1


def test_two_sentences_are_translated_separately(any_translator: Translator, sources: list[str]) -> None:
    pair = sorted(sources, key=len)[:2]
    assert any_translator.fits_in_one_segment(" ".join(pair))
    alone = [made.text for made in any_translator.translate(pair)]
    assert any_translator.translate([" ".join(pair)])[0].text == " ".join(alone)


def test_stream_reads_one_batch_ahead(translator: Translator, sources: list[str]) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield sources[read % 7]

    stream = translator.stream(endless(), beam=1)
    first = [next(stream).text for _ in range(5)]
    assert read == STREAM_CHUNK_SIZE
    assert first == [made.text for made in translator.translate([sources[n % 7] for n in range(1, 6)], beam=1)]


def test_translation_starts_with_the_prefix(any_translator: Translator, sources: list[str]) -> None:
    for made in any_translator.translate(sources[:4], prefix="Der alte"):
        assert made.text.startswith("Der alte")
    with pytest.raises(UserError, match="leaves no room for EOS within max_length 2"):
        any_translator.translate(sources[:1], prefix="Der alte Hund", max_length=2)


def test_forced_words_occur_as_whole_words(any_translator: Translator, sources: list[str]) -> None:
    for made in any_translator.translate(sources[:6], force=["Hund", "die Frau"]):
        assert "Hund" in made.text.replace(".", " ").replace(",", " ").split()
        assert "die Frau" in made.text
    with pytest.raises(UserError, match="'' cannot be forced"):
        any_translator.translate(sources[:1], force=[""])


def test_forced_word_outside_the_vocabulary_is_an_error(translator: Translator, sources: list[str]) -> None:
    with pytest.raises(UserError, match="'Xylophon' cannot be forced: the vocabulary cannot spell it"):
        translator.translate(sources[:1], force=["Xylophon"])


def test_forbidden_words_do_not_occur(any_translator: Translator, sources: list[str]) -> None:
    def sample_words(forbid: list[str]) -> set[str]:
        drawn = any_translator.translate(sources[:3], sample=True, n_best=30, forbid=forbid, max_length=12)
        ended = [one for made in drawn for one in (made, *made.alternatives) if one.tokens[-1] == "</s>"]
        return {word.strip(".,!?").casefold() for one in ended for word in one.text.split()}

    forbidden = sorted(word for word in sample_words([]) if len(word) > 1 and word.isalpha())[::2]
    assert len(forbidden) > 5
    rest = sample_words([word.upper() for word in forbidden])
    assert rest
    assert not rest & set(forbidden)


def test_forbidden_phrases_do_not_occur_in_any_case(translator: Translator, sources: list[str]) -> None:
    def sample_phrases(forbid: list[str]) -> set[tuple[str, str]]:
        drawn = translator.translate(sources[:3], sample=True, n_best=30, forbid=forbid, max_length=12)
        words = [one.text.casefold().split() for made in drawn for one in (made, *made.alternatives)]
        return {pair for line in words for pair in pairwise(line) if all(map(str.isalpha, pair))}

    forbidden = sorted(sample_phrases([]))[::2]
    assert len(forbidden) > 5
    rest = sample_phrases([" ".join(pair).upper() for pair in forbidden])
    assert rest
    assert not rest & set(forbidden)


def test_long_forbidden_phrase_takes_no_exponential_memory() -> None:
    words = [f"word{number}" for number in range(40)]
    tokenizer = WordTokenizer([*SPECIAL_TOKENS, *words, *map(str.title, words), *map(str.upper, words)])
    found, (rule,) = compile_forbidden(tokenizer, [" ".join(words)])
    assert found == [tuple(tokenizer.encode(" ".join(words)))]
    written = torch.tensor([tokenizer.encode(" ".join(words[:39]).title()), tokenizer.encode(" ".join(words[1:40]))])
    log_probs = torch.zeros(2, tokenizer.vocab_size)
    rule(log_probs, written, torch.tensor([0, 1]))
    assert [row.nonzero().flatten().tolist() for row in log_probs] == [[4 + 39, 44 + 39, 84 + 39], []]


def test_forbidden_word_does_not_match_inside_longer_words(subword_translator: Translator) -> None:
    rule = ForbiddenWords(subword_translator.tokenizers.target, ["Hund", "der Frau"])
    encode = subword_translator.tokenizers.target.encode
    assert rule.ends_in_forbidden(encode("Ein Hund"))
    assert rule.ends_in_forbidden(encode("Ein hund."))
    assert rule.ends_in_forbidden(encode("mit der Frau"))
    assert not rule.ends_in_forbidden(encode("Ein Hunde"))
    assert not rule.ends_in_forbidden(encode("die Frau"))


def test_glossary_applies_where_its_term_occurs(any_translator: Translator) -> None:
    texts = ["The dog sleeps .", "The dogs sleep .", "The big dog sleeps ."]
    made = any_translator.translate(texts, glossary={"dog": "Katze", "big dog": "Frau"})
    assert ["Katze" in one.text for one in made] == [True, False, False]
    assert "Frau" in made[2].text


def test_samples_differ_and_depend_on_the_seed_alone(translator: Translator, sources: list[str]) -> None:
    drawn = translator.translate(sources[:2], sample=True, n_best=6, seed=4)
    again = translator.translate(sources[1:2], sample=True, n_best=6, seed=4)[0]
    texts = [[one.text, *(other.text for other in one.alternatives)] for one in drawn]
    assert all(len(some) == 6 for some in texts)
    assert len(set(texts[0])) > 1
    assert [again.text, *(other.text for other in again.alternatives)] == texts[1]
    for more in ({"force": ["Hund"]}, {"length_penalty": 1.0}, {"glossary": {"a": "b"}}):
        with pytest.raises(UserError, match="cannot be combined with sample"):
            translator.translate(sources[:1], sample=True, **more)
    with pytest.raises(UserError, match="temperature needs sample"):
        translator.translate(sources[:1], temperature=0.5)


def test_unknown_words_are_replaced_by_their_aligned_source_word(translator: Translator) -> None:
    text = "The Zyxw sees Qwert ."
    plain = translator.translate([text], prefix="Der <unk> sieht <unk>")[0]
    assert plain.alignment is not None
    aligned = {target: source for source, target in plain.alignment.pairs}
    expected = [text.split()[aligned[position]] for position in (1, 3)]
    made = translator.translate([text], prefix="Der <unk> sieht <unk>", replace_unknown=True)[0]
    assert made.text.split()[1] == expected[0]
    other = translator.translate(
        [text], prefix="Der <unk> sieht <unk>", replace_unknown=True, dictionary={expected[0]: "Alte Mann"}
    )[0]
    assert other.text.startswith("Der Alte Mann sieht")
    assert other.alignment is not None
    assert other.alignment.target[1:3] == ["Alte", "Mann"]
    assert other.alignment.target == other.text.split()
    assert other.alignment.soft.shape[0] == len(other.alignment.target)


def test_unknown_tokens_are_filled_in_order() -> None:
    assert replace_unknown(["a <unk> b <unk>", "<unk>"], ["x", "y", "z"]) == ["a x b y", "z"]
    assert replace_unknown(["<unk> <unk>"], ["x"]) == ["x <unk>"]


def test_unknown_option_and_n_best_above_beam_are_errors(translator: Translator) -> None:
    with pytest.raises(TypeError, match="no_repeet"):
        translator.translate(["a"], no_repeet=3)
    with pytest.raises(UserError, match="n_best 7, beam 5"):
        translator.translate(["a"], n_best=7)


def test_forced_decoding_scores_equal_search_scores(translator: Translator, sources: list[str]) -> None:
    found = translator.translate(sources[:5], length_penalty=0.0)
    again = translator.score_pairs([(made.source, made.text) for made in found])
    spelled = [translator.tokenizers.target.convert_ids_to_tokens(judged.hypothesis.tokens) for judged in again]
    for left, right, tokens in zip(found, again, spelled, strict=True):
        if left.tokens == tokens:  # search may have found another segmentation of the same text
            assert right.hypothesis.score == pytest.approx(left.score, rel=1e-4)
    assert any(left.tokens == tokens for left, tokens in zip(found, spelled, strict=True))


def test_tags_and_placeholders_are_carried_over(any_translator: Translator) -> None:
    texts = ["The <b>old dog</b> sleeps .", "{name} sees %d dogs .", "No tags & nothing .", ""]
    made = any_translator.translate(texts, tags=True, n_best=2)
    plain = any_translator.translate(["The old dog sleeps .", "sees dogs .", texts[2]], n_best=2)
    assert [one.source for one in made] == texts
    for one, other in zip(made, plain, strict=False):
        for left, right in zip((one, *one.alternatives), (other, *other.alternatives), strict=True):
            bare = re.sub(r"</?b>|\{name\}|%d", "", left.text)
            assert "".join(bare.split()) == "".join(right.text.split())
    assert made[0].text.count("<b>") == made[0].text.count("</b>") == 1
    assert made[1].text.count("{name}") == made[1].text.count("%d") == 1
    assert made[3].text == ""


def test_urls_have_the_same_position_without_alignments(any_translator: Translator, sources: list[str]) -> None:
    texts = [source.replace(" ", f" https://example.org/{number} ", 1) for number, source in enumerate(sources[:20])]
    with_alignments, without = (any_translator.translate(texts, beam=2, alignments=value) for value in (True, False))
    assert [one.text for one in without] == [one.text for one in with_alignments]


def test_urls_and_mail_addresses_bypass_the_model(any_translator: Translator) -> None:
    texts = ["The old dog sees https://example.org/Hund .", "www.example.org, me@example.org\n", "The dog sleeps ."]
    plain = any_translator.translate(["The old dog sees .", "The dog sleeps ."], n_best=2)
    for alignments in (False, True):
        made = any_translator.translate(texts, n_best=2, alignments=alignments)
        assert [one.source for one in made] == texts
        assert made[1].text == texts[1]
        assert made[2].text == plain[1].text
        for left, right in zip((made[0], *made[0].alternatives), (plain[0], *plain[0].alternatives), strict=True):
            assert left.text.count("https://example.org/Hund") == 1
            assert left.text.replace("https://example.org/Hund", " ").split() == right.text.split()
            assert left.alignment is None or left.alignment.target == left.text.split()
    raw = any_translator.translate(texts[:1], addresses=False)[0]
    assert raw.source_tokens != made[0].source_tokens == plain[0].source_tokens


def test_model_without_attention_puts_tags_around_the_sentence(corpus: Path, tmp_path: Path) -> None:
    run = train_tiny("cho2014", corpus, tmp_path / "run", **ONE_STEP)
    plain, tagged = load(run.folder).translate(["The dog sleeps .", "The <b>dog</b> sleeps ."], tags=True)
    assert (plain.unaligned_tags, tagged.unaligned_tags) == (0, 1)
    assert tagged.text == f"<b>{plain.text}</b>"
    assert load(run.folder).translate(["The dog sleeps ."], tags=True)[0].text
    for tags in (False, True):
        assert "www.example.org" in load(run.folder).translate(["See www.example.org there ."], tags=tags)[0].text


def test_lowercase_model_has_lowercase_bleu(corpus: Path, tmp_path: Path) -> None:
    run = train_tiny("bahdanau2015", corpus, tmp_path / "run", **{"text.lowercase": True, **ONE_STEP})
    assert (
        "case:lc"
        in evaluate_translator(
            load(run.folder), read_all_pairs(corpus_files(corpus, "test")), None, beam=1
        ).scores.bleu.signature
    )


def test_length_limit_is_the_longest_training_sentence(translator: Translator, run: Run, corpus: Path) -> None:
    tokenizers = translator.tokenizers
    longest = max(
        len(tokenizer.encode(text))
        for pair in read_all_pairs(corpus_files(corpus, "train"))
        for tokenizer, text in zip(tokenizers, pair, strict=True)
    )
    assert translator.max_source_tokens == run.read_config()["data"]["longest"] == longest


def test_prefix_follows_leading_line_breaks(any_translator: Translator) -> None:
    made = any_translator.translate(["\n\nThe dog sleeps ."], prefix="Ein Hund")[0]
    assert made.text.startswith("\n\nEin Hund")


def test_prefix_outside_the_vocabulary_is_an_error(translator: Translator) -> None:
    with pytest.raises(UserError, match="the prefix 'Sehr Geehrtes' cannot be spelled"):
        translator.translate(["a"], prefix="Sehr Geehrtes")


def test_glossary_ignores_case_and_applies_to_each_occurrence(any_translator: Translator) -> None:
    made = any_translator.translate(["Dog and DOG .", "A hot-dog ."], glossary={"dog": "Katze"})
    assert made[0].text.count("Katze") == 2
    assert "Katze" not in made[1].text
    with pytest.raises(UserError, match="is both forced and forbidden"):
        any_translator.translate(["a"], glossary={"dog": "Katze"}, forbid=["katze"])


def test_punctuation_can_be_forbidden(any_translator: Translator, sources: list[str]) -> None:
    for one in any_translator.translate(sources[:5], forbid=["."], max_length=20):
        assert "." not in one.text
    with pytest.raises(UserError, match="empty word"):
        any_translator.translate(sources[:1], forbid=[" "])


def test_truncated_translation_is_reported_as_unfinished(any_translator: Translator, sources: list[str]) -> None:
    short, whole = (
        any_translator.translate([sources[0]], min_length=3, max_length=3)[0],
        any_translator.translate([""])[0],
    )
    assert short.ended == (short.tokens[-1] == "</s>")
    assert whole.ended
    cut = any_translator.translate([sources[0]], prefix="Der alte Hund", max_length=12, min_length=12)[0]
    assert cut.ended == (cut.tokens[-1] == "</s>")


OPTION_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"length_penalty": 1000.0}, "from -10 to 10, or 'average', not 1000.0"),
    ({"length_penalty": math.nan}, "not nan"),
    ({"length_penalty": "short"}, "not 'short'"),
    ({"coverage_penalty": -1.0}, "coverage_penalty must be at least 0, not -1.0"),
    ({"min_length": 20, "max_length": 5}, "min_length 20 is more than max_length 5"),
    ({"sample": True, "temperature": math.nan}, "temperature must be at least 0.001, not nan"),
    ({"sample": True, "n_best": 0}, "n_best must be at least 1, not 0"),
    ({"sample": True, "seed": -1}, "seed must be at least 0, not -1"),
    ({"no_repeat": 0}, "no_repeat must be at least 1, not 0"),
]


@pytest.mark.parametrize(("options", "message"), OPTION_ERRORS, ids=[message for _, message in OPTION_ERRORS])
def test_option_out_of_range_is_an_error(translator: Translator, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        translator.translate(["The dog sleeps ."], **options)


def test_string_instead_of_a_list_of_words_or_texts_is_an_error(translator: Translator) -> None:
    with pytest.raises(TypeError, match="force is a list of words"):
        translator.translate(["a"], force="Hund")
    with pytest.raises(TypeError, match="stream takes texts"):
        translator.stream("The dog")
    with pytest.raises(UserError, match="n_best 7, beam 5"):  # before the first text is read
        translator.stream(iter([]), n_best=7)


def test_replacing_unknown_words_needs_a_model_with_attention(corpus: Path, tmp_path: Path) -> None:
    run = train_tiny("sutskever2014", corpus, tmp_path / "run", **ONE_STEP)
    with pytest.raises(UserError, match="cannot replace <unk> by source words"):
        load(run.folder).translate(["The dog sleeps ."], replace_unknown=True)


def test_domain_selects_the_style_of_its_training_corpus(domain_run: Run) -> None:
    translator = load(domain_run.folder)
    plain, loud = translator.translate(DOMAIN_TEXTS), translator.translate(DOMAIN_TEXTS, domain="loud")
    assert {made.text[-1] for made in plain} == {"."}
    assert {made.text[-1] for made in loud} == {"!"}
    for made in loud:
        assert made.attention is not None
        assert made.attention.shape == (len(made.tokens), len(made.source_tokens)), "the domain tag is no source token"
        assert made.alignment is not None
    with pytest.raises(UserError, match="no tag 'quiet'; there are loud"):
        translator.translate(DOMAIN_TEXTS, domain="quiet")
