"""The few calls of the Kubernetes REST API that event sources need: lists in pages, changes since, logs.

Changes are read by a watch that is closed as soon as it has told what happened since the last look: no
connection stays open between two cycles, and a watch that breaks costs nothing but its rest, which the
next one tells. A version that the server has forgotten (410 Gone) leads to a new list.
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

PAGE_OBJECTS = 500  # what kubectl asks for at once
IDLE_SECONDS = 0.2  # a watch that is silent for so long has told what it had
MOST_LINE_BYTES = 8 * 1024 * 1024
MOST_CHANGES = 50_000  # of one look; the rest comes with the next
Json = Mapping[str, Any]
_TEMPLATE_HASH = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5,10}$")


class GoneError(CollectError):
    """The server has forgotten the version that was asked for."""


class RefusedError(CollectError):
    """The server answered, with an error: ``status`` is its HTTP status."""

    status: int = 0


@dataclass(frozen=True, slots=True)
class ApiChange:
    """An object, and what became of it: LISTED, ADDED, MODIFIED or DELETED."""

    what: Literal["LISTED", "ADDED", "MODIFIED", "DELETED"]
    found: Json


class KubeApi:
    """An API server."""

    def __init__(self, client: HttpClient) -> None:
        """``client`` is this one's alone."""
        self.client = client

    async def json(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """One answer. Raises CollectError, GoneError when the server has forgotten what was asked for."""
        answer = await self.client.get(path, params)
        if answer.status != 200:
            raise self._refused(path, answer)
        return self._object(answer.body, path)

    async def text(self, path: str, params: Mapping[str, str]) -> HttpResponse:
        """One answer as it is, whatever its status. Raises CollectError when there is none."""
        return await self.client.get(path, params)

    async def objects(self, path: str, params: Mapping[str, str] | None = None) -> tuple[list[Json], str]:
        """Every object, page by page, and the version to go on from. Raises CollectError.

        When the server forgets the list while it is being read, it is read once more from the beginning.
        """
        for attempt in (1, 2):
            try:
                return await self._pages(path, params or {})
            except GoneError:
                if attempt == 2:
                    raise
        raise AssertionError

    async def _pages(self, path: str, params: Mapping[str, str]) -> tuple[list[Json], str]:
        found: list[Json] = []
        token = ""
        while True:
            asked = {**params, "limit": str(PAGE_OBJECTS), **({"continue": token} if token else {})}
            page = await self.json(path, asked)
            meta = mapping(page.get("metadata"))
            items = page.get("items")
            found += [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []
            after = text(meta.get("continue"))
            if not after or after == token:
                return found, text(meta.get("resourceVersion"))
            token = after

    async def changes(self, path: str, version: str, params: Mapping[str, str]) -> tuple[list[ApiChange], str]:
        """What happened since ``version``, and the version to go on from. Raises CollectError, GoneError."""
        asked = {**params, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        asked["timeoutSeconds"] = str(max(1, round(self.client.timeout.total_seconds())))
        found: list[ApiChange] = []
        try:
            async with asyncio.timeout(self.client.timeout.total_seconds()):
                async with self.client.stream(path, asked) as response:
                    if response.status != 200:
                        answer = HttpResponse(response.status, response.headers, await response.read())
                        raise self._refused(path, answer)
                    version = await self._follow(response, found, version, path)
        except TimeoutError as error:
            if not found:
                said = f"{self.client.url}{path} did not begin to answer a watch in time"
                raise self.client.fault(said, CollectReason.TIMEOUT) from error
            version = _newest(found, version)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if not found:  # else what came is good, and the next watch goes on behind it
                raise self.client.explain(error) from error
            version = _newest(found, version)
        return found, version

    async def _follow(self, response: aiohttp.ClientResponse, found: list[ApiChange], version: str, path: str) -> str:
        """Take lines until a bookmark, silence or the end; returns the version of the last bookmark."""
        rest = b""
        while len(found) < MOST_CHANGES:
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
                told = self._object(line, path)
                what, one = told.get("type"), mapping(told.get("object"))
                if what == "BOOKMARK":
                    return version_of(one) or version
                if what == "ERROR":
                    raise self._failed(one, path)
                if what in ("ADDED", "MODIFIED", "DELETED"):
                    found.append(ApiChange(what, one))
                    version = version_of(one) or version
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
        code, said = status.get("code"), text(status.get("message"))[:200]
        where = f"{self.client.name}: {self.client.url}{path}"
        if code == 410:
            return GoneError(f"{where} has forgotten the version asked for", reason=CollectReason.HTTP_STATUS)
        hint = "look at the log of the API server"
        if code in (401, 403):
            hint = "check bearer_token_file, and that its account may get, list and watch this resource"
        message = f"{where} answered {code}" + (f": {said}" if said else "")
        error = RefusedError(message, reason=CollectReason.HTTP_STATUS, hint=hint)
        error.status = code if isinstance(code, int) else 0
        return error

    def _object(self, body: bytes, path: str) -> Json:
        try:
            read = json.loads(body)
        except (ValueError, RecursionError) as error:
            said = f"{self.client.url}{path} answered something that is no JSON"
            raise self.client.fault(said, CollectReason.TRUNCATED, "check the url of the source") from error
        return mapping(read)

    async def close(self) -> None:
        """Close every connection."""
        await self.client.close()


class Feed:
    """One resource: listed at first, then followed."""

    def __init__(self, api: KubeApi, path: str, params: Mapping[str, str] | None = None) -> None:
        self.path = path
        self._api, self._params = api, dict(params or {})
        self._version = ""
        self.listed = False  # whether the last reading was a list of everything, perhaps an empty one

    async def read(self) -> list[ApiChange]:
        """What is new since the last reading; everything there is at the first one, and after a 410.

        Raises CollectError; the next reading then begins where this one did.
        """
        if self._version:
            try:
                found, self._version = await self._api.changes(self.path, self._version, self._params)
            except GoneError:
                self._version = ""
            else:
                self.listed = False
                return found
        items, self._version = await self._api.objects(self.path, self._params)
        self.listed = True
        return [ApiChange("LISTED", item) for item in items]

    def restart(self) -> None:
        """Read everything next."""
        self._version = ""


def mapping(value: Any) -> Json:
    """A JSON object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Json]:
    """The objects of a JSON array."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def text(value: Any) -> str:
    """A JSON string; a number as text; empty for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value)


def texts(value: Any) -> dict[str, str]:
    """The string entries of a JSON object."""
    return {name: one for name, one in mapping(value).items() if isinstance(one, str)}


def instant(value: object) -> datetime | None:
    """A time of the API, None when it is none."""
    try:
        return parse_rfc3339(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def deployment_of(replica_set: str) -> str:
    """The deployment of a replica set, by the name that its controller made of both: what people know it by."""
    return _TEMPLATE_HASH.sub("", replica_set)


def version_of(found: Json) -> str:
    """The resource version of an object."""
    return text(mapping(found.get("metadata")).get("resourceVersion"))


def _newest(found: list[ApiChange], version: str) -> str:
    """A watch that broke off goes on behind the last object it told of."""
    return (version_of(found[-1].found) if found else "") or version
