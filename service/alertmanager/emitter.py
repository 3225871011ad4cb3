"""Sends the alerts that fire to every Alertmanager of a cluster, again and again, and their ends.

Alertmanagers of one cluster do not exchange alerts, only silences and notifications: each must receive every alert. A
member that does not respond delays no other. Nothing is kept on disk: the next interval sends the state again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from outrider import log
from outrider.model import AlertState, Priority
from outrider.ports import StateStore
from outrider.text.i18n import Language
from outrider.wire.alertmanager import PostableAlert
from service.alertmanager.client import AlertmanagerClient, AlertmanagerError
from service.alertmanager.emitted_alerts import emitted, emitted_labels, postable, watchdog
from service.engine import fleet_state

_log = log.get("alertmanager")
ENDS_FOR = timedelta(minutes=15)  # an end is sent for this long, as Prometheus does


@dataclass(frozen=True, slots=True)
class EmitOptions:
    """What is sent. ``origin`` marks every alert, ``interval`` is the time between two deliveries."""

    origin: str
    base_url: str
    language: Language = "en"
    interval: timedelta = timedelta(seconds=30)
    priorities: frozenset[Priority] = frozenset(Priority)
    alerts: bool = True
    watchdog: bool = True


class AlertEmitter:
    """The periodic task that sends alerts. One thread at a time."""

    def __init__(
        self,
        state: StateStore,
        clients: Sequence[AlertmanagerClient],
        options: EmitOptions,
        is_alive: Callable[[], bool],
    ) -> None:
        """``is_alive`` is True while cycles complete with fresh values: only then the watchdog alert is sent."""
        self._state, self._clients, self._options, self._is_alive = state, tuple(clients), options, is_alive
        self._sent: dict[str, tuple[Mapping[str, str], datetime]] = {}
        self._alive_since: datetime | None = None
        self._failing: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(max(1, len(self._clients)), thread_name_prefix="alertmanager")

    def run_due(self, now: datetime) -> None:
        """Sends the state as of now to every Alertmanager. A failure is logged once, until it is over."""
        alerts = self._due(now)
        if not alerts:
            return
        for client, error in zip(
            self._clients, self._pool.map(lambda one: _post(one, alerts), self._clients), strict=True
        ):
            self._note(client.name, error, len(alerts))
            if error is None:
                self._state.beat(f"alertmanager/{client.name}", now)

    def close(self) -> None:
        """Releases threads and connections."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for client in self._clients:
            client.close()

    def _due(self, now: datetime) -> list[PostableAlert]:
        options = self._options
        due = self._alerts(now) if options.alerts else []
        if options.watchdog and self._is_alive():
            self._alive_since = self._alive_since or now
            since = self._alive_since
            due.append(watchdog(options.origin, options.base_url, options.language, since, now, options.interval))
        else:
            self._alive_since = None
        return due

    def _alerts(self, now: datetime) -> list[PostableAlert]:
        """The alerts that fire or ended recently. One whose labels changed is another one there: its old form ends."""
        options = self._options
        ended = self._state.alerts(states=(AlertState.RESOLVED,), since=now - ENDS_FOR, limit=fleet_state.UNLIMITED)
        alerts = emitted((*ended, *fleet_state.active_alerts(self._state)), options.priorities)
        labels = {
            print_: (emitted_labels(alert, options.origin), alert.starts_at)
            for print_, alert in alerts.items()
            if alert.state is AlertState.FIRING
        }
        due = [
            postable(alert, options.origin, options.base_url, options.language, now, options.interval)
            for alert in alerts.values()
        ]
        due += [
            PostableAlert(old, started, now)
            for print_, (old, started) in self._sent.items()
            if print_ in labels and labels[print_][0] != old
        ]
        self._sent = dict(labels)
        return due

    def _note(self, name: str, error: str | None, count: int) -> None:
        before = self._failing.get(name)
        if error is None:
            if before is not None:
                _log.info("alertmanager_reachable", alertmanager=name, alerts=count)
                del self._failing[name]
        elif before is None:
            _log.error("alertmanager_failed", alertmanager=name, error=error)
            self._failing[name] = error


def _post(client: AlertmanagerClient, alerts: Sequence[PostableAlert]) -> str | None:
    """Sends the alerts; returns the error, None for success."""
    try:
        client.post_alerts(alerts)
    except AlertmanagerError as error:
        return error.message
    return None
