"""Faults that accelerators report themselves, with one clear sign each and no statistics.

Levels (a temperature, a link) are judged on the newest scrapes. Error rates (corrected ECC errors, link errors, PCIe
replays) end once the last ``QUIET_SPAN`` is quiet. Steps (an uncorrectable ECC error, an XID) keep their finding for
``EVENT_HOLD``. They are neither missed between cycles nor reported for ever. The gauge of the last XID is never read,
only events.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from detectors.base.condition_durations import Counts, Flags, measure_run, newest, no_verdicts
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from detectors.hardware.xid import xid_findings
from outrider import windows
from outrider.model import (
    EntityKind,
    EntityRef,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    SignalKey,
    Window,
    signal_keys,
)
from outrider.topology import Topology

EVENT_HOLD = timedelta(minutes=10)  # no later value takes an XID or an uncorrectable error back; somebody must act
QUIET_SPAN = timedelta(seconds=90)  # with 30 s to clear, an alert on a rate of errors ends within two minutes
QUIET_RATIO = 1 / 3  # of the rate that begins a finding; at that rate, 90 s without an error are rare
LASTING_SCRAPES = 2
THROTTLE_RATIO = 0.2  # a fifth of the time throttled by heat; brief power brakes are normal
HOT_CELSIUS = 83.0  # data-center boards throttle from about 85
CLOCK_SHARE = 0.85  # of the own best clock in the window; more than boost steps explain
BUSY_RATIO = 0.5  # an idle board lowers its clock by itself
POWER_SHARE = 0.95  # at its power limit, heat is not why a board lowers its clock
ECC_STORM = 100.0  # corrected errors in the window; DCGM's limit of 10 per minute
LINK_ERRORS = 10.0  # in 5 min and in more than one scrape; DCGM warns at the first, CRC retries alone are harmless
PCIE_REPLAYS_PER_MINUTE = 8.0  # DCGM: maximum recommended by the driver team
COUNT_SPAN = timedelta(minutes=5)

_GPU_SIGNALS = (
    "hw_accel_seen",
    "hw_accel_utilization_ratio",
    "hw_accel_temperature_celsius",
    "hw_accel_core_clock_hertz",
    "hw_accel_throttle_thermal_ratio",
    "hw_accel_power_watts",
    "hw_accel_power_limit_watts",
    "hw_accel_memory_used_bytes",
    "hw_accel_ecc_correctable_total",
    "hw_accel_ecc_uncorrectable_total",
    "hw_accel_row_remap_failed",
    "hw_accel_row_remap_pending",
    "hw_accel_pcie_replay_total",
    "hw_accel_interconnect_errors_total",
)
# ``node`` is a checksum of the node's key, since a vanished accelerator is no longer in the topology. ``beside``
# counts the node's accelerators seen with it, itself included; ``now`` those seen last.
_DEFAULTS = {"present": False, "lost_since": np.nan, "node": -1, "beside": 0, "now": 0}
_ON_PAGE = ("hw_accel_temperature_celsius", "hw_accel_power_watts", "hw_accel_memory_used_bytes")


@dataclass(frozen=True, slots=True)
class _Sign:
    """Evidence of one fault for all entities: the affected rows and the text. Shape (entities,)."""

    fault: str
    holds: Flags
    signal: str
    observed: Floats
    limit: float
    text: str
    score: float
    since: Floats


class GpuFaultDetector(StatefulDetector):
    """gpu-lost, XIDs, memory errors, heat and links of each accelerator."""

    name = "gpu-faults"
    kind = EntityKind.GPU
    keys: tuple[SignalKey, ...] = signal_keys(*_GPU_SIGNALS)
    window = EVENT_HOLD
    state_version = 2
    defaults = _DEFAULTS

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Every fault of every accelerator; a lost one has no other finding."""
        lost, unseen = _lost(window, memory, topology)
        verdicts: dict[str, Finding] = {}
        signs = (_missing(window, lost, memory), *_memory_errors(window), *_heat(window), *_links(window))
        for sign in signs:
            for item in _findings(self.name, window, sign, now):
                verdicts.setdefault(item.fingerprint, item)
        for item in xid_findings(self.name, window.events, topology, now, EVENT_HOLD):
            verdicts.setdefault(item.fingerprint, item)
        gone = {window.entities[row] for row in np.flatnonzero(lost)}
        kept = [item for item in verdicts.values() if item.entity not in gone or item.fault == "gpu-lost"]
        quiet = no_verdicts(self.name, window.entities, window.column_status("hw_accel_seen"), unseen)
        return (*kept, *quiet)


def _lost(window: Window, memory: Arrays, topology: Topology) -> tuple[Flags, Flags]:
    """Accelerators that vanished from a page that was scraped; and those without any data.

    The exporter's signal is ``hw_accel_seen``. Without it, an accelerator is gone if its values are missing from
    scrapes that contain another one on its node. If the node shows as many as before, another board has replaced it,
    and it is not lost.
    """
    reported = newest(window, window.column("hw_accel_seen"))
    shown = np.zeros(window.values.shape[:2], dtype=np.bool_)
    for name in _ON_PAGE:
        shown |= ~np.isnan(window.column(name))
    memory["present"] = memory["present"] | shown.any(axis=1) | (np.nan_to_num(reported) >= 0.5)
    unreported = np.asarray(np.isnan(window.column("hw_accel_seen")).all(axis=1), dtype=np.bool_)
    _remember_nodes(window.entities, memory, topology)
    beside = _beside(shown, unreported, memory["node"])
    absent = measure_run(beside | shown, ~shown, window.times)
    _count_neighbors(shown, memory)
    replaced = (memory["beside"] > 0) & (memory["now"] >= memory["beside"])
    inferred = unreported & (absent.scrapes >= LASTING_SCRAPES) & ~replaced
    lost: Flags = memory["present"] & ((reported == 0) | inferred)
    began = measure_run(~np.isnan(window.column("hw_accel_seen")), window.column("hw_accel_seen") == 0, window.times)
    started = window.times[np.where(unreported, absent.start, began.start)]
    memory["lost_since"] = np.where(lost, np.fmin(memory["lost_since"], started), np.nan)
    on_page = newest(window, np.where(shown, 1.0, np.nan))
    unseen = np.asarray(np.isnan(reported) & np.isnan(on_page) & ~lost, dtype=np.bool_)
    return lost, unseen


def _remember_nodes(entities: tuple[EntityRef, ...], memory: Arrays, topology: Topology) -> None:
    for row, entity in enumerate(entities):
        for lower in topology.rests_on(entity):
            if lower.kind is EntityKind.NODE:
                memory["node"][row] = zlib.crc32(lower.key.encode())


def _count_neighbors(shown: Flags, memory: Arrays) -> None:
    """Stores the number of accelerators on each node in the newest scrape, and the number seen with each one."""
    if not shown.size:
        return
    newest_shown = shown[:, -1] & (memory["node"] >= 0)
    _, place = np.unique(memory["node"], return_inverse=True)
    count = np.bincount(place, weights=newest_shown).astype(np.int64)[place]
    memory["now"] = np.where(count > 0, count, memory["now"])
    memory["beside"] = np.where(newest_shown, count, memory["beside"])


def _beside(shown: Flags, unreported: Flags, node: NDArray[np.int64]) -> Flags:
    """True if another accelerator of the node was seen; only for ``unreported`` rows. (entities, times)."""
    result = np.zeros(shown.shape, dtype=np.bool_)
    if not unreported.any():
        return result
    _, place = np.unique(node, return_inverse=True)
    count = np.zeros((int(place.max()) + 1, shown.shape[1]), dtype=np.intp)
    np.add.at(count, place, shown)
    result |= (count[place] > 0) & unreported[:, None] & (node >= 0)[:, None]
    return result


def _missing(window: Window, lost: Flags, memory: Arrays) -> _Sign:
    nothing = np.zeros(len(window.entities))
    return _Sign("gpu-lost", lost, "hw_accel_seen", nothing, 1.0, "gpu_gone", 0.95, memory["lost_since"])


def _memory_errors(window: Window) -> tuple[_Sign, ...]:
    hard = windows.total(window, "hw_accel_ecc_uncorrectable_total", EVENT_HOLD)
    soft = windows.total(window, "hw_accel_ecc_correctable_total", EVENT_HOLD)
    storming = (np.nan_to_num(soft) >= ECC_STORM) & ~_quiet(
        window, "hw_accel_ecc_correctable_total", ECC_STORM, EVENT_HOLD
    )
    failed = newest(window, window.column("hw_accel_row_remap_failed"))
    pending = newest(window, window.column("hw_accel_row_remap_pending"))
    stepped = window.column("hw_accel_ecc_uncorrectable_total") > 0
    since = _first(window, stepped)
    now = np.full(len(window.entities), window.times[-1])
    ecc, storm = "gpu-ecc-uncorrectable", "gpu-ecc-storm"
    total = "hw_accel_ecc_uncorrectable_total"
    return (
        _Sign(ecc, np.nan_to_num(hard) > 0, total, hard, 0.0, "ecc_uncorrectable", 0.95, since),
        _Sign(ecc, failed == 1, "hw_accel_row_remap_failed", failed, 0.0, "remap_failed", 0.95, now),
        _Sign(ecc, pending == 1, "hw_accel_row_remap_pending", pending, 0.0, "remap_pending", 0.85, now),
        _Sign(
            storm,
            storming,
            "hw_accel_ecc_correctable_total",
            soft,
            ECC_STORM,
            "ecc_storm",
            0.8,
            _first(window, window.column("hw_accel_ecc_correctable_total") > 0),
        ),
    )


def _heat(window: Window) -> tuple[_Sign, _Sign]:
    """Throttled by heat: by the board's own flag, or hot and slow while busy and below its power limit."""
    throttled = window.column("hw_accel_throttle_thermal_ratio")
    temperature = window.column("hw_accel_temperature_celsius")
    clock = window.column("hw_accel_core_clock_hertz")
    busy = ~(window.column("hw_accel_utilization_ratio") < BUSY_RATIO)
    capped = window.column("hw_accel_power_watts") >= POWER_SHARE * window.column("hw_accel_power_limit_watts")
    slow = clock < CLOCK_SHARE * np.nan_to_num(clock).max(axis=1, initial=0.0)[:, None]
    by_flag = measure_run(~np.isnan(throttled), throttled > THROTTLE_RATIO, window.times)
    hot = (temperature >= HOT_CELSIUS) & slow & busy & ~capped
    inferred = measure_run(~np.isnan(temperature), hot, window.times)
    return (
        _Sign(
            "gpu-thermal-throttle",
            by_flag.scrapes >= LASTING_SCRAPES,
            "hw_accel_throttle_thermal_ratio",
            newest(window, throttled),
            THROTTLE_RATIO,
            "throttled",
            0.9,
            window.times[by_flag.start],
        ),
        _Sign(
            "gpu-thermal-throttle",
            inferred.scrapes >= LASTING_SCRAPES,
            "hw_accel_temperature_celsius",
            newest(window, temperature),
            HOT_CELSIUS,
            "hot_and_slow",
            0.75,
            window.times[inferred.start],
        ),
    )


def _links(window: Window) -> tuple[_Sign, ...]:
    recent = windows.recent(window, COUNT_SPAN)
    link = window.column("hw_accel_interconnect_errors_total")[:, recent]
    replay = window.column("hw_accel_pcie_replay_total")[:, recent]
    errors, replays = np.nan_to_num(link).sum(axis=1), np.nan_to_num(replay).sum(axis=1)
    minutes = COUNT_SPAN.total_seconds() / 60
    repeated = (link > 0).sum(axis=1) >= LASTING_SCRAPES
    worn = ((replay > 0).sum(axis=1) >= LASTING_SCRAPES) & (replays > PCIE_REPLAYS_PER_MINUTE * minutes)
    start = recent.start
    return (
        _Sign(
            "nvlink-degraded",
            repeated
            & (errors >= LINK_ERRORS)
            & ~_quiet(window, "hw_accel_interconnect_errors_total", LINK_ERRORS, COUNT_SPAN),
            "hw_accel_interconnect_errors_total",
            errors,
            LINK_ERRORS,
            "link_errors",
            0.85,
            window.times[start + _argfirst(link > 0)],
        ),
        _Sign(
            "pcie-degraded",
            worn & ~_quiet(window, "hw_accel_pcie_replay_total", PCIE_REPLAYS_PER_MINUTE * minutes, COUNT_SPAN),
            "hw_accel_pcie_replay_total",
            replays,
            PCIE_REPLAYS_PER_MINUTE * minutes,
            "pcie_replays",
            0.8,
            window.times[start + _argfirst(replay > 0)],
        ),
    )


def _quiet(window: Window, name: str, limit: float, span: timedelta) -> Flags:
    """True if errors were rare within ``QUIET_SPAN``: below ``QUIET_RATIO`` of the rate of ``limit`` per ``span``.

    Without a value in that time nothing shows that the errors ended.
    """
    few: Flags = windows.total(window, name, QUIET_SPAN) < QUIET_RATIO * limit * (QUIET_SPAN / span)
    return few


def _findings(detector: str, window: Window, sign: _Sign, now: datetime) -> list[Finding]:
    limit = Interval(None, sign.limit) if sign.fault != "gpu-lost" else Interval(sign.limit, sign.limit)
    findings = []
    for row in np.flatnonzero(sign.holds):
        value = float(sign.observed[row])
        item = evidence(sign.signal, value, sign.text, limit, value=value, limit=sign.limit)
        since = float(sign.since[row])
        findings.append(
            finding(
                detector,
                window.entities[row],
                sign.fault,
                score=sign.score,
                since=since,
                now=now,
                evidence_items=(item,),
            )
        )
    return findings


def _argfirst(flags: Flags) -> Counts:
    """The first set column of each row, 0 if none."""
    if flags.shape[1] == 0:
        return np.zeros(flags.shape[0], dtype=np.intp)
    first: Counts = np.argmax(flags, axis=1).astype(np.intp)
    return first


def _first(window: Window, flags: Flags) -> Floats:
    """The time of the first set column of each row."""
    result: Floats = window.times[_argfirst(flags)]
    return result
