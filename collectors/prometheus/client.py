"""Client for the calls of the Prometheus HTTP API that a source needs."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import aiohttp

from outrider import log
from outrider.errors import CollectError, CollectReason
from outrider.vocabulary.units import format_duration
from outrider.wire.http_auth import Access

_MAX_LOGGED = 100  # remembered warnings
_MAX_ERROR_TEXT = 300  # characters of an error text
_MOST_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RawSeries:
    """One series with its raw samples, oldest first: unix milliseconds and values."""

    labels: Mapping[str, str]
    stamps: tuple[int, ...]
    values: tuple[float, ...]


class PrometheusApi:
    """Prometheus, Thanos, Mimir or VictoriaMetrics: any server with ``/api/v1/query``."""

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta = timedelta(seconds=10),
        access: Access | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """``timeout`` applies to a whole query; ``parameters`` are added to every query."""
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._access = access or Access()
        self._parameters = dict(parameters or {})
        self._logged_warnings: set[str] = set()
        self.warned = False  # a response since the last reset had a warning: data may be missing
        self._session: aiohttp.ClientSession | None = None

    async def raw(self, selector: str, span: timedelta, at: datetime) -> list[RawSeries]:
        """Raw samples of ``selector`` in (at - span, at], without native histograms. Raises CollectError."""
        query = f"{selector}[{int(span.total_seconds() * 1000)}ms]"
        result = await self._result(query, at, "matrix")
        with self._checked_shape():
            return [
                RawSeries(
                    series["metric"],
                    tuple(round(float(stamp) * 1000) for stamp, _ in series["values"]),
                    tuple(float(value) for _, value in series["values"]),
                )
                for series in result
                if "values" in series
            ]

    async def vector(self, query: str, at: datetime) -> list[Mapping[str, str]]:
        """Label sets of an instant query's result. Raises CollectError."""
        return [series["metric"] for series in await self._result(query, at, "vector")]

    async def values(self, query: str, at: datetime) -> list[tuple[Mapping[str, str], float]]:
        """Label sets and values of an instant query's result. Raises CollectError."""
        result = await self._result(query, at, "vector")
        with self._checked_shape():
            return [(item["metric"], float(item["value"][1])) for item in result]

    async def last_errors(self) -> dict[tuple[str, str], str]:
        """Scrape errors of targets by (job, instance); empty if the server does not report them."""
        try:
            answer = await self._request("GET", "/api/v1/targets", {"state": "active"})
            active = answer["data"]["activeTargets"]
            return {
                (str(target["labels"].get("job", "")), str(target["labels"].get("instance", ""))): str(
                    target.get("lastError", "")
                )
                for target in active
            }
        except (CollectError, KeyError, TypeError, AttributeError):
            return {}

    async def _result(self, query: str, at: datetime, kind: str) -> list[dict[str, Any]]:
        response = await self._request(
            "POST", "/api/v1/query", {**self._parameters, "query": query, "time": f"{at.timestamp():.3f}"}
        )
        if response.get("status") != "success":
            detail = str(response.get("error") or "no reason given")[:_MAX_ERROR_TEXT]
            raise self._error(f"rejected a query: {detail}", CollectReason.HTTP_STATUS)
        partial = (
            ("the response is partial",) if response.get("isPartial") is True else ()
        )  # a cluster of VictoriaMetrics
        warnings = response.get("warnings")
        self._warn((*(warnings if isinstance(warnings, list) else ()), *partial))
        with self._checked_shape():
            return _series(response["data"], kind)

    @contextmanager
    def _checked_shape(self) -> Iterator[None]:
        """Maps errors in an unexpected response to one clear error."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            message = f"returned a response that is not a Prometheus API result ({_error_text(error)})"
            raise self._error(message, CollectReason.NOT_METRICS) from error

    def _warn(self, warnings: Sequence[Any]) -> None:
        """Logs a response's warnings once each, such as a store that Thanos could not reach."""
        for text in map(str, warnings):
            self.warned = True
            if text not in self._logged_warnings and len(self._logged_warnings) < _MAX_LOGGED:
                self._logged_warnings.add(text)
                log.get("collect").warning("prometheus_warned", url=self.url, warning=text[:500])

    async def _request(self, method: str, path: str, fields: Mapping[str, str]) -> dict[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        headers, trust, posted = *self._credentials(), method == "POST"
        try:
            async with (
                asyncio.timeout(self._timeout.total_seconds()),
                self._session.request(
                    method,
                    self.url + path,
                    headers=headers,
                    ssl=trust,
                    server_hostname=self._access.server_name,
                    allow_redirects=False,
                    data=fields if posted else None,
                    params=None if posted else fields,
                ) as response,
            ):
                body = await self._body(response)
                status = response.status
        except TimeoutError as error:
            raise self._error(
                f"did not respond within {format_duration(self._timeout)}", CollectReason.TIMEOUT
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._error(f"is unreachable ({type(error).__name__})", CollectReason.REFUSED) from error
        return self._decode(body, status)

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in response.content.iter_chunked(256 * 1024):
            size += len(part)
            if size > _MOST_BYTES:
                raise self._error("returned more than 512 MiB", CollectReason.TOO_LARGE)
            parts.append(part)
        return b"".join(parts)

    def _decode(self, body: bytes, status: int) -> dict[str, Any]:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            message = f"returned HTTP {status} without JSON"
            raise self._error(
                message, CollectReason.NOT_METRICS if status == 200 else CollectReason.HTTP_STATUS
            ) from error
        if not isinstance(answer, dict):
            raise self._error("did not return a JSON object", CollectReason.NOT_METRICS)
        return answer

    def _credentials(self) -> tuple[dict[str, str], ssl.SSLContext | bool]:
        try:
            return self._access.sent(), self._access.trust()
        except CollectError as error:
            raise self._error(f"cannot be queried: {error.message}", error.reason) from error

    def _error(self, message: str, reason: str) -> CollectError:
        return CollectError(
            f"Prometheus at {self.url} {message}", reason=reason, hint="check collect.prometheus in the configuration"
        )

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _series(data: Any, kind: str) -> list[dict[str, Any]]:
    """The series of a result of that type. Raises KeyError, TypeError or ValueError for another shape."""
    if data["resultType"] != kind:
        raise ValueError(f"resultType is {data['resultType']!r}, not {kind!r}")
    series: list[dict[str, Any]] = data["result"]
    if not isinstance(series, list):
        raise TypeError(f"result is {type(series).__name__}, not a list")
    for item in series:
        metric = item["metric"]
        if not isinstance(metric, dict) or not all(isinstance(value, str) for value in metric.values()):
            raise TypeError("the labels of a series are not strings")
    return series


def _error_text(error: Exception) -> str:
    what = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
    return what[:_MAX_ERROR_TEXT]
