"""Schemas of requests and responses: they validate parameters, and describe the API in OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError, WithJsonSchema
from pydantic_core import to_json

from regard.serve.errors import HTTPError
from regard.serve.request import UploadedFile

OptionalNumber = Annotated[int | None, WithJsonSchema({"type": "integer"})]
JSON_INPUTS: list[dict[str, Any]] = [
    {"type": "string"},
    {"additionalProperties": True, "type": "object"},
    {"items": {}, "type": "array"},
]
JsonInput = Annotated[Any, WithJsonSchema({"anyOf": JSON_INPUTS})]


class Parameters(BaseModel):
    """Parameters of a request; unknown ones are ignored."""

    model_config = ConfigDict(extra="allow")
    api_key: str = Field("", description="A key, where the service asks for one.")


P = TypeVar("P", bound=Parameters)


def validate(schema: type[P], values: Mapping[str, Any]) -> P:
    """Validate parameters; empty ones count as missing. The message names the first invalid one."""
    given = {name: values[name] for name in schema.model_fields if values.get(name) not in (None, "", [])}
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(first["loc"][0])
        if first["type"] == "missing":
            raise HTTPError(f"Invalid request: missing {name} parameter") from error
        raise HTTPError(f"Invalid request: {name} parameter: {first['msg']}") from error


class TranslateRequest(Parameters):
    """Text to translate."""

    q: str | list[str] = Field(description="One text, or several.", examples=["the old house"])
    source: str = Field(description="A language's code, or auto.", examples=["en"])
    target: str = Field(description="A language's code.", examples=["de"])
    format: str = Field("text", description="text, or html: tags are carried over to the words that theirs became.")
    alternatives: int = Field(0, description="How many other translations to give as well.")
    alignment: bool = Field(False, description="Whether to return the attention and the word alignment.")
    model: str = Field("", description="A model by its name, where several serve the two languages.")


class DetectRequest(Parameters):
    """Text whose language is to be detected."""

    q: str | list[str] = Field(description="One text, or several in one language.", examples=["ein altes Haus"])


class SuggestRequest(Parameters):
    """A better translation."""

    q: str = Field(description="The text.")
    s: str = Field(description="Its better translation.")
    source: str = Field(examples=["en"])
    target: str = Field(examples=["de"])


class FileRequest(Parameters):
    """A document to translate."""

    file: Annotated[InstanceOf[UploadedFile], WithJsonSchema({"type": "string", "format": "binary"})]
    source: str
    target: str


class InspectRequest(Parameters):
    """One text for one model."""

    q: str = Field(examples=["the old house"])
    model: str = Field("", description="The model's name; the first one where none is given.")
    source: str = Field("", description="Without a model's name: the language of the text, or auto.")
    target: str = Field("", description="Without a model's name: the language that it is translated into.")
    beam: OptionalNumber = Field(None, description="Beam size; that of the service, but at most 12, if none is given.")


class PredictRequest(Parameters):
    """An input, or several; the model's task defines what an input is."""

    model_config = ConfigDict(extra="ignore")
    q: JsonInput = Field(
        description="Text to tag or to classify; for a reader an object with document, query and candidates; for a "
        "captioner one with an image, as a data address. Or a list of such."
    )
    model: str = Field("", description="Which model; the first one where none is named.")


class Error(BaseModel):
    """Description of an error."""

    error: str


class DetectedLanguage(BaseModel):
    """A language, with a confidence from 0 to 100."""

    confidence: float
    language: str


class Tokens(BaseModel):
    """Alignment of the model's own tokens."""

    source: list[str]
    target: list[str]
    weights: list[list[float]] | None = Field(description="For each target token, over the source's tokens.")


class WordAlignment(BaseModel):
    """Attention and alignment, word by word."""

    source: list[str]
    target: list[str]
    source_offsets: list[tuple[int, int]] | None = Field(
        description="Start and end of each source word in the text, in Unicode code points; null with tags."
    )
    target_offsets: list[tuple[int, int]] | None = Field(description="The same in the translation.")
    pairs: list[tuple[int, int]] = Field(description="Source word, target word, each counted from 0.")
    weights: list[list[float]] = Field(description="For each target word, over the source's words.")
    tokens: Tokens


class Translated(BaseModel):
    """Translations; lists where a list was asked for."""

    translatedText: str | list[str]  # noqa: N815 - as the clients know it
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    alignment: WordAlignment | list[WordAlignment | None] | None = None
    warnings: list[str] | None = Field(None, description="With format html: tags without alignment, if there are any.")


class LanguageName(BaseModel):
    """A language by code and name."""

    code: str
    name: str


class Language(LanguageName):
    """A language that is served."""

    targets: list[str]


class Status(BaseModel):
    """Status of the service."""

    status: str


class Success(BaseModel):
    """Success of a request."""

    success: bool


class TranslatedFile(BaseModel):
    """URL of a translated file."""

    translatedFileUrl: str  # noqa: N815
    warnings: list[str] | None = Field(None, description="Texts without translation, tags without alignment.")


class ServedRun(BaseModel):
    """A run that is served."""

    name: str
    recipe: str | None
    parameters: int | None
    scores: dict[str, float | None]
    steps: int
    finished: bool


class Model(ServedRun):
    """A run that translates."""

    source: LanguageName
    target: LanguageName
    vocabularies: tuple[int, int]
    order: list[str] = Field(description="What one step of decoding computes, one after the other.")
    attention: bool
    heads: int | None = Field(description="Heads of a layer, where it has any.")
    layers: int | None
    epochs: float | None
    seconds: float | None = Field(description="That training took.")


class Models(BaseModel):
    """All runs that translate."""

    models: list[Model]


class Candidate(BaseModel):
    """A token that might come next."""

    token: str
    probability: float


class BeamHypothesis(BaseModel):
    """A hypothesis of the beam."""

    text: str
    token: str
    log_prob: float
    ended: bool


class TraceStep(BaseModel):
    """One step of decoding."""

    token: str
    candidates: list[Candidate]
    beam: list[BeamHypothesis]
    weights: list[float] | None
    heads: dict[str, list[float]]
    window: tuple[int, int] | None
    context: list[float] | None
    state: list[float] | None
    attentional: list[float] | None = Field(description="h̃_t, of models whose order has it.")


class Trace(BaseModel):
    """One decoding, step by step."""

    model: str
    order: list[str]
    pieces: int = Field(description="That the text was cut into; the steps are those of the first.")
    source: list[str]
    text: str
    steps: list[TraceStep]


class TrainingCurves(BaseModel):
    """Metrics of training, from a step on."""

    rows: list[dict[str, float | str | None]]
    finished: bool


class AttentionLine(BaseModel):
    """A line of words with their attention weights."""

    label: str
    words: list[str]
    weights: list[float]
    weight: float | None = Field(description="Of the line as a whole, where it has one.")
    darkest: float = Field(description="The weight of a word that is to be as dark as can be.")


class PredictionOutput(BaseModel):
    """Prediction for an input; the task adds further fields."""

    text: str = Field(description="The same in one line.")
    attention_lines: list[AttentionLine]


class Predicted(BaseModel):
    """Predictions for all inputs, in their order."""

    model: str
    task: str
    predictions: list[PredictionOutput]


class Predictor(ServedRun):
    """A run of another task."""

    task: str


class Predictors(BaseModel):
    """All runs of other tasks."""

    predictors: list[Predictor]


JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
ERRORS = {
    400: "What is asked for cannot be done; the text says why.",
    403: "Not allowed.",
    408: "The request took too long to arrive.",
    413: "The request is too large.",
    429: "Too many requests; Retry-After says when to come again.",
    500: "A mistake in the service.",
    503: "Too much is waiting; Retry-After says when to come again.",
}


def describe_errors() -> dict[int | str, dict[str, Any]]:
    """Describe the error responses of a route."""
    return {status: {"model": Error, "description": reason} for status, reason in ERRORS.items()}


def describe_request(
    schema: type[Parameters], content_types: tuple[str, ...] = (JSON, FORM, MULTIPART)
) -> dict[str, Any]:
    """Describe the request and the errors of a route that reads its request itself."""
    content = {content_type: {"schema": schema.model_json_schema()} for content_type in content_types}
    return {"responses": describe_errors(), "openapi_extra": {"requestBody": {"required": True, "content": content}}}


def round_weights(weights: Any) -> Any:
    """Round numbers to four digits for a response; None stays None."""
    return None if weights is None else np.round(np.asarray(weights, float), 4).tolist()


def encode_json(value: Any) -> bytes:
    """Write a response that may have arrays of attention weights, which are rounded; NaN and inf become null."""
    return to_json(value, inf_nan_mode="null", fallback=round_weights)
