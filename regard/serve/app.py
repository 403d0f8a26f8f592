"""The application: all routes, and what stands before them."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from regard.errors import UserError
from regard.serve import compatible, files, looking
from regard.serve.answers import Error
from regard.serve.bearer import bearer
from regard.serve.described import refused
from regard.serve.guard import Guard
from regard.serve.leaving import Leaving
from regard.serve.prefix import Prefixed, prefix
from regard.serve.refusal import OverloadedError, Refusal
from regard.serve.service import Service
from regard.version import VERSION

PAGE = Path(__file__).parent / "page"


def application(service: Service) -> Guard:
    """The whole of it."""
    path = prefix(service.settings.url_prefix)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="regard",
        description="Translations, and where the model looked; for LibreTranslate's clients, too.",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        servers=[{"url": path}] if path else None,
        lifespan=lifespan,
    )
    app.include_router(compatible.router(service))
    app.include_router(files.router(service))
    app.include_router(looking.router(service))
    tended(app, service)
    if service.settings.page:
        paged(app)
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
            if served.batcher.count >= served.batcher.room:
                raise OverloadedError(f"{served.name} is full")
        return {"status": "ready"}

    @app.get("/spec", include_in_schema=False)
    async def spec() -> dict[str, object]:
        """The description, under the name that it has elsewhere."""
        return app.openapi()


def paged(app: FastAPI) -> None:
    """The page."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        """Translate, and see where the model looks."""
        return FileResponse(PAGE / "index.html")

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
