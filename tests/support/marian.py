"""Folders of Hugging Face with random MarianMT models, and the models that transformers loads from them, as oracles."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import UserError
from regard.tasks.captioning.feature_extractor import import_torchvision_models

SIZE, WIDE, POSITIONS = 32, 48, 128
WORDS = {
    "source": "the a small large dog cat bird house garden street child sees hears opens sleeps near under green "
    "old new Tom asks teacher advice where is bus stop it was very good thank you naïve café 12 2026 %",
    "target": "der die das ein eine kleine große Hund Katze Vogel Haus Garten Straße Kind sieht hört öffnet schläft "
    "neben unter grün alt neu Tom fragt Lehrer Rat wo ist Bushaltestelle es war sehr gut danke dir 12 2026 %",
}
CODES = (">>deu<<", ">>fra<<")


def make_lines(side: str, count: int, seed: int = 0) -> list[str]:
    """Return sentences of the words of one side."""
    draw, words = random.Random(f"{side}{seed}"), WORDS[side].split()
    return [
        " ".join(draw.choices(words, k=draw.randint(2, 12))) + draw.choice([".", "?", "!", ""]) for _ in range(count)
    ]


@cache
def train_spm(side: str) -> bytes:
    """Train a SentencePiece model, unigram and with nmt_nfkc as the models of OPUS-MT."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(make_lines(side, 400)),
        model_writer=model,
        vocab_size=90,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def write_marian_folder(
    folder: Path, seed: int = 1, separate: bool = False, codes: tuple[str, ...] = (), **options: Any
) -> Path:
    """Write a random model, whose outputs end and differ, and its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    size = _write_vocabularies(folder, separate, codes)
    config = {
        **{"model_type": "marian", "architectures": ["MarianMTModel"], "is_encoder_decoder": True, "d_model": SIZE},
        **{"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": WIDE, "decoder_ffn_dim": WIDE},
        **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "activation_function": "swish"},
        **{"scale_embedding": True, "max_position_embeddings": POSITIONS, "vocab_size": size},
        **{"share_encoder_decoder_embeddings": not separate, "decoder_vocab_size": size, "tie_word_embeddings": True},
        **{"pad_token_id": size - 1, "eos_token_id": 0, "decoder_start_token_id": size - 1},
        **{"forced_eos_token_id": None, "bad_words_ids": [[size - 1]], "static_position_embeddings": True},
        **options,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=generator) * 0.25 for name, shape in _list_tensors(config)}
    for name, tensor in tensors.items():
        if name.endswith("norm.weight"):
            tensor += 1
        if name.endswith("embed_tokens.weight") and not config["scale_embedding"]:
            tensor *= 4
    tensors["final_logits_bias"][0, 0] += 1.0  # so that translations end
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    names = {
        "source_lang": "eng",
        "target_lang": "deu",
        "separate_vocabs": separate,
        "tokenizer_class": "MarianTokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    return folder


def _write_vocabularies(folder: Path, separate: bool, codes: tuple[str, ...]) -> int:
    """Write `source.spm`, `target.spm` and `vocab.json` (and `target_vocab.json`); return the number of ids."""
    sides = []
    for side in WORDS:
        (folder / f"{side}.spm").write_bytes(train_spm(side))
        processor = sentencepiece.SentencePieceProcessor(model_proto=train_spm(side))
        pieces = [processor.id_to_piece(id) for id in range(3, processor.get_piece_size())]
        sides.append(pieces[:-5])  # the vocabulary lacks some pieces of the SentencePiece model
    vocabularies = sides if separate else [sorted({*sides[0], *sides[1]})]
    size = max(map(len, vocabularies)) + 3 + len(codes)
    for name, own in zip(("vocab.json", "target_vocab.json"), vocabularies, strict=False):
        fillers = [f"filler{number}" for number in range(size - len(own) - 3 - len(codes))]
        pieces = ["</s>", "<unk>", *codes, *own, *fillers, "<pad>"]
        (folder / name).write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}), encoding="utf-8")
    return size


def _list_tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of the weights, as transformers saves them."""
    vocabulary = config["vocab_size"], SIZE
    shared = config["share_encoder_decoder_embeddings"]
    for name in ["shared"] if shared else ["encoder.embed_tokens", "decoder.embed_tokens"]:
        yield f"model.{name}.weight", vocabulary
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", vocabulary
    yield "final_logits_bias", (1, vocabulary[0])
    for side, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        for number in range(config[f"{side}_layers"]):
            layer = f"model.{side}.layers.{number}"
            linears = [(f"{one}.{part}_proj", SIZE, SIZE) for one in attentions for part in ("q", "k", "v", "out")]
            for name, outputs, inputs in [*linears, ("fc1", WIDE, SIZE), ("fc2", SIZE, WIDE)]:
                yield f"{layer}.{name}.weight", (outputs, inputs)
                yield f"{layer}.{name}.bias", (outputs,)
            for name in [*(f"{one}_layer_norm" for one in attentions), "final_layer_norm"]:
                yield f"{layer}.{name}.weight", (SIZE,)
                yield f"{layer}.{name}.bias", (SIZE,)


def load_in_transformers(folder: Path) -> tuple[Any, Any]:
    """Return model and tokenizer as transformers loads them."""
    with suppress(UserError):  # transformers could not import a torchvision of another build than torch
        import_torchvision_models("transformers")
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call,unused-ignore]
    return AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def generate(model: Any, tokenizer: Any, texts: list[str], beam: int, max_length: int) -> list[list[int]]:
    """Return the ids that transformers generates, without those of the start and of padding."""
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    options = {"length_penalty": 0.0, "early_stopping": "never"} if beam > 1 else {}
    ids: Tensor = model.generate(**batch, num_beams=beam, do_sample=False, max_new_tokens=max_length, **options)
    return [[id for id in row[1:] if id != model.config.pad_token_id] for row in ids.tolist()]
