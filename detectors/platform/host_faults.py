"""Host faults reported by exporter, kernel and kubelet: disks, clock, network card, power and fans.

Inputs are levels with an absolute meaning (full disk, clock offset) and log lines that a healthy kernel never writes. A
level must last; a line counts for ``EVENT_HOLD``. A busy disk is not a slow one: a loading model keeps it busy for
minutes. Slow needs a kernel line, or far longer than a load. A disk under full load for ``WORKS_SPAN`` without a stall
is fast again, whatever the lines before. A sensor alarm ends with the line of the same sensor that reports its end.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from detectors.base.condition_durations import Flags, measure_run, newest, no_verdicts
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from outrider import windows
from outrider.model import (
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Evidence,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    SignalKey,
    Window,
)
from outrider.topology import Topology

EVENT_HOLD = timedelta(minutes=10)  # an idle disk stalls nothing, so only use shows that it is fast again
ALARM_HOLD_SECONDS = 1800.0  # a power supply reports its failure once; not every board reports the end
WORKS_SPAN = timedelta(seconds=90)  # with 30 s to clear, the alert ends within two minutes
LASTING_SECONDS, LASTING_SCRAPES = 60.0, 2
DISK_FULL_RATIO = 0.05  # the kubelet evicts below 0.10; below this, writes start to fail
DISK_SHORT_RATIO = 0.15  # above this, the kubelet's message about a full disk is outdated
DISK_BUSY_RATIO, IO_STALL_RATIO = 0.9, 0.1
DISK_BUSY_SECONDS = 480.0  # weights load within this time, with a busy disk
DISK_ERRORS = 2  # a timed-out request blocks all others for 30 s, but may be the only one
# The kernel aborts a request after 30 s, and reports a blocked task after 120 s: a slow disk in use logs that often.
DISK_LOGS_WITHIN = timedelta(seconds=150)
PAST_SCORE = 0.5  # below what an action needs: the alert stands, and a person decides
CLOCK_SECONDS = 0.05  # node_exporter's own alert on skew
PACKETS_LOST_RATIO = 0.02  # of all packets; TCP throughput collapses at 1-2 %
PACKET_BYTES = 1500.0  # makes the ratio an upper bound of the loss
LEAST_ERRORS_PER_SECOND = 1.0
_NO_SENSOR = float(zlib.crc32(b""))

_DISK_FULL = frozenset({"disk-full", "EvictionThresholdMet", "NodeHasDiskPressure"})
_ALARM, _ALARM_OVER = "sensor-alarm", "sensor-ok"
_DISK_EASED = "NodeHasNoDiskPressure"
_SIGNALS = (
    *("node_filesystem_available_ratio", "node_disk_busy_ratio", "node_io_stall_ratio"),
    *("node_clock_offset_seconds", "node_network_errors_per_second", "node_network_bytes_per_second"),
)
_DEFAULTS = {"alarm_at": np.nan, "alarm_of": np.nan}  # ``alarm_of`` is a checksum of the sensor


@dataclass(frozen=True, slots=True)
class _Lines:
    """Events of one kind by node, oldest first: times in unix seconds, and the newest text."""

    at: dict[EntityRef, list[float]]
    text: dict[EntityRef, str]

    def newest(self, entities: Sequence[EntityRef]) -> Floats:
        """The time of each entity's newest line; NaN without any."""
        return np.array([self.at.get(entity, [np.nan])[-1] for entity in entities], dtype=np.float64)

    def rows(self, entities: Sequence[EntityRef], least: int = 1) -> Flags:
        """True for entities with at least this many."""
        return np.array([len(self.at.get(entity, ())) >= least for entity in entities], dtype=np.bool_)


class HostFaultDetector(StatefulDetector):
    """disk-full, disk-slow, clock-skew, network-loss and psu-or-fan-failed of each node."""

    name = "host-faults"
    kind = EntityKind.NODE
    keys: tuple[SignalKey, ...] = tuple(map(SignalKey, _SIGNALS))
    window = EVENT_HOLD
    state_version = 2
    defaults = _DEFAULTS

    def judge(
        self, window: Window, memory: Arrays, _topology: Topology, now: datetime
    ) -> Iterable[Finding | NoVerdict]:
        """Judges every node on its newest scrapes and the log lines of the window."""
        verdicts: list[Finding | NoVerdict] = [
            *self._disk_full(window, now),
            *self._disk_slow(window, now),
            *self._clock(window, now),
            *self._network(window, now),
            *self._power(window, memory, now),
        ]
        seen = np.zeros(len(window.entities), dtype=np.bool_)
        for key in self.keys:
            seen |= ~np.isnan(newest(window, window.column(key)))
        status = window.column_status("node_filesystem_available_ratio")
        verdicts.extend(no_verdicts(self.name, window.entities, status, ~seen))
        return verdicts

    def _disk_full(self, window: Window, now: datetime) -> list[Finding]:
        """The disk is full, or the kubelet reports eviction for disk pressure."""
        free = window.column("node_filesystem_available_ratio")
        left = newest(window, free)
        run = measure_run(~np.isnan(free), free < DISK_FULL_RATIO, window.times)
        full = (left < DISK_FULL_RATIO) & (run.scrapes >= 2)
        lines = _lines(window.events, _DISK_FULL, now, until=_DISK_EASED)
        reported = lines.rows(window.entities) & ~(left >= DISK_SHORT_RATIO)
        findings = []
        for row in np.flatnonzero(full | reported):
            node, ratio = window.entities[row], float(left[row])
            limit = Interval(DISK_FULL_RATIO, None)
            evidence_items = []
            if full[row] or ratio < DISK_SHORT_RATIO:
                evidence_items.append(
                    evidence("node_filesystem_available_ratio", ratio, "disk_space", limit, ratio=ratio)
                )
            if reported[row]:
                evidence_items.append(evidence("node_pressure", 1.0, "disk_line", line=lines.text[node]))
            since = min([float(window.times[run.start[row]])] * bool(full[row]) + lines.at.get(node, []))
            findings.append(self._finding(node, "disk-full", 0.95, since, now, tuple(evidence_items)))
        return findings

    def _disk_slow(self, window: Window, now: datetime) -> list[Finding]:
        """Disk requests time out, or the disk is busy for longer than any load."""
        busy, stall = window.column("node_disk_busy_ratio"), window.column("node_io_stall_ratio")
        held = (busy >= DISK_BUSY_RATIO) & (stall >= IO_STALL_RATIO)
        run = measure_run(~np.isnan(busy) & ~np.isnan(stall), held, window.times)
        lines = _lines(window.events, frozenset({"disk-error"}), now)
        stalled_now = newest(window, stall) >= IO_STALL_RATIO
        newest_line = lines.newest(window.entities)
        erring = lines.rows(window.entities) & ~_works_again(window, newest_line)
        sure = erring & (stalled_now | lines.rows(window.entities, DISK_ERRORS))
        lasting = stalled_now | (now.timestamp() - newest_line <= DISK_LOGS_WITHIN.total_seconds())
        score = np.where(sure, 0.9, 0.75)
        score[erring & ~lasting] = PAST_SCORE
        findings = []
        for row in np.flatnonzero(erring | (run.seconds >= DISK_BUSY_SECONDS)):
            node, evidence_items = window.entities[row], []
            share, stalled = (float(newest(window, values)[row]) for values in (busy, stall))
            if erring[row]:
                times, line = len(lines.at[node]), lines.text[node]
                evidence_items.append(evidence("node_disk_busy_ratio", share, "disk_errors", times=times, line=line))
            if run.scrapes[row]:
                limit = Interval(None, IO_STALL_RATIO)
                evidence_items.append(
                    evidence("node_io_stall_ratio", stalled, "io_stalls", limit, busy=share, stall=stalled)
                )
            reported = lines.at[node] if erring[row] else []
            since = min([float(window.times[run.start[row]])] * bool(run.scrapes[row]) + reported)
            findings.append(self._finding(node, "disk-slow", float(score[row]), since, now, tuple(evidence_items)))
        return findings

    def _clock(self, window: Window, now: datetime) -> list[Finding]:
        offset = window.column("node_clock_offset_seconds")
        run = measure_run(~np.isnan(offset), np.abs(offset) > CLOCK_SECONDS, window.times)
        value = newest(window, offset)
        findings = []
        for row in np.flatnonzero((np.abs(value) > CLOCK_SECONDS) & run.lasts(LASTING_SECONDS, LASTING_SCRAPES)):
            limit = Interval(-CLOCK_SECONDS, CLOCK_SECONDS)
            seconds = float(value[row])
            item = evidence("node_clock_offset_seconds", seconds, "clock_off", limit, seconds=seconds)
            since = float(window.times[run.start[row]])
            findings.append(self._finding(window.entities[row], "clock-skew", 0.9, since, now, (item,)))
        return findings

    def _network(self, window: Window, now: datetime) -> list[Finding]:
        """Packet loss above a share; a few errors on a busy card do not count."""
        errors = window.column("node_network_errors_per_second")
        packets = window.column("node_network_bytes_per_second") / PACKET_BYTES
        with np.errstate(divide="ignore", invalid="ignore"):
            share = errors / np.maximum(packets, errors)
        bad = (share >= PACKETS_LOST_RATIO) & (errors >= LEAST_ERRORS_PER_SECOND)
        run = measure_run(~np.isnan(share), bad, window.times)
        findings = []
        for row in np.flatnonzero(run.lasts(LASTING_SECONDS, LASTING_SCRAPES)):
            rate, part = float(newest(window, errors)[row]), float(newest(window, share)[row])
            limit = Interval(None, LEAST_ERRORS_PER_SECOND)
            item = evidence("node_network_errors_per_second", rate, "packets_lost", limit, rate=rate, share=part)
            since = float(window.times[run.start[row]])
            findings.append(self._finding(window.entities[row], "network-loss", 0.85, since, now, (item,)))
        return findings

    def _power(self, window: Window, memory: Arrays, now: datetime) -> list[Finding]:
        """A hardware sensor reported a failed power supply or fan, and not yet its end."""
        lines = _lines(window.events, frozenset({_ALARM}), now)
        place = {entity: row for row, entity in enumerate(window.entities)}
        for node, alarms in _alarms(window.events, now).items():
            if node in place:
                _note_alarms(alarms, memory, place[node])
        findings = []
        for row in np.flatnonzero(now.timestamp() - memory["alarm_at"] < ALARM_HOLD_SECONDS):
            node, at = window.entities[row], float(memory["alarm_at"][row])
            item = evidence("hw_accel_temperature_celsius", None, "sensor_alarm", line=lines.text.get(node, "-"))
            findings.append(self._finding(node, "psu-or-fan-failed", 0.9, at, now, (item,)))
        return findings

    def _finding(
        self,
        node: EntityRef,
        fault: str,
        score: float,
        since: float,
        now: datetime,
        evidence_items: tuple[Evidence, ...],
    ) -> Finding:
        return finding(self.name, node, fault, score=score, since=since, now=now, evidence_items=evidence_items)


def _lines(events: Sequence[Event], codes: frozenset[str], now: datetime, until: str = "") -> _Lines:
    """Events with one of the codes of the last ``EVENT_HOLD``; one with the code ``until`` ends earlier ones."""
    lines = _Lines({}, {})
    for event in sorted(events, key=lambda event: event.at):
        if event.kind not in (EventKind.LOG, EventKind.KUBERNETES) or not now - EVENT_HOLD < event.at <= now:
            continue
        if event.code in codes:
            lines.at.setdefault(event.entity, []).append(event.at.timestamp())
            lines.text[event.entity] = " ".join((event.attributes.get("text") or event.code).split())[:160]
        elif until and event.code == until:
            lines.at.pop(event.entity, None)
    return lines


def _works_again(window: Window, line_at: Floats) -> Flags:
    """True for disks under full load without a stall throughout ``WORKS_SPAN``, and that long after their newest line.

    Values that are missing for half of the time show nothing.
    """
    columns = windows.recent(window, WORKS_SPAN)
    busy = windows.believed(window, "node_disk_busy_ratio")[:, columns]
    stall = windows.believed(window, "node_io_stall_ratio")[:, columns]
    known = ~np.isnan(busy) & ~np.isnan(stall)
    smooth = (known.sum(axis=1) * 2 >= busy.shape[1]) & (np.nan_to_num(stall).max(axis=1, initial=0.0) < IO_STALL_RATIO)
    used = np.nan_to_num(windows.mean_by_row(busy)) >= DISK_BUSY_RATIO  # light use stalls on no disk, slow or not
    result: Flags = smooth & used & (window.times[-1] - line_at >= WORKS_SPAN.total_seconds())
    return result


@dataclass(frozen=True, slots=True)
class _SensorState:
    """The newest line of a sensor: its time in unix seconds, and whether it is an alarm."""

    at: float
    alarms: bool


def _alarms(events: Sequence[Event], now: datetime) -> dict[EntityRef, dict[float, _SensorState]]:
    """The newest line of each sensor of each node within ``EVENT_HOLD``, by the checksum of the sensor.

    A line without a sensor counts for all of the node.
    """
    result: dict[EntityRef, dict[float, _SensorState]] = {}
    for event in sorted(events, key=lambda event: event.at):
        if event.kind is EventKind.LOG and event.code in (_ALARM, _ALARM_OVER) and now - EVENT_HOLD < event.at <= now:
            sensors = result.setdefault(event.entity, {})
            sensor = float(zlib.crc32(event.attributes.get("sensor", "").lower().encode()))
            if sensor == _NO_SENSOR and event.code == _ALARM_OVER:
                sensors.clear()
            sensors[sensor] = _SensorState(event.at.timestamp(), event.code == _ALARM)
    return result


def _note_alarms(sensors: Mapping[float, _SensorState], memory: Arrays, row: int) -> None:
    """Stores the newest alarm of a node that has not ended. Changes ``memory``."""
    ends = (sensors.get(float(memory["alarm_of"][row])), sensors.get(_NO_SENSOR))
    if any(end is not None and not end.alarms and end.at > memory["alarm_at"][row] for end in ends):
        memory["alarm_at"][row] = memory["alarm_of"][row] = np.nan
    lasting = [(state.at, sensor) for sensor, state in sensors.items() if state.alarms]
    if lasting and not max(lasting)[0] <= memory["alarm_at"][row]:
        memory["alarm_at"][row], memory["alarm_of"][row] = max(lasting)
