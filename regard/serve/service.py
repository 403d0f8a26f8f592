"""The service behind all routes: access, languages, and translation through one or several models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request

from regard.errors import UserError
from regard.serve.access import (
    ApiKey,
    ApiKeyStore,
    Quota,
    RateLimiter,
    bearer_token,
    client_address,
    client_network,
    count_requests,
)
from regard.serve.engine.background import BoundedThreadPool, run_on_texts
from regard.serve.engine.documents import DocumentPool, FileStore
from regard.serve.engine.models import TranslationModel, load_models
from regard.serve.errors import HTTPError
from regard.serve.language_detection import (
    AUTO,
    Detection,
    LanguageDetector,
    display_name,
    has_letters,
    internal_code,
    public_code,
)
from regard.serve.metrics import Metrics, log_event
from regard.serve.request import read_parameters
from regard.serve.schemas import P, Parameters, validate
from regard.serve.settings import Settings
from regard.translate import Options, Translation
from regard.translate.translation import Alignment, describe_problems

T = TypeVar("T")


class Client(NamedTuple):
    """Client whose requests are counted together, a key or else an address, and its limits."""

    name: str
    quota: Quota
    char_limit: int

    def check_lengths(self, texts: Sequence[str], what: str) -> None:
        """Refuse too long texts of a request or of a file."""
        longest = max(map(len, texts), default=0)
        if 0 <= self.char_limit < longest:
            raise HTTPError(f"Invalid request: {what} ({longest}) exceeds text limit ({self.char_limit})")


class Service:
    """Models, access control and thread pools that the routes use."""

    def __init__(self, runs: Sequence[str], settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.api_keys = ApiKeyStore(settings.keys) if settings.keys else None
        self.models = load_models(runs, settings, self.metrics.record_admission)
        self.detect = LanguageDetector(self.models.languages)
        self.rate_limiter = RateLimiter(settings.ban_after)
        self.file_store = FileStore(settings.kept_limit)
        self.body_pool = BoundedThreadPool(threads=1, queue_size=1000)  # parses bodies
        self.file_pool = BoundedThreadPool(threads=1, queue_size=16)  # reads files of runs
        self.inspection_pool = BoundedThreadPool(threads=2, queue_size=60)  # traces decodings
        self.prediction_pool = BoundedThreadPool(threads=1, queue_size=60)  # predicts for other tasks
        self.document_pool = DocumentPool(processes=2, queue_size=14)

    async def authorize_and_read(self, request: Request, schema: type[P]) -> tuple[P, Client]:
        """Return the valid parameters of a request, and its client, which may make it."""
        values, client = await self.authorize(request)
        return validate(schema, values), client

    async def authorize(self, request: Request) -> tuple[Mapping[str, Any], Client]:
        """Return the parameters of a request, and its client, which may make it.

        A client that is banned, or has no requests left, is refused before a byte of the body is read, as is a wrong
        key in a header or in the query. A client is a key or, without one, an address: a key there works from a banned
        address. If keys are known and the request has none there, one may be in the body: then an address is refused
        before if it is banned, or has used up its requests without any key where one is required.
        """
        client, key = self._identify_client(request), _get_key(request)
        if key or self.api_keys is None:
            client = await self._check_key(client, key)
            self.rate_limiter.refuse_banned(client.name)
            self.rate_limiter.check(client.name, 1, client.quota)
            values = await read_parameters(request, self.body_pool)
        else:
            self.rate_limiter.refuse_banned(client.name)
            if self.settings.require_key:
                self.rate_limiter.check(client.name, 1, Quota(*(limit or -1 for limit in client.quota)))
            with self._count_refusal(client):
                values = await read_parameters(request, self.body_pool)
                key = validate(Parameters, values).api_key
            client = await self._check_key(client, key)
        texts = q if isinstance(q := values.get("q"), list) else [q]  # each counts as a request
        by_length = count_requests(sum(len(text) for text in texts if isinstance(text, str)))
        self.rate_limiter.consume(client.name, max(1, len(texts)), client.quota, by_length=by_length)
        return values, client

    async def authorize_without_body(self, request: Request) -> Client:
        """Check the key of a request without a body, where one is required, and return the client."""
        client, key = self._identify_client(request), _get_key(request)
        if not key:  # a key is a client of its own, whose address may be banned
            self.rate_limiter.refuse_banned(client.name)
        client = await self._check_key(client, key)
        self.rate_limiter.refuse_banned(client.name)
        return client

    def _identify_client(self, request: Request) -> Client:
        settings = self.settings
        network = client_network(client_address(request.scope, settings.trust_proxy))
        quota = Quota(settings.req_limit, settings.hourly_req_limit, settings.daily_req_limit)
        return Client(f"address {network}", quota, settings.char_limit)

    @contextmanager
    def _count_refusal(self, client: Client) -> Iterator[None]:
        """Count a refused request: neither guesses of a key nor bodies without one are free."""
        try:
            yield
        except HTTPError as error:
            if error.status < 500:
                self.rate_limiter.consume(client.name, 1, client.quota)
            raise

    async def _check_key(self, client: Client, key: str) -> Client:
        """Return the client that a key makes of one without."""
        with self._count_refusal(client):
            stored_key = await self._find_key(key)
        if stored_key is None:
            return client
        own = (stored_key.req_limit, stored_key.hourly_req_limit, stored_key.daily_req_limit)
        # A limit of 0 for the service is meant for clients without a key.
        quota = Quota(*[(limit or -1) if mine is None else mine for mine, limit in zip(own, client.quota, strict=True)])
        return Client(
            f"key {stored_key.id}", quota, client.char_limit if stored_key.char_limit is None else stored_key.char_limit
        )

    async def _find_key(self, key: str) -> ApiKey | None:
        if self.api_keys is None:
            return None
        if key:
            try:
                stored_key = await asyncio.to_thread(self.api_keys.find, key)
            except UserError as error:
                log_event("keys", logging.ERROR, error)
                raise HTTPError("Keys cannot be looked up at the moment", 503, {"Retry-After": "2"}) from error
            if stored_key is None:
                raise HTTPError("Invalid API key", 403)
            return stored_key
        if self.settings.require_key:
            link = self.settings.key_link
            how = f"Visit {link}" if link else "Please contact the server operator"
            raise HTTPError(f"{how} to get an API key")
        return None

    def get_base_url(self, request: Request) -> str:
        """Return the beginning of URLs of the service, for a client: --public-url, or the host in its request."""
        if self.settings.public_url:
            return f"{self.settings.public_url.rstrip('/')}/"
        scheme = request.headers.get("x-forwarded-proto", "")
        is_trusted = self.settings.trust_proxy and scheme in ("http", "https")
        return str(request.base_url.replace(scheme=scheme) if is_trusted else request.base_url)

    def check_sizes(self, texts: Sequence[str], client: Client) -> None:
        """Refuse a request with too many or too long texts."""
        limit = self.settings.batch_limit
        if 0 <= limit < len(texts):
            raise HTTPError(
                f"Invalid request: request ({len(texts)}) exceeds text limit ({limit}) of texts in one request"
            )
        client.check_lengths(texts, "request")

    def parse_languages(self, source: str, target: str) -> tuple[str, str]:
        """Return the internal codes of languages, which must be served; the source may still be `auto`."""
        codes = internal_code(source), internal_code(target)
        for language in codes:
            if language not in self.models.languages and (language, codes[0]) != (AUTO, AUTO):
                raise HTTPError(f"{language} is not supported")
        return codes

    def find_languages(self, source: str, target: str, texts: Sequence[str]) -> tuple[str, str, Detection | None]:
        """Return the languages of a request, and the detection if the source is `auto`."""
        source, target = self.parse_languages(source, target)
        detection = self._detect_source(texts, target) if source == AUTO else None
        return (detection.language if detection else source), target, detection

    def _detect_source(self, texts: Sequence[str], target: str) -> Detection:
        """Detect the language of all texts together; assume one that the detector does not know if no other can be.

        A text that would stay as it is, because it seems to be in the target language, may be in a language that the
        detector does not know: it is not if it is in the target language even among all languages.
        """
        text = "\n".join(texts)
        detection = self.detect(text)[0]
        if not any(map(has_letters, texts)) or (
            detection.confidence and self.models.find_route(detection.language, target)
        ):
            return detection
        unknown = [language for language in self.detect.unknown if self.models.find_route(language, target)]
        if detection.confidence and (not unknown or self.detect.confirm(text, detection.language)):
            return detection
        if len(unknown) != 1:
            candidates = ", ".join(map(public_code, unknown or self.models.languages))
            raise HTTPError(f"The language of the text cannot be detected; say which it is: {candidates}")
        return Detection(unknown[0], 0.0)

    def find_route(self, source: str, target: str) -> list[TranslationModel]:
        """Return the models that translate one after the other; refuse a pair without any."""
        route = self.models.find_route(source, target)
        if route is None:
            raise HTTPError(
                f"{display_name(target)} ({public_code(target)}) is not available as a target language from "
                f"{display_name(source)} ({public_code(source)})"
            )
        return route

    async def translate(
        self, texts: Sequence[str], route: Sequence[TranslationModel], options: Options
    ) -> list[Translation]:
        """Translate texts through one model after the other; texts without letters stay as they are."""
        indices = await run_on_texts(texts, find_texts_with_letters, texts) if route else []
        translations = [Translation(text, text) for text in texts]
        inputs = [texts[index] for index in indices]
        outputs: list[Translation] = []
        for model in route:
            self.metrics.characters.labels(model.name).inc(sum(map(len, inputs)))
            own_options = options if model is route[-1] else replace(options, n_best=1)
            made = await model.translate(inputs, own_options)
            outputs = list(map(compose_translations, outputs, made)) if outputs else made
            inputs = [output.text for output in outputs]
        for index, output in zip(indices, outputs, strict=True):
            translations[index] = output
        return translations

    def close(self) -> None:
        """Delete the stored files, and end all threads and processes."""
        pools = (self.body_pool, self.file_pool, self.inspection_pool, self.prediction_pool)
        for part in (self.file_store, self.document_pool, *pools, self.models):
            part.close()


def _get_key(request: Request) -> str:
    """Return the key that a request has in its headers or in its query."""
    return bearer_token(request.headers) or request.query_params.get("api_key", "")


def find_texts_with_letters(texts: Sequence[str]) -> list[int]:
    """Return the indices of texts that have something to translate."""
    return [index for index, text in enumerate(texts) if has_letters(text)]


def describe_warnings(translations: Sequence[Translation]) -> list[str]:
    """Return warnings about tags without alignment, and about sentences without translation."""
    unaligned = sum(one.unaligned_tags > 0 for one in translations)
    untranslated = sum(one.untranslated > 0 for one in translations)
    return describe_problems(len(translations), unaligned, untranslated)


def compose_translations(first: Translation, second: Translation) -> Translation:
    """Join two translations, the second of the first one's text: weights are multiplied, links followed."""
    left, right = first.alignment, second.alignment
    alignment = None
    if left is not None and right is not None and right.soft.shape[1] == left.soft.shape[0]:
        soft, from_pivot = right.soft @ left.soft, left.links_by_target()
        links = [(from_pivot[pivot], word) for word, pivot in right.links_by_target().items() if pivot in from_pivot]
        alignment = Alignment(left.source, right.target, soft, sorted(links), left.source_spans, right.target_spans)
    return replace(
        second,
        source=first.source,
        alignment=alignment,
        attention=None,
        source_tokens=first.source_tokens,
        unaligned_tags=first.unaligned_tags + second.unaligned_tags,
        untranslated=first.untranslated + second.untranslated,
    )
