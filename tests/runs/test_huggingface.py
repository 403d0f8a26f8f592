"""Import of MarianMT models against transformers: tokens, logits, translations; and folders that are no such model."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from support.fast_models import randomize
from support.marian import CODES, generate, load_in_transformers, make_lines, write_marian_folder

from regard.cli.export import export
from regard.config import parse_settings
from regard.errors import UserError
from regard.models import build
from regard.recipes.recipe import override, read_recipe, resolve_auto_sizes
from regard.runs import Run
from regard.runs.checkpoint import collect_model_tensors, write_checkpoint
from regard.runs.huggingface import import_run
from regard.serve.engine.models import load_models
from regard.serve.settings import Settings
from regard.special_tokens import BOS, EOS
from regard.tokenizers.tokenizer import TextSettings, save_tokenizers, train_tokenizers
from regard.training.train import train
from regard.translate import Options, Translator, load

SHAPES: dict[str, dict[str, Any]] = {
    "swish": {},
    "relu, more encoder layers": {"seed": 3, "activation_function": "relu", "encoder_layers": 3, "decoder_layers": 1},
    "gelu, embeddings not scaled": {
        **{"activation_function": "gelu", "scale_embedding": False, "separate": True, "tie_word_embeddings": False}
    },
    "separate vocabularies": {"separate": True},
    "start other than pad": {"decoder_start_token_id": 0},
}
ODD_TEXTS = [
    *(
        "\t",
        "\u00a0",
        "\u2003",
        "\u3000",
        "\u200b",
        "\ufeff",
        "\u0085",
        "\u001c",
        "\u000b",
        "\u00ad",
        "\u0000",
        "\u007f",
    ),
    *(
        "e\u0301",
        "A\u0308",
        "\u1112\u1161\u11ab",
        "ﷺ",
        "ﬁ",
        "①",
        "²",
        "½",
        "Ｗ",
        "ｆｕｌｌ",
        "´",
        "¨",
        "Ä",
        "漢字",
        "Ω",
        "ж",
    ),
    *("😀", "🇩🇪", ">>"),  # not `<<`: MarianTokenizer takes any text between for a language, and drops it
]
IMPORTED_TEXTS = ["\u0301", "\u0308", "▁", "\u200d", "\ue000", *ODD_TEXTS]


def import_random(folder: Path, **options: Any) -> tuple[Path, Path]:
    """Write a random model and import it; return its folder and the run."""
    made, run = write_marian_folder(folder / "model", **options), folder / "run"
    import_run(made, run)
    return made, run


def find_pieces(translator: Translator) -> list[str]:
    """Return the target pieces of a run by id."""
    target = translator.tokenizers.target
    return target.convert_ids_to_tokens(range(target.vocab_size))


def find_their_ids(translator: Translator, model: Any, tokenizer: Any) -> list[int]:
    """Return the id in transformers of each target id of a run."""
    vocabulary = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    start = model.config.decoder_start_token_id
    return [start if id == BOS else vocabulary[piece] for id, piece in enumerate(find_pieces(translator))]


@pytest.mark.slow
@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
@pytest.mark.filterwarnings("ignore")
def test_imported_models_translate_as_transformers_does(options: dict[str, Any], tmp_path: Path) -> None:
    folder, run = import_random(tmp_path, **options)
    model, tokenizer = load_in_transformers(folder)
    translator = load(run, device="cpu")
    own, pieces = translator.tokenizers, find_pieces(translator)
    their_ids = torch.tensor(find_their_ids(translator, model, tokenizer))
    sources = make_lines("source", 200, seed=1)
    others = torch.arange(len(pieces)) != BOS  # transformers has one token for padding and for the start
    with torch.no_grad():
        for source, target in zip(sources[:50], make_lines("target", 50, seed=2), strict=True):
            target_in = torch.tensor([[BOS, *own.target.encode(target)]])
            logits = translator.models[0](*translator.make_batch([own.source.encode(source)]), target_in)
            batch = tokenizer([source], return_tensors="pt")
            expected = model(**batch, decoder_input_ids=their_ids[target_in]).logits[..., their_ids]
            torch.testing.assert_close(logits[..., others], expected[..., others], rtol=0, atol=1e-5)
    for beam in (1, 4):
        found = translator.translate(sources, beam=beam, length_penalty=0.0, max_length=30, addresses=False)
        ids = [[their_ids[pieces.index(token)] for token in one.tokens] for one in found]
        assert ids == generate(model, tokenizer, sources, beam, 30)
    assert len({tuple(one.tokens) for one in found}) > 3


def make_odd_lines(count: int, odd: Sequence[str], codes: Sequence[str] = ()) -> list[str]:
    """Return lines with characters that tokenizers treat differently."""
    draw = random.Random(3)
    lines = []
    for line in make_lines("source", count, seed=4):
        characters = list(line)
        for _ in range(draw.randint(0, 4)):
            characters.insert(draw.randint(0, len(characters)), draw.choice(odd))
        start = draw.choice(["", "", " ", *codes, *(f"{code} " for code in codes)])
        lines.append(start + "".join(characters))
    return lines


def write_native_run(folder: Path, recipe: str, **changes: Any) -> Run:
    """Write a run with random weights, as training writes it."""
    small = {"model.size": 32, "model.layers": 2, "text.vocabulary": 400}
    config = resolve_auto_sizes(
        override(read_recipe(recipe), {**small, "data.source": "en", "data.target": "de", **changes})
    )
    text = parse_settings(TextSettings, config["text"], "text")
    tokenizers = train_tokenizers(text, partial(make_lines, "source", 300), partial(make_lines, "target", 300))
    torch.manual_seed(0)
    run, model = Run(folder), build(config, *tokenizers.vocab_sizes)
    randomize(model, 0.25)
    run.create(config, lambda to: save_tokenizers(tokenizers, text, to))
    best = {"step": 1, "loss": 1.5, "score": 20.25, "measure": "bleu"}
    write_checkpoint(run.checkpoint_folder(1), collect_model_tensors(model), {}, {"step": 1, "best": best})
    run.metrics_path.write_text(json.dumps({"kind": "dev", "step": 1, "loss": 1.5, "bleu": 20.25, "chrf": 41.0}) + "\n")
    return run


NATIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("default", {"model.heads": 4}),
    "post-norm": ("vaswani2017-base", {"model.feedforward": 48, "model.activation": "gelu", "model.heads": 4}),
    "two vocabularies": ("vaswani2017-base", {"text.shared": False, "text.kind": "unigram", "text.vocabulary": 400}),
    "lower case, characters": ("default", {"text.lowercase": True, "text.kind": "char"}),
    "no tied weights": ("vaswani2017-base", {"model.tie": "none", "text.shared": False}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "changes"), NATIVE.values(), ids=NATIVE)
@pytest.mark.filterwarnings("ignore")
def test_exported_runs_translate_the_same_in_transformers(recipe: str, changes: dict[str, Any], tmp_path: Path) -> None:
    run, folder = write_native_run(tmp_path / "run", recipe, **changes), tmp_path / "exported"
    export(run.folder, "huggingface", out=folder)
    translator, (model, tokenizer) = load(run.folder, device="cpu"), load_in_transformers(folder)
    for line in make_odd_lines(1000, ODD_TEXTS):
        assert [*translator.tokenizers.source.encode(line), EOS] == tokenizer(line).input_ids, line
    sources = make_lines("source", 100, seed=5)
    for beam in (1, 5):
        found = translator.translate(sources, beam=beam, length_penalty=0.0, max_length=30, addresses=False)
        ids = [[find_pieces(translator).index(token) for token in one.tokens] for one in found]
        generated = generate(model, tokenizer, sources, beam, 30)
        assert ids == generated
        texts = tokenizer.batch_decode(generated, skip_special_tokens=True)
        assert [one.text.replace("<unk>", "").strip() for one in found] == texts


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("has_sacremoses", [True, False])
def test_texts_have_the_tokens_of_marian_tokenizer(
    has_sacremoses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_sacremoses:
        monkeypatch.setitem(sys.modules, "sacremoses", None)
    folder, run = import_random(tmp_path, codes=CODES)
    _, tokenizer = load_in_transformers(folder)
    own = Run(run).load_tokenizers()
    for line in make_odd_lines(10_000, IMPORTED_TEXTS, CODES):
        ids = own.source.encode(line)
        assert own.source.convert_ids_to_tokens([*ids, EOS]) == tokenizer.convert_ids_to_tokens(
            tokenizer(line).input_ids
        ), line
        assert [id for word in own.source.encode_by_word(line) for id in word] == (ids if line.split() else [])


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
def test_imported_models_translate_and_align(options: dict[str, Any], tmp_path: Path) -> None:
    _, run = import_random(tmp_path, **options)
    (found,) = load(run, device="cpu").translate(["the small dog"])
    assert found.alignment is not None
    assert found.alignment.source == ["the", "small", "dog"]


def test_a_multilingual_model_translates_into_the_language_that_is_named(tmp_path: Path) -> None:
    _, run = import_random(tmp_path, codes=CODES)
    translator = load(run, device="cpu")
    named, in_text, other = (
        translator.translate([text], domain=code)[0]
        for text, code in (("a large bird", "fra"), (">>fra<<a large bird", None), ("a large bird", "deu"))
    )
    assert named.tokens == in_text.tokens
    assert named.score == pytest.approx(in_text.score)
    assert named.score != pytest.approx(other.score)
    assert named.source_tokens[0] != ">>fra<<"
    with pytest.raises(UserError, match=r"there is no tag 'fr'.*fra"):
        translator.translate(["a large bird"], domain="fr")


def test_weights_of_torch_save_are_read(tmp_path: Path) -> None:
    folder, run = import_random(tmp_path)
    path = folder / "model.safetensors"
    torch.save(load_file(path), folder / "pytorch_model.bin")
    path.unlink()
    import_run(folder, tmp_path / "other")
    weights = [Path("checkpoints/step-0/model.safetensors"), Path("tokenizer/source.marian"), Path("config.yaml")]
    assert all((run / name).read_bytes() == (tmp_path / "other" / name).read_bytes() for name in weights)


class Payload:
    """A pickle that would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def change_json(name: str, **values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_bytes()) | values
        path.write_text(json.dumps({key: value for key, value in content.items() if value != "removed"}))

    return change


def write_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Payload(folder / "executed")}, folder / "pytorch_model.bin")


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


BAD_FOLDERS: list[tuple[Callable[[Path], Any], str]] = [
    (remove("config.json"), "is not a model of Hugging Face: it has no config.json"),
    (remove("source.spm"), "it has no source.spm"),
    (remove("vocab.json"), "it has no vocab.json"),
    (remove("model.safetensors"), "it has no model.safetensors or pytorch_model.bin"),
    (lambda folder: (folder / "target.spm").write_bytes(b"damaged"), "target.spm is not a SentencePiece model"),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"damaged"), "cannot be read as a network's weights"),
    (lambda folder: (folder / "vocab.json").write_text("[]"), "vocab.json is not a JSON object"),
    (write_pickle, "pytorch_model.bin cannot be read as a network's weights: Weights only load failed"),
    (
        change_json("vocab.json", extra=129),
        "model.shared.weight is 129×32, but config.json",
    ),
    (change_json("vocab.json", **{"▁dog": "removed"}), "the ids in vocab.json are not the numbers from 0"),
    (change_json("config.json", eos_token_id=5), "the id of </s> in the vocabulary is 0, but config.json has 5"),
    (change_json("config.json", model_type="bart"), "model_type is 'bart', not marian or pegasus"),
    (change_json("config.json", d_model="removed"), "the number of size is missing"),
    (
        change_json("config.json", encoder_layers=3),
        "the weights have no model.encoder.layers.2.self_attn",
    ),
    (change_json("config.json", encoder_ffn_dim=64), "encoder_ffn_dim 64 and decoder_ffn_dim 48 must be equal"),
    (change_json("config.json", activation_function="tanh"), "activation_function is 'tanh'"),
    (change_json("config.json", normalize_embedding=True), "normalize_embedding is True, and only False is supported"),
    (change_json("config.json", encoder_attention_heads=5, decoder_attention_heads=5), "heads must divide the size"),
]


@pytest.mark.parametrize(("change", "message"), BAD_FOLDERS)
def test_a_folder_that_is_no_model_is_refused(change: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    folder = write_marian_folder(tmp_path / "model")
    change(folder)
    with pytest.raises(UserError, match=re.escape(message)):
        import_run(folder, tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert not (folder / "executed").exists()


def test_the_import_does_not_overwrite_a_run(tmp_path: Path) -> None:
    folder, run = import_random(tmp_path)
    with pytest.raises(UserError, match="already exists"):
        import_run(folder, run)


@pytest.mark.parametrize("options", [*SHAPES.values(), {"codes": CODES}], ids=[*SHAPES, "languages"])
def test_import_and_export_give_the_same_run_again(options: dict[str, Any], tmp_path: Path) -> None:
    _, run = import_random(tmp_path, **options)
    export(run, "huggingface", out=tmp_path / "exported")
    import_run(tmp_path / "exported", tmp_path / "again")
    names = [path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file()]
    assert len(names) == 6
    assert [name for name in names if (run / name).read_bytes() != (tmp_path / "again" / name).read_bytes()] == []


@pytest.mark.slow
def test_a_model_card_says_what_the_model_is(tmp_path: Path) -> None:
    run = write_native_run(tmp_path / "run", "default", **{"data.train": ["/data/memory.tmx"]})
    export(run.folder, "huggingface", out=tmp_path / "out", license="cc-by-4.0")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(card.split("---")[1])
    assert (header["language"], header["license"], header["pipeline_tag"]) == (["en", "de"], "cc-by-4.0", "translation")
    assert "| bleu | 20.25 | nrefs:1\\|case:mixed\\|eff:no\\|tok:13a" in card
    assert "- Training data: memory.tmx" in card


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ("luong2015-global", {}, "it is of model.kind luong, not transformer"),
        ("default", {"model.positions": "learned"}, "model.positions is learned"),
        ("default", {"text.shared": False}, "pre-norm needs one matrix"),
        ("vaswani2017-base", {"text.kind": "word"}, "its vocabulary consists of whole words"),
    ],
)
def test_a_model_that_transformers_does_not_have_is_not_exported(
    recipe: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    heads = {} if recipe.startswith("luong") else {"model.heads": 4}
    run = write_native_run(tmp_path / "run", recipe, **changes, **heads)
    with pytest.raises(UserError, match=message):
        export(run.folder, "huggingface", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_imported_model_has_no_training_to_resume(tmp_path: Path) -> None:
    _, run = import_random(tmp_path)
    with pytest.raises(UserError, match=r"is an imported model.*--init-from"):
        train(None, [tmp_path / "a.en", tmp_path / "a.de"], out=run, resume=True)
    assert (run / "checkpoints" / "step-0").is_dir()


def test_the_service_translates_with_a_multilingual_model_into_its_languages(tmp_path: Path) -> None:
    _, run = import_random(tmp_path, codes=CODES, seed=0)
    translator, settings = load(run, device="cpu"), Settings(processes=0)
    registry = load_models([f"{run}=en-de", f"{run}=en-fr"], settings, lambda *_: None)
    for language, code in (("de", "deu"), ("fr", "fra")):
        (model,) = registry.find_route("en", language) or []
        (found,) = asyncio.run(model.translate(["a large bird"], Options()))
        (expected,) = translator.translate(["a large bird"], domain=code)
        assert found.text == expected.text
        assert found.score == pytest.approx(expected.score)
        assert found.alignment is not None
        assert expected.alignment is not None
        assert found.alignment.pairs == expected.alignment.pairs
    registry.close()
    with pytest.raises(UserError, match=r"does not translate into 'it'; name one of deu, fra"):
        load_models([f"{run}=en-it"], settings, lambda *_: None)
