"""Keeps what led to every P0 and P1 incident: the scrapes of the half hour before it, as a recorded fleet."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta
from pathlib import Path

from collectors.flight_ring import FlightRing, chosen
from collectors.targets import Target
from outrider import log
from outrider.errors import UsageError
from outrider.model import EntityRef, Incident, Priority
from outrider.ports import MetricStore, StateStore
from outrider.topology import Topology
from service.collect_settings import FlightSettings

AFTER = timedelta(minutes=1)  # of the incident itself, to see how it began
_log = log.get("flight")


class FlightKeeper:
    """Looks at the open incidents now and then, and writes down those that are loud enough, once."""

    def __init__(
        self, ring: FlightRing, state: StateStore, metrics: MetricStore, settings: FlightSettings, folder: Path
    ) -> None:
        """``folder`` holds one recorded fleet for each incident, named after it."""
        self._ring, self._state, self._metrics = ring, state, metrics
        self._settings, self._folder = settings, folder
        self._done: set[str] = set()  # kept, or given up

    def close(self) -> None:
        """Finish writing."""
        self._ring.close()

    def look(self, now: datetime, topology: Topology, cluster: str, targets: tuple[Target, ...]) -> list[Path]:
        """Keep what is due; return the new recordings."""
        kept = []
        for incident in self._state.incidents(since=now - self._settings.before, limit=100):
            age = now - incident.opened_at
            due = AFTER <= age < self._settings.before and incident.priority in {Priority.P0, Priority.P1}
            out = self._folder / incident.id
            if not due or out.exists() or incident.id in self._done:
                continue
            self._done.add(incident.id)
            chosen_targets = chosen(targets, _about(incident, topology), self._settings.targets)
            since, until = incident.opened_at - self._settings.before, incident.opened_at + AFTER
            try:
                events = self._metrics.events(since, until)
                count = self._ring.keep(out, cluster, chosen_targets, since, until, events)
            except UsageError as error:
                _log.warning("flight_not_kept", incident=incident.id, error=error.message)
                continue
            _log.info("flight_kept", incident=incident.id, targets=len(chosen_targets), scrapes=count, folder=str(out))
            kept.append(out)
        if kept:
            self._drop_old()
        return kept

    def _drop_old(self) -> None:
        """Only so many recordings and bytes stay; the oldest go first."""
        folders = sorted(
            (path for path in self._folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime
        )
        sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in folders}
        taken = sum(sizes.values())
        while len(folders) > self._settings.incidents or (taken > self._settings.kept_bytes and len(folders) > 1):
            oldest = folders.pop(0)
            taken -= sizes[oldest]
            shutil.rmtree(oldest, ignore_errors=True)


def _about(incident: Incident, topology: Topology) -> set[EntityRef]:
    """The components of an incident: those suspected, what they rest on and what rests on them."""
    suspected = {found.entity for found in incident.hypotheses[:3]} | {found.entity for found in incident.rejected[:3]}
    found = set(suspected)
    for entity in suspected:
        found |= set(topology.affected_by(entity)) | set(topology.holds_up(entity))
    return found
