"""Keeps what led to every P0 and P1 incident: the scrapes of the half hour before it was one, as a recorded fleet."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta
from pathlib import Path

from collectors.mapping.target import Target
from collectors.recording.ring_buffer import FlightRing, select_targets
from detectors.rca.incident_lifecycle import PRIORITY_RAISED
from outrider import log
from outrider.errors import UsageError
from outrider.model import EntityRef, Incident, Priority
from outrider.ports import MetricStore, StateStore
from outrider.topology import Topology
from service.config.collect_settings import FlightSettings
from service.engine.fleet_state import UNLIMITED

AFTER = timedelta(minutes=1)  # of the incident itself, to see how it began
LOUD = frozenset({Priority.P0, Priority.P1})
FIRST_ALERTS = 20  # of an incident of which no cause is known
_log = log.get("flight")


class IncidentRecorder:
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
        """Keep what is due, the first that was loud first; return the new recordings.

        ``targets`` are those of now. What was scraped of others before they went is kept too.
        """
        kept = []
        for incident, loud in self._due(now):
            self._done.add(incident.id)
            since, until = loud - self._settings.before, loud + AFTER
            known = {target.name: target for target in (*self._ring.targets(since), *targets)}
            about = self._about(incident, topology)
            chosen_targets = select_targets(tuple(known.values()), about, self._settings.targets)
            out = self._folder / incident.id
            try:
                events = self._metrics.events(since, until)
                count = self._ring.export_recording(out, cluster, chosen_targets, since, until, events)
            except UsageError as error:
                _log.warning("flight_not_kept", incident=incident.id, error=error.message)
                continue
            _log.info("flight_kept", incident=incident.id, targets=len(chosen_targets), scrapes=count, folder=str(out))
            kept.append(out)
        if kept:
            self._drop_old()
        return kept

    def _due(self, now: datetime) -> list[tuple[Incident, datetime]]:
        """The incidents to keep, and since when each is loud.

        Of a storm only as many as recordings may stay, the loudest and newest; it is over all of them that the choice
        is made, not over a page of the newest.
        """
        found = []
        for incident in self._state.incidents(since=now - self._settings.before, limit=UNLIMITED):
            loud = loud_since(incident)
            if loud is None or not AFTER <= now - loud < self._settings.before or incident.id in self._done:
                continue
            if not (self._folder / incident.id).exists():
                found.append((incident, loud))
        found.sort(key=lambda pair: (-pair[0].priority.rank, pair[1]))
        passed_over = found[: -self._settings.incidents]
        self._done.update(incident.id for incident, _ in passed_over)
        if passed_over:
            _log.warning("flight_passed_over", incidents=len(passed_over), kept=self._settings.incidents)
        return sorted(found[-self._settings.incidents :], key=lambda pair: pair[1])

    def _about(self, incident: Incident, topology: Topology) -> set[EntityRef]:
        """The components of an incident: those suspected, what they rest on and what rests on them.

        While nothing is suspected, those of its alerts.
        """
        suspected = {one.entity for one in incident.hypotheses[:3]} | {one.entity for one in incident.rejected[:3]}
        if not suspected:
            alerts = (self._state.alert(fingerprint) for fingerprint in incident.alerts[:FIRST_ALERTS])
            suspected = {alert.entity for alert in alerts if alert is not None}
        found = set(suspected)
        for entity in suspected:
            found |= set(topology.affected_by(entity)) | set(topology.holds_up(entity))
        return found

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


def loud_since(incident: Incident) -> datetime | None:
    """When an incident became P0 or P1: at its opening or when it was raised; None while it is neither."""
    if incident.priority not in LOUD:
        return None
    for entry in incident.timeline:
        if entry.what == PRIORITY_RAISED and entry.arguments.get("new") in LOUD:
            return incident.opened_at if entry.arguments.get("old") in LOUD else entry.at
    return incident.opened_at
