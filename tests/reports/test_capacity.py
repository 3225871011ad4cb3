"""The capacity report: needs, and the plan's targets summed up from the audit record."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from outrider.audit import AuditEvent, AuditRecord
from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, Verdict
from reports import capacity as report
from reports.document.render import as_dict, render

MONDAY = datetime(2026, 5, 4, tzinfo=UTC)


def _planned(fleet, minutes, current, target, number):
    detail = {"current": str(current), "target": str(target), "binding": "forecast"}
    at = MONDAY + timedelta(minutes=minutes)
    return AuditRecord(at, AuditEvent.PLAN_MADE, str(fleet.chat), "forecast_peak", detail=detail, id=number)


@pytest.fixture
def shadowed(fleet):
    """An hour without change, an hour with a target of +2, half an hour with -3 replicas."""
    wanted = [(0, 8, 8)] * 6 + [(0, 8, 10)] * 6 + [(0, 10, 7)] * 3 + [(0, 7, 7)]
    plans = [_planned(fleet, 10 * number, now, want, number) for number, (_, now, want) in enumerate(wanted)]
    other = AuditRecord(MONDAY, AuditEvent.CONFIG_LOADED, "c", "started", id=99)
    state = replace(fleet.state, trail=(*plans, other))  # other tests share the fleet
    return SimpleNamespace(**{**vars(fleet), "state": state})


def _rows(model, section, table):
    result = next(one for one in as_dict(model)["sections"] if one["id"] == section)
    return next(one for one in result["tables"] if one["id"] == table)["rows"]


def test_replica_hours_of_the_plan_are_summed(shadowed):
    model = report.capacity(shadowed.state, shadowed.metrics, shadowed.week, shadowed.now)
    (sums,) = _rows(model, "shadow", "shadow_sums")
    assert (sums["outs"], sums["ins"]) == (1, 1)
    assert sums["hours_more"] == pytest.approx(2.0)
    assert sums["hours_fewer"] == pytest.approx(1.5)
    rows = _rows(model, "shadow", "shadow")
    assert [(row["now"], row["need"], row["done"]) for row in rows] == [(10, 7, "not_done"), (8, 10, "not_done")]
    assert rows[1]["at"] == "2026-05-04T01:00:00Z"


def test_the_outcome_of_each_target_is_reported(shadowed):
    at = MONDAY + timedelta(minutes=61)
    done = Action(
        id="a", session="plan", kind=ActionKind.SCALE, target=shadowed.chat, params={"replicas": 10}, because="plan",
        dry_run=False, decision=Verdict.ALLOWED, reason=DecisionReason.WITHIN_LIMITS, status=ActionStatus.DONE,
        decided_at=at,
    )  # fmt: skip
    shadowed.state.all_actions = (done,)
    model = report.capacity(shadowed.state, shadowed.metrics, shadowed.week, shadowed.now)
    assert [row["done"] for row in _rows(model, "shadow", "shadow")] == ["not_done", "done"]


def test_a_long_record_is_read_to_its_beginning(shadowed, monkeypatch):
    whole = _rows(report.capacity(shadowed.state, shadowed.metrics, shadowed.week, shadowed.now), "shadow", "shadow")
    monkeypatch.setattr(report, "_PAGE", 3)
    paged = _rows(report.capacity(shadowed.state, shadowed.metrics, shadowed.week, shadowed.now), "shadow", "shadow")
    assert paged == whole


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_it_is_written_in_both_languages_and_every_format(shadowed, language, form):
    text = render(report.capacity(shadowed.state, shadowed.metrics, shadowed.week, shadowed.now, language), form)
    assert "chat-70b" in text
    assert "reports." not in text
    if form != "json":
        assert ("建议与结果" if language == "zh" else "Recommendations and outcome") in text


def test_an_empty_store_gives_a_notice(nothing):
    model = report.capacity(nothing.state, nothing.metrics, nothing.week, nothing.now)
    assert model.empty
    assert model.notice
