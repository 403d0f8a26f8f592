"""The application: all routes, and what stands before them."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from regard.errors import UserError
from regard.serve.access.api_keys import bearer
from regard.serve.http.errors import OverloadedError, Refusal
from regard.serve.http.middleware import Guard, Leaving, Prefixed, prefix
from regard.serve.http.schemas import Error, refused, true
from regard.serve.routes import documents, inspect, libretranslate, predict
from regard.serve.service import Service
from regard.version import VERSION

PAGE = Path(__file__).parent / "page"


class Application(FastAPI):
    """As FastAPI has it, with a description that says what this service answers."""

    def openapi(self) -> dict[str, Any]:
        """The description."""
        return true(super().openapi())


def application(service: Service) -> Guard:
    """The whole of it."""
    path = prefix(service.settings.url_prefix)

    app = Application(
        title="regard",
        description="Translations, and where the model looked; for LibreTranslate's clients, too.",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        servers=[{"url": path}] if path else None,
    )
    app.include_router(libretranslate.router(service))
    app.include_router(documents.router(service))
    app.include_router(inspect.router(service))
    app.include_router(predict.router(service))
    tended(app, service)
    if service.settings.page:
        paged(app, "index.html" if service.fleet.served else "ask.html")
    answering(app)
    return Guard(Leaving(Prefixed(app, path) if path else app), service.settings, service.figures)


def tended(app: FastAPI, service: Service) -> None:
    """What whoever runs the service asks."""
    token = service.settings.metrics_token

    @app.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses={401: {"model": Error, "description": "The token is wrong."}},
        tags=["operation"],
    )
    async def metrics(request: Request) -> Response:
        """Figures for Prometheus."""
        given = bearer(request.headers).encode("utf-8", "replace")
        if token and not hmac.compare_digest(given, token.encode()):
            return JSONResponse({"error": "Unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})
        return Response(service.figures.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/ready", responses=refused(), tags=["operation"])
    async def ready() -> dict[str, str]:
        """Whether more can be taken on."""
        for served in service.fleet.served.values():
            if not served.decoding.available:
                raise OverloadedError(f"no process of {served.name} can decode", "The decoder restarts")
            if served.batcher.count >= served.batcher.room:
                raise OverloadedError(f"{served.name} is full")
        return {"status": "ready"}

    @app.get("/spec", include_in_schema=False)
    async def spec() -> dict[str, object]:
        """The description, under the name that it has elsewhere."""
        return app.openapi()


def paged(app: FastAPI, first: str) -> None:
    """The pages."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        """Translate, and see where the model looks."""
        return FileResponse(PAGE / first)

    @app.get("/ask", include_in_schema=False)
    async def ask() -> Response:
        """Ask a model that does something else."""
        return FileResponse(PAGE / "ask.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """How to ask."""
        return FileResponse(PAGE / "docs.html")

    app.mount("/page", StaticFiles(directory=PAGE), name="page")


def answering(app: FastAPI) -> None:
    """What is said where something cannot be done."""

    @app.exception_handler(Refusal)
    async def refuse(request: Request, error: Refusal) -> Response:
        return JSONResponse({"error": error.text}, error.status, error.headers)

    @app.exception_handler(UserError)
    async def mistaken(request: Request, error: UserError) -> Response:
        return JSONResponse({"error": str(error)}, 400)

    @app.exception_handler(HTTPException)
    async def nowhere(request: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": "Internal server error"}, 500)

    @app.exception_handler(RequestValidationError)
    async def unreadable(request: Request, error: RequestValidationError) -> Response:
        named = ", ".join(str(one["loc"][-1]) for one in error.errors())
        return JSONResponse({"error": f"Invalid request: {named} parameter cannot be read"}, 400)
