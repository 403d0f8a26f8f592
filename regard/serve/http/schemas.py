"""What answers look like, for whoever reads the description of the service."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Asked(BaseModel):
    """A request of which more may be said than is known here."""

    model_config = ConfigDict(extra="allow")


class TranslateRequest(Asked):
    """Text to translate."""

    q: str | list[str] = Field(description="One text, or several.", examples=["the old house"])
    source: str = Field(description="A language's code, or auto.", examples=["en"])
    target: str = Field(description="A language's code.", examples=["de"])
    format: str = Field("text", description="text, or html: tags are carried over to the words that theirs became.")
    alternatives: int = Field(0, description="How many other translations to give as well.")
    alignment: bool = Field(False, description="Whether to say where the model looked.")
    model: str = Field("", description="A model by its name, where several serve the two languages.")
    api_key: str = Field("", description="A key, where the service asks for one.")


class DetectRequest(Asked):
    """Text whose language is to be told."""

    q: str = Field(examples=["ein altes Haus"])
    api_key: str = ""


class SuggestRequest(Asked):
    """A better translation."""

    q: str = Field(description="The text.")
    s: str = Field(description="Its better translation.")
    source: str = Field(examples=["en"])
    target: str = Field(examples=["de"])
    api_key: str = ""


class LookRequest(Asked):
    """One text for one model."""

    q: str = Field(examples=["the old house"])
    model: str = Field("", description="The model's name; the first one where none is given.")
    source: str = Field("", description="Without a model's name: the language of the text, or auto.")
    target: str = Field("", description="Without a model's name: the language that it is translated into.")
    beam: int = Field(5, description="Hypotheses kept open.")
    api_key: str = ""


class Error(BaseModel):
    """What went wrong."""

    error: str


class Detected(BaseModel):
    """A language, and how sure it is, from 0 to 100."""

    confidence: float
    language: str


class Tokens(BaseModel):
    """The same in the model's own pieces."""

    source: list[str]
    target: list[str]
    weights: list[list[float]] | None = Field(description="For each target piece, over the source's pieces.")


class Aligned(BaseModel):
    """Where the model looked, word by word."""

    source: list[str]
    target: list[str]
    pairs: list[tuple[int, int]] = Field(description="Source word, target word, each counted from 0.")
    weights: list[list[float]] = Field(description="For each target word, over the source's words.")
    tokens: Tokens


class Translated(BaseModel):
    """Translations; lists where a list was asked for."""

    translatedText: str | list[str]  # noqa: N815 - as the clients know it
    detectedLanguage: Detected | list[Detected] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    alignment: Aligned | list[Aligned | None] | None = None
    warnings: list[str] | None = Field(None, description="With format html: tags without alignment, if there are any.")


class Language(BaseModel):
    """A language that is served."""

    code: str
    name: str
    targets: list[str]


class Status(BaseModel):
    """How the service is."""

    status: str


class Success(BaseModel):
    """That something was done."""

    success: bool


class File(BaseModel):
    """Where a translated file lies."""

    translatedFileUrl: str  # noqa: N815
    warnings: list[str] | None = Field(None, description="Texts without translation, tags without alignment.")


class Named(BaseModel):
    """A language by code and name."""

    code: str
    name: str


class Model(BaseModel):
    """A run that is served."""

    name: str
    source: Named
    target: Named
    recipe: str | None
    parameters: int | None
    vocabularies: tuple[int, int]
    order: list[str] = Field(description="What one step of decoding computes, one after the other.")
    attention: bool
    heads: int | None = Field(description="Heads of a layer, where it has any.")
    layers: int | None
    scores: dict[str, float | None]
    steps: int
    epochs: float | None
    seconds: float | None = Field(description="That training took.")
    finished: bool


class Models(BaseModel):
    """All of them."""

    models: list[Model]


class Candidate(BaseModel):
    """A token that might come next."""

    token: str
    probability: float


class Opened(BaseModel):
    """A hypothesis of the beam."""

    text: str
    token: str
    log_prob: float
    ended: bool


class TraceStep(BaseModel):
    """One step of decoding."""

    token: str
    candidates: list[Candidate]
    beam: list[Opened]
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


class Curves(BaseModel):
    """What was measured while training, from a step on."""

    rows: list[dict[str, float | str | None]]
    finished: bool


class PredictRequest(BaseModel):
    """An input, or several; what an input is, the model's task says."""

    q: str | dict[str, object] | list[object] = Field(
        description="Text to tag or to classify; for a reader an object with document, query and candidates; for a "
        "captioner one with an image, as a data address. Or a list of such."
    )
    model: str = Field("", description="Which model; the first one where none is named.")
    api_key: str = ""


class LookedAt(BaseModel):
    """A line of words, and how much each was looked at."""

    label: str
    words: list[str]
    weights: list[float]
    weight: float | None = Field(description="Of the line as a whole, where it has one.")
    darkest: float = Field(description="The weight of a word that is to be as dark as can be.")


class PredictionOf(BaseModel):
    """What a model makes of an input; more of it, by other names, as the task has it."""

    text: str = Field(description="The same in one line.")
    looks: list[LookedAt]


class Predicted(BaseModel):
    """What a model makes of all inputs, in their order."""

    model: str
    task: str
    predictions: list[PredictionOf]


class PredictorModel(BaseModel):
    """A run that is served and does not translate."""

    name: str
    task: str
    recipe: str | None
    parameters: int | None
    scores: dict[str, float | None]
    steps: int
    finished: bool


class Predictors(BaseModel):
    """All of them."""

    predictors: list[PredictorModel]


REASONS = {
    400: "What is asked for cannot be done; the text says why.",
    403: "Not allowed.",
    408: "The request took too long to arrive.",
    413: "The request is too large.",
    429: "Too many requests; Retry-After says when to come again.",
    500: "A mistake in the service.",
    503: "Too much is waiting; Retry-After says when to come again.",
}


def refused() -> dict[int | str, dict[str, Any]]:
    """The answers that say no."""
    return {status: {"model": Error, "description": reason} for status, reason in REASONS.items()}


def true(description: dict[str, Any]) -> dict[str, Any]:
    """The description without what FastAPI says of itself: a parameter that cannot be read is a 400 here."""
    for path in description["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        description["components"]["schemas"].pop(name, None)
    return description


def asked(model: type[BaseModel], forms: bool = True) -> dict[str, Any]:
    """What a route takes: JSON, and the same as a form."""
    schema = model.model_json_schema()
    kinds = ["application/json", *(["application/x-www-form-urlencoded", "multipart/form-data"] if forms else [])]
    content = {kind: {"schema": schema} for kind in kinds}
    return {"responses": refused(), "openapi_extra": {"requestBody": {"required": True, "content": content}}}
