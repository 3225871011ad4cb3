"""Error responses: ``{"error": {"message", "hint"}}`` with a matching status."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from outrider import log
from outrider.errors import OutriderError, StoreError, UnavailableError, UsageError
from outrider.text import yaml_words

_log = log.get("api")


class NotFoundError(UsageError):
    """No object has that name."""


class ConflictError(UsageError):
    """The state of the object does not allow the request."""


class DeniedError(UsageError):
    """The caller is not authorized."""


_STATUS: tuple[tuple[type[OutriderError], int], ...] = (
    (NotFoundError, 404),
    (ConflictError, 409),
    (DeniedError, 401),
    (UsageError, 400),
    (StoreError, 503),
    (UnavailableError, 503),
)


def body(message: str, hint: str = "") -> dict[str, dict[str, str]]:
    """Body of an error response."""
    return {"error": {"message": message, "hint": hint}}


def install(app: FastAPI) -> None:
    """Registers the error handlers."""
    app.add_exception_handler(OutriderError, _ours)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unexpected)


async def _ours(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OutriderError)
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(body(error.message, error.hint), status, headers)


async def _http(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    hint = "GET /docs lists every path" if error.status_code == 404 else ""
    return JSONResponse(body(str(error.detail), hint), error.status_code, error.headers)


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problem: dict[str, Any] = error.errors()[0]
    location = ".".join(str(part) for part in problem["loc"][1:]) or str(problem["loc"][0])
    return JSONResponse(
        body(f"{location}: {yaml_words.describe(problem)}", "GET /docs shows every parameter with its type"), 422
    )


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    _log.error("api_request_failed", path=request.url.path, error=repr(error))
    return JSONResponse(body("The request failed inside Outrider.", "the log of the API process has the error"), 500)
