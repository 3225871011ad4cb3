"""Client for the calls of the Kubernetes REST API that event sources need: paged lists, changes, logs.

Changes are read by a watch that is closed once it has delivered the changes since the last reading. No connection
stays open between two cycles, and a broken watch loses nothing: the next one delivers the rest. If the server has
dropped the version (410 Gone), the resource is listed again.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import aiohttp

from collectors.net.http import HttpClient, HttpResponse
from outrider.clock import parse_rfc3339
from outrider.errors import CollectError, CollectReason

PAGE_OBJECTS = 500  # kubectl's page size
IDLE_SECONDS = 0.2  # a watch that is silent for this long has delivered everything
MOST_LINE_BYTES = 8 * 1024 * 1024
MOST_CHANGES = 50_000  # per reading; the rest follows in the next one
Json = Mapping[str, Any]
_TEMPLATE_HASH = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5,10}$")


class ResourceExpiredError(CollectError):
    """The server has dropped the requested resource version."""


class ApiStatusError(CollectError):
    """The server returned an error: ``status`` is its HTTP status."""

    status: int = 0


@dataclass(frozen=True, slots=True)
class ApiChange:
    """An object and its change: LISTED, ADDED, MODIFIED or DELETED."""

    what: Literal["LISTED", "ADDED", "MODIFIED", "DELETED"]
    object: Json


class KubeApi:
    """Client of an API server."""

    def __init__(self, client: HttpClient) -> None:
        """``client`` belongs to this object alone."""
        self.client = client

    async def json(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """One JSON response. Raises CollectError, ResourceExpiredError if the requested version was dropped."""
        answer = await self.client.get(path, params)
        if answer.status != 200:
            raise self._refused(path, answer)
        return self._object(answer.body, path)

    async def text(self, path: str, params: Mapping[str, str]) -> HttpResponse:
        """One response of any status. Raises CollectError without a response."""
        return await self.client.get(path, params)

    async def objects(self, path: str, params: Mapping[str, str] | None = None) -> tuple[list[Json], str]:
        """Every object, page by page, and the resource version to continue from. Raises CollectError.

        If the list expires while it is read, it is read once more from the beginning.
        """
        for attempt in (1, 2):
            try:
                return await self._pages(path, params or {})
            except ResourceExpiredError:
                if attempt == 2:
                    raise
        raise AssertionError

    async def _pages(self, path: str, params: Mapping[str, str]) -> tuple[list[Json], str]:
        listed: list[Json] = []
        token = ""
        while True:
            parameters = {**params, "limit": str(PAGE_OBJECTS), **({"continue": token} if token else {})}
            page = await self.json(path, parameters)
            meta = mapping(page.get("metadata"))
            items = page.get("items")
            listed += [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []
            after = text(meta.get("continue"))
            if not after or after == token:
                return listed, text(meta.get("resourceVersion"))
            token = after

    async def changes(self, path: str, version: str, params: Mapping[str, str]) -> tuple[list[ApiChange], str]:
        """Changes since ``version``, and the version to continue from. Raises CollectError, ResourceExpiredError."""
        parameters = {**params, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        parameters["timeoutSeconds"] = str(max(1, round(self.client.timeout.total_seconds())))
        changes: list[ApiChange] = []
        try:
            async with asyncio.timeout(self.client.timeout.total_seconds()):
                async with self.client.stream(path, parameters) as response:
                    if response.status != 200:
                        answer = HttpResponse(response.status, response.headers, await response.read())
                        raise self._refused(path, answer)
                    version = await self._follow(response, changes, version, path)
        except TimeoutError as error:
            if not changes:
                message = f"{self.client.url}{path} did not start a watch response in time"
                raise self.client.fault(message, CollectReason.TIMEOUT) from error
            version = _newest(changes, version)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if not changes:  # otherwise received changes are kept, and the next watch continues after them
                raise self.client.explain(error) from error
            version = _newest(changes, version)
        return changes, version

    async def _follow(self, response: aiohttp.ClientResponse, changes: list[ApiChange], version: str, path: str) -> str:
        """Reads lines until a bookmark, silence or the end; returns the version of the last bookmark."""
        rest = b""
        while len(changes) < MOST_CHANGES:
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    chunk = await response.content.readany()
            except TimeoutError:
                break
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MOST_LINE_BYTES:
                raise self.client.fault("a change is too large", CollectReason.TOO_LARGE)
            for line in filter(None, lines):
                event = self._object(line, path)
                change_type, item = event.get("type"), mapping(event.get("object"))
                if change_type == "BOOKMARK":
                    return version_of(item) or version
                if change_type == "ERROR":
                    raise self._failed(item, path)
                if change_type in ("ADDED", "MODIFIED", "DELETED"):
                    changes.append(ApiChange(change_type, item))
                    version = version_of(item) or version
        return version

    def _refused(self, path: str, answer: HttpResponse) -> CollectError:
        try:
            read = json.loads(answer.body)
            status = read if isinstance(read, Mapping) else {}
        except (ValueError, RecursionError):
            status = {}
        return self._failed({"code": answer.status, **status}, path)

    def _failed(self, status: Json, path: str) -> CollectError:
        """A ``Status`` of the API as an error."""
        code, detail = status.get("code"), text(status.get("message"))[:200]
        location = f"{self.client.name}: {self.client.url}{path}"
        if code == 410:
            return ResourceExpiredError(
                f"{location} dropped the requested resource version", reason=CollectReason.HTTP_STATUS
            )
        hint = "check the log of the API server"
        if code in (401, 403):
            hint = "check bearer_token_file, and that its account has get, list and watch on this resource"
        message = f"{location} returned {code}" + (f": {detail}" if detail else "")
        error = ApiStatusError(message, reason=CollectReason.HTTP_STATUS, hint=hint)
        error.status = code if isinstance(code, int) else 0
        return error

    def _object(self, body: bytes, path: str) -> Json:
        try:
            read = json.loads(body)
        except (ValueError, RecursionError) as error:
            message = f"{self.client.url}{path} returned a response that is not JSON"
            raise self.client.fault(message, CollectReason.TRUNCATED, "check the url of the source") from error
        return mapping(read)

    async def close(self) -> None:
        """Closes all connections."""
        await self.client.close()


class ListWatch:
    """One resource: listed first, then watched."""

    def __init__(self, api: KubeApi, path: str, params: Mapping[str, str] | None = None) -> None:
        self.path = path
        self._api, self._params = api, dict(params or {})
        self._version = ""
        self.listed = False  # the last reading was a full list, possibly empty

    async def read(self) -> list[ApiChange]:
        """Changes since the last reading; all objects at the first one and after a 410.

        Raises CollectError; the next reading then starts from the same version.
        """
        if self._version:
            try:
                changes, self._version = await self._api.changes(self.path, self._version, self._params)
            except ResourceExpiredError:
                self._version = ""
            else:
                self.listed = False
                return changes
        items, self._version = await self._api.objects(self.path, self._params)
        self.listed = True
        return [ApiChange("LISTED", item) for item in items]

    def restart(self) -> None:
        """Makes the next reading a full list."""
        self._version = ""


def mapping(value: Any) -> Json:
    """A JSON object; empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Json]:
    """The objects of a JSON array; empty for anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def text(value: Any) -> str:
    """A JSON string; a number as text; empty for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value)


def texts(value: Any) -> dict[str, str]:
    """The string entries of a JSON object."""
    return {name: entry for name, entry in mapping(value).items() if isinstance(entry, str)}


def parse_time(value: object) -> datetime | None:
    """A time of the API, None if invalid."""
    try:
        return parse_rfc3339(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def deployment_of(replica_set: str) -> str:
    """Deployment of a replica set, from the name that its controller made of both."""
    return _TEMPLATE_HASH.sub("", replica_set)


def version_of(document: Json) -> str:
    """Resource version of an object."""
    return text(mapping(document.get("metadata")).get("resourceVersion"))


def _newest(changes: list[ApiChange], version: str) -> str:
    """Version of the last delivered object, from which a broken watch continues."""
    return (version_of(changes[-1].object) if changes else "") or version
