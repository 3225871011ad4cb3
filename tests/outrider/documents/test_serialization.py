"""JSON documents: keys, timestamps, no NaN."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.documents import serialization
from outrider.documents.summaries import earliest, entity_name, incident_summary, moment, word, worded
from outrider.model import EntityKind, EntityRef, TimelineEntry
from outrider.testing import trouble
from outrider.testing.names import LOST_GPU, NOW, topology
from outrider.testing.story import Story
from outrider.text.i18n import LANGUAGES, texts

COMMIT = Story(alerts=2).commit()
AGREED = {
    "alert": "fingerprint rule priority state entity starts_at ends_at incident summary value muted_by",
    "incident": "id layer priority opened_at resolved_at suspected_cause hypotheses rejected alerts pages summary",
    "action": "id session kind target dry_run decision reason status started_at ended_at",
    "recommendation": "service gpu_type current_replicas target_replicas gpus floor ceiling binding need_at "
    "lead_time_seconds cost_per_hour derivation reason",
}


@pytest.mark.parametrize(
    ("write", "values"),
    [
        ("alert", COMMIT.alerts),
        ("incident", COMMIT.incidents),
        ("action", COMMIT.actions),
        ("recommendation", COMMIT.plan.recommendations),
    ],
)
def test_json_has_the_documented_keys(write, values):
    assert values
    for value in values:
        found = getattr(serialization, write)(value)
        assert set(AGREED[write].split()) <= set(found)
        json.dumps(found, allow_nan=False)


def test_forecasts_messages_audit_and_cycles_are_json():
    parts = [serialization.forecast(each) for each in COMMIT.plan.forecasts]
    parts += [serialization.message(each) for each in COMMIT.messages]
    parts += [serialization.audit(each) for each in COMMIT.audit]
    parts += [serialization.cycle(COMMIT.cycle), serialization.incident_story(COMMIT.incidents[0], "zh")]
    json.dumps(parts, allow_nan=False)
    assert parts[0]["times"][0] == "2026-05-04T13:17:30Z"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None, np.float32("nan")])
def test_missing_numbers_are_null(value):
    assert serialization.finite(value) is None


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
def test_nan_in_arrays_becomes_null(values):
    found = serialization.numbers(np.array(values, dtype=np.float64))
    assert len(found) == len(values)
    json.dumps(found, allow_nan=False)


def test_nested_values_become_plain_and_secrets_are_redacted():
    found = serialization.plain({"at": NOW, "who": LOST_GPU, "list": (np.float64(1.5), np.nan), "token": "s3cret"})
    assert found == {
        "at": "2026-05-04T13:07:30Z",
        "who": serialization.entity(LOST_GPU),
        "list": [1.5, None],
        "token": "[redacted]",
    }


def test_summaries_name_fault_entity_and_time_in_both_languages():
    known = trouble.incident(NOW, NOW, ("a",))
    assert incident_summary(known, "en") == "GPU lost on GPU-03027e1c…000026, incident since 2026-05-04 13:07 UTC"
    assert incident_summary(known, "zh").startswith("GPU-03027e1c…000026：GPU 掉卡")
    assert "cause not known yet" in incident_summary(replace(known, hypotheses=()), "en")


def test_a_name_that_contains_its_kind_is_not_prefixed():
    assert entity_name(EntityRef("c", EntityKind.NODE, None, "node-3"), "en") == "node-3"
    assert entity_name(EntityRef("c", EntityKind.REPLICA, "llm", "chat-3"), "zh") == "副本 chat-3"


def test_arguments_of_texts_use_display_names():
    given_ = {"fault": "gpu-lost", "entity": "replica/llm/chat-3", "signal": "hw_accel_present", "n": "3"}
    assert worded(given_, "en") == {
        "fault": "GPU lost",
        "entity": "replica chat-3",
        "signal": "GPUs visible on the node",
        "n": "3",
    }


@pytest.mark.parametrize(
    ("state", "english", "chinese"),
    [
        ("acknowledged", "acknowledged", "已确认"),
        ("no_standby+waits", "no standby cluster, switch waits", "切换等待批准"),
    ],
)
def test_the_state_of_a_status_message_is_in_the_language_of_the_timeline(state, english, chinese):
    entry = TimelineEntry(NOW, "notify.timeline.status", {"state": state, "to": "ding"})
    incident = replace(trouble.incident(NOW, NOW, ()), timeline=(entry,))
    texts = [serialization.incident_story(incident, language)["timeline"][0]["text"] for language in ("en", "zh")]
    assert english in texts[0]
    assert chinese in texts[1]
    assert "acknowledged" not in texts[1]


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("UTC", "2026-05-04 13:07 UTC"),
        ("Europe/London", "2026-05-04 14:07 UTC+01:00"),
        ("Asia/Kolkata", "2026-05-04 18:37 UTC+05:30"),
        ("America/New_York", "2026-05-04 09:07 UTC-04:00"),
    ],
)
def test_a_moment_names_its_offset(zone, text):
    at = datetime(2026, 5, 4, 13, 7, 30, tzinfo=UTC)
    assert moment(at, ZoneInfo(zone)) == text
    assert earliest([text, moment(at + timedelta(minutes=1)), moment(at + timedelta(hours=9))]) == text


def test_the_timeline_is_rendered_oldest_first():
    entries = (
        TimelineEntry(NOW, "incidents.timeline.cause_named", {"entity": "gpu/GPU-1", "fault": "gpu-lost"}),
        TimelineEntry(NOW - timedelta(minutes=1), "words.entity_kind.gpu"),
    )
    story = serialization.incident_story(replace(trouble.incident(NOW, NOW, ()), timeline=entries), "en")
    first, second = (row["text"] for row in story["timeline"])
    assert first == "GPU"
    assert "GPU lost" in second


def test_every_enum_member_has_a_text_in_both_languages():
    from outrider import model

    groups = {
        "entity_kind": model.EntityKind,
        "layer": model.Layer,
        "alert_state": model.AlertState,
        "alert_reason": model.AlertReason,
        "mute_reason": model.MuteReason,
        "action_kind": model.ActionKind,
        "verdict": model.Verdict,
        "action_status": model.ActionStatus,
        "decision_reason": model.DecisionReason,
        "notify_reason": model.NotifyReason,
    }
    wanted = [(group, member) for group, members in groups.items() for member in members]
    wanted += [("plan_reason", member) for member in (*model.PlanReason, *model.NoPlanReason)]
    for language in LANGUAGES:
        missing = [f"{group}.{m.value}" for group, m in wanted if f"words.{group}.{m.value}" not in texts(language)]
        assert missing == []
    assert word("action_kind", "unheard_of") == "unheard of"


def test_the_topology_of_the_sample_fleet_is_connected():
    graph = topology(NOW)
    assert len(graph.of_kind(EntityKind.GPU)) == 64
    assert [service.name for service in graph.above(LOST_GPU, EntityKind.SERVICE)] == ["chat"]
