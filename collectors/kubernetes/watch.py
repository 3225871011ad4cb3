"""Follows the objects of a cluster: listed once, then watched, each list and watch once for all who want it.

What a cluster does not have (a custom resource that is not installed, or one that our account may not read) is
left out and asked for again every ten minutes. Everything else that cannot be read is an error of this round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from collectors.kubernetes.api import ApiChange, Feed, KubeApi, RefusedError
from collectors.kubernetes.objects import News, Resource
from outrider import log
from outrider.errors import CollectError

ASK_AGAIN = timedelta(minutes=10)
MOST_WAITING = 100_000  # changes that one follower has not read yet; one that is further behind reads a new list
_ABSENT = (403, 404)


@dataclass(slots=True, eq=False)
class _Subscriber:
    """What one follower has yet to read of one door. ``lost``: it does not know all that came before."""

    news: list[tuple[Sequence[ApiChange], bool]] = field(default_factory=list)
    lost: bool = True

    def hear(self, seen: Sequence[ApiChange], *, whole: bool) -> None:
        """Something was read, by this follower or another one."""
        if whole:
            self.news.clear()  # a list takes the place of all that came before
            self.lost = False
        if not self.lost:
            self.news.append((seen, whole))
        if sum(len(one) for one, _ in self.news) > MOST_WAITING and not whole:
            self.news.clear()
            self.lost = True


class _SharedWatch:
    """One list of one API server, and all who follow it."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.ears: list[_Subscriber] = []
        self._reading: asyncio.Task[None] | None = None

    async def read(self, ear: _Subscriber) -> None:
        """Read what is new, for all. Whoever asks meanwhile waits for the same reading. Raises CollectError."""
        while self._reading is not None and not self._reading.done():
            await asyncio.shield(self._reading)
            if not ear.lost:
                return
        if ear.lost:
            self.feed.restart()
        self._reading = asyncio.create_task(self._once(), name=f"follow {self.feed.path}")
        await asyncio.shield(self._reading)

    async def _once(self) -> None:
        seen = await self.feed.read()
        for ear in self.ears:
            ear.hear(seen, whole=self.feed.listed)

    async def close(self) -> None:
        """End a reading that is under way."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


class SharedWatches:
    """The lists of one API server, shared by the followers made of this. The last one that closes ends them."""

    def __init__(self, api: KubeApi) -> None:
        """``api`` is closed with the last follower."""
        self.api = api
        self._doors: dict[tuple[str, tuple[tuple[str, str], ...]], _SharedWatch] = {}
        self._users = 0

    @staticmethod
    def of(api: KubeApi | SharedWatches) -> SharedWatches:
        """Those of an API that nobody shares, where it is not shared."""
        return api if isinstance(api, SharedWatches) else SharedWatches(api)

    def enter(self) -> None:
        """One more uses it."""
        self._users += 1

    def open(self, path: str, chosen: tuple[tuple[str, str], ...]) -> _SharedWatch:
        """The door of a list, one for all who want the same."""
        return self._doors.setdefault((path, chosen), _SharedWatch(Feed(self.api, path, dict(chosen))))

    async def leave(self) -> None:
        """One less uses it."""
        self._users -= 1
        if self._users == 0:
            await asyncio.gather(*(door.close() for door in self._doors.values()))
            await self.api.close()


@dataclass(slots=True, eq=False)
class _Wanted:
    """One resource in one namespace or in all, and when to ask again for what was absent."""

    resource: Resource
    namespace: str
    door: _SharedWatch
    ear: _Subscriber = field(default_factory=_Subscriber)
    absent_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A resource that could not be read."""

    resource: Resource
    error: CollectError


class Follower:
    """Follows resources of one API server for one reader. Each round reads them side by side."""

    def __init__(self, doors: SharedWatches, resources: Sequence[Resource], namespaces: Sequence[str] = ()) -> None:
        """Without ``namespaces`` all are read. ``doors`` may be those of other followers, too."""
        self._doors = doors
        doors.enter()
        self._wanted: list[_Wanted] = []
        for one in resources:
            for space in namespaces if namespaces and one.namespaced else [""]:
                path = f"{one.group}{'/namespaces/' if space else ''}{space}/{one.name}"
                self._wanted.append(_Wanted(one, space, doors.open(path, one.chosen)))
                self._wanted[-1].door.ears.append(self._wanted[-1].ear)
        self._absent_told: set[str] = set()

    async def read(self, at: datetime) -> tuple[list[News], list[Fault]]:
        """What is new of every resource, and what could not be read."""
        due = [one for one in self._wanted if one.absent_until is None or at >= one.absent_until]
        answers = await asyncio.gather(*(self._one(one, at) for one in due))
        return (
            [news for found, _ in answers for news in found],
            [Fault(one.resource, error) for one, (_, error) in zip(due, answers, strict=True) if error is not None],
        )

    async def _one(self, one: _Wanted, at: datetime) -> tuple[list[News], CollectError | None]:
        fault: CollectError | None = None
        try:
            await one.door.read(one.ear)
        except CollectError as error:
            status = error.status if isinstance(error, RefusedError) else 0
            if one.resource.optional and status in _ABSENT:
                return [self._absent(one, status, at)], None
            fault = error
        else:
            one.absent_until = None
        told, one.ear.news = one.ear.news, []
        return [News(one.resource, seen, whole=whole, namespace=one.namespace) for seen, whole in told], fault

    def _absent(self, one: _Wanted, status: int, at: datetime) -> News:
        one.absent_until = at + ASK_AGAIN
        one.ear.news, one.ear.lost = [], True
        path = one.door.feed.path
        if path not in self._absent_told:
            self._absent_told.add(path)
            log.get("collect").debug("resource_absent", path=path, status=status)
        return News(one.resource, (), whole=True, namespace=one.namespace)

    async def close(self) -> None:
        """Listen no more, and close every connection when nobody else does."""
        for one in self._wanted:
            one.door.ears.remove(one.ear)
        self._wanted.clear()
        await self._doors.leave()
