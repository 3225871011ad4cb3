"""Watches the objects of a cluster: listed once, then watched; each list and watch is shared by all readers.

A resource that the cluster lacks (a custom resource that is not installed, or one without permission) is omitted and
requested again every ten minutes. Any other read error is an error of the round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from collectors.kubernetes.api import ApiChange, ApiStatusError, KubeApi, ListWatch
from collectors.kubernetes.objects import Resource, ResourceUpdate
from outrider import log
from outrider.errors import CollectError

RETRY_ABSENT = timedelta(minutes=10)
MAX_UNREAD = 100_000  # unread changes of one reader; a reader further behind reads a new list
_ABSENT = (403, 404)


@dataclass(slots=True, eq=False)
class _Subscriber:
    """Unread updates of one reader. ``lost``: it needs a full list."""

    unread: list[tuple[Sequence[ApiChange], bool]] = field(default_factory=list)
    lost: bool = True

    def deliver(self, changes: Sequence[ApiChange], *, whole: bool) -> None:
        """Adds an update that was read by this or another reader."""
        if whole:
            self.unread.clear()  # a full list replaces all earlier updates
            self.lost = False
        if not self.lost:
            self.unread.append((changes, whole))
        if sum(len(update) for update, _ in self.unread) > MAX_UNREAD and not whole:
            self.unread.clear()
            self.lost = True


class _SharedWatch:
    """One list of one API server, and its subscribers."""

    def __init__(self, feed: ListWatch) -> None:
        self.feed = feed
        self.subscribers: list[_Subscriber] = []
        self._reading: asyncio.Task[None] | None = None

    async def read(self, subscriber: _Subscriber) -> None:
        """Reads new changes for all subscribers. Concurrent callers wait for the same reading. Raises CollectError."""
        while self._reading is not None and not self._reading.done():
            await asyncio.shield(self._reading)
            if not subscriber.lost:
                return
        if subscriber.lost:
            self.feed.restart()
        self._reading = asyncio.create_task(self._read_all(), name=f"follow {self.feed.path}")
        await asyncio.shield(self._reading)

    async def _read_all(self) -> None:
        changes = await self.feed.read()
        for subscriber in self.subscribers:
            subscriber.deliver(changes, whole=self.feed.listed)

    async def close(self) -> None:
        """Cancels a reading in flight."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


class SharedWatches:
    """The lists of one API server, shared by its watchers. The last watcher that closes ends them."""

    def __init__(self, api: KubeApi) -> None:
        """``api`` is closed with the last watcher."""
        self.api = api
        self._watches: dict[tuple[str, tuple[tuple[str, str], ...]], _SharedWatch] = {}
        self._users = 0

    @staticmethod
    def of(api: KubeApi | SharedWatches) -> SharedWatches:
        """Wraps an API that is not shared."""
        return api if isinstance(api, SharedWatches) else SharedWatches(api)

    def enter(self) -> None:
        """Registers a user."""
        self._users += 1

    def open(self, path: str, chosen: tuple[tuple[str, str], ...]) -> _SharedWatch:
        """The watch of a list, the same one for equal requests."""
        return self._watches.setdefault((path, chosen), _SharedWatch(ListWatch(self.api, path, dict(chosen))))

    async def leave(self) -> None:
        """Unregisters a user; the last one closes the watches."""
        self._users -= 1
        if self._users == 0:
            await asyncio.gather(*(watch.close() for watch in self._watches.values()))
            await self.api.close()


@dataclass(slots=True, eq=False)
class _Subscription:
    """One resource in one namespace or in all, and the next request time of an absent one."""

    resource: Resource
    namespace: str
    watch: _SharedWatch
    subscriber: _Subscriber = field(default_factory=_Subscriber)
    absent_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReadFault:
    """A resource that could not be read."""

    resource: Resource
    error: CollectError


class ResourceWatcher:
    """Watches resources of one API server for one reader. Each round reads them concurrently."""

    def __init__(self, watches: SharedWatches, resources: Sequence[Resource], namespaces: Sequence[str] = ()) -> None:
        """Without ``namespaces`` all are read. ``watches`` are the shared watches, possibly used by other watchers."""
        self._watches = watches
        watches.enter()
        self._subscriptions: list[_Subscription] = []
        for resource in resources:
            for space in namespaces if namespaces and resource.namespaced else [""]:
                path = f"{resource.group}{'/namespaces/' if space else ''}{space}/{resource.name}"
                self._subscriptions.append(_Subscription(resource, space, watches.open(path, resource.chosen)))
                self._subscriptions[-1].watch.subscribers.append(self._subscriptions[-1].subscriber)
        self._absent_logged: set[str] = set()

    async def read(self, at: datetime) -> tuple[list[ResourceUpdate], list[ReadFault]]:
        """New updates of every resource, and read errors."""
        due = [
            subscription
            for subscription in self._subscriptions
            if subscription.absent_until is None or at >= subscription.absent_until
        ]
        results = await asyncio.gather(*(self._read_one(subscription, at) for subscription in due))
        return (
            [news for updates, _ in results for news in updates],
            [
                ReadFault(subscription.resource, error)
                for subscription, (_, error) in zip(due, results, strict=True)
                if error is not None
            ],
        )

    async def _read_one(
        self, subscription: _Subscription, at: datetime
    ) -> tuple[list[ResourceUpdate], CollectError | None]:
        failure: CollectError | None = None
        try:
            await subscription.watch.read(subscription.subscriber)
        except CollectError as error:
            status = error.status if isinstance(error, ApiStatusError) else 0
            if subscription.resource.optional and status in _ABSENT:
                return [self._absent(subscription, status, at)], None
            failure = error
        else:
            subscription.absent_until = None
        unread, subscription.subscriber.unread = subscription.subscriber.unread, []
        return [
            ResourceUpdate(subscription.resource, changes, whole=whole, namespace=subscription.namespace)
            for changes, whole in unread
        ], failure

    def _absent(self, subscription: _Subscription, status: int, at: datetime) -> ResourceUpdate:
        subscription.absent_until = at + RETRY_ABSENT
        subscription.subscriber.unread, subscription.subscriber.lost = [], True
        path = subscription.watch.feed.path
        if path not in self._absent_logged:
            self._absent_logged.add(path)
            log.get("collect").debug("resource_absent", path=path, status=status)
        return ResourceUpdate(subscription.resource, (), whole=True, namespace=subscription.namespace)

    async def close(self) -> None:
        """Unsubscribes, and closes all connections if no other watcher is left."""
        for subscription in self._subscriptions:
            subscription.watch.subscribers.remove(subscription.subscriber)
        self._subscriptions.clear()
        await self._watches.leave()
