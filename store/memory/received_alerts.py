"""Received alerts in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from threading import RLock

from outrider.model import AlertState
from outrider.records.received_alerts import Receipt, ReceivedAlert, ended, merge_all
from outrider.wire.cursors import Position
from store.state import keyset_pagination


class MemoryReceivedAlerts:
    """Implements ``outrider.records.received_alerts.ReceivedAlertStore`` for a store with a ``_lock``."""

    _lock: RLock
    _received: dict[str, ReceivedAlert]

    def received_alerts(
        self,
        *,
        states: Sequence[AlertState] | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[ReceivedAlert, ...]:
        """Received alerts with their newest occurrence, newest start first."""
        with self._lock:
            held = [alert for alert in self._received.values() if states is None or alert.state in states]
        return keyset_pagination.page(held, after, limit, rising=True)

    def received_alert(self, received_id: str) -> ReceivedAlert | None:
        """A received alert; None if unknown."""
        return self._received.get(received_id)

    def receive_alerts(self, alerts: Sequence[ReceivedAlert], most_open: int) -> Receipt:
        """Merges delivered alerts. Stores nothing if more than ``most_open`` would be firing."""
        with self._lock:
            changed, counts = merge_all(self._received, alerts)
            after = {**self._received, **changed}
            before = sum(alert.is_firing for alert in self._received.values())
            firing = sum(alert.is_firing for alert in after.values())
            if firing > max(most_open, before):
                return Receipt(full=True)
            self._received.update(changed)
        return Receipt(counts)

    def expire_received_alerts(self, now: datetime) -> int:
        """Resolves the alerts that their source stopped repeating; returns their number."""
        with self._lock:
            expired = [
                alert
                for alert in self._received.values()
                if alert.is_firing and alert.expires_at is not None and alert.expires_at <= now
            ]
            self._received.update({alert.id: ended(alert, now, alert.received_at) for alert in expired})
        return len(expired)
