"""Runs probes concurrently: each at its own interval, one run at a time, results as signals.

A service's row combines its probes. ``probe_success`` is 0 if one of them failed, the outcome is that of the failure
nearest to the network, the certificate is the one that expires first. Tokens and their times come from completion
probes. A result is valid until two later runs should have replaced it; then nothing is known. A probe that could not
be sent because of a local error says nothing about its service: its own watch entity has ``target_up`` 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from zlib import crc32

import numpy as np

from collectors.normalise.batches import WATCH_KEYS
from collectors.probes.result import Outcome, Probe, ProbeResult, worst
from collectors.scrape.target_health import TargetHealth
from outrider import log
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey

KEYS = tuple(
    SignalKey(name)
    for name in (
        "probe_success", "probe_outcome_code", "probe_e2e_seconds", "probe_ttft_seconds", "probe_itl_seconds",
        "probe_generated_tokens", "probe_cert_expiry_seconds",
    )
)  # fmt: skip
NAMESPACE = "targets"
_OTHER_CODE = 7.0


class ProbeScheduler:
    """Runs probes. Rounds do not overlap."""

    def __init__(
        self, probes: Sequence[Probe], *, deadline: timedelta | None = None, spread: timedelta = timedelta(0)
    ) -> None:
        """``deadline`` closes a round: later results are handed over in the next one. None waits for all.

        ``spread`` is the time over which the runs of a round start, each probe at its own fixed offset.
        """
        self._probes = {probe.name: probe for probe in probes}
        self._deadline, self._spread = deadline, spread
        self._started: dict[str, datetime] = {}
        self._running: dict[str, asyncio.Task[ProbeResult]] = {}
        self.latest: dict[str, ProbeResult] = {}
        self._health = {name: TargetHealth(name, "probe", None, None, None, None, None) for name in self._probes}

    @property
    def health(self) -> list[TargetHealth]:
        """Health of each probe; ``samples`` are the tokens received."""
        return list(self._health.values())

    def labels(self) -> dict[EntityRef, dict[str, str]]:
        """Facts of the probes' watch entities, and the probed services."""
        labels: dict[EntityRef, dict[str, str]] = {}
        for probe in self._probes.values():
            labels.setdefault(probe.service, {})
            labels[watcher(probe)] = {"target": probe.name, "adapter": "probe", "stands_for": probe.service.key}
        return labels

    async def collect(self, at: datetime) -> tuple[SampleBatch, ...]:
        """One round: runs the due probes and returns the valid results. Never raises for an endpoint's error."""
        for name, probe in self._probes.items():
            if name not in self._running and self._is_due(probe, at):
                self._started[name] = at
                self._running[name] = asyncio.create_task(self._run_at_offset(probe, at), name=f"probe {name}")
        if self._running:
            seconds = None if self._deadline is None else self._deadline.total_seconds()
            await asyncio.wait(self._running.values(), timeout=seconds)
        for name in [name for name, task in self._running.items() if task.done()]:
            self._note(name, _result(name, self._running.pop(name), at))
        for name in self._running:
            self._health[name] = replace(self._health[name], late=True)
        return self.batches(at)

    def _is_due(self, probe: Probe, at: datetime) -> bool:
        """True if the interval has passed, or if the clock was set back."""
        started = self._started.get(probe.name)
        return started is None or not timedelta(0) <= at - started < probe.every

    async def _run_at_offset(self, probe: Probe, at: datetime) -> ProbeResult:
        later = self._spread * (crc32(probe.name.encode()) / 2**32)
        if later:
            await asyncio.sleep(later.total_seconds())
        return await probe.run(at + later)

    def _note(self, name: str, result: ProbeResult) -> None:
        before = self._health[name]
        good = result.outcome.success
        self.latest[name] = result
        self._health[name] = TargetHealth(
            target=name,
            adapter="probe",
            up=bool(good),
            samples=result.tokens,
            duration_seconds=result.e2e_seconds,
            error=result.message or None,
            last_success=result.at if good else before.last_success,
            reason=None if result.outcome is Outcome.OK else result.outcome.value,
        )
        if result.outcome is not Outcome.OK and before.reason != result.outcome.value:
            log.get("probe").warning("probe_failed", probe=name, outcome=result.outcome.value, message=result.message)

    def batches(self, at: datetime) -> tuple[SampleBatch, ...]:
        """One batch per service with its newest timestamp, and one of the probes themselves."""
        valid = {name: result for name, result in self.latest.items() if self._is_valid(name, result, at)}
        services: dict[EntityRef, list[ProbeResult]] = {}
        for name, probe in self._probes.items():
            service_results = services.setdefault(probe.service, [])
            if name in valid:
                service_results.append(valid[name])
        batches = [_batch(service, results, at) for service, results in services.items()]
        return (*batches, self._watched(valid, at)) if self._probes else ()

    def _is_valid(self, name: str, result: ProbeResult, at: datetime) -> bool:
        probe = self._probes[name]
        return at - result.at <= 2 * probe.every + probe.timeout

    def _watched(self, valid: dict[str, ProbeResult], at: datetime) -> SampleBatch:
        """Signals of each probe as of any target: whether its request was sent, and its duration."""
        values = np.full((len(self._probes), len(WATCH_KEYS)), np.nan)
        for row, name in enumerate(self._probes):
            if name in valid:
                result = valid[name]
                is_sent = result.outcome is not Outcome.NOT_SENT
                seconds = np.nan if result.e2e_seconds is None else result.e2e_seconds
                values[row] = (float(is_sent), seconds, np.nan, 0.0 if is_sent else _OTHER_CODE, np.nan)
        status = np.where(np.isfinite(values), CellStatus.PRESENT, CellStatus.ABSENT).astype(np.uint8)
        entities = tuple(map(watcher, self._probes.values()))
        return SampleBatch("probes", at, EntityKind.WORKLOAD, WATCH_KEYS, entities, values, status)

    async def close(self) -> None:
        """Cancels runs in flight and closes every probe."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()
        for probe in self._probes.values():
            await probe.close()


def watcher(probe: Probe) -> EntityRef:
    """The monitoring entity of a probe; no scrape target has such a name."""
    return EntityRef(probe.service.cluster, EntityKind.WORKLOAD, NAMESPACE, f"probe/{probe.name}")


def _batch(service: EntityRef, results: Sequence[ProbeResult], at: datetime) -> SampleBatch:
    """The row of one service; all ABSENT while nothing is known."""
    sent = [result for result in results if result.outcome is not Outcome.NOT_SENT]
    values = np.full((1, len(KEYS)), np.nan)
    if sent:
        with_tokens = [result for result in sent if result.tokens is not None] or sent
        values[0] = (
            float(all(result.outcome.success for result in sent)),
            worst(result.outcome for result in sent).code,
            _max(result.e2e_seconds for result in with_tokens),
            _max(result.ttft_seconds for result in sent),
            _max(result.itl_seconds for result in sent),
            -_max(None if result.tokens is None else -float(result.tokens) for result in sent),
            -_max(None if result.cert_expiry_seconds is None else -result.cert_expiry_seconds for result in sent),
        )
    status = np.where(np.isfinite(values), CellStatus.PRESENT, CellStatus.ABSENT).astype(np.uint8)
    newest = max((result.at for result in sent), default=at)
    return SampleBatch("probes", newest, EntityKind.SERVICE, KEYS, (service,), values, status)


def _max(values: Iterable[float | None]) -> float:
    """The largest value, NaN for none."""
    return max((value for value in values if value is not None), default=np.nan)


def _result(name: str, task: asyncio.Task[ProbeResult], at: datetime) -> ProbeResult:
    """Result of a run. A bug in one probe must not fail the round of the others."""
    error = task.exception()
    if error is None:
        return task.result()
    log.get("probe").error("probe_broke", probe=name, exc_info=error)
    message = f"{name}: the probe failed with {type(error).__name__}; please report this with the log"
    return ProbeResult(Outcome.NOT_SENT, at, message)
