"""Diagnostic logs with structlog, on standard error. Standard output is reserved for results."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, MutableMapping
from typing import Any

import structlog

from outrider.audit import REDACTED, is_secret, redact_text


def _redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key in event:
        if is_secret(key):
            event[key] = REDACTED
        elif isinstance(event[key], str):
            event[key] = redact_text(event[key])
    return event


def _without(events: frozenset[str]) -> Any:
    def drop(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event.get("event") in events:
            raise structlog.DropEvent
        return event

    return drop


def configure(*, level: str = "info", json_lines: bool | None = None, quiet: Collection[str] = ()) -> None:
    """Configures logs, once. ``json_lines`` None: JSON unless standard error is a terminal.

    Events in ``quiet`` are dropped, for commands that report them in their result.
    """
    as_json = not sys.stderr.isatty() if json_lines is None else json_lines
    renderer: Any = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if as_json
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[
            *([_without(frozenset(quiet))] if quiet else []),
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _redact,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )


def get(name: str) -> Any:
    """A logger bound to its stage: ``log.get("collect").warning("scrape_failed", target=...)``."""
    return structlog.get_logger(stage=name)
