"""Signs of hard faults in single pages: only unambiguous ones, only from pages that can be trusted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from detectors.hardware.hard_fault_signs import MOST_AGE, HardFaultSign, signs_of
from outrider.model import CellStatus, EntityKind, EntityRef, Event, EventKind, SampleBatch, SignalKey, TrustVerdict

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
GPUS = tuple(EntityRef("c", EntityKind.GPU, None, f"GPU-{number}") for number in range(3))
REPLICA = EntityRef("c", EntityKind.REPLICA, "llm", "chat-0")


def page(
    kind: EntityKind,
    entities: tuple[EntityRef, ...],
    *,
    trust: TrustVerdict = TrustVerdict.FRESH,
    status: CellStatus = CellStatus.PRESENT,
    **signals: list[float],
) -> SampleBatch:
    values = np.array(list(signals.values())).T
    keys = tuple(map(SignalKey, signals))
    statuses = np.full(values.shape, status, dtype=np.uint8)
    return SampleBatch("t", NOW, kind, keys, entities, values, statuses, 15.0, trust)


def xid(code: str, at: datetime = NOW) -> Event:
    return Event("x", EventKind.XID, GPUS[0], at, "dcgm", code, {}, "x")


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("79", "gpu-lost"),
        ("48", "gpu-xid-hardware"),
        ("95", "gpu-xid-hardware"),
        ("119", "gpu-xid-hardware"),
        ("ascend:40F84E00", "gpu-lost"),
    ],
)
def test_a_code_that_ends_in_a_reset_is_a_sign(code: str, fault: str) -> None:
    assert signs_of((), [xid(code)], NOW) == {HardFaultSign(GPUS[0], fault)}


@pytest.mark.parametrize("code", ["13", "31", "43", "45", "54", "63", "74", "92", "94", "9999"])
def test_other_codes_wait_for_the_cycle(code: str) -> None:
    assert signs_of((), [xid(code)], NOW) == frozenset()


def test_an_old_event_is_not_a_sign() -> None:
    assert signs_of((), [xid("79", NOW - MOST_AGE - timedelta(seconds=1))], NOW) == frozenset()


@pytest.mark.parametrize(
    "trust", [TrustVerdict.STALE, TrustVerdict.RESET, TrustVerdict.CLOCK_STEP, TrustVerdict.FROZEN]
)
def test_a_page_of_doubtful_age_has_no_signs(trust: TrustVerdict) -> None:
    batch = page(EntityKind.GPU, GPUS, trust=trust, hw_accel_seen=[1, 1, 0], hw_accel_ecc_uncorrectable_total=[0, 2, 0])
    assert signs_of([batch], [xid("79")], NOW) == frozenset()


def test_a_device_that_left_its_page_is_a_sign_while_others_are_on_it() -> None:
    lost = page(EntityKind.GPU, GPUS, trust=TrustVerdict.PARTIAL, hw_accel_seen=[1, 1, 0])
    assert signs_of([lost], (), NOW) == {HardFaultSign(GPUS[2], "gpu-lost")}
    empty = page(EntityKind.GPU, GPUS, trust=TrustVerdict.PARTIAL, hw_accel_seen=[0, 0, 0])
    assert signs_of([empty], (), NOW) == frozenset()


def test_a_step_of_uncorrectable_errors_is_a_sign_and_an_untrusted_cell_is_not() -> None:
    stepped = page(EntityKind.GPU, GPUS, hw_accel_ecc_uncorrectable_total=[0, 1, 0])
    assert signs_of([stepped], (), NOW) == {HardFaultSign(GPUS[1], "gpu-ecc-uncorrectable")}
    doubtful = page(EntityKind.GPU, GPUS, status=CellStatus.RESET, hw_accel_ecc_uncorrectable_total=[0, 1, 0])
    assert signs_of([doubtful], (), NOW) == frozenset()


@pytest.mark.parametrize(("code", "expected"), [(1.0, {"engine-dead"}), (2.0, set()), (5.0, set())])
def test_an_engine_that_refuses_connections_is_a_sign_and_a_timeout_is_not(code: float, expected: set[str]) -> None:
    failed = page(
        EntityKind.REPLICA, (REPLICA,), trust=TrustVerdict.FAILED, engine_up=[0.0], target_failure_code=[code]
    )
    assert {sign.fault for sign in signs_of([failed], (), NOW)} == expected


def test_an_engine_that_reports_itself_unhealthy_is_a_sign() -> None:
    ill = page(EntityKind.REPLICA, (REPLICA,), engine_up=[1.0], engine_health_ok=[0.0])
    assert signs_of([ill], (), NOW) == {HardFaultSign(REPLICA, "engine-core-dead")}
