"""Opens the stores of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.ports import StateReader, StateStore
from outrider.records.change_log import ChangeLog, Startup
from service.config import revisions
from service.config.settings import Settings
from store import factory, migrate
from store.remote.metric_store import Remote
from store.sql import urls

STARTS_READ = 1000
"""Number of the newest start-ups that commands read."""


def upgrade(settings: Settings) -> str:
    """Creates or upgrades both databases. Returns their revision."""
    return revisions.text(migrate.upgrade(settings.store.url))


def has_store(settings: Settings) -> bool:
    """False if the file of an SQLite store does not exist yet; a command that only reads then creates none."""
    url = urls.parsed(settings.store.url)
    return url.get_backend_name() != urls.SQLITE or Path(str(url.database)).exists()


@contextmanager
def state_reader(settings: Settings) -> Iterator[StateReader]:
    """Opens the decisions of a store for reading. Creates an empty store if there is none."""
    with stores(settings) as (state, _):
        yield state


@contextmanager
def stores(settings: Settings) -> Iterator[tuple[StateStore, factory.SqlMetricStore]]:
    """Opens both stores and closes them afterwards."""
    state, metrics = open_stores(settings)
    try:
        yield state, metrics
    finally:
        state.close()
        metrics.close()


def open_stores(settings: Settings) -> tuple[StateStore, factory.SqlMetricStore]:
    """Opens both stores at this program's schema. The caller closes them."""
    upgrade(settings)
    state_url, metrics_url = factory.urls_of(settings.store.url)
    return factory.open_state(state_url), factory.open_metrics(metrics_url, remote_of(settings))


def open_change_log(settings: Settings) -> ChangeLog:
    """Opens the change log of the store. The caller closes it."""
    return factory.open_change_log(factory.urls_of(settings.store.url)[0])


def remote_of(settings: Settings) -> Remote | None:
    """Returns the server that stores the values, None if the database does."""
    metrics = settings.store.metrics
    return None if metrics is None else metrics.remote(settings.cluster)


def startups(settings: Settings, limit: int) -> tuple[Startup, ...]:
    """Returns the newest start-ups of replicas in the store."""
    with stores(settings):  # raises if the store is unavailable or not an Outrider store
        change_log = open_change_log(settings)
        try:
            return change_log.startups(limit=limit)
        finally:
            change_log.close()
