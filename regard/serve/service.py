"""One service: its models, who may ask, and what is noted."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request

from regard.errors import UserError
from regard.serve.access.api_keys import Key, Keys, bearer
from regard.serve.access.rate_limit import Allowance, Limits, client_address, household, price
from regard.serve.engine.documents import Documents
from regard.serve.engine.models import SHORT, Crew, Fleet, Given, Served, enlisted, folder, muster, names, task
from regard.serve.engine.thread_pool import Aside, Asking, at_once
from regard.serve.file_store import Shelf
from regard.serve.http.errors import OverloadedError, Refusal
from regard.serve.http.request import Fields, read
from regard.serve.language import AUTO, Detector, Guess, code, has_words, name, written
from regard.serve.metrics import Figures, note
from regard.serve.settings import Settings
from regard.translate import Alignment, Options, Translation

T = TypeVar("T")

TRANSLATE = "translate"
HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
SMALL_KEYLESS = 65_536  # bytes of a body that is read without a key; the key may be in it
MOST_KEYLESS = 8  # larger ones that are read at once


class Service:
    """What every route works with."""

    def __init__(self, runs: Sequence[str], settings: Settings) -> None:
        self.settings = settings
        self.figures = Figures()
        self.keys = Keys(settings.keys) if settings.keys else None
        tasks = {name: (run, task(run)) for name, run in zip(names(list(map(folder, runs))), runs, strict=True)}
        given = {name: Given.of(run) for name, (run, what) in tasks.items() if what == TRANSLATE}
        others = [(name, what, folder(run)) for name, (run, what) in tasks.items() if what != TRANSLATE]
        self.fleet: Fleet = muster(given, settings, self.figures.batch)
        self.crew = Crew([enlisted(*other) for other in others])
        self.detect = Detector(self.fleet.languages)
        self.limits = Limits(settings.ban_after)
        self.keyless = 0  # large bodies that are read and whose key is not known yet
        self.shelf = Shelf(settings.kept_limit)
        self.reading = Aside(threads=1, room=60)  # bodies that are taken apart
        self.texts = Aside(threads=1, room=1000)  # long texts that are searched for words
        self.reports = Aside(threads=1, room=16)  # files of runs that are read for those who look around
        self.lookups = Aside(threads=4, room=100)  # keys that are looked for in a file, which others may be writing to
        self.looks = Aside(threads=2, room=60)  # for those who look at a decoding
        self.documents = Documents(threads=2, room=14)  # each of which waits for its texts to be translated …
        self.asking = Asking()  # … by this

    async def hear(self, request: Request) -> tuple[Fields, Key | None]:
        """What is asked for, of whoever may ask for so much; and their key, if they have one.

        Whoever is banned, or has nothing left, is refused before a byte of the body is read, as is a wrong key in a
        header or in the query. Where keys are known and none is there, one may be in the body: then whoever has
        nothing left without a key is refused only after it was read. What bounds their work on it are its size, how few
        bodies are taken apart, and, where a key is required, how few large ones are read at once, and the ban that
        comes in the end.
        """
        client, given = self.client(request), given_key(request)
        self.limits.refuse_banned(client)
        key = await self.known(request, given) if given else None
        if given or self.keys is None:
            self.limits.check(self.client(request, key), 1, self.allowed(key))
        with self.reserve_body(request) if self.settings.require_key and not given else nullcontext():
            fields = await read(request, self.reading)
            if not given:
                key = await self.known(request, fields.text("api_key", default=""), fields.cost)
        by_length = price(fields.characters)
        self.limits.spend(self.client(request, key), fields.cost, self.allowed(key), by_length=by_length)
        return fields, key

    @contextmanager
    def reserve_body(self, request: Request) -> Iterator[None]:
        """Refuse a large body without a key if several are being read, so that they cannot fill the memory."""
        length = request.headers.get("content-length", "0" if "transfer-encoding" not in request.headers else "")
        if length.isdecimal() and int(length) <= SMALL_KEYLESS:
            yield
            return
        if self.keyless >= MOST_KEYLESS:
            raise OverloadedError(
                f"{self.keyless} large bodies without a key are read",
                "Too many large requests without a key in a header or in the query; send it as Authorization: Bearer",
            )
        self.keyless += 1
        try:
            yield
        finally:
            self.keyless -= 1

    async def enter(self, request: Request, cost: int = 0, by_length: int = 0) -> None:
        """Check the key of a request without a body, where one is required, and charge so many requests for it."""
        self.limits.refuse_banned(self.client(request))
        key = await self.known(request, given_key(request))
        if cost:
            self.limits.spend(self.client(request, key), cost, self.allowed(key), by_length=by_length)

    async def known(self, request: Request, given: str, cost: int = 1) -> Key | None:
        """The key that was given; who guesses is counted as well."""
        try:
            return await self.key(given)
        except Refusal as refusal:
            if refusal.status < 500:
                self.limits.spend(self.client(request), cost, self.allowed())
            raise

    def allowed(self, key: Key | None = None) -> Allowance:
        """How much may be asked for, with a key or without one."""
        settings = self.settings
        usual = Allowance(settings.req_limit, settings.hourly_req_limit, settings.daily_req_limit)
        if key is None:
            return usual
        own = (key.req_limit, key.hourly_req_limit, key.daily_req_limit)
        # 0 for everybody is meant for those without a key.
        return Allowance(*[(most or -1) if mine is None else mine for mine, most in zip(own, usual, strict=True)])

    def client(self, request: Request, key: Key | None = None) -> str:
        """Whom all that is asked for is counted to: a key, or else an address."""
        return f"key {key.id}" if key else f"address {self.address(request)}"

    def address(self, request: Request) -> str:
        """Who asks, all addresses of one client as one."""
        return household(client_address(request.scope, self.settings.trust_proxy))

    def base(self, request: Request) -> str:
        """Return what URLs of the service begin with, for a client.

        That is --public-url, or the host that the client has asked. If its Host header is not a host and a port, it is
        only the path.
        """
        if self.settings.public_url:
            return f"{self.settings.public_url.rstrip('/')}/"
        if not HOST.fullmatch(request.headers.get("host", "")):
            return request.base_url.path
        told = request.headers.get("x-forwarded-proto", "")
        known = self.settings.trust_proxy and told in ("http", "https")
        return str(request.base_url.replace(scheme=told) if known else request.base_url)

    async def key(self, given: str) -> Key | None:
        """The key that was given, if keys are asked for."""
        if self.keys is None:
            return None
        if given:
            try:
                found = await self.lookups(self.keys.find, given)
            except UserError as error:
                note("keys", logging.ERROR, error)
                raise Refusal("Keys cannot be looked up at the moment", 503, {"Retry-After": "2"}) from error
            if found is None:
                raise Refusal("Invalid API key", 403)
            return found
        if self.settings.require_key:
            link = self.settings.key_link
            how = f"Visit {link}" if link else "Please contact the server operator"
            raise Refusal(f"{how} to get an API key")
        return None

    def char_limit(self, key: Key | None) -> int:
        """Characters that one text may have."""
        return self.settings.char_limit if key is None or key.char_limit is None else key.char_limit

    def check_sizes(self, texts: Sequence[str], key: Key | None) -> None:
        """Refuses more, or longer, texts than are taken."""
        most = self.settings.batch_limit
        if 0 <= most < len(texts):
            raise Refusal(
                f"Invalid request: request ({len(texts)}) exceeds text limit ({most}) of texts in one request"
            )
        self.check_lengths(texts, key, "request")

    def check_lengths(self, texts: Sequence[str], key: Key | None, what: str) -> None:
        """Refuses longer texts than are taken, of a request or of a file."""
        longest, limit = max(map(len, texts), default=0), self.char_limit(key)
        if 0 <= limit < longest:
            raise Refusal(f"Invalid request: {what} ({longest}) exceeds text limit ({limit})")

    def languages(self, source: str, target: str, texts: Sequence[str]) -> tuple[str, str, Guess | None]:
        """The languages that are asked for, and the guess where the first was to be guessed."""
        spoken, wanted = self.codes(source, target)
        guess = self.guessed(texts, wanted) if spoken == AUTO else None
        return (guess.language if guess else spoken), wanted, guess

    def codes(self, source: str, target: str) -> tuple[str, str]:
        """The languages that are asked for, which must be served; the first may still have to be guessed."""
        asked = code(source), code(target)
        for language in asked:
            if language not in self.fleet.languages and (language, asked[0]) != (AUTO, AUTO):
                raise Refusal(f"{language} is not supported")
        return asked

    def route(self, spoken: str, target: str) -> list[Served]:
        """The models to go through."""
        route = self.fleet.route(spoken, target)
        if route is None:
            raise Refusal(
                f"{name(target)} ({written(target)}) is not available as a target language from "
                f"{name(spoken)} ({written(spoken)})"
            )
        return route

    def run(self, name: str) -> Path:
        """The folder of a run by its name, whatever it does."""
        hand = self.crew.hands.get(name)
        return hand.folder if hand else self.named(name).folder

    def named(self, name: str) -> Served:
        """A model that translates by its name; the first one where none is given."""
        served = self.fleet.served
        if not served:
            raise Refusal("nothing is served here that translates")
        if name and name not in served:
            raise Refusal(f"there is no model {name!r}; there are {', '.join(served)}")
        return served[name or next(iter(served))]

    def guessed(self, texts: Sequence[str], target: str) -> Guess:
        """The language of all texts together; one that the detector does not know is the guess where no other may be.

        A text that would stay as it is, as it seems to be in the target's own language already, may well be in one of
        those: it is not if it is in the target's language even among all languages that there are.
        """
        text = "\n".join(texts)
        guess = self.detect(text)[0]
        if not has_words(text) or (guess.confidence and self.fleet.route(guess.language, target)):
            return guess
        unknown = [language for language in self.detect.unknown if self.fleet.route(language, target)]
        if guess.confidence and (not unknown or self.detect.sure(text, guess.language)):
            return guess
        if len(unknown) != 1:
            served = ", ".join(map(written, unknown or self.fleet.languages))
            raise Refusal(f"The language of the text cannot be told; say which it is: {served}")
        return Guess(unknown[0], 0.0)

    async def translate(self, texts: Sequence[str], route: Sequence[Served], options: Options) -> list[Translation]:
        """A translation of each text; one without words stays as it is."""
        spoken = await self.run_on_texts(texts, find_texts_with_words, texts) if route else []
        made = [Translation(text, text) for text in texts]
        found = await self.along(route, [texts[number] for number in spoken], options)
        for number, translation in zip(spoken, found, strict=True):
            made[number] = translation
        return made

    async def run_on_texts(self, texts: Sequence[str], work: Callable[..., T], *arguments: Any) -> T:
        """Do work on texts; in a thread, unless they are short."""
        return await (self.texts if sum(map(len, texts)) > SHORT else at_once)(work, *arguments)

    async def along(self, route: Sequence[Served], texts: Sequence[str], options: Options) -> list[Translation]:
        """Through one model after the other; all but the last give their best alone."""
        made: list[Translation] = []
        for number, served in enumerate(route):
            last = number == len(route) - 1
            asked = options if last else replace(options, n_best=1)
            self.figures.characters.labels(served.name).inc(sum(map(len, texts)))
            found = await served.translate(texts, asked)
            made = [through(*pair) for pair in zip(made, found, strict=True)] if made else found
            texts = [one.text for one in made]
        return made

    def close(self) -> None:
        """Ends what works in the background."""
        for part in (
            self.asking,
            self.shelf,
            self.documents,
            self.looks,
            self.lookups,
            self.reading,
            self.texts,
            self.reports,
            self.crew,
            self.fleet,
        ):
            part.close()


def given_key(request: Request) -> str:
    """Return the key that a request has in its headers or in its query."""
    return bearer(request.headers) or request.query_params.get("api_key", "")


def find_texts_with_words(texts: Sequence[str]) -> list[int]:
    """Return the indices of texts that have words."""
    return [number for number, text in enumerate(texts) if has_words(text)]


def through(first: Translation, second: Translation) -> Translation:
    """Two translations, one of the other: where the second looked at a word, the first tells where that came from."""
    left, right = first.alignment, second.alignment
    alignment = None
    if left is not None and right is not None and right.soft.shape[1] == left.soft.shape[0]:
        soft = right.soft @ left.soft
        strongest = [(int(row.argmax()), number) for number, row in enumerate(soft) if row.size and row.max() > 0]
        alignment = Alignment(left.source, right.target, soft, sorted(strongest))
    return replace(
        second,
        source=first.source,
        alignment=alignment,
        attention=None,
        source_tokens=first.source_tokens,
        unaligned_tags=first.unaligned_tags + second.unaligned_tags,
        untranslated=first.untranslated + second.untranslated,
    )
