"""Properties of every translation model in every configuration, and the equations of the papers.

Each property is tested for every recipe, every option and a pairwise cover of the options that combine; the remaining
combinations are slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from support.combinations import covering_pairs, each_value
from torch import Tensor

from regard.errors import UserError
from regard.models import Seq2Seq, build
from regard.models.bahdanau2015 import BahdanauDecoder
from regard.models.base import AlignmentHead, Decoded, Encoded
from regard.models.cho2014 import ChoDecoder
from regard.models.luong2015 import LuongDecoder
from regard.models.sutskever2014 import SutskeverDecoder
from regard.models.xu2015 import XuDecoder
from regard.nn import hidden_state, prefix_mask
from regard.recipes.recipe import list_recipes, override, read_recipe
from regard.special_tokens import BOS, PAD

SOURCE, TARGET, SIZE = 11, 13, 8
LENGTHS = torch.tensor([6, 3, 1])
B, S, T = 3, 6, 5

TRANSLATION = [name for name in list_recipes() if read_recipe(name)["task"] == "translate"]
SCORES = ("dot", "general", "concat", "location")
CELLS = ("gru", "lstm", "elman")
ALIGNMENTS = ("global", "local-m", "local-p")
SOFT = ("bahdanau2015", "luong2015-global", "mino2017", "xu2015-soft")  # recurrent, with soft attention
WITHOUT_ATTENTION = ("sutskever2014", "cho2014")


class Variant(NamedTuple):
    """A recipe and what is overridden in its `model` section."""

    recipe: str
    overrides: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return " ".join([self.recipe, *(f"{key}={value}" for key, value in self.overrides)])

    @property
    def attends(self) -> bool:
        return self.recipe not in WITHOUT_ATTENTION

    @property
    def shares_memory(self) -> bool:
        return self.attends and self.recipe != "xu2015-hard"


def make_variant(recipe: str, **overrides: Any) -> Variant:
    return Variant(recipe, tuple(overrides.items()))


def _equal_sizes(recipe: str, score: str) -> dict[str, Any]:
    """Return what makes keys as wide as queries, where a dot product needs it."""
    if score != "dot":
        return {}
    return {"key_value": "separate"} if recipe == "mino2017" else {"bidirectional": False}


def _make_soft_variant(recipe: str, score: str, alignment: str, cell: str, **more: Any) -> Variant:
    layers = {"layers": 2} if recipe == "luong2015-global" else {}
    options = {"score": score, "alignment": alignment, "cell": cell, **_equal_sizes(recipe, score), **layers, **more}
    return make_variant(recipe, window=1, **options) if alignment != "global" else make_variant(recipe, **options)


def _make_hard_variant(method: tuple[str, str], score: tuple[str, str]) -> Variant:
    sizes = _equal_sizes("xu2015-hard", score[0])
    return make_variant("xu2015-hard", estimator=method[0], decode=method[1], score=score[0], cell=score[1], **sizes)


def _make_coverage_variant(recipe: str, coverage: str, alignment: str) -> Variant:
    layers = {"layers": 2} if recipe == "luong2015-global" else {}
    return make_variant(recipe, coverage=coverage, alignment=alignment, window=1, **layers)


def _variants(make: Callable[..., Variant], cases: Sequence[Any]) -> list[Any]:
    """Return the variant of each case as a `pytest.param` with the marks of the case."""
    return [pytest.param(make(*case.values), marks=case.marks) for case in cases]


ESTIMATORS = (
    ("reinforce", "argmax"),
    ("reinforce", "marginal"),
    ("soft-baseline", "argmax"),
    ("marginal", "argmax"),
    ("marginal", "marginal"),
)
HARD_SCORES = (("dot", "gru"), ("general", "lstm"), ("concat", "elman"), ("location", "gru"), ("concat", "lstm"))

COMBINED = [
    *_variants(_make_soft_variant, covering_pairs(SOFT, SCORES, ALIGNMENTS, CELLS)),
    *_variants(_make_hard_variant, each_value(ESTIMATORS, HARD_SCORES)),
    *_variants(_make_coverage_variant, covering_pairs(SOFT, ("linguistic", "neural"), ALIGNMENTS)),
    *_variants(lambda recipe, cell: make_variant(recipe, cell=cell, layers=2), each_value(WITHOUT_ATTENTION, CELLS)),
    *_variants(
        lambda kind, score: make_variant("mino2017", key_value=kind, score=score),
        each_value(("split", "separate"), ("concat", "general")),
    ),
    *_variants(
        lambda norm, heads: make_variant("vaswani2017-base", norm=norm, heads=heads, layers=2),
        each_value(("pre", "post"), (1, 4)),
    ),
]
SINGLE = [
    *(
        make_variant(name, **({"heads": 2, "layers": 2} if "heads" in read_recipe(name)["model"] else {}))
        for name in TRANSLATION
    ),
    *(make_variant(name, bidirectional=True, layers=1, cell="lstm") for name in WITHOUT_ATTENTION),
    make_variant("sutskever2014", tie=True, layers=1),
    make_variant("cho2014", tie=True, maxout=SIZE, embedding=SIZE),
    make_variant("luong2015-global", coverage="neural", score="dot"),
    make_variant("luong2015-global", coverage="linguistic", input_feeding=False),
    *(make_variant(name, layers=3, residual=True) for name in ("bahdanau2015", "luong2015-global", *WITHOUT_ATTENTION)),
    make_variant("bahdanau2015", layers=3),
    make_variant("bahdanau2015", readout="current"),
    make_variant("bahdanau2015", tie=True, maxout=SIZE),
    make_variant("bahdanau2015", embedding=5, attention=6, maxout=3),
    make_variant("bahdanau2015", reverse=True, initialisation="torch"),
    make_variant("luong2015-global", bidirectional=True, reverse=False, cell="lstm"),
    make_variant("luong2015-global", tie=True, layers=1),
    make_variant("luong2015-global", embedding=5),
    make_variant("xu2015-soft", gate=False, doubly_stochastic=0.0, layers=2, cell="gru", tie=True),
    *(make_variant(f"luong2015-{kind}", input_feeding=False, window=2) for kind in ("local-m", "local-p")),
    make_variant("luong2015-global", input_feeding=False),
    *(make_variant("vaswani2017-base", positions=kind, heads=2, layers=1) for kind in ("learned", "none")),
    make_variant("vaswani2017-base", positions="learned", max_positions=3, heads=2, layers=1),
    *(make_variant("vaswani2017-base", tie=tie, layers=1, feedforward=16) for tie in ("all", "decoder", "none")),
]
VARIANTS: list[Any] = [*map(pytest.param, SINGLE), *COMBINED]

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)
every_attention = pytest.mark.parametrize("variant", [case for case in VARIANTS if case.values[0].attends], ids=str)
every_shared_memory = pytest.mark.parametrize(
    "variant", [case for case in VARIANTS if case.values[0].shares_memory], ids=str
)


@cache
def make_model(variant: Variant, **more: Any) -> Seq2Seq:
    """Return a model in double precision and evaluation mode; tests only read it."""
    torch.manual_seed(7)
    model: Seq2Seq = build(variant.recipe, SOURCE, TARGET, **({"size": SIZE} | dict(variant.overrides) | more))
    model.double().eval()
    with torch.no_grad():  # the papers' initial weights are so small that a mistake would look like a rounding error
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def make_batch() -> tuple[Tensor, Tensor]:
    """Return sources (B, S), padded, and targets (B, T) that begin with BOS."""
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(4, SOURCE, (B, S), generator=generator).masked_fill(~prefix_mask(LENGTHS, S), PAD)
    target = torch.randint(4, TARGET, (B, T), generator=generator)
    target[:, 0] = BOS
    return source, target


@cache
@torch.no_grad()
def run_batch(variant: Variant) -> tuple[Encoded, Decoded]:
    """Return the encoded sources and the decoded targets of the batch; tests only read them."""
    model, (source, target) = make_model(variant), make_batch()
    encoded = model.encode(source, LENGTHS)
    return encoded, model.decoder(encoded, target)


@every_variant
@torch.no_grad()
def test_forward_equals_repeated_step(variant: Variant) -> None:
    model, (_, target) = make_model(variant), make_batch()
    encoded, decoded = run_batch(variant)
    state = model.decoder.start(encoded)
    for position in range(T):
        log_probs, state, attended = model.decoder.step(state, target[:, position])
        expected = decoded.logits[:, position].log_softmax(-1)
        torch.testing.assert_close(log_probs, expected, rtol=1e-9, atol=1e-9)
        assert (attended is None) == (decoded.attended is None) == (not variant.attends)
        if attended is not None and decoded.attended is not None:
            torch.testing.assert_close(attended.dense(S)[:, 0], decoded.attended.dense(S)[:, position])


@every_variant
@torch.no_grad()
def test_padding_and_other_sources_do_not_change_the_output(variant: Variant) -> None:
    model, (source, target) = make_model(variant), make_batch()
    _, together = run_batch(variant)
    padded = torch.cat((source, torch.full((B, 3), PAD)), 1)
    with_padding = model.decoder(model.encode(padded, LENGTHS), target)
    torch.testing.assert_close(with_padding.logits, together.logits)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model.decoder(
            model.encode(source[row : row + 1, :length], LENGTHS[row : row + 1]), target[row : row + 1]
        )
        torch.testing.assert_close(alone.logits[0], together.logits[row])
        if together.attended is not None:
            weights = together.attended.dense(S)[row]
            torch.testing.assert_close(alone.attended.dense(length)[0], weights[:, :length])
            assert not weights[:, length:].any()


@every_variant
@torch.no_grad()
def test_logits_depend_on_past_target_tokens_only(variant: Variant) -> None:
    model, (_, target) = make_model(variant), make_batch()
    encoded, decoded = run_batch(variant)
    changed = target.clone()
    changed[:, 3] = (target[:, 3] - 4 + 1) % (TARGET - 4) + 4
    before, after = decoded.logits, model.decoder(encoded, changed).logits
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])


@every_variant
def test_every_parameter_gets_a_gradient(variant: Variant) -> None:
    short = {"max_source": S} if dict(variant.overrides).get("score") == "location" else {}
    model, (source, target) = make_model(variant, **short), make_batch()
    parameters = dict(model.named_parameters())
    loss = model.loss(source, LENGTHS, target, target)
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    for name, gradient in zip(parameters, gradients, strict=True):
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        assert gradient.any(), name


@every_attention
@torch.no_grad()
def test_attention_is_a_distribution_over_the_source(variant: Variant) -> None:
    _, decoded = run_batch(variant)
    assert decoded.attended is not None
    mass = decoded.attended.dense(S).sum(-1)
    assert (mass > 0).all()
    if "local-p" in (dict(variant.overrides).get("alignment"), variant.recipe.removeprefix("luong2015-")):
        assert (mass <= 1).all(), "local-p multiplies the softmax by a Gaussian and does not renormalise"
    else:
        torch.testing.assert_close(mass, torch.ones(B, T, dtype=torch.float64))


@pytest.mark.parametrize(("recipe", "score", "cell"), covering_pairs(SOFT, SCORES, CELLS))
@torch.no_grad()
def test_local_attention_with_a_wide_window_equals_global_attention(recipe: str, score: str, cell: str) -> None:
    everywhere = make_model(_make_soft_variant(recipe, score, "global", cell))
    wide = make_model(_make_soft_variant(recipe, score, "local-m", cell), window=S)
    for left, right in zip(wide.parameters(), everywhere.parameters(), strict=True):
        assert torch.equal(left, right), "both are drawn from one seed"
    source, target = make_batch()
    expected = everywhere.decoder(everywhere.encode(source, LENGTHS), target)
    found = wide.decoder(wide.encode(source, LENGTHS), target)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.attended.dense(S), expected.attended.dense(S))


@every_variant
@torch.no_grad()
def test_selected_rows_of_a_decoder_state_continue_on_their_own(variant: Variant) -> None:
    decoder, (_, target) = make_model(variant).decoder, make_batch()
    _, state, _ = decoder.step(decoder.start(run_batch(variant)[0]), target[:, 0])
    rows = torch.tensor([2, 0, 0, 1])
    expected, _, _ = decoder.step(state, target[:, 1])
    found, _, _ = decoder.step(decoder.select(state, rows), target[rows, 1])
    torch.testing.assert_close(found, expected[rows])


@every_shared_memory
@torch.no_grad()
def test_hypotheses_that_share_a_memory_equal_copies(variant: Variant) -> None:
    model, (source, _) = make_model(variant), make_batch()
    decoder, begun = model.decoder, model.decoder.start(run_batch(variant)[0])
    copied, shared = decoder.select(begun, torch.arange(B).repeat_interleave(2)), decoder.expand_beams(begun, 2)
    generator = torch.Generator().manual_seed(1)

    def step(rows: int) -> None:
        nonlocal copied, shared
        tokens = torch.randint(4, TARGET, (rows,), generator=generator)
        expected, copied, expected_attention = decoder.step(copied, tokens)
        found, shared, attention = decoder.step(shared, tokens)
        torch.testing.assert_close(found, expected)
        assert attention is not None
        assert expected_attention is not None
        torch.testing.assert_close(attention.dense(S), expected_attention.dense(S))

    step(2 * B)
    rows = torch.tensor([1, 1, 3, 2, 4, 5])
    copied, shared = decoder.select(copied, rows), decoder.reorder_beams(shared, rows)
    step(2 * B)
    rows = torch.tensor([1, 0, 4, 4])
    copied, shared = decoder.select(copied, rows), decoder.keep_rows(shared, rows, torch.tensor([0, 2]))
    step(4)
    late = decoder.start(model.encode(source[:1], LENGTHS[:1]))
    twice = decoder.select(late, torch.zeros(2, dtype=torch.long))
    copied, shared = decoder.concat_states(copied, twice), decoder.concat_states(shared, decoder.expand_beams(late, 2))
    step(6)


@every_variant
@torch.no_grad()
def test_sources_may_join_and_leave_a_batch_at_any_step(variant: Variant) -> None:
    model, (source, target) = make_model(variant), make_batch()
    decoder, lengths = model.decoder, LENGTHS.tolist()
    encoded = [
        model.encode(source[row : row + 1, :length], LENGTHS[row : row + 1]) for row, length in enumerate(lengths)
    ]
    alone = [decoder(one, target[row : row + 1]) for row, one in enumerate(encoded)]
    state: Any = None
    counts = (3, 4, 5)  # row r joins at step r and leaves after so many tokens: the longest source leaves first
    for position in range(B - 1 + T):
        ages = {row: position - row for row in range(B) if 0 <= position - row < counts[row]}  # the oldest first
        if position < B:
            new = decoder.start(encoded[position])
            state = new if state is None else decoder.concat_states(state, new)
        tokens = torch.stack([target[row, age] for row, age in ages.items()])
        found, state, attended = decoder.step(state, tokens)
        size = max(lengths[row] for row in ages)
        for index, (row, age) in enumerate(ages.items()):
            expected = alone[row].logits[0, age].log_softmax(-1)
            torch.testing.assert_close(found[index], expected, rtol=1e-9, atol=1e-9)
            if attended is not None:
                dense = attended.dense(size)[index, 0]
                torch.testing.assert_close(dense[: lengths[row]], alone[row].attended.dense(lengths[row])[0, age])
                assert not dense[lengths[row] :].any()
        stay = {index: row for index, (row, age) in enumerate(ages.items()) if age + 1 < counts[row]}
        if stay:
            state = decoder.select(state, torch.tensor(list(stay)))
            source_size = max(lengths[row] for row in stay.values())
            state = decoder.trim_padding(state, source_size, max(ages[row] + 1 for row in stay.values()))


@pytest.mark.parametrize("name", ["bahdanau2015", "luong2015-global"])
def test_an_encoder_that_reads_reversed_keeps_the_memory_in_order(name: str) -> None:
    model, (source, _) = make_model(make_variant(name, reverse=True, bidirectional=False)), make_batch()
    changed = source.clone()
    changed[0, 2] = (source[0, 2] - 4 + 1) % (SOURCE - 4) + 4
    before, after = model.encode(source, LENGTHS).memory, model.encode(changed, LENGTHS).memory
    differs = (before.keys[0] != after.keys[0]).any(-1)
    assert differs.tolist() == [True, True, True, False, False, False]


def test_loss_is_averaged_per_token_or_sentence_and_ignores_padding() -> None:
    source, target = make_batch()
    out = target.clone()
    out[1, 2:] = PAD
    per_token = make_model(make_variant("vaswani2017-base", layers=1, heads=2))
    log_probs = per_token(source, LENGTHS, target).log_softmax(-1)
    real = out != PAD
    picked = log_probs.gather(2, out[..., None])[..., 0]
    smooth = log_probs.mean(-1)
    expected = -((0.9 * picked + 0.1 * smooth) * real).sum() / real.sum()
    torch.testing.assert_close(per_token.loss(source, LENGTHS, target, out), expected)
    per_sentence = make_model(make_variant("luong2015-global", layers=1))
    log_probs = per_sentence(source, LENGTHS, target).log_softmax(-1)
    expected = -(log_probs.gather(2, out[..., None])[..., 0] * real).sum() / B
    torch.testing.assert_close(per_sentence.loss(source, LENGTHS, target, out), expected)


def test_bahdanau_decoder_follows_the_equations_of_the_paper() -> None:
    model, (source, target) = make_model(make_variant("bahdanau2015")), make_batch()
    decoder = model.decoder
    assert isinstance(decoder, BahdanauDecoder)
    encoded = model.encode(source, LENGTHS)
    h = encoded.memory.keys
    s = torch.tanh(decoder.bridge.maps[0](h[:, 0, SIZE:]))  # the backward direction's last state is at the first word
    score, word = decoder.attention.score, decoder.embedding(target[:, 0])
    energy = torch.tanh(s @ score.query_weight.T + (h @ score.key_weight.T).transpose(0, 1)) @ score.v  # type: ignore[attr-defined]
    energy = energy.T.masked_fill(~prefix_mask(LENGTHS, S), -torch.inf)
    c = (energy.softmax(-1)[..., None] * h).sum(1)
    out = decoder.output
    pairs = (out.U_o(s) + out.V_o(word) + out.C_o(c)).view(B, -1, 2)
    logits = out.W_o(torch.maximum(pairs[..., 0], pairs[..., 1]))
    torch.testing.assert_close(decoder(encoded, target).logits[:, 0], logits)
    _, state, _ = decoder.step(decoder.start(encoded), target[:, 0])
    cell = decoder.recurrent.forwards[0]
    torch.testing.assert_close(hidden_state(state.recurrent[0]), cell(torch.cat((word, c), -1), s))


def test_luong_decoder_follows_the_equations_of_the_paper() -> None:
    model, (source, target) = make_model(make_variant("luong2015-global", layers=1)), make_batch()
    decoder = model.decoder
    assert isinstance(decoder, LuongDecoder)
    encoded = model.encode(source, LENGTHS)
    h_s = encoded.memory.keys
    state = encoded.state[0]
    fed = torch.zeros(B, SIZE, dtype=torch.float64)
    cell = decoder.recurrent.forwards[0]
    decoded = decoder(encoded, target)
    for t in range(2):
        state = cell(torch.cat((decoder.embedding(target[:, t]), fed), -1), state)
        h_t = state[0]
        score = torch.einsum("bq,qk,bsk->bs", h_t, decoder.attention.score.weight, h_s)  # type: ignore[attr-defined]
        a_t = score.masked_fill(~prefix_mask(LENGTHS, S), -torch.inf).softmax(-1)
        c_t = torch.einsum("bs,bsk->bk", a_t, h_s)
        fed = torch.tanh(decoder.W_c(torch.cat((c_t, h_t), -1)))
        torch.testing.assert_close(decoded.attended.weights[:, t], a_t)
        torch.testing.assert_close(decoded.logits[:, t], decoder.W_s(fed))


def test_cho_decoder_follows_the_equations_of_the_paper() -> None:
    model, (source, target) = make_model(make_variant("cho2014")), make_batch()
    decoder = model.decoder
    assert isinstance(decoder, ChoDecoder)
    encoded = model.encode(source, LENGTHS)
    c = torch.tanh(decoder.summary(encoded.state[0]))
    h = torch.tanh(decoder.bridge.maps[0](c))
    out, cell = decoder.output, decoder.recurrent.forwards[0]
    logits = decoder(encoded, target).logits
    for t in range(3):
        word = decoder.embedding(target[:, t])
        h = cell(torch.cat((word, c), -1), h)
        pairs = (out.U_o(h) + out.V_o(word) + out.C_o(c)).view(B, -1, 2)
        torch.testing.assert_close(logits[:, t], out.W_o(torch.maximum(pairs[..., 0], pairs[..., 1])))


def test_xu_decoder_follows_the_equations_of_the_paper() -> None:
    model, (source, target) = make_model(make_variant("xu2015-soft")), make_batch()
    decoder = model.decoder
    assert isinstance(decoder, XuDecoder)
    encoded = model.encode(source, LENGTHS)
    a = encoded.memory.values
    mean = torch.stack([a[b, :length].mean(0) for b, length in enumerate(LENGTHS.tolist())])
    h, c = (torch.tanh(decoder.bridge.maps[track](mean)) for track in range(2))
    score, out, cell = decoder.attention.score, decoder.output, decoder.recurrent.forwards[0]
    logits = decoder(encoded, target).logits
    assert decoder.gate is not None
    for t in range(T):
        word = decoder.embedding(target[:, t])
        e = torch.tanh((h @ score.query_weight.T)[:, None] + a @ score.key_weight.T) @ score.v  # type: ignore[attr-defined]
        alpha = e.masked_fill(~prefix_mask(LENGTHS, S), -torch.inf).softmax(-1)
        z = torch.sigmoid(decoder.gate(h)) * (alpha[..., None] * a).sum(1)
        h, c = cell(torch.cat((word, z), -1), (h, c))
        torch.testing.assert_close(logits[:, t], out.L_o(word + out.L_h(h) + out.L_z(z)))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_transformer_equals_the_one_of_pytorch(norm: str) -> None:
    model, (source, target) = (
        make_model(make_variant("vaswani2017-base", norm=norm, heads=2, layers=2, feedforward=4 * SIZE)),
        make_batch(),
    )
    pre, hidden = norm == "pre", 4 * SIZE
    sizes: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": pre, "dtype": torch.float64}

    def make_last_norm() -> torch.nn.LayerNorm | None:
        return torch.nn.LayerNorm(SIZE, dtype=torch.float64) if pre else None

    layer = torch.nn.TransformerEncoderLayer(SIZE, 2, hidden, **sizes)
    encoder = torch.nn.TransformerEncoder(layer, 2, make_last_norm(), enable_nested_tensor=False)
    decoder = torch.nn.TransformerDecoder(
        torch.nn.TransformerDecoderLayer(SIZE, 2, hidden, **sizes), 2, make_last_norm()
    )
    for theirs, ours in ((encoder, model.encoder), (decoder, model.decoder)):
        _copy_layers(theirs, ours)
        if pre:
            theirs.norm.load_state_dict(ours.norm.state_dict())  # type: ignore[union-attr]
    padding = ~prefix_mask(LENGTHS, S)
    positions = _sinusoids(max(S, T), SIZE)
    words = model.encoder.embedding.words.weight, model.decoder.embedding.words.weight  # type: ignore[union-attr]
    read = words[0][source] * SIZE**0.5 + positions[:S]  # type: ignore[index]
    written = words[1][target] * SIZE**0.5 + positions[:T]  # type: ignore[index]
    causal = torch.ones(T, T, dtype=torch.bool).triu(1)
    memory = encoder(read, src_key_padding_mask=padding)
    states = decoder(written, memory, tgt_mask=causal, memory_key_padding_mask=padding)
    expected = states @ model.decoder.output.weight.T  # type: ignore[union-attr]
    torch.testing.assert_close(model(source, LENGTHS, target), expected)


def _copy_layers(theirs: Any, ours: Any) -> None:
    """Copy our weights into PyTorch's layers."""
    for left, right in zip(theirs.layers, ours.layers, strict=True):
        crosses = hasattr(right, "cross_attention")
        pairs = [(left.self_attn, right.attention), (left.norm1, right.around_attention.norm)]
        if crosses:
            pairs += [(left.multihead_attn, right.cross_attention), (left.norm2, right.around_cross_attention.norm)]
        pairs += [(left.norm3 if crosses else left.norm2, right.around_feedforward.norm)]
        pairs += [(left.linear1, right.feedforward[0]), (left.linear2, right.feedforward[2])]
        for to, of in pairs:
            to.load_state_dict(of.state_dict())


def _sinusoids(count: int, size: int) -> Tensor:
    """Return the position table of the paper (count, size), entry by entry."""
    rows = [
        [(math.sin if i % 2 == 0 else math.cos)(pos / 10000 ** (2 * (i // 2) / size)) for i in range(size)]
        for pos in range(count)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def test_luong_updates_coverage_with_the_state_that_attended() -> None:
    model, (source, target) = make_model(make_variant("luong2015-global", coverage="neural", layers=1)), make_batch()
    decoder = model.decoder
    assert isinstance(decoder, LuongDecoder)
    state = decoder.start(model.encode(source, LENGTHS))
    _, after, attended = decoder.step(state, target[:, 0])
    h = hidden_state(after.recurrent[-1])
    expected = decoder.attention.update_coverage(state.memory, h[:, None], attended)
    assert expected.coverage is not None
    assert after.memory.coverage is not None
    torch.testing.assert_close(after.memory.coverage.amount, expected.coverage.amount)


def test_sutskever_decoder_sees_only_the_last_state_of_the_encoder() -> None:
    model, (source, target) = make_model(make_variant("sutskever2014", layers=2)), make_batch()
    decoder = model.decoder
    assert isinstance(decoder, SutskeverDecoder)
    encoded = model.encode(source, LENGTHS)
    states = list(encoded.state)
    logits = decoder(encoded, target).logits
    for t in range(3):
        x = decoder.embedding(target[:, t])
        for layer, cell in enumerate(decoder.recurrent.forwards):
            states[layer] = cell(x, states[layer])
            x = states[layer][0]
        torch.testing.assert_close(logits[:, t], decoder.output(x))
    memory = encoded.memory
    blind = encoded._replace(memory=memory._replace(keys=memory.keys * 0, values=memory.values * 0))
    torch.testing.assert_close(decoder(blind, target).logits, logits)


def test_mino_splits_encoder_states_into_keys_and_values() -> None:
    model, (source, _) = make_model(make_variant("mino2017")), make_batch()
    memory = model.encode(source, LENGTHS).memory
    assert memory.keys.shape == memory.values.shape == (B, S, SIZE // 2)
    assert not torch.equal(memory.keys, memory.values)
    wide = build("mino2017", SOURCE, TARGET, size=SIZE, key_value="separate").encode(source, LENGTHS).memory
    assert wide.keys.shape == wide.values.shape == (B, S, SIZE)


def test_doubly_stochastic_penalty_follows_the_equation_of_the_paper() -> None:
    source, target = make_batch()
    out = target.clone()
    out[1, 2:] = PAD
    losses = []
    for weight in (0.0, 0.7):
        model = make_model(make_variant("xu2015-soft", doubly_stochastic=weight))
        losses.append(model.loss(source, LENGTHS, target, out))
    weights = model.decoder(model.encode(source, LENGTHS), target).attended.dense(S).detach()
    expected = 0.0
    for b, length in enumerate(LENGTHS.tolist()):
        real = int((out[b] != PAD).sum())
        expected += sum(float((1 - weights[b, :real, i].sum()) ** 2) for i in range(length))
    torch.testing.assert_close(losses[1] - losses[0], torch.tensor(0.7 * expected / B, dtype=torch.float64))


def test_input_feeding_widens_the_input_of_the_first_layer() -> None:
    widths = {
        feeding: build("luong2015-global", 9, 9, size=8, input_feeding=feeding).decoder.recurrent.forwards[0].input_size
        for feeding in (True, False)
    }
    assert widths == {True: 16, False: 8}


def test_recipes_have_the_sizes_of_the_papers_and_tied_embeddings() -> None:
    with torch.device("meta"):
        base = build("vaswani2017-base", 37000, 37000)
        bahdanau = build("bahdanau2015", 30000, 30000)
    count = sum(parameter.numel() for parameter in base.parameters())
    assert abs(count - 65e6) < 3e6  # the paper's Table 3 says 65 million
    assert bahdanau.encoder.embedding.embedding_dim == 620
    assert bahdanau.decoder.output.W_o.in_features == 500
    tied = build("vaswani2017-base", 9, 9, size=8)
    assert tied.encoder.embedding.words.weight is tied.decoder.output.weight
    apart = build("vaswani2017-base", 9, 10, size=8)
    assert apart.encoder.embedding.words.weight is not apart.decoder.output.weight
    assert apart.decoder.embedding.words.weight is apart.decoder.output.weight


@pytest.mark.parametrize("name", list_recipes())
def test_pad_embedding_is_initialised_to_zero(name: str) -> None:
    model = build(name, 9, 9, size=16, layers=1)
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    assert tables or name == "schuster1997-regression", "only the regression of numbers has no embeddings"
    assert not any(table.weight[PAD].any() for table in tables)


def test_overriding_the_size_changes_the_embedding_size_too() -> None:
    small = build("bahdanau2015", 9, 9, size=12)
    assert small.encoder.embedding.embedding_dim == 12
    assert build("bahdanau2015", 9, 9, size=12, embedding=5).encoder.embedding.embedding_dim == 5


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("bahdanau2015", {"score": "dot", "size": 8}, "8, the encoder's 16"),
        ("vaswani2017-base", {"size": 10, "heads": 4}, "4 heads, size 10"),
        ("vaswani2017-base", {"sise": 10}, "did you mean 'model.size'"),
        ("vaswani2017-base", {"score": "dot"}, "has no key 'model.score'"),
        ("bahdanau2015", {"cell": "gruu"}, "one of gru, lstm, elman, not 'gruu'"),
        ("bahdanau2015", {"size": 0}, "size must be at least 1, not 0"),
        ("luong2015-global", {"dropout": 1.0}, "not 1.0"),
        ("luong2015-global", {"size": "large"}, "a whole number, not 'large'"),
        ("luong2015-global", {"size": 8, "embedding": 4, "tie": True}, "embeddings have 4 numbers, h̃ has 8"),
        ("mino2017", {"size": 7}, "size must be even to be split into key and value, not 7"),
        ("luong2015-local-p", {"window": 0}, "window must be at least 1, not 0"),
        ("luong2015-global", {"score": "location", "coverage": "neural"}, "coverage: neural is added to the keys"),
        ("bahdanau2015", {"coverage": "linguistic", "fertility": -1.0}, "greater than 0, not -1.0"),
        ("bahdanau2015", {"embedding": 0}, "embedding must be at least 1, not 0"),
        ("bahdanau2015", {"maxout": -2}, "maxout must be at least 1, not -2"),
        ("cho2014", {"maxout": -2}, "maxout must be at least 1, not -2"),
        ("xu2015-hard", {"attention": 0}, "attention must be at least 1, not 0"),
        ("xu2015-hard", {"reward": -1.0}, "reward must be at least 0, not -1.0"),
        ("xu2015-soft", {"doubly_stochastic": -1.0}, "doubly_stochastic must be at least 0, not -1.0"),
        ("vaswani2017-base", {"feedforward": 0}, "feedforward must be at least 1, not 0"),
        ("luong2015-global", {"coverage_size": 0}, "coverage_size must be at least 1, not 0"),
        ("xu2015-hard", {"coverage": "linguistic"}, "has no key 'model.coverage'"),
        ("vaswani2017-bass", {}, "did you mean 'vaswani2017-base'"),
    ],
)
def test_impossible_model_options_are_reported(name: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        build(name, 9, 9, **overrides)
    assert message in str(error.value)


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_builds_at_full_size(name: str) -> None:
    with torch.device("meta"):
        model = build(read_recipe(name), SOURCE, TARGET)
    assert sum(parameter.numel() for parameter in model.parameters()) > 0


def test_a_recipe_mapping_may_omit_model_options() -> None:
    mapping = {"model": {"kind": "luong", "size": 8}}
    assert build(mapping, 9, 9, score="dot", input_feeding=False).decoder.attention.score.__class__.__name__ == "Dot"
    with pytest.raises(UserError, match=r"unknown model\.kind None"):
        build({}, 9, 9)


@pytest.mark.parametrize(
    "variant",
    [
        make_variant("bahdanau2015"),
        make_variant("luong2015-local-p", window=1, layers=1),
        make_variant("vaswani2017-base", heads=2, layers=2),
        make_variant("vaswani2017-base", heads=2, layers=2, align_after=True),
        make_variant("xu2015-soft"),
        make_variant("xu2015-hard"),
    ],
    ids=str,
)
def test_guided_attention_adds_the_cross_entropy_of_the_links(variant: Variant) -> None:
    source, target = make_batch()
    guide = torch.zeros(B, T, S, dtype=torch.float64)
    guide[0, 0, 2] = 1.0
    guide[0, 2, [1, 3]] = 0.5
    guide[1, 1, 0] = 1.0
    recipe = override(read_recipe(variant.recipe), {"loss.guided": 0.3, "loss.per": "token"})
    torch.manual_seed(7)
    model = build(recipe, SOURCE, TARGET, size=SIZE, **dict(variant.overrides)).double().eval()
    plain, guided = (model.loss(source, LENGTHS, target, target, guide=given) for given in (None, guide))
    attended = model.decoder(model.encode(source, LENGTHS), target).attended
    soft = attended if attended.probabilities is None else attended._replace(weights=attended.probabilities)
    weights = soft.dense(S).detach().clamp(min=1e-9)
    step = int(dict(variant.overrides).get("align_after", False))  # offset of the step whose attention is the alignment
    links = guide.nonzero().tolist()
    expected = -0.3 * sum(float(guide[b, t, s] * weights[b, t + step, s].log()) for b, t, s in links)
    torch.testing.assert_close(guided - plain, torch.tensor(expected / (B * T), dtype=torch.float64))


def test_guided_attention_is_refused_for_a_model_without_attention() -> None:
    source, target = make_batch()
    with pytest.raises(UserError, match="without attention cannot be guided"):
        make_model(make_variant("cho2014")).loss(source, LENGTHS, target, target, torch.zeros(B, T, S))


def test_a_transformer_reports_the_attention_of_a_chosen_head(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = make_batch()
    variant = make_variant("vaswani2017-base", heads=2, layers=2)
    plain, chosen = make_model(variant), make_model(variant, align_layer=1, align_head=2)
    torch.testing.assert_close(chosen(source, LENGTHS, target), plain(source, LENGTHS, target))
    decoder = plain.decoder
    default = decoder(plain.encode(source, LENGTHS), target).attended.dense(S)
    attention = {}
    for viewpoint in decoder.alignment_heads():
        monkeypatch.setattr(decoder, "alignment_head", viewpoint)
        attention[viewpoint] = decoder(plain.encode(source, LENGTHS), target).attended.dense(S)
    assert len(attention) == 6
    torch.testing.assert_close(attention[AlignmentHead(1, None)], default)
    for layer in range(2):
        mean = (attention[AlignmentHead(layer, 0)] + attention[AlignmentHead(layer, 1)]) / 2
        torch.testing.assert_close(attention[AlignmentHead(layer, None)], mean)
    found = chosen.decoder(chosen.encode(source, LENGTHS), target).attended.dense(S)
    torch.testing.assert_close(found, attention[AlignmentHead(0, 1)])
    with pytest.raises(UserError, match="align_head must be between 1 and 2, not 3"):
        make_model(variant, align_head=3)
