"""What must hold for every model, in every form it can take."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import UserError
from regard.models import Seq2Seq, Viewpoint, build
from regard.models.bahdanau import BahdanauDecoder
from regard.models.cho import ChoDecoder
from regard.models.luong import LuongDecoder
from regard.models.sutskever import SutskeverDecoder
from regard.models.xu import XuDecoder
from regard.nn import hidden, prefix_mask
from regard.recipes import names, override, read
from regard.symbols import BOS, PAD

SOURCE, TARGET, SIZE = 11, 13, 8
LENGTHS = torch.tensor([6, 3, 1])
B, S, T = 3, 6, 5

SCORES = ("dot", "general", "concat", "location")
CELLS = ("gru", "lstm", "elman")
ALIGNMENTS = ("global", "local-m", "local-p")
CORES: dict[str, dict[str, Any]] = {  # every score × alignment × cell of each family with soft attention
    "bahdanau2015": {},
    "luong2015-global": {"layers": 2},
    "mino2017": {},
    "xu2015-soft": {},
}


def narrow(name: str, score: str) -> dict[str, Any]:
    """What makes keys as wide as queries, where a dot product needs it."""
    if score != "dot":
        return {}
    return {"key_value": "separate"} if name == "mino2017" else {"bidirectional": False}


FORMS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"cell": cell, "layers": 2}) for name in ("sutskever2014", "cho2014") for cell in CELLS),
    *((name, {"bidirectional": True, "layers": 1, "cell": "lstm"}) for name in ("sutskever2014", "cho2014")),
    ("sutskever2014", {"tie": True, "layers": 1}),
    ("cho2014", {"tie": True, "maxout": SIZE, "embedding": SIZE}),
    *(
        (
            name,
            {"score": score, "alignment": alignment, "cell": cell, "window": 1, **narrow(name, score), **core},
        )
        for name, core in CORES.items()
        for score in SCORES
        for alignment in ALIGNMENTS
        for cell in CELLS
    ),
    *(
        ("xu2015-hard", {"estimator": estimator, "decode": decode, "score": score, "cell": cell, **narrow("", score)})
        for estimator, decode in (
            ("reinforce", "argmax"),
            ("reinforce", "marginal"),
            ("soft-baseline", "argmax"),
            ("marginal", "argmax"),
            ("marginal", "marginal"),
        )
        for score, cell in zip((*SCORES, "concat"), (*CELLS, *CELLS), strict=False)
    ),
    *(
        (name, {"coverage": kind, "alignment": alignment, "window": 1, **core})
        for name, core in CORES.items()
        for kind in ("linguistic", "neural")
        for alignment in ALIGNMENTS
    ),
    ("luong2015-global", {"coverage": "neural", "score": "dot"}),
    ("luong2015-global", {"coverage": "linguistic", "input_feeding": False}),
    *(
        (name, {"layers": 3, "residual": True})
        for name in ("bahdanau2015", "luong2015-global", "sutskever2014", "cho2014")
    ),
    ("bahdanau2015", {"layers": 3}),
    ("bahdanau2015", {"readout": "current"}),
    ("bahdanau2015", {"tie": True, "maxout": SIZE}),
    ("bahdanau2015", {"embedding": 5, "attention": 6, "maxout": 3}),
    ("bahdanau2015", {"reverse": True, "initialisation": "torch"}),
    ("luong2015-global", {"bidirectional": True, "reverse": False, "cell": "lstm"}),
    ("luong2015-global", {"tie": True, "layers": 1}),
    ("luong2015-global", {"embedding": 5}),
    *(
        ("mino2017", {"key_value": kind, "score": score})
        for kind in ("split", "separate")
        for score in ("concat", "general")
    ),
    ("xu2015-soft", {"gate": False, "doubly_stochastic": 0.0, "layers": 2, "cell": "gru", "tie": True}),
    *((f"luong2015-{kind}", {"input_feeding": False, "window": 2}) for kind in ("local-m", "local-p")),
    ("luong2015-global", {"input_feeding": False}),
    *(
        ("vaswani2017-base", {"norm": norm, "heads": heads, "layers": 2})
        for norm in ("pre", "post")
        for heads in (1, 4)
    ),
    *(("vaswani2017-base", {"positions": places, "heads": 2, "layers": 1}) for places in ("learned", "none")),
    ("vaswani2017-base", {"positions": "learned", "max_positions": 3, "heads": 2, "layers": 1}),
    *(("vaswani2017-base", {"tie": tie, "layers": 1, "feedforward": 16}) for tie in ("all", "decoder", "none")),
    ("default", {"heads": 2, "layers": 2}),
]


def form_name(form: tuple[str, dict[str, Any]]) -> str:
    return form[0] + "".join(f" {key}={value}" for key, value in form[1].items())


LOOKING = [form for form in FORMS if form[0] not in ("sutskever2014", "cho2014")]
forms = pytest.mark.parametrize("form", FORMS, ids=form_name)
looking = pytest.mark.parametrize("form", LOOKING, ids=form_name)
sharing = pytest.mark.parametrize("form", [form for form in LOOKING if form[0] != "xu2015-hard"], ids=form_name)


def model_of(form: tuple[str, dict[str, Any]], **more: Any) -> Seq2Seq:
    torch.manual_seed(7)
    name, overrides = form
    model: Seq2Seq = build(name, SOURCE, TARGET, **({"size": SIZE} | overrides | more)).double().eval()
    with torch.no_grad():  # the papers' first weights are too small to tell a mistake from a rounding
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(4, SOURCE, (B, S), generator=generator).masked_fill(~prefix_mask(LENGTHS, S), PAD)
    target = torch.randint(4, TARGET, (B, T), generator=generator)
    target[:, 0] = BOS
    return source, target


@forms
def test_forward_is_repeated_step(form: tuple[str, dict[str, Any]]) -> None:
    model, (source, target) = model_of(form), batch()
    encoded = model.encode(source, LENGTHS)
    decoded = model.decoder(encoded, target)
    state = model.decoder.start(encoded)
    for position in range(T):
        log_probs, state, attended = model.decoder.step(state, target[:, position])
        expected = decoded.logits[:, position].log_softmax(-1)
        torch.testing.assert_close(log_probs, expected, rtol=1e-9, atol=1e-9)
        assert (attended is None) == (decoded.attended is None)
        if attended is not None:
            torch.testing.assert_close(attended.dense(S)[:, 0], decoded.attended.dense(S)[:, position])


@forms
def test_batch_mates_and_padding_do_not_matter(form: tuple[str, dict[str, Any]]) -> None:
    model, (source, target) = model_of(form), batch()
    together = model.decoder(model.encode(source, LENGTHS), target)
    padded = torch.cat((source, torch.full((B, 3), PAD)), 1)
    with_padding = model.decoder(model.encode(padded, LENGTHS), target)
    torch.testing.assert_close(with_padding.logits, together.logits)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model.decoder(
            model.encode(source[row : row + 1, :length], LENGTHS[row : row + 1]), target[row : row + 1]
        )
        torch.testing.assert_close(alone.logits[0], together.logits[row])
        if form in LOOKING:
            torch.testing.assert_close(alone.attended.dense(length)[0], together.attended.dense(S)[row, :, :length])
            assert not together.attended.dense(S)[row, :, length:].any()


@forms
def test_the_past_does_not_see_the_future(form: tuple[str, dict[str, Any]]) -> None:
    model, (source, target) = model_of(form), batch()
    encoded = model.encode(source, LENGTHS)
    changed = target.clone()
    changed[:, 3] = (target[:, 3] - 4 + 1) % (TARGET - 4) + 4
    before, after = model.decoder(encoded, target).logits, model.decoder(encoded, changed).logits
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])


@forms
def test_every_parameter_gets_a_gradient(form: tuple[str, dict[str, Any]]) -> None:
    model, (source, target) = (
        model_of(form, **({"max_source": S} if form[1].get("score") == "location" else {})),
        batch(),
    )
    model.loss(source, LENGTHS, target, target).backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@looking
def test_every_row_of_attention_is_a_distribution_over_the_source(form: tuple[str, dict[str, Any]]) -> None:
    model, (source, target) = model_of(form), batch()
    mass = model.decoder(model.encode(source, LENGTHS), target).attended.dense(S).sum(-1)
    assert (mass > 0).all()
    if "local-p" in (
        form[1].get("alignment"),
        form[0].removeprefix("luong2015-"),
    ):  # what the Gaussian takes away is not given back
        assert (mass <= 1).all()
    else:
        torch.testing.assert_close(mass, torch.ones(B, T, dtype=torch.float64))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", CORES)
def test_a_window_as_wide_as_the_sentence_is_global(name: str, score: str, cell: str) -> None:
    shared = {"score": score, "cell": cell, **narrow(name, score), **CORES[name]}
    everywhere = model_of((name, {**shared, "alignment": "global"}))
    wide = model_of((name, {**shared, "alignment": "local-m", "window": S}))
    wide.load_state_dict(everywhere.state_dict())
    source, target = batch()
    expected = everywhere.decoder(everywhere.encode(source, LENGTHS), target)
    found = wide.decoder(wide.encode(source, LENGTHS), target)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.attended.dense(S), expected.attended.dense(S))


@forms
def test_selected_rows_go_their_own_way(form: tuple[str, dict[str, Any]]) -> None:
    model, (source, target) = model_of(form), batch()
    decoder = model.decoder
    _, state, _ = decoder.step(decoder.start(model.encode(source, LENGTHS)), target[:, 0])
    rows = torch.tensor([2, 0, 0, 1])
    expected, _, _ = decoder.step(state, target[:, 1])
    found, _, _ = decoder.step(decoder.select(state, rows), target[rows, 1])
    torch.testing.assert_close(found, expected[rows])


@sharing
def test_hypotheses_that_share_their_source_are_as_those_that_do_not(form: tuple[str, dict[str, Any]]) -> None:
    model, (source, _) = model_of(form), batch()
    decoder, begun = model.decoder, model.decoder.start(model.encode(source, LENGTHS))
    plain, shared = decoder.select(begun, torch.arange(B).repeat_interleave(2)), decoder.widen(begun, 2)
    generator = torch.Generator().manual_seed(1)

    def step(rows: int) -> None:
        nonlocal plain, shared
        tokens = torch.randint(4, TARGET, (rows,), generator=generator)
        expected, plain, looked = decoder.step(plain, tokens)
        found, shared, look = decoder.step(shared, tokens)
        torch.testing.assert_close(found, expected)
        assert look is not None
        assert looked is not None
        torch.testing.assert_close(look.dense(S), looked.dense(S))

    step(2 * B)
    rows = torch.tensor([1, 1, 3, 2, 4, 5])
    plain, shared = decoder.select(plain, rows), decoder.reorder(shared, rows)
    step(2 * B)
    rows = torch.tensor([1, 0, 4, 4])
    plain, shared = decoder.select(plain, rows), decoder.keep(shared, rows, torch.tensor([0, 2]))
    step(4)
    late = decoder.start(model.encode(source[:1], LENGTHS[:1]))
    twice = decoder.select(late, torch.zeros(2, dtype=torch.long))
    plain, shared = decoder.join(plain, twice), decoder.join(shared, decoder.widen(late, 2))
    step(6)


@forms
def test_rows_that_join_later_and_leave_earlier_go_their_own_way(form: tuple[str, dict[str, Any]]) -> None:
    model, (source, target) = model_of(form), batch()
    decoder, lengths = model.decoder, LENGTHS.tolist()
    encoded = [
        model.encode(source[row : row + 1, :length], LENGTHS[row : row + 1]) for row, length in enumerate(lengths)
    ]
    alone = [decoder(one, target[row : row + 1]) for row, one in enumerate(encoded)]
    state: Any = None
    for position in range(T + 1):
        there = {row: position - row for row in reversed(range(B)) if 0 <= position - row < T - row}  # and its age
        there = dict(sorted(there.items(), key=lambda item: -item[1]))  # who came first is first
        if position < B:
            new = decoder.start(encoded[position])
            state = new if state is None else decoder.join(state, new)
        if not there:
            break
        tokens = torch.stack([target[row, age] for row, age in there.items()])
        found, state, attended = decoder.step(state, tokens)
        size = max(lengths[row] for row in there)
        for place, (row, age) in enumerate(there.items()):
            expected = alone[row].logits[0, age].log_softmax(-1)
            torch.testing.assert_close(found[place], expected, rtol=1e-9, atol=1e-9)
            if attended is not None:
                dense = attended.dense(size)[place, 0]
                torch.testing.assert_close(dense[: lengths[row]], alone[row].attended.dense(lengths[row])[0, age])
                assert not dense[lengths[row] :].any()
        stay = [place for place, (row, age) in enumerate(there.items()) if age + 1 < T - row]
        if stay:
            left = [row for place, row in enumerate(there) if place in stay]
            state = decoder.select(state, torch.tensor(stay))
            state = decoder.trim(state, max(lengths[row] for row in left), max(there[row] + 1 for row in left))


@pytest.mark.parametrize("name", ["bahdanau2015", "luong2015-global"])
def test_reading_reversed_leaves_the_memory_in_order(name: str) -> None:
    model, (source, _) = model_of((name, {"reverse": True, "bidirectional": False})), batch()
    changed = source.clone()
    changed[0, 2] = (source[0, 2] - 4 + 1) % (SOURCE - 4) + 4
    before, after = model.encode(source, LENGTHS).memory, model.encode(changed, LENGTHS).memory
    differs = (before.keys[0] != after.keys[0]).any(-1)
    assert differs.tolist() == [True, True, True, False, False, False]


def test_the_loss_is_per_token_or_per_sentence_and_padding_counts_for_nothing() -> None:
    source, target = batch()
    out = target.clone()
    out[1, 2:] = PAD
    per_token = model_of(("vaswani2017-base", {"layers": 1, "heads": 2}))
    log_probs = per_token(source, LENGTHS, target).log_softmax(-1)
    real = out != PAD
    picked = log_probs.gather(2, out[..., None])[..., 0]
    smooth = log_probs.mean(-1)
    expected = -((0.9 * picked + 0.1 * smooth) * real).sum() / real.sum()
    torch.testing.assert_close(per_token.loss(source, LENGTHS, target, out), expected)
    per_sentence = model_of(("luong2015-global", {"layers": 1}))
    log_probs = per_sentence(source, LENGTHS, target).log_softmax(-1)
    expected = -(log_probs.gather(2, out[..., None])[..., 0] * real).sum() / B
    torch.testing.assert_close(per_sentence.loss(source, LENGTHS, target, out), expected)


def test_bahdanau_step_is_the_papers_equations() -> None:
    model, (source, target) = model_of(("bahdanau2015", {})), batch()
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
    torch.testing.assert_close(hidden(state.recurrent[0]), cell(torch.cat((word, c), -1), s))


def test_luong_step_is_the_papers_equations() -> None:
    model, (source, target) = model_of(("luong2015-global", {"layers": 1})), batch()
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


def test_cho_step_is_the_papers_equations() -> None:
    model, (source, target) = model_of(("cho2014", {})), batch()
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


def test_xu_step_is_the_papers_equations() -> None:
    model, (source, target) = model_of(("xu2015-soft", {})), batch()
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
def test_the_transformer_is_pytorchs(norm: str) -> None:
    model, (source, target) = (
        model_of(("vaswani2017-base", {"norm": norm, "heads": 2, "layers": 2, "feedforward": 4 * SIZE})),
        batch(),
    )
    pre, hidden = norm == "pre", 4 * SIZE
    sizes: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": pre, "dtype": torch.float64}

    def last() -> torch.nn.LayerNorm | None:
        return torch.nn.LayerNorm(SIZE, dtype=torch.float64) if pre else None

    layer = torch.nn.TransformerEncoderLayer(SIZE, 2, hidden, **sizes)
    encoder = torch.nn.TransformerEncoder(layer, 2, last(), enable_nested_tensor=False)
    decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(SIZE, 2, hidden, **sizes), 2, last())
    for theirs, ours in ((encoder, model.encoder), (decoder, model.decoder)):
        copy_layers(theirs, ours)
        if pre:
            theirs.norm.load_state_dict(ours.norm.state_dict())  # type: ignore[union-attr]
    padding = ~prefix_mask(LENGTHS, S)
    positions = sinusoids(max(S, T), SIZE)
    words = model.encoder.embedding.words.weight, model.decoder.embedding.words.weight  # type: ignore[union-attr]
    read = words[0][source] * SIZE**0.5 + positions[:S]  # type: ignore[index]
    written = words[1][target] * SIZE**0.5 + positions[:T]  # type: ignore[index]
    causal = torch.ones(T, T, dtype=torch.bool).triu(1)
    memory = encoder(read, src_key_padding_mask=padding)
    states = decoder(written, memory, tgt_mask=causal, memory_key_padding_mask=padding)
    expected = states @ model.decoder.output.weight.T  # type: ignore[union-attr]
    torch.testing.assert_close(model(source, LENGTHS, target), expected)


def copy_layers(theirs: Any, ours: Any) -> None:
    """PyTorch's stack with our weights."""
    for left, right in zip(theirs.layers, ours.layers, strict=True):
        crosses = hasattr(right, "cross_attention")
        pairs = [(left.self_attn, right.attention), (left.norm1, right.around_attention.norm)]
        if crosses:
            pairs += [(left.multihead_attn, right.cross_attention), (left.norm2, right.around_cross_attention.norm)]
        pairs += [(left.norm3 if crosses else left.norm2, right.around_feedforward.norm)]
        pairs += [(left.linear1, right.feedforward[0]), (left.linear2, right.feedforward[2])]
        for to, of in pairs:
            to.load_state_dict(of.state_dict())


def sinusoids(count: int, size: int) -> Tensor:
    """The paper's positions, number by number."""
    rows = [
        [(math.sin if i % 2 == 0 else math.cos)(pos / 10000 ** (2 * (i // 2) / size)) for i in range(size)]
        for pos in range(count)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def test_luongs_coverage_is_told_who_looked() -> None:
    model, (source, target) = model_of(("luong2015-global", {"coverage": "neural", "layers": 1})), batch()
    decoder = model.decoder
    assert isinstance(decoder, LuongDecoder)
    state = decoder.start(model.encode(source, LENGTHS))
    _, after, attended = decoder.step(state, target[:, 0])
    h = hidden(after.recurrent[-1])
    expected = decoder.attention.follow(state.memory, h[:, None], attended)
    assert expected.covered is not None
    assert after.memory.covered is not None
    torch.testing.assert_close(after.memory.covered.amount, expected.covered.amount)


def test_sutskever_starts_from_the_encoders_last_state_and_sees_the_source_no_more() -> None:
    model, (source, target) = model_of(("sutskever2014", {"layers": 2})), batch()
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


def test_keys_and_values_are_different_things_in_mino() -> None:
    model, (source, _) = model_of(("mino2017", {})), batch()
    memory = model.encode(source, LENGTHS).memory
    assert memory.keys.shape == memory.values.shape == (B, S, SIZE // 2)
    assert not torch.equal(memory.keys, memory.values)
    wide = build("mino2017", SOURCE, TARGET, size=SIZE, key_value="separate").encode(source, LENGTHS).memory
    assert wide.keys.shape == wide.values.shape == (B, S, SIZE)


def test_the_doubly_stochastic_penalty_is_the_papers() -> None:
    source, target = batch()
    out = target.clone()
    out[1, 2:] = PAD
    losses = []
    for weight in (0.0, 0.7):
        model = model_of(("xu2015-soft", {"doubly_stochastic": weight}))
        losses.append(model.loss(source, LENGTHS, target, out))
    weights = model.decoder(model.encode(source, LENGTHS), target).attended.dense(S).detach()
    expected = 0.0
    for b, length in enumerate(LENGTHS.tolist()):
        real = int((out[b] != PAD).sum())
        expected += sum(float((1 - weights[b, :real, i].sum()) ** 2) for i in range(length))
    torch.testing.assert_close(losses[1] - losses[0], torch.tensor(0.7 * expected / B, dtype=torch.float64))


def test_without_input_feeding_the_first_layer_is_narrower() -> None:
    widths = {
        feeding: build("luong2015-global", 9, 9, size=8, input_feeding=feeding).decoder.recurrent.forwards[0].input_size
        for feeding in (True, False)
    }
    assert widths == {True: 16, False: 8}


def test_paper_sizes_and_ties() -> None:
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


@pytest.mark.parametrize("name", names())
def test_pad_is_a_vector_of_zeros(name: str) -> None:
    model = build(name, 9, 9, size=16, layers=1)
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    assert tables or name == "schuster1997-regression", "numbers have no embeddings"
    assert not any(table.weight[PAD].any() for table in tables)


def test_a_new_size_carries_the_embedding_with_it() -> None:
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
        ("luong2015-global", {"score": "location", "coverage": "neural"}, "coverage: neural reaches the score through"),
        ("bahdanau2015", {"coverage": "linguistic", "fertility": -1.0}, "more than 0, not -1.0"),
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
def test_what_cannot_be_built_says_why(name: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        build(name, 9, 9, **overrides)
    assert message in str(error.value)


@pytest.mark.parametrize("name", names())
def test_every_recipe_builds_from_its_mapping(name: str) -> None:
    with torch.device("meta"):
        model = build(read(name), SOURCE, TARGET)
    assert sum(parameter.numel() for parameter in model.parameters()) > 0


def test_a_mapping_need_not_name_every_key() -> None:
    mapping = {"model": {"kind": "luong", "size": 8}}
    assert build(mapping, 9, 9, score="dot", input_feeding=False).decoder.attention.score.__class__.__name__ == "Dot"
    with pytest.raises(UserError, match=r"no model\.kind None"):
        build({}, 9, 9)


@pytest.mark.parametrize(
    "form",
    [
        ("bahdanau2015", {}),
        ("luong2015-local-p", {"window": 1, "layers": 1}),
        ("vaswani2017-base", {"heads": 2, "layers": 2}),
        ("vaswani2017-base", {"heads": 2, "layers": 2, "align_after": True}),
        ("xu2015-soft", {}),
        ("xu2015-hard", {}),
    ],
    ids=form_name,
)
def test_guided_attention_adds_the_cross_entropy_of_the_links(form: tuple[str, dict[str, Any]]) -> None:
    source, target = batch()
    guide = torch.zeros(B, T, S, dtype=torch.float64)
    guide[0, 0, 2] = 1.0
    guide[0, 2, [1, 3]] = 0.5
    guide[1, 1, 0] = 1.0
    recipe = override(read(form[0]), {"loss.guided": 0.3, "loss.per": "token"})
    torch.manual_seed(7)
    model = build(recipe, SOURCE, TARGET, size=SIZE, **form[1]).double().eval()
    plain, guided = (model.loss(source, LENGTHS, target, target, given) for given in (None, guide))
    attended = model.decoder(model.encode(source, LENGTHS), target).attended
    looked = attended if attended.probabilities is None else attended._replace(weights=attended.probabilities)
    weights = looked.dense(S).detach().clamp(min=1e-9)
    step = int(form[1].get("align_after", False))  # from a word to the step whose look is its own
    links = guide.nonzero().tolist()
    expected = -0.3 * sum(float(guide[b, t, s] * weights[b, t + step, s].log()) for b, t, s in links)
    torch.testing.assert_close(guided - plain, torch.tensor(expected / (B * T), dtype=torch.float64))


def test_what_does_not_look_cannot_be_guided() -> None:
    source, target = batch()
    with pytest.raises(UserError, match="without attention cannot be guided"):
        model_of(("cho2014", {})).loss(source, LENGTHS, target, target, torch.zeros(B, T, S))


def test_a_transformer_gives_out_the_look_of_a_chosen_head() -> None:
    source, target = batch()
    form = ("vaswani2017-base", {"heads": 2, "layers": 2})
    plain, chosen = model_of(form), model_of(form, align_layer=1, align_head=2)
    torch.testing.assert_close(chosen(source, LENGTHS, target), plain(source, LENGTHS, target))
    decoder = plain.decoder
    last = decoder(plain.encode(source, LENGTHS), target).attended.dense(S)
    looks = {}
    for viewpoint in decoder.viewpoints():
        decoder.viewpoint = viewpoint
        looks[viewpoint] = decoder(plain.encode(source, LENGTHS), target).attended.dense(S)
    assert len(looks) == 6
    torch.testing.assert_close(looks[Viewpoint(1, None)], last)
    for layer in range(2):
        mean = (looks[Viewpoint(layer, 0)] + looks[Viewpoint(layer, 1)]) / 2
        torch.testing.assert_close(looks[Viewpoint(layer, None)], mean)
    found = chosen.decoder(chosen.encode(source, LENGTHS), target).attended.dense(S)
    torch.testing.assert_close(found, looks[Viewpoint(0, 1)])
    with pytest.raises(UserError, match="align_head counts from 1: there are 2, not 3"):
        model_of(form, align_head=3)
