"""Records the scrapes of the half hour before every P0 and P1 incident, as a recorded fleet."""

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

AFTER = timedelta(minutes=1)  # recorded after the start of the incident
HIGH = frozenset({Priority.P0, Priority.P1})
FIRST_ALERTS = 20  # alerts that are used if no cause is known
_log = log.get("flight")


class IncidentRecorder:
    """Writes one recording for each incident of high priority."""

    def __init__(
        self, ring: FlightRing, state: StateStore, metrics: MetricStore, settings: FlightSettings, folder: Path
    ) -> None:
        """``folder`` holds one recorded fleet per incident, named by incident id."""
        self._ring, self._state, self._metrics = ring, state, metrics
        self._settings, self._folder = settings, folder
        self._done: set[str] = set()  # recorded, or skipped

    def close(self) -> None:
        """Finishes writing."""
        self._ring.close()

    def record_due(self, now: datetime, topology: Topology, cluster: str, targets: tuple[Target, ...]) -> list[Path]:
        """Records incidents that are due, in the order in which they became P0 or P1. Returns the new recordings.

        ``targets`` are the current ones. Scrapes of targets that have gone since are recorded too.
        """
        recordings = []
        for incident, raised_at in self._due(now):
            self._done.add(incident.id)
            since, until = raised_at - self._settings.before, raised_at + AFTER
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
            recordings.append(out)
        if recordings:
            self._delete_old()
        return recordings

    def _due(self, now: datetime) -> list[tuple[Incident, datetime]]:
        """Returns the incidents to record, each with the time at which it became P0 or P1.

        In a storm only as many as recordings are retained: those of highest priority, then the newest.
        """
        due = []
        for incident in self._state.incidents(since=now - self._settings.before, limit=UNLIMITED):
            raised_at = high_priority_since(incident)
            if raised_at is None or not AFTER <= now - raised_at < self._settings.before or incident.id in self._done:
                continue
            if not (self._folder / incident.id).exists():
                due.append((incident, raised_at))
        due.sort(key=lambda pair: (-pair[0].priority.rank, pair[1]))
        skipped = due[: -self._settings.incidents]
        self._done.update(incident.id for incident, _ in skipped)
        if skipped:
            _log.warning("recordings_skipped", incidents=len(skipped), kept=self._settings.incidents)
        return sorted(due[-self._settings.incidents :], key=lambda pair: pair[1])

    def _about(self, incident: Incident, topology: Topology) -> set[EntityRef]:
        """Returns the components of an incident: the suspected ones and their direct and indirect dependents.

        Without a suspected cause, the components of its alerts are used.
        """
        suspected = {hypothesis.entity for hypothesis in incident.hypotheses[:3]}
        suspected |= {alternative.entity for alternative in incident.rejected[:3]}
        if not suspected:
            alerts = (self._state.alert(fingerprint) for fingerprint in incident.alerts[:FIRST_ALERTS])
            suspected = {alert.entity for alert in alerts if alert is not None}
        components = set(suspected)
        for entity in suspected:
            components |= set(topology.affected_by(entity)) | set(topology.holds_up(entity))
        return components

    def _delete_old(self) -> None:
        """Deletes the oldest recordings beyond the limits of number and bytes."""
        folders = sorted(
            (path for path in self._folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime
        )
        sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in folders}
        taken = sum(sizes.values())
        while len(folders) > self._settings.incidents or (taken > self._settings.kept_bytes and len(folders) > 1):
            oldest = folders.pop(0)
            taken -= sizes[oldest]
            shutil.rmtree(oldest, ignore_errors=True)


def high_priority_since(incident: Incident) -> datetime | None:
    """Returns when an incident became P0 or P1, None if it is neither."""
    if incident.priority not in HIGH:
        return None
    for entry in incident.timeline:
        if entry.what == PRIORITY_RAISED and entry.arguments.get("new") in HIGH:
            return incident.opened_at if entry.arguments.get("old") in HIGH else entry.at
    return incident.opened_at
