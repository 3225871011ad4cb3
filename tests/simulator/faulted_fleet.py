"""A small fleet for fault injection, with helpers to read its state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from outrider.model import Floats
from simulator.faults import Injection, Truth, inject
from simulator.faults.scope import Scope, scope_of
from simulator.fleet import Fleet
from simulator.journal import JournalSource
from simulator.spec.fleets import H100, drill_spec
from simulator.spec.parts import FleetSpec, PoolSpec, StartupSpec, TrafficSpec

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
STARTUP = StartupSpec(4.0, 12.0, 40.0, 20.0)
BUSY = TrafficSpec(shape="steady", peak_ratio=0.6, noise_ratio=0.0)
CALM = TrafficSpec(shape="steady", peak_ratio=0.05, noise_ratio=0.0)
MINUTE = timedelta(minutes=1)


def spec(load: TrafficSpec) -> FleetSpec:
    """Three replicas of chat-70b under a load, and two of code-14b with almost none."""
    chat, code = drill_spec().services
    return FleetSpec(
        "small",
        (PoolSpec("h100-a", H100, 3),),
        (
            replace(chat, replicas=3, ceiling=4, tenants=(), traffic=load),
            replace(code, replicas=2, ceiling=3, traffic=CALM),
        ),
        startup=STARTUP,
        slice_seconds=2.0,
        tick_seconds=2.0,
    )


@dataclass
class Window:
    """Totals of a time span, by slot."""

    ttft_seconds: Floats
    tpot_seconds: Floats
    finished: Floats
    failed: Floats
    tokens: Floats


def window(fleet: Fleet, span: timedelta) -> Window:
    """Advances the fleet and returns the totals of that time."""
    counters = fleet.bank.counters

    def totals() -> list[Floats]:
        plain = counters.plain
        return [
            counters.sums["ttft"].copy(),
            counters.buckets["ttft"].sum(axis=1),
            counters.sums["tpot"].copy(),
            counters.buckets["tpot"].sum(axis=1),
            plain["finished_stop"] + plain["finished_length"],
            plain["finished_error"].copy(),
            plain["generation_tokens"].copy(),
        ]

    before = totals()
    fleet.step(span)
    ttft, first, tpot, whole, finished, failed, tokens = (
        now - then for now, then in zip(totals(), before, strict=True)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return Window(ttft / first, tpot / whole, finished, failed, tokens)


def strike(fleet: Fleet, fault: str, entity: str, lasts: timedelta = 20 * MINUTE) -> tuple[Truth, Injection, Scope]:
    truth = inject(fleet, fault, entity, duration=lasts, seed=3)
    return truth, fleet.injections[-1], scope_of(fleet, truth.entity)


def logged(fleet: Fleet, source: JournalSource) -> Iterator[str]:
    """Yields the codes of all journal entries of a source, in order."""
    return (line.code for line in fleet.journal.after() if line.source is source)
