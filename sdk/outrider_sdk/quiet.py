"""Isolates the instrumented code from faults of the instrumentation."""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable, TypeVar, cast

_log = logging.getLogger("outrider_sdk")
F = TypeVar("F", bound=Callable[..., Any])
_logged: set[str] = set()


def quiet(method: F) -> F:
    """Decorates a method so that errors are logged once per kind and counted, and None is returned."""

    @functools.wraps(method)
    def guarded(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return method(self, *arguments, **named)
        except Exception as error:
            note(error, method.__name__, getattr(self, "metrics", None))
            return None

    return cast("F", guarded)


def note(error: Exception, where: str, metrics: Any) -> None:
    """Logs an error once per kind and counts it; ignores errors of doing so."""
    try:
        kind = f"{where}: {type(error).__name__}"
        if kind not in _logged and len(_logged) < 100:
            _logged.add(kind)
            _log.warning("outrider_sdk could not count (%s); logged once", kind, exc_info=error)
        if metrics is not None:
            metrics.faults.inc()
    except Exception:
        return
