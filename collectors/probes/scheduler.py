"""Probes side by side: each at its own pace, never two askings of one at a time, results as signals.

A service's row joins its probes: ``probe_success`` is 0 when one of them failed, the outcome is that of the
failure nearest to the network, the certificate the one that expires first; tokens and their times come from
the generation probes. A result counts until two askings later ought to have replaced it; then nothing is
known any more. A probe that could not be asked for a fault of ours says nothing of its service: it is its
own watch entity whose ``target_up`` is 0.
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
    """Asks probes. Rounds do not overlap."""

    def __init__(
        self, probes: Sequence[Probe], *, deadline: timedelta | None = None, spread: timedelta = timedelta(0)
    ) -> None:
        """``deadline`` closes a round: what comes later is handed over in the next one. None waits for all.

        ``spread`` is the time over which the askings of a round begin, each probe always at its own moment.
        """
        self._probes = {probe.name: probe for probe in probes}
        self._deadline, self._spread = deadline, spread
        self._begun: dict[str, datetime] = {}
        self._running: dict[str, asyncio.Task[ProbeResult]] = {}
        self.latest: dict[str, ProbeResult] = {}
        self._health = {name: TargetHealth(name, "probe", None, None, None, None, None) for name in self._probes}

    @property
    def health(self) -> list[TargetHealth]:
        """How each probe fares; ``samples`` are the tokens it got."""
        return list(self._health.values())

    def labels(self) -> dict[EntityRef, dict[str, str]]:
        """Facts of the probes' watch entities, and the services they speak for."""
        found: dict[EntityRef, dict[str, str]] = {}
        for probe in self._probes.values():
            found.setdefault(probe.service, {})
            found[watcher(probe)] = {"target": probe.name, "adapter": "probe", "stands_for": probe.service.key}
        return found

    async def collect(self, at: datetime) -> tuple[SampleBatch, ...]:
        """One round: ask those that are due, tell what is known. Never raises for a door's fault."""
        for name, probe in self._probes.items():
            if name not in self._running and self._is_due(probe, at):
                self._begun[name] = at
                self._running[name] = asyncio.create_task(self._at_its_moment(probe, at), name=f"probe {name}")
        if self._running:
            seconds = None if self._deadline is None else self._deadline.total_seconds()
            await asyncio.wait(self._running.values(), timeout=seconds)
        for name in [name for name, task in self._running.items() if task.done()]:
            self._note(name, _result(name, self._running.pop(name), at))
        for name in self._running:
            self._health[name] = replace(self._health[name], late=True)
        return self.batches(at)

    def _is_due(self, probe: Probe, at: datetime) -> bool:
        """A clock that was set back makes everything due."""
        begun = self._begun.get(probe.name)
        return begun is None or not timedelta(0) <= at - begun < probe.every

    async def _at_its_moment(self, probe: Probe, at: datetime) -> ProbeResult:
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
            log.get("probe").warning("probe_failed", probe=name, outcome=result.outcome.value, said=result.message)

    def batches(self, at: datetime) -> tuple[SampleBatch, ...]:
        """A batch of each service with its newest instant, and one of the probes themselves."""
        valid = {name: one for name, one in self.latest.items() if self._is_valid(name, one, at)}
        services: dict[EntityRef, list[ProbeResult]] = {}
        for name, probe in self._probes.items():
            found = services.setdefault(probe.service, [])
            if name in valid:
                found.append(valid[name])
        told = [_batch(service, results, at) for service, results in services.items()]
        return (*told, self._watched(valid, at)) if self._probes else ()

    def _is_valid(self, name: str, result: ProbeResult, at: datetime) -> bool:
        probe = self._probes[name]
        return at - result.at <= 2 * probe.every + probe.timeout

    def _watched(self, valid: dict[str, ProbeResult], at: datetime) -> SampleBatch:
        """What is said of each probe as of any target: whether it could be asked, how long that took."""
        values = np.full((len(self._probes), len(WATCH_KEYS)), np.nan)
        for row, name in enumerate(self._probes):
            if name in valid:
                result = valid[name]
                asked = result.outcome is not Outcome.NOT_SENT
                seconds = np.nan if result.e2e_seconds is None else result.e2e_seconds
                values[row] = (float(asked), seconds, np.nan, 0.0 if asked else _OTHER_CODE, np.nan)
        status = np.where(np.isfinite(values), CellStatus.PRESENT, CellStatus.ABSENT).astype(np.uint8)
        entities = tuple(map(watcher, self._probes.values()))
        return SampleBatch("probes", at, EntityKind.WORKLOAD, WATCH_KEYS, entities, values, status)

    async def close(self) -> None:
        """End askings that are still under way and close every probe."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()
        for probe in self._probes.values():
            await probe.close()


def watcher(probe: Probe) -> EntityRef:
    """The monitoring entity of a probe; no scrape target is named so."""
    return EntityRef(probe.service.cluster, EntityKind.WORKLOAD, NAMESPACE, f"probe/{probe.name}")


def _batch(service: EntityRef, results: Sequence[ProbeResult], at: datetime) -> SampleBatch:
    """The row of one service; all ABSENT while nothing is known of it."""
    asked = [one for one in results if one.outcome is not Outcome.NOT_SENT]
    values = np.full((1, len(KEYS)), np.nan)
    if asked:
        of_tokens = [one for one in asked if one.tokens is not None] or asked
        values[0] = (
            float(all(one.outcome.success for one in asked)),
            worst(one.outcome for one in asked).code,
            _most(one.e2e_seconds for one in of_tokens),
            _most(one.ttft_seconds for one in asked),
            _most(one.itl_seconds for one in asked),
            -_most(None if one.tokens is None else -float(one.tokens) for one in asked),
            -_most(None if one.cert_expiry_seconds is None else -one.cert_expiry_seconds for one in asked),
        )
    status = np.where(np.isfinite(values), CellStatus.PRESENT, CellStatus.ABSENT).astype(np.uint8)
    newest = max((one.at for one in asked), default=at)
    return SampleBatch("probes", newest, EntityKind.SERVICE, KEYS, (service,), values, status)


def _most(found: Iterable[float | None]) -> float:
    """The greatest, NaN for none."""
    return max((one for one in found if one is not None), default=np.nan)


def _result(name: str, task: asyncio.Task[ProbeResult], at: datetime) -> ProbeResult:
    """What an asking brought. A mistake of ours in one probe must not cost the round of all others."""
    fault = task.exception()
    if fault is None:
        return task.result()
    log.get("probe").error("probe_broke", probe=name, exc_info=fault)
    said = f"{name}: asking it failed with {type(fault).__name__}; please report this with the log"
    return ProbeResult(Outcome.NOT_SENT, at, said)
