"""The models that are served, and the ways from one language to another."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError
from regard.runs import Run
from regard.runs.summary import RunSummary, summarize_run
from regard.search import Hypothesis
from regard.serve.engine.batching import Batcher
from regard.serve.engine.thread_pool import Aside, at_once, pause_between
from regard.serve.engine.workers import Decoding, Kind, Processes, decode
from regard.serve.http.errors import Refusal
from regard.serve.http.request import numbers
from regard.serve.language import code
from regard.serve.settings import Settings
from regard.tasks import get_task
from regard.tasks.base import Prediction, Predictor
from regard.translate import Options, Translation, Translator, load
from regard.translate.segmentation import EncodedSegment

CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
SHORT = 2000  # characters that are read and written so soon that nobody waits for it


@dataclass(frozen=True)
class Given:
    """A run as the command line names it: `runs/x`, or `runs/x=en-de` where it does not know its languages."""

    folder: Path
    source: str
    target: str

    @classmethod
    def of(cls, named: str) -> Given:
        """From the command line's words."""
        place, pair = split_pair(named)
        data = Run(place).read_config()["data"]
        source, target = languages_of(pair) if pair is not None else (data.get("source"), data.get("target"))
        if not source or not target:
            raise UserError(f"{place} does not say its languages; name them: regard serve {place}=en-de")
        return cls(place, code(source), code(target))


def summarize_served(folder: Path) -> RunSummary:
    """Summarize a run; its files, which may be large, are read again only after a checkpoint was written."""
    files = [folder / "config.yaml", folder / "checkpoints", *sorted(folder.glob("checkpoints/*/state.json"))]
    return _summarize(folder, tuple((path.name, path.stat().st_mtime_ns) for path in files if path.exists()))


@lru_cache(maxsize=100)
def _summarize(folder: Path, written: tuple[tuple[str, int], ...]) -> RunSummary:
    return summarize_run(folder, pause_between)


class Served:
    """One model at work."""

    def __init__(
        self,
        name: str,
        given: Given,
        translator: Translator,
        decoding: Decoding | Processes[EncodedSegment, list[Hypothesis], Kind],
        settings: Settings,
        noted: Callable[[int, int], None] = lambda pieces, waiting: None,
        glossary: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.glossary = translator.compile_options(
            Options(glossary=glossary or {})
        ).glossary  # spelled once for all requests
        self.folder, self.source, self.target = given.folder, given.source, given.target
        self.translator = translator
        self.decoding = decoding
        self.batcher: Batcher[EncodedSegment, list[Hypothesis], Kind] = Batcher(
            decoding.find,
            lambda piece: len(piece.ids) + 1,
            tokens=settings.batch_tokens,
            most=settings.batch_pieces,
            room=settings.queue,
            threads=max(1, settings.processes),
            noted=noted,
        )

    async def translate(self, texts: Sequence[str], options: Options) -> list[Translation]:
        """A translation of each text, decoded together with what others ask for."""
        off = asyncio.to_thread if sum(map(len, texts)) > SHORT else at_once
        plan = replace(self.translator.compile_options(options), glossary=self.glossary)
        draft = await off(self.translator.prepare_texts, texts, plan)
        spoken = [piece for piece in draft.encoded_segments if piece.ids]
        found = iter(await self.batcher(spoken, Kind(options.beam, options.n_best)))

        def finished() -> list[Translation]:
            each = ((piece, next(found) if piece.ids else []) for piece in draft.encoded_segments)
            wishes = replace(options, tags=True) if draft.needs_alignment else options
            return draft.restore_texts([self.translator.build_translation(piece, some, wishes) for piece, some in each])

        return await off(finished)

    def close(self) -> None:
        """Ends what decodes, when what it works on is done."""
        self.batcher.close()
        self.decoding.close()


class Fleet:
    """All of them. Of several for one pair of languages the first one named is asked, unless another is named."""

    def __init__(self, served: Sequence[Served]) -> None:
        self.served = {one.name: one for one in served}
        self.pairs: dict[tuple[str, str], Served] = {}
        for one in served:
            self.pairs.setdefault((one.source, one.target), one)

    @property
    def languages(self) -> list[str]:
        """Every language that is read or written."""
        return sorted({language for pair in self.pairs for language in pair})

    def route(self, source: str, target: str) -> list[Served] | None:
        """The models to go through, as few as may be; none where the languages are one, None where no way leads."""
        ways: deque[tuple[str, list[Served]]] = deque([(source, [])])
        seen = {source}
        while ways:
            language, way = ways.popleft()
            if language == target:
                return way
            for (here, there), one in self.pairs.items():
                if here == language and there not in seen:
                    seen.add(there)
                    ways.append((there, [*way, one]))
        return None

    def targets(self, source: str) -> list[str]:
        """The languages that one can be translated to, itself among them."""
        return [target for target in self.languages if self.route(source, target) is not None]

    def close(self) -> None:
        """Ends what decodes."""
        for one in self.served.values():
            one.close()


def split_pair(named: str) -> tuple[Path, str | None]:
    """Split `runs/x=en-de` into folder and languages; a folder that exists is one, whatever its name."""
    place, named_too, pair = named.rpartition("=")
    return (Path(place), pair) if named_too and not Path(named).exists() else (Path(named), None)


def folder(named: str) -> Path:
    """Where a run lies that the command line names."""
    return split_pair(named)[0]


def task(named: str) -> str:
    """What a run that the command line names was trained to do."""
    return str(Run(folder(named)).read_config().get("task", "translate"))


def names(folders: Sequence[Path]) -> list[str]:
    """A name for each run: its folder's own, and a number behind it where another has that name already."""
    found: list[str] = []
    for folder in folders:
        own = name = folder.resolve().name
        number = 1
        while name in found:
            number += 1
            name = f"{own}-{number}"
        found.append(name)
    return found


def languages_of(pair: str) -> tuple[str, str]:
    """`en-de`, `pt-BR-en` and `en-zh-Hans`: what begins with a capital letter belongs to the code before it."""
    parts = pair.split("-")
    second = next((place for place, part in enumerate(parts) if place and part[:1].islower()), len(parts))
    found = "-".join(parts[:second]), "-".join(parts[second:])
    for language in found:
        if not CODE.fullmatch(language):
            raise UserError(f"{pair!r} is not a pair of language codes like en-de, pt-BR-en or en-zh-Hans")
    return found


def muster(
    given: Mapping[str, Given],
    settings: Settings,
    noted: Callable[[str, int, int], None] = lambda name, pieces, waiting: None,
) -> Fleet:
    """The runs of the command line that translate, by their names, loaded."""
    terms = glossaries(settings.glossary, {(one.source, one.target) for one in given.values()})

    def telling(name: str) -> Callable[[int, int], None]:
        return lambda pieces, waiting: noted(name, pieces, waiting)

    apart = {name: beside(one.folder, settings) for name, one in given.items() if settings.processes}

    def served(name: str, one: Given) -> Served:
        translator = load(one.folder, precision=settings.precision)
        terms_of_it = terms.get((one.source, one.target))
        decoding = apart.get(name) or Decoding(translator)
        return Served(name, one, translator, decoding, settings, telling(name), terms_of_it)

    try:
        fleet = Fleet([served(name, one) for name, one in given.items()])
        for processes in apart.values():
            processes.ready()
    except BaseException:
        for processes in apart.values():
            processes.close()
        raise
    return fleet


def beside(folder: Path, settings: Settings) -> Processes[EncodedSegment, list[Hypothesis], Kind]:
    """The processes that decode for a run; they load it while this one does."""
    threads = max(1, torch.get_num_threads() // settings.processes)
    return Processes(partial(decode, folder, threads, settings.precision), settings.processes)


def glossaries(
    given: Mapping[str, Mapping[str, str]], served: AbstractSet[tuple[str, str]]
) -> dict[tuple[str, str], Mapping[str, str]]:
    """The glossary of each pair of languages that has one; one that names no pair is for the only one there is."""
    found = {}
    for named, table in given.items():
        if not served:
            raise UserError("--glossary: no run that is served translates")
        if not named and len(served) > 1:
            raise UserError("several pairs of languages are served; say whose glossary it is: --glossary en-de=FILE")
        source, target = map(code, languages_of(named)) if named else next(iter(served))
        if (source, target) not in served:
            raise UserError(f"--glossary {named}=…: no run that is served translates from {source} to {target}")
        found[source, target] = table
    return found


@dataclass(frozen=True)
class Hand:
    """One of them at work."""

    name: str
    task: str
    folder: Path
    predictor: Predictor

    def predict(self, given: Sequence[Any]) -> list[dict[str, Any]]:
        """What it makes of inputs as a request holds them."""
        return [told(made) for made in self.predictor.predict([self.predictor.parse_json_input(one) for one in given])]

    def described(self) -> dict[str, Any]:
        """What its run tells."""
        known = summarize_served(self.folder)
        best = known.best
        return {
            "name": self.name,
            "task": self.task,
            "recipe": known.recipe,
            "parameters": known.parameters,
            "scores": {best.measure: best.score, "loss": best.loss} if best else {},
            "steps": known.steps,
            "finished": known.finished,
        }


class Crew:
    """All of them, and the thread that they work in, one after the other."""

    def __init__(self, hands: Sequence[Hand]) -> None:
        self.hands = {hand.name: hand for hand in hands}
        self.work = Aside(threads=1, room=60)

    def named(self, name: str) -> Hand:
        """One by its name; the first where none is given."""
        if not self.hands:
            raise Refusal("nothing is served here that tags, classifies, reads or captions")
        if name and name not in self.hands:
            raise Refusal(f"there is no model {name!r} that predicts; there are {', '.join(self.hands)}")
        return self.hands[name or next(iter(self.hands))]

    def close(self) -> None:
        """Ends the thread."""
        self.work.close()


def enlisted(name: str, task: str, folder: Path) -> Hand:
    """A run, loaded."""
    return Hand(name, task, folder, get_task({"task": task}).load(folder))


def told(made: Prediction) -> dict[str, Any]:
    """A prediction, as an answer has it."""
    looks = [
        {
            "label": line.label,
            "words": list(line.words),
            "weights": numbers(line.weights),
            "weight": line.weight,
            "darkest": line.darkest_weight,
        }
        for line in made.make_attention_lines()
    ]
    return {"text": made.to_text(), **made.to_dict(), "looks": looks}
