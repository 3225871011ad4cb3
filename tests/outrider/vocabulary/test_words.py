"""Entities, signal keys, clocks, units, audit records and texts."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import audit, clock, windows
from outrider.errors import UnitMismatchError, UsageError
from outrider.model import CellStatus, EntityKind, EntityRef, SignalKey, Window
from outrider.text import i18n
from outrider.vocabulary import units
from outrider.vocabulary.faults import faults

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


@given(
    namespace=st.none() | st.text(st.characters(exclude_characters="/"), min_size=1),
    name=st.text(min_size=1),
)
def test_entity_key_round_trips(namespace, name):
    entity = EntityRef("c", EntityKind.POD, namespace, name)
    assert EntityRef.from_key(entity.key) == entity


@pytest.mark.parametrize(
    "key", [SignalKey("a"), SignalKey("a", quantile=0.99), SignalKey("a", bucket=3), SignalKey("a", bucket=-1)]
)
def test_signal_key_round_trips(key):
    assert SignalKey.parse(str(key)) == key


def test_manual_clock_steps_back_but_its_monotonic_time_does_not():
    manual = clock.ManualClock(NOW)
    manual.advance(timedelta(seconds=30))
    manual.set(NOW - timedelta(hours=1))
    assert manual.now() == NOW - timedelta(hours=1)
    assert manual.monotonic() == 30.0


def test_a_clock_needs_an_aware_start():
    with pytest.raises(ValueError, match="aware"):
        clock.ManualClock(datetime(2026, 1, 1))  # noqa: DTZ001 - the fault under test


def test_rfc3339_round_trips_and_ends_in_z():
    assert clock.rfc3339(NOW) == "2026-11-21T08:00:00Z"
    fraction = NOW + timedelta(milliseconds=250)
    assert clock.parse_rfc3339(clock.rfc3339(fraction)) == fraction
    with pytest.raises(ValueError, match="no time zone"):
        clock.parse_rfc3339("2026-11-21T08:00:00")


def test_units_multiply_and_refuse_to_mix():
    of = units.Quantity.of
    demand = of(40, "request/second") * of(300, "token/request")
    supply = of(32, "sequence/replica") * of(25, "token/second*sequence")
    assert (demand / supply).expect("replica") == pytest.approx(15)
    with pytest.raises(UnitMismatchError, match=r"token/second.*expected replica"):
        demand.expect("replica")


@pytest.mark.parametrize(
    ("text", "seconds"), [("15s", 15), ("1h30m", 5400), ("250ms", 0.25), ("7d", 604800), ("1w", 604800)]
)
def test_durations(text, seconds):
    assert units.parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "5", "5 parsecs", "m5", "-3s"])
def test_invalid_durations_are_rejected(text):
    with pytest.raises(UsageError, match="is not a duration"):
        units.parse_duration(text)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.993, "ratio", "99.3 %"),
        (1.5 * 2**30, "bytes", "1.5 GiB"),
        (0.12, "seconds", "120 ms"),
        (None, "ratio", "-"),
        (float("nan"), "seconds", "-"),
    ],
)
def test_values_are_formatted_with_their_unit(value, unit, text):
    assert units.format_value(value, unit) == text


def test_audit_records_never_hold_secrets():
    record = audit.AuditRecord(
        NOW, audit.AuditEvent.CONFIG_LOADED, "x", "y", detail={"api_token": "s3cret", "token_file": "/a", "tokens": "5"}
    )
    assert record.detail == {"api_token": audit.REDACTED, "token_file": "/a", "tokens": "5"}


def test_every_fault_is_known_by_its_look_alikes():
    states = {
        "engine-idle",
        "engine-starting",
        "engine-saturated",
        "traffic-mix-shift",
        "traffic-holiday",
        "memory-warm-up",
        "traffic-drop",
    }
    for fault in faults().values():
        for name in fault.confusable:
            assert name in faults() or name in states, f"{fault.id} is confusable with {name}, which nothing defines"


def test_missing_arguments_leave_the_placeholder():
    assert i18n.translate("no.such.key") == "no.such.key"
    assert i18n._Missing({"a": 1})["b"] == "{b}"


def window(values):
    array = np.array(values, dtype=float)[:, :, None]
    times = np.arange(array.shape[1]) * 15.0
    status = np.where(np.isnan(array), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    entities = tuple(EntityRef("c", EntityKind.REPLICA, None, str(i)) for i in range(array.shape[0]))
    return Window(EntityKind.REPLICA, entities, times, (SignalKey("x"),), array, status, timedelta(seconds=15))


def test_last_value_skips_gaps():
    found = windows.last_value(window([[1, 2, np.nan], [np.nan] * 3]), "x")
    assert found[0] == 2
    assert np.isnan(found[1])


def test_total_covers_the_span_and_keeps_nothing_apart_from_zero():
    found = windows.total(window([[1, 2, 4], [np.nan] * 3]), "x", timedelta(seconds=30))
    assert found[0] == 6
    assert np.isnan(found[1])


def test_holding_cells_are_those_that_hold_scale_in():
    statuses = np.array(list(CellStatus), dtype=np.uint8)
    assert [CellStatus(s).name for s in statuses[windows.holding(statuses)]] == [
        "ABSENT",
        "STALE",
        "RESET",
        "UNTRUSTED",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "http://ann:hunter2@h:9/m?token=sekrit&x=1 refuses",
            "http://[redacted]@h:9/m?token=[redacted]&x=[redacted] refuses",
        ),
        ("http://127.0.0.1:9/metrics refuses connections", "http://127.0.0.1:9/metrics refuses connections"),
        ("no address in here: a@b", "no address in here: a@b"),
    ],
)
def test_secrets_in_urls_are_redacted(text, shown):
    assert audit.redact_text(text) == shown
    assert str(UsageError(text)) == shown
