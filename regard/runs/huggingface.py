"""Import of a MarianMT folder of Hugging Face as a run, and export of a run to such a folder with a model card."""

from __future__ import annotations

import tempfile
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sentencepiece
import yaml

from regard.config import parse_settings
from regard.data.languages import find_language
from regard.errors import UserError
from regard.paths import create_folder_atomically, format_json, parse_json_object, read_json_object
from regard.recipes.recipe import Recipe, override, read_recipe, resolve_auto_sizes
from regard.runs.checkpoint import write_checkpoint
from regard.runs.run import IMPORTED, Run, summarize_run
from regard.special_tokens import SPECIAL_TOKENS, UNK
from regard.tokenizers.marian import MarianTokenizer
from regard.tokenizers.tokenizer import TextSettings, Tokenizer, Tokenizers, save_tokenizers
from regard.version import VERSION

if TYPE_CHECKING:
    from torch import Tensor, nn

    from regard.export.huggingface import SpecialIds


CONFIG_FILE, GENERATION_FILE, TOKENIZER_FILE = "config.json", "generation_config.json", "tokenizer_config.json"
VOCABULARY_FILES = "vocab.json", "target_vocab.json"
WEIGHT_FILES = "model.safetensors", "pytorch_model.bin"
CARD_FILE = "README.md"
LEARNING_RATE = 1e-4  # of fine-tuning
MAX_LENGTH = 256  # tokens of a pair in fine-tuning
_MIN_LENGTH = 16


def import_run(folder: Path, out: Path, languages: Sequence[str | None] = (None, None)) -> None:
    """Write the model in a folder of Hugging Face to a new run; nothing is written unless the whole folder is usable.

    Args:
        folder: Folder with `config.json`, the weights, `source.spm`, `target.spm` and `vocab.json`.
        out: The new run.
        languages: Codes of source and target; None: as the folder names them, if it does.
    """
    from regard.export.huggingface import SpecialIds, import_weights, make_model_section
    from regard.models.registry import build_on_meta

    if out.exists():
        raise UserError(f"{out} already exists; --out must be a new folder")
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"{folder} is not a model of Hugging Face: it has no {CONFIG_FILE}")
    config, named = _read_json(folder / CONFIG_FILE), read_json_object(folder / TOKENIZER_FILE)
    try:
        is_shared = not named.get("separate_vocabs")
        vocabularies = [_read_vocabulary(folder / name) for name in VOCABULARY_FILES[: 1 if is_shared else 2]]
        special = SpecialIds.from_config(config, vocabularies[0].get(SPECIAL_TOKENS[UNK], -1))
        for vocabulary in vocabularies:
            _check_special_ids(vocabulary, special)
        source, target = vocabularies[0], vocabularies[-1]
        tokenizers = Tokenizers(
            _load_tokenizer(folder / "source.spm", source, special),
            _load_tokenizer(folder / "target.spm", target, special),
        )
        model = make_model_section(config)
        longest = max(_MIN_LENGTH, model["max_positions"] - 2)  # with room for EOS and the target language
        data = {**_find_languages(named, languages), "longest": longest, "max_length": min(longest, MAX_LENGTH)}
        recipe = _make_recipe(model, data, tokenizers, is_shared)
        weights = import_weights(_read_weights(folder), build_on_meta(recipe, *tokenizers.vocab_sizes), special)
    except UserError as error:
        raise UserError(f"{folder} cannot be imported: {error}") from error
    recipe["model"]["output_bias"] = "decoder.output.bias" in weights
    settings = parse_settings(TextSettings, recipe["text"], "text")
    with create_folder_atomically(out) as partial:
        run = Run(partial)
        run.create(recipe, lambda to: save_tokenizers(tokenizers, settings, to))
        best = {"step": 0, "loss": None, "score": None, "measure": "bleu"}
        write_checkpoint(run.checkpoint_folder(0), weights, {}, {"step": 0, "best": best})


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"it has no {path.name}")
    content = parse_json_object(path.read_bytes())
    if not content:
        raise UserError(f"{path.name} is not a JSON object")
    return content


def _read_vocabulary(path: Path) -> dict[str, int]:
    """Read the ids of the pieces, which must be the numbers from 0 on."""
    vocabulary = _read_json(path)
    if {type(id) for id in vocabulary.values()} != {int} or set(vocabulary.values()) != set(range(len(vocabulary))):
        raise UserError(f"the ids in {path.name} are not the numbers from 0 to {len(vocabulary) - 1:,}, each once")
    return vocabulary


def _check_special_ids(vocabulary: Mapping[str, int], special: SpecialIds) -> None:
    for id, piece in zip((special.pad, special.unk, special.eos), ("<pad>", "<unk>", "</s>"), strict=True):
        if vocabulary.get(piece) != id:
            found = f"is {vocabulary[piece]}" if piece in vocabulary else "is missing"
            raise UserError(f"the id of {piece} in the vocabulary {found}, but {CONFIG_FILE} has {id}")


def _load_tokenizer(path: Path, vocabulary: Mapping[str, int], special: SpecialIds) -> MarianTokenizer:
    """Return the tokenizer of one side, with the ids of a run."""
    if not path.is_file():
        raise UserError(f"it has no {path.name}")
    names = {id: piece for piece, id in vocabulary.items()}
    rest = [names[id] for id in special.order_ids(len(vocabulary))[len(SPECIAL_TOKENS) :]]
    pieces = [*SPECIAL_TOKENS, *(f"{piece}#" if piece in SPECIAL_TOKENS else piece for piece in rest)]
    model = path.read_bytes()
    try:
        if not model:
            raise RuntimeError("empty file")  # which SentencePiece accepts as "no model"
        return MarianTokenizer(model, pieces)
    except RuntimeError as error:
        raise UserError(f"{path.name} is not a SentencePiece model") from error


def _read_weights(folder: Path) -> Mapping[str, Tensor]:
    """Read the weights, from safetensors if both kinds of files are there."""
    from regard.models.weights_file import read_weights_file

    path = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"it has no {' or '.join(WEIGHT_FILES)}")
    return read_weights_file(path)


def _find_languages(named: Mapping[str, Any], languages: Sequence[str | None]) -> dict[str, Any]:
    """Return the codes of the languages that are given, else those that a tokenizer's configuration names."""
    codes = {}
    for side, given in zip(("source", "target"), languages, strict=True):
        code = named.get(f"{side}_lang")
        codes[side] = given or (find_language(code) if isinstance(code, str) else None)
    return codes


def _make_recipe(model: Mapping[str, Any], data: Mapping[str, Any], tokenizers: Tokenizers, is_shared: bool) -> Recipe:
    """Return the config of an imported run: that of `default`, with its model and a smaller learning rate."""
    vocabulary = max(tokenizers.vocab_sizes)
    text = {"kind": "marian", "shared": is_shared, "vocabulary": vocabulary, "byte_fallback": False}
    training = {"learning_rate": LEARNING_RATE}
    sections = {"model": model, "text": text, "data": data, "training": training}
    changes = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
    recipe = resolve_auto_sizes(override(read_recipe("default"), changes))
    return {key: value for key, value in recipe.items() if key != "paper"} | {"recipe": IMPORTED}


def export_run(run: Run, model: nn.Module, tokenizers: Tokenizers, out: Path, license: str | None = None) -> None:
    """Write a run's model to a new folder that transformers loads, with a model card; see `find_export_obstacle`."""
    from safetensors.torch import save_file

    from regard.export import huggingface
    from regard.models.vaswani2017 import TransformerSettings

    config = run.read_config()
    kind, text = config["model"]["kind"], parse_settings(TextSettings, config["text"], "text")
    section = {name: value for name, value in config["model"].items() if name != "kind"}
    if kind != "transformer":
        raise UserError(
            f"{run.folder} cannot be exported for transformers: it is of model.kind {kind}, not transformer"
        )
    settings = parse_settings(TransformerSettings, section, "model")
    obstacle = huggingface.find_export_obstacle(settings, model)
    if text.kind == "word":
        obstacle = "its vocabulary consists of whole words (text.kind=word)"
    if obstacle:
        raise UserError(f"{run.folder} cannot be exported for transformers: {obstacle}")
    languages = {f"{side}_lang": config["data"].get(side) for side in ("source", "target")}
    special = dict(zip(("pad_token", "unk_token", "eos_token"), ("<pad>", "<unk>", "</s>"), strict=True))
    length = {"model_max_length": settings.max_positions}
    named = {"tokenizer_class": "MarianTokenizer", **languages, "separate_vocabs": not text.shared, **special, **length}
    files = {
        CONFIG_FILE: huggingface.export_config(settings, model),
        GENERATION_FILE: huggingface.export_generation_config(BEAM, settings.max_positions),
        TOKENIZER_FILE: named,
    }
    for name, tokenizer in zip(VOCABULARY_FILES[: 1 if text.shared else 2], tokenizers, strict=False):
        pieces = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
        files[name] = {piece: id for id, piece in enumerate(pieces)}
    with create_folder_atomically(out) as folder:
        for name, content in files.items():
            (folder / name).write_text(format_json(content, indent=1) + "\n", encoding="utf-8")
        for side, own in zip(("source", "target"), tokenizers, strict=True):
            (folder / f"{side}.spm").write_bytes(make_sentencepiece_model(own, text.kind))
        save_file(huggingface.export_weights(settings, model), folder / WEIGHT_FILES[0], {"format": "pt"})
        (folder / CARD_FILE).write_text(format_model_card(run, out.name, license), encoding="utf-8")


BEAM = 5  # beam size, as that of `regard translate`


def make_sentencepiece_model(tokenizer: Any, kind: str) -> bytes:
    """Return the SentencePiece model of a tokenizer, with its normalization of texts as the model's own rules.

    SentencePiece merges fields that occur again in a file, so the rules follow the model.
    """
    if kind == "marian" or not tokenizer.normalization:
        return bytes(tokenizer.model)
    lines = (
        f"{_format_hex(before)}\t{_format_hex(after)}\n"
        for before, after in list_normalization_rules(tokenizer).items()
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.tsv"
        path.write_text("".join(lines), encoding="ascii")
        normalizer = sentencepiece.SentencePieceNormalizer(
            rule_tsv=str(path), add_dummy_prefix=True, escape_whitespaces=True, remove_extra_whitespaces=True
        )
    return bytes(tokenizer.model) + bytes(normalizer.serialized_model_proto())


LAST_NORMALIZED = 0x2FFFF  # no character after it changes in any normalization form, or has a lower case


def _format_hex(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)


def list_normalization_rules(tokenizer: Tokenizer) -> dict[str, str]:
    """Return what a tokenizer makes of characters, and of the sequences that NFC composes, if it changes them."""
    rules: dict[str, str] = {}
    for character in map(chr, chain(range(1, 0xD800), range(0xE000, LAST_NORMALIZED + 1))):
        parts = unicodedata.normalize("NFD", character)
        composed = (unicodedata.normalize("NFC", parts[:end]) + parts[end:] for end in range(1, len(parts)))
        for text in {character, *composed}:
            rules[text] = " " if text.isspace() else tokenizer.normalize(tokenizer.lower_dotless_i(text))
    return {before: after for before, after in rules.items() if before != after}


CARD = """---
{header}---

# {name}

A Transformer that translates{pair}, trained with regard {version} (recipe `{recipe}`, {steps:,} updates).

## Usage

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained({name!r}), AutoModelForSeq2SeqLM.from_pretrained({name!r})
batch = tokenizer(["A sentence."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

`generate` searches as `regard translate --length-penalty 0` does. The folder was written by
`regard export {run} --to huggingface --out {name}`; `regard import {name} --out RUN` reads it.

## Data

{data}

## Metrics

{metrics}

## Licence

{license}
"""


def format_model_card(run: Run, name: str, license: str | None) -> str:
    """Return the model card of a run that is exported to the folder `name`."""
    config = run.read_config()
    data = config["data"]
    languages = [data[side] for side in ("source", "target") if data.get(side)]
    header = {
        **({"language": languages} if languages else {}),
        **({"license": license} if license else {}),
        **{"library_name": "transformers", "pipeline_tag": "translation", "tags": ["translation", "regard"]},
    }
    corpora = {"Training data": data.get("train"), "Dev data": data.get("dev")}
    lines = [f"- {what}: {', '.join(Path(path).name for path in paths)}" for what, paths in corpora.items() if paths]
    start = config["training"].get("init_from")
    lines += [f"- Fine-tuned from: {Path(start).name}"] if start else []
    return CARD.format(
        header=yaml.safe_dump(header, sort_keys=False),
        name=name,
        pair=f" from {languages[0]} to {languages[1]}" if len(languages) == 2 else "",
        version=VERSION,
        recipe=config.get("recipe"),
        steps=summarize_run(run.folder).steps,
        run=run.folder,
        data="\n".join(lines) or "The run does not name its data.",
        metrics=_format_metrics(run, config),
        license=license or "Not given.",
    )


def _format_metrics(run: Run, config: dict[str, Any]) -> str:
    """Return a table of the dev metrics of the model that is used."""
    from regard.evaluate.translation_metrics import bleu, chrf

    best = summarize_run(run.folder).best
    rows = [row for row in run.iterate_metrics() if row["kind"] == "dev" and best and row["step"] == best.step]
    if not rows:
        return "The model has not been validated."
    lowercase, tokenize = config["text"]["lowercase"], config.get("evaluation", {}).get("tokenize", "auto")
    signatures = {
        "bleu": bleu(["a"], ["a"], lowercase, "13a" if tokenize == "auto" else tokenize).signature,
        "chrf": chrf(["a"], ["a"], lowercase).signature,
    }
    escaped = {name: signature.replace("|", "\\|") for name, signature in signatures.items()}
    lines = [f"| {name} | {rows[-1][name]:.2f} | {signature} |" for name, signature in escaped.items()]
    return "\n".join(["| metric | dev | signature of sacreBLEU |", "|---|---|---|", *lines])
