"""What buying, trough and weighing plans are made from: loads of a file or of the store, replicas as they are now."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from outrider.clock import parse_rfc3339
from outrider.errors import UsageError
from outrider.model import Calibration, EntityKind, EntityRef, Floats, SignalKey, Statistic
from outrider.ports import MetricStore
from outrider.topology import Topology
from planner import calibrate
from planner.balance import ReplicaLoad
from planner.needs import sized

HOUR = timedelta(hours=1)
LOAD = SignalKey("svc_requests_per_second")


def hourly_of_csv(path: Path) -> tuple[Floats, datetime]:
    """The peak load of each hour (requests a second, NaN where a file has none) and the end of the last one.

    Columns ``time_utc`` and ``requests_per_second``, as ``forecast backtest`` reads. Raises UsageError with the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="give a CSV file") from error
    reader = csv.DictReader(io.StringIO(text))
    if not {"time_utc", "requests_per_second"} <= set(reader.fieldnames or ()):
        raise UsageError(f"{path}: no columns time_utc and requests_per_second", hint="name them in the first line")
    hours: dict[int, float] = {}
    for row in reader:
        where = f"{path}:{reader.line_num}"
        value = _load(row["requests_per_second"], where)
        hour = int(_instant(row["time_utc"], where).timestamp() // 3600)
        if value is not None:
            hours[hour] = max(hours.get(hour, 0.0), value)
    if not hours:
        raise UsageError(f"{path} holds no load", hint="give a week of it or more")
    first, last = min(hours), max(hours)
    found = np.array([hours.get(hour, np.nan) for hour in range(first, last + 1)])
    return found, datetime.fromtimestamp((last + 1) * 3600, UTC)


def hourly_of_store(metrics: MetricStore, service: EntityRef, now: datetime, weeks: int = 12) -> Floats:
    """The peak load of each hour of the last weeks, NaN where unknown, without what lies before the first value."""
    end = now.replace(minute=0, second=0, microsecond=0)
    window = metrics.read_windows(
        EntityKind.SERVICE, (LOAD,), end - timedelta(weeks=weeks), end, HOUR, (service,), statistic=Statistic.MAX
    )
    if not window.entities:
        return np.empty(0)
    values = window.column(LOAD)[0]
    known = np.flatnonzero(~np.isnan(values))
    found: Floats = values[known[0] :] if known.size else np.empty(0)
    return found


def gpus_of(loads: Floats, calibration: Calibration, buffer: float) -> Floats:
    """GPUs that each load needs by the formula, NaN where it is unknown."""
    return np.array(
        [np.nan if np.isnan(load) else sized(calibration, float(load), buffer).gpus for load in loads],
        dtype=np.float64,
    )


def replicas_of_file(path: Path) -> list[ReplicaLoad]:
    """Replicas as JSON objects with the names of ``ReplicaLoad``. Raises UsageError naming the entry."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="give a JSON list of replicas") from error
    if not isinstance(document, list) or not document:
        raise UsageError(f"{path} holds no list of replicas", hint='such as [{"name", "queued_tokens", ...}]')
    return [_replica(entry, f"{path}, replica {number}") for number, entry in enumerate(document, start=1)]


def replicas_of_store(
    metrics: MetricStore, topology: Topology, service: EntityRef, calibrations: Sequence[Calibration]
) -> tuple[list[ReplicaLoad], float]:
    """Replicas of a service as of their newest values, and the tokens a second that arrive for all of them.

    What waits has all of its tokens to go, what runs half of them. The speed is that of the calibration of the
    replica's own GPU type, else of the first one.
    """
    names = (calibrate.RUNNING, calibrate.WAITING, calibrate.KV_USED, "engine_prefix_cache_hit_ratio")
    window = metrics.latest(EntityKind.REPLICA, tuple(SignalKey(name) for name in names))
    mine = set(topology.below(service, EntityKind.REPLICA))
    found = []
    for row, replica in enumerate(window.entities):
        if replica not in mine:
            continue
        running, waiting, used, cached = (float(np.nan_to_num(window.column(name)[row, -1])) for name in names)
        kind = topology.label(replica, "gpu_type")
        fitting = next((one for one in calibrations if one.gpu_type == kind), calibrations[0])
        found.append(
            ReplicaLoad(
                name=replica.name,
                queued_tokens=fitting.tokens_per_request * (waiting + running / 2.0),
                tokens_per_second=fitting.batch * fitting.tokens_per_second_per_sequence,
                kv_ratio=min(max(used, 0.0), 1.0),
                cached_ratio=min(max(cached, 0.0), 1.0),
            )
        )
    edge = metrics.latest(EntityKind.SERVICE, (LOAD,))
    rate = (
        float(np.nan_to_num(edge.column(LOAD)[edge.entities.index(service), -1])) if service in edge.entities else 0.0
    )
    return found, rate * calibrations[0].tokens_per_request


def _replica(entry: Any, where: str) -> ReplicaLoad:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where} is no object", hint="give name, queued_tokens and tokens_per_second")
    unknown = set(entry) - set(ReplicaLoad.__slots__)
    missing = {"name", "queued_tokens", "tokens_per_second"} - set(entry)
    if unknown or missing:
        said = f"has no {', '.join(sorted(missing))}" if missing else f"has {', '.join(sorted(unknown))}"
        raise UsageError(f"{where} {said}", hint=f"known: {', '.join(ReplicaLoad.__slots__)}")
    numbers = {}
    for name, value in entry.items():
        if name == "name":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UsageError(f"{where}: {name} must be a number, not {value!r}", hint="tokens, or a ratio from 0 to 1")
        numbers[name] = float(value)
    return ReplicaLoad(name=str(entry["name"]), **numbers)


def _load(text: str | None, where: str) -> float | None:
    if text is None or not text.strip():
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"{where}: {text!r} is no load", hint="give requests per second") from error
    if value < 0:
        raise UsageError(f"{where}: a load of {value:g}", hint="loads are 0 or more; leave missing ones empty")
    return value if isfinite(value) else None


def _instant(text: str | None, where: str) -> datetime:
    try:
        return parse_rfc3339(text or "")
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat((text or "").strip())
    except ValueError as error:
        raise UsageError(f"{where}: {text!r} is no instant", hint="write it as 2026-11-21T08:00:00Z") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
