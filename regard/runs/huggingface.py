"""Import of a MarianMT folder of Hugging Face as a run, and export of a run to such a folder with a model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config import parse_settings
from regard.data.languages import find_language
from regard.errors import UserError
from regard.paths import create_folder_atomically, parse_json_object, read_json_object
from regard.recipes.recipe import Recipe, override, read_recipe, resolve_auto_sizes
from regard.runs.checkpoint import write_checkpoint
from regard.runs.run import IMPORTED, Run
from regard.special_tokens import SPECIAL_TOKENS, UNK
from regard.tokenizers.marian import MarianTokenizer
from regard.tokenizers.tokenizer import TextSettings, Tokenizers, save_tokenizers

if TYPE_CHECKING:
    from torch import Tensor

    from regard.export.huggingface import SpecialIds

CONFIG_FILE, TOKENIZER_FILE, VOCABULARY_FILES = (
    "config.json",
    "tokenizer_config.json",
    ("vocab.json", "target_vocab.json"),
)
WEIGHT_FILES = "model.safetensors", "pytorch_model.bin"
LEARNING_RATE = 1e-4  # of fine-tuning
_MIN_POSITIONS = 16


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
        data = _find_languages(named, languages) | _find_limits(config)
        recipe = _make_recipe(make_model_section(config), data, tokenizers, is_shared)
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


def _find_limits(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the maximum tokens of a source, with room for EOS and the target language."""
    positions = config.get("max_position_embeddings")
    longest = max(_MIN_POSITIONS, positions - 2 if type(positions) is int else 0)
    return {"longest": longest, "max_length": min(longest, TRAINING_LENGTH)}


TRAINING_LENGTH = 256  # tokens of a pair


def _make_recipe(model: Mapping[str, Any], data: Mapping[str, Any], tokenizers: Tokenizers, is_shared: bool) -> Recipe:
    """Return the config of an imported run: that of `default`, with its model and a smaller learning rate."""
    vocabulary = max(tokenizers.vocab_sizes)
    text = {"kind": "marian", "shared": is_shared, "vocabulary": vocabulary, "byte_fallback": False}
    training = {"learning_rate": LEARNING_RATE}
    sections = {"model": model, "text": text, "data": data, "training": training}
    changes = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
    recipe = resolve_auto_sizes(override(read_recipe("default"), changes))
    return {key: value for key, value in recipe.items() if key != "paper"} | {"recipe": IMPORTED}
