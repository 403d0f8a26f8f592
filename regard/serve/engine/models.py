"""The models that are served, and the routes from one language to another."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, count
from pathlib import Path
from typing import TypeVar

import torch

from regard.errors import UserError
from regard.runs import Run
from regard.runs.run import RunSummary, summarize_run
from regard.search import Hypothesis
from regard.serve.engine.background import run_on_texts
from regard.serve.engine.batching import ContinuousBatcher
from regard.serve.engine.workers import BatchKey, LocalDecoder, WorkerPool, run_decoder_process
from regard.serve.errors import HTTPError
from regard.serve.language_detection import internal_code
from regard.serve.settings import Settings
from regard.tasks import get_task
from regard.tasks.base import Predictor
from regard.training.distributed import choose_device
from regard.translate import Options, Translation, Translator, load
from regard.translate.translation import EncodedSegment

T = TypeVar("T")
DecoderPool = WorkerPool[EncodedSegment, list[Hypothesis], BatchKey]

TRANSLATE = "translate"
LANGUAGE_CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")


@dataclass(frozen=True)
class RunSpec:
    """A run to serve; the languages are empty unless it translates."""

    folder: Path
    task: str
    source: str = ""
    target: str = ""
    is_imported: bool = False  # a multilingual model then has a token for each target language

    @classmethod
    def parse(cls, argument: str) -> RunSpec:
        """Parse an argument of the command line: `runs/x`, or `runs/x=en-de` if the run does not name its languages."""
        folder, pair = _split_pair(argument)
        config = Run(folder).read_config()
        task, data = str(config.get("task", TRANSLATE)), config["data"]
        if task != TRANSLATE:
            return cls(folder, task)
        source, target = parse_language_pair(pair) if pair is not None else (data.get("source"), data.get("target"))
        if not source or not target:
            raise UserError(f"{folder} does not say its languages; name them: regard serve {folder}=en-de")
        is_imported = config["text"].get("kind") == "marian"
        return cls(folder, task, internal_code(source), internal_code(target), is_imported)


def _split_pair(argument: str) -> tuple[Path, str | None]:
    """Split `runs/x=en-de` into folder and languages; an existing folder is one, whatever its name."""
    folder, separator, pair = argument.rpartition("=")
    return (Path(folder), pair) if separator and not Path(argument).exists() else (Path(argument), None)


def parse_language_pair(pair: str) -> tuple[str, str]:
    """Parse `en-de`, `pt-BR-en` or `en-zh-Hans`: what begins with a capital belongs to the code before it."""
    parts = pair.split("-")
    second = next((index for index, part in enumerate(parts) if index and part[:1].islower()), len(parts))
    codes = "-".join(parts[:second]), "-".join(parts[second:])
    if not all(map(LANGUAGE_CODE.fullmatch, codes)):
        raise UserError(f"{pair!r} is not a pair of language codes like en-de, pt-BR-en or en-zh-Hans")
    return codes


def name_runs(folders: Sequence[Path]) -> list[str]:
    """Name each run after its folder; if another run has that name already, a number follows."""
    names: list[str] = []
    for folder in folders:
        own = folder.resolve().name
        candidates = chain([own], (f"{own}-{number}" for number in count(2)))
        names.append(next(name for name in candidates if name not in names))
    return names


def summarize_served_run(folder: Path) -> RunSummary:
    """Summarize a run; its files, which may be large, are read again only after a checkpoint was written."""
    files = [folder / "config.yaml", folder / "checkpoints", *sorted(folder.glob("checkpoints/*/state.json"))]
    return _summarize(folder, tuple((path.name, path.stat().st_mtime_ns) for path in files if path.exists()))


@lru_cache(maxsize=100)
def _summarize(folder: Path, written: tuple[tuple[str, int], ...]) -> RunSummary:
    return summarize_run(folder)


class TranslationModel:
    """A model that translates, with its decoder and the batcher in front of it."""

    def __init__(
        self,
        name: str,
        spec: RunSpec,
        translator: Translator,
        decoder: LocalDecoder | DecoderPool,
        settings: Settings,
        on_admit: Callable[[int, int], None],
        glossary: Mapping[str, str],
    ) -> None:
        self.name = name
        self.folder, self.source, self.target = spec.folder, spec.source, spec.target
        self.translator = translator
        self.glossary = translator.compile_options(Options(glossary=glossary)).glossary  # once for all requests
        self.language_ids = _find_language_ids(spec, translator)
        self.decoder = decoder
        self.batcher: ContinuousBatcher[EncodedSegment, list[Hypothesis], BatchKey] = ContinuousBatcher(
            decoder.decode,
            lambda segment: len(segment.ids) + 1,
            max_tokens=settings.batch_tokens,
            max_segments=settings.batch_pieces,
            max_waiting=settings.queue,
            threads=max(1, settings.processes),
            on_admit=on_admit,
        )

    async def translate(self, texts: Sequence[str], options: Options) -> list[Translation]:
        """Translate texts, in batches with those of other requests."""
        compiled = replace(self.translator.compile_options(options), glossary=self.glossary)
        prepared = await run_on_texts(texts, self.translator.prepare_texts, texts, compiled)
        language = self.language_ids
        segments = [one._replace(ids=[*language, *one.ids]) for one in prepared.encoded_segments if one.ids]
        found = await self.batcher(segments, BatchKey(options.beam, options.n_best))
        hypotheses = [[_skip_attention(one, len(language)) for one in of_segment] for of_segment in found]
        return await run_on_texts(texts, self.translator.finish_texts, prepared, hypotheses, options)

    def close(self) -> None:
        """End the decoder after its current batches."""
        self.batcher.close()
        self.decoder.close()


def _find_language_ids(spec: RunSpec, translator: Translator) -> list[int]:
    """Return the token of the target language that comes before each source of a multilingual model."""
    codes = translator.tokenizers.source.tag_ids if spec.is_imported else {}
    ids = [id for code, id in codes.items() if internal_code(code) == spec.target]
    if codes and not ids:
        known = ", ".join(codes)
        raise UserError(
            f"{spec.folder} does not translate into {spec.target!r}; name one of {known}: RUN=en-{known[:3]}"
        )
    return ids[:1]


def _skip_attention(hypothesis: Hypothesis, count: int) -> Hypothesis:
    """Return a hypothesis without the attention to the first tokens of the source."""
    attention = hypothesis.attention
    return hypothesis if attention is None else hypothesis._replace(attention=attention[:, count:])


@dataclass(frozen=True)
class PredictionModel:
    """A model of another task: it tags, classifies, reads, captions or predicts a series."""

    name: str
    task: str
    folder: Path
    predictor: Predictor


class ModelRegistry:
    """All models. Of several for one language pair the first is used, unless another is named."""

    def __init__(self, models: Sequence[TranslationModel], predictors: Sequence[PredictionModel] = ()) -> None:
        self.models = {model.name: model for model in models}
        self.predictors = {model.name: model for model in predictors}
        self.pairs: dict[tuple[str, str], TranslationModel] = {}
        for model in models:
            self.pairs.setdefault((model.source, model.target), model)

    @property
    def languages(self) -> list[str]:
        """All source and target languages."""
        return sorted({language for pair in self.pairs for language in pair})

    def find_route(self, source: str, target: str) -> list[TranslationModel] | None:
        """Return the shortest chain of models; empty if the languages are the same, None if there is no chain."""
        return self._find_routes(source).get(target)

    def list_targets(self, source: str) -> list[str]:
        """Return the languages that a language can be translated to, itself included."""
        return sorted(self._find_routes(source))

    def _find_routes(self, source: str) -> dict[str, list[TranslationModel]]:
        """Return the shortest chain of models to each language that can be reached."""
        routes: dict[str, list[TranslationModel]] = {source: []}
        queue = deque([source])
        while queue:
            language = queue.popleft()
            for (model_source, model_target), model in self.pairs.items():
                if model_source == language and model_target not in routes:
                    routes[model_target] = [*routes[language], model]
                    queue.append(model_target)
        return routes

    def get(self, name: str) -> TranslationModel:
        """Return a model that translates by its name; the first one if the name is empty."""
        return _get_model(self.models, name, "translates")

    def get_predictor(self, name: str) -> PredictionModel:
        """Return a model of another task by its name; the first one if the name is empty."""
        return _get_model(self.predictors, name, "tags, classifies, reads or captions", " that predicts")

    def find_run(self, name: str) -> Path:
        """Return the folder of a run by the name of its model."""
        return (self.predictors.get(name) or self.get(name)).folder

    def close(self) -> None:
        """End all decoders."""
        for model in self.models.values():
            model.close()


def _get_model(models: Mapping[str, T], name: str, what: str, kind: str = "") -> T:
    if not models:
        raise HTTPError(f"nothing is served here that {what}")
    if name and name not in models:
        raise HTTPError(f"there is no model {name!r}{kind}; there are {', '.join(models)}")
    return models[name or next(iter(models))]


def load_models(runs: Sequence[str], settings: Settings, on_admit: Callable[[str, int, int], None]) -> ModelRegistry:
    """Load the runs; the workers of those that translate load them at the same time."""
    device = None if settings.device == "auto" else choose_device(settings.device, "--device ")
    parsed = [RunSpec.parse(run) for run in runs]
    specs = dict(zip(name_runs([spec.folder for spec in parsed]), parsed, strict=True))
    translating = {name: spec for name, spec in specs.items() if spec.task == TRANSLATE}
    glossaries = assign_glossaries(settings.glossary, {(spec.source, spec.target) for spec in translating.values()})
    decoding = translating if settings.processes else {}
    pools = {name: _start_workers(spec.folder, device, settings) for name, spec in decoding.items()}
    models, predictors = list[TranslationModel](), list[PredictionModel]()
    try:
        for name, spec in translating.items():
            translator = load(spec.folder, device=device, precision=settings.precision)
            decoder = pools.get(name) or LocalDecoder(translator)
            glossary = glossaries.get((spec.source, spec.target), {})
            models.append(
                TranslationModel(name, spec, translator, decoder, settings, partial(on_admit, name), glossary)
            )
        for pool in pools.values():
            pool.wait_until_ready()
        for name, spec in specs.items():
            if spec.task != TRANSLATE:
                predictor = get_task({"task": spec.task}).load(spec.folder, device=device)
                predictors.append(PredictionModel(name, spec.task, spec.folder, predictor))
    except BaseException:
        for pool in pools.values():
            pool.close()
        raise
    return ModelRegistry(models, predictors)


def _start_workers(folder: Path, device: torch.device | None, settings: Settings) -> DecoderPool:
    threads = max(1, torch.get_num_threads() // settings.processes)
    return WorkerPool(partial(run_decoder_process, folder, threads, device, settings.precision), settings.processes)


def assign_glossaries(
    glossaries: Mapping[str, Mapping[str, str]], served: AbstractSet[tuple[str, str]]
) -> dict[tuple[str, str], Mapping[str, str]]:
    """Return the glossary of each language pair that has one; one without a pair belongs to the only pair served."""
    assigned = {}
    for pair, glossary in glossaries.items():
        if not served:
            raise UserError("--glossary: no run that is served translates")
        if not pair and len(served) > 1:
            raise UserError("several pairs of languages are served; say whose glossary it is: --glossary en-de=FILE")
        source, target = map(internal_code, parse_language_pair(pair)) if pair else next(iter(served))
        if (source, target) not in served:
            raise UserError(f"--glossary {pair}=…: no run that is served translates from {source} to {target}")
        assigned[source, target] = glossary
    return assigned
