from dataclasses import replace
from datetime import timedelta

import pytest

from alerts.routing.pipeline import messages, sample_messages
from alerts.routing.routes import NotificationSettings
from alerts.state.silence import mute
from outrider.documents.summaries import entity_name, fault_name, word
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    AlertState,
    BreakerState,
    ButtonAction,
    DecisionReason,
    Fact,
    GuardAnswer,
    IncidentProgress,
    MuteReason,
    NotifyReason,
    Priority,
    ProgressLine,
    TimelineEntry,
    Verdict,
)
from outrider.ports import Silence
from outrider.text.i18n import LANGUAGES, texts

ROUTES = {"phone": ("hook",), "sms": ("hook",), "im": ("ding", "slack"), "mail": ("mail",)}
MESSAGING = NotificationSettings(routes=ROUTES, base_url="https://outrider.example/", languages={"ding": "zh"})


def say(world, incident, alerts=(), *, now=None, actions=(), before=(), messaging=MESSAGING):
    return messages(list(before), [incident], list(alerts), list(actions), messaging, now or world.t0)


def action(world, **fields):
    made = {
        "id": "act-1",
        "session": "ses",
        "kind": ActionKind.CORDON,
        "target": world.node,
        "params": {},
        "because": "inc-1",
        "dry_run": False,
        "decision": Verdict.ALLOWED,
        "reason": DecisionReason.WITHIN_LIMITS,
        "status": ActionStatus.INTENDED,
        "decided_at": world.t0,
    }
    return Action(**{**made, **fields})


def test_an_opened_p0_goes_to_phone_sms_and_im_and_counts_one_page(world):
    alert = world.alert(priority=Priority.P0)
    result = say(world, world.incident(alert, priority=Priority.P0), [alert])
    assert [message.channel for message in result.messages] == ["hook", "ding", "slack"]
    assert {message.reason for message in result.messages} == {NotifyReason.OPENED}
    assert all(message.is_page for message in result.messages)
    assert result.incidents[0].pages == 1
    assert result.reasons == {"inc-1": NotifyReason.OPENED}


@pytest.mark.parametrize(
    ("priority", "channels"), [(Priority.P1, ["ding", "slack"]), (Priority.P2, ["ding", "slack", "mail"])]
)
def test_routes_of_each_priority(world, priority, channels):
    alert = world.alert(priority=priority)
    result = say(world, world.incident(alert, priority=priority), [alert])
    assert [message.channel for message in result.messages] == channels
    assert result.incidents[0].pages == (1 if priority is Priority.P1 else 0)


def test_a_p3_waits_for_the_report(world):
    alert = world.alert(priority=Priority.P3)
    result = say(world, world.incident(alert, priority=Priority.P3), [alert])
    assert (result.messages, result.incidents[0].pages) == ((), 0)


@pytest.mark.parametrize(("priority", "result"), [(Priority.P0, True), (Priority.P1, True), (Priority.P2, False)])
def test_only_pages_contain_the_explanation(world, priority, result):
    explain = replace(MESSAGING, explain=lambda incident, language: [f"more of {incident.id} in {language}"])
    alert = world.alert(priority=priority)
    opened = say(world, world.incident(alert, priority=priority), [alert], messaging=explain)
    assert {f"more of inc-1 in {m.language}" in m.body for m in opened.messages} == {result}
    over = replace(opened.incidents[0], resolved_at=world.at(60))
    after = say(world, over, [], now=world.at(60), messaging=explain)
    assert after.messages
    assert not any("more of" in m.body for m in after.messages)


def test_a_rule_may_name_its_own_routes(world):
    alert = world.alert(labels={"routes": "mail"})
    assert [m.channel for m in say(world, world.incident(alert), [alert]).messages] == ["mail"]


def test_a_page_is_never_lost_to_an_empty_group(world):
    alert = world.alert()
    messaging = NotificationSettings(routes={"mail": ("mail",)})
    assert [m.channel for m in say(world, world.incident(alert), [alert], messaging=messaging).messages] == ["mail"]
    nobody = say(world, world.incident(alert), [alert], messaging=NotificationSettings(routes={}))
    assert (nobody.messages, nobody.incidents[0].pages) == ((), 0), "no page without a person"


def test_two_engines_plan_the_same_messages(world):
    alert = world.alert()
    one, two = (say(world, world.incident(alert), [alert], now=world.at(second)) for second in (0, 3))
    assert [m.id for m in one.messages] == [m.id for m in two.messages]


def test_no_message_is_sent_twice(world):
    alert = world.alert()
    first = say(world, world.incident(alert), [alert])
    second = say(world, first.incidents[0], [alert], now=world.at(15))
    assert second.messages == ()
    assert second.reasons["inc-1"] is NotifyReason.NOT_CHANGED
    assert second.incidents == first.incidents


def test_it_repeats_until_acknowledged(world):
    alert = world.alert()
    result = say(world, world.incident(alert), [alert])
    again = say(world, result.incidents[0], [alert], now=world.at(1800))
    assert {m.reason for m in again.messages} == {NotifyReason.REPEAT}
    assert not any(m.is_page for m in again.messages)
    assert again.incidents[0].pages == 1
    assert not {m.id for m in result.messages} & {m.id for m in again.messages}
    third = say(world, again.incidents[0], [alert], now=world.at(3600))
    assert third.messages
    assert not {m.id for m in third.messages} & {m.id for m in again.messages}
    acknowledged = replace(again.incidents[0], acknowledged_at=world.at(1900), acknowledged_by="li")
    assert say(world, acknowledged, [alert], now=world.at(7200)).messages == ()


def test_resolved_is_sent_once_to_notified_channels(world):
    alert = world.alert()
    result = say(world, world.incident(alert), [alert])
    over = replace(result.incidents[0], resolved_at=world.at(300))
    ended = say(world, over, [replace(alert, state=AlertState.RESOLVED)], now=world.at(300))
    assert [(m.channel, m.reason) for m in ended.messages] == [
        ("ding", NotifyReason.RESOLVED),
        ("slack", NotifyReason.RESOLVED),
    ]
    assert "5m" in ended.messages[1].body
    assert say(world, ended.incidents[0], [], now=world.at(315)).messages == ()
    assert say(world, ended.incidents[0], [], now=world.at(315), before=ended.incidents).messages == ()


def test_a_merged_incident_is_not_reported_as_resolved(world):
    alert = world.alert()
    result = say(world, world.incident(alert), [alert])
    merged = TimelineEntry(world.at(60), "incidents.timeline.absorbed_into", {"incident": "inc-9"})
    over = replace(result.incidents[0], resolved_at=world.at(60), timeline=(*result.incidents[0].timeline, merged))
    ended = say(world, over, [], now=world.at(60))
    assert ended.messages[1].title.startswith("[merged into inc-9]")
    assert "inc-9" in ended.messages[1].body


def test_an_unnotified_incident_ends_without_a_message(world):
    assert say(world, world.incident(world.alert(), resolved_at=world.at(60))).messages == ()


def test_a_silence_holds_and_its_end_sends_a_message(world):
    alert = world.alert()
    incident = world.incident(alert)
    silence = Silence("s", "engine-dead", world.replica, world.at(3600), "li")
    (quiet,) = mute([alert], [incident], [silence])
    assert quiet.muted_by is MuteReason.SILENCED
    held = say(world, incident, [quiet])
    assert (held.messages, held.reasons["inc-1"]) == ((), NotifyReason.MUTED)
    (loud,) = mute([quiet], [incident], [])
    assert loud.muted_by is None
    assert say(world, held.incidents[0], [loud], now=world.at(3600)).messages


def test_a_silence_without_rule_and_entity_mutes_nothing(world):
    (alert,) = mute([world.alert()], [], [Silence("s", None, None, world.at(60), "li")])
    assert alert.muted_by is None


def test_all_alerts_but_the_lead_alert_are_folded(world):
    cause = world.alert(priority=Priority.P1)
    symptom = world.alert("ttft-p99-high", world.service, priority=Priority.P0, fault=None)
    incident = world.incident(symptom, cause, priority=Priority.P0)
    muted = {alert.rule: alert.muted_by for alert in mute([symptom, cause], [incident], [])}
    assert muted == {"engine-dead": None, "ttft-p99-high": MuteReason.FOLDED}
    acknowledged = replace(incident, acknowledged_at=world.t0)
    muted = {alert.rule: alert.muted_by for alert in mute([symptom, cause], [acknowledged], [])}
    assert muted["engine-dead"] is MuteReason.ACKNOWLEDGED


def test_approval_is_requested_once(world):
    alert = world.alert()
    result = say(world, world.incident(alert), [alert])
    asks = action(world, status=ActionStatus.WAITING_APPROVAL, decision=Verdict.ASK)
    requested = say(world, result.incidents[0], [alert], actions=[asks], now=world.at(15))
    assert {m.reason for m in requested.messages} == {NotifyReason.APPROVAL_WANTED}
    assert "outrider remediate approve act-1" in requested.messages[1].body
    assert say(world, requested.incidents[0], [alert], actions=[asks], now=world.at(30)).messages == ()


def test_approval_for_the_plan_goes_without_an_incident(world):
    asks = action(
        world, because="plan", kind=ActionKind.SCALE, target=world.service, status=ActionStatus.WAITING_APPROVAL
    )
    result = messages([], [], [], [asks], MESSAGING, world.t0)
    assert [(m.channel, m.incident) for m in result.messages] == [("ding", None), ("slack", None), ("mail", None)]
    assert messages([], [], [], [asks], MESSAGING, world.at(15)).messages == ()


def test_an_approval_for_the_plan_has_its_button_and_an_expired_one_only_a_link(world):
    asks = action(
        world, because="plan", kind=ActionKind.SCALE, target=world.service, status=ActionStatus.WAITING_APPROVAL
    )
    with_buttons = replace(MESSAGING, buttons_valid=timedelta(hours=12))
    sent = messages([], [], [], [asks], with_buttons, world.t0).messages
    claims = {message.channel: message.buttons[0].claim for message in sent}
    assert {claim.action for claim in claims.values()} == {ButtonAction.APPROVE}
    assert {claim.subject for claim in claims.values()} == {"act-1"}
    assert set(claims) == {claim.channel for claim in claims.values()} == {"ding", "slack", "mail"}
    over = replace(asks, status=ActionStatus.REFUSED, reason=DecisionReason.EXPIRED, ended_at=world.at(60))
    expired = messages([], [], [], [over], with_buttons, world.at(60)).messages
    assert {button.action for message in expired for button in message.buttons} == {ButtonAction.OPEN}


def test_the_expiry_of_a_request_is_reported_once(world):
    alert = world.alert()
    opened = say(world, world.incident(alert), [alert])
    expired = action(world, status=ActionStatus.REFUSED, decision=Verdict.REFUSED, reason=DecisionReason.EXPIRED)
    result = say(world, opened.incidents[0], [alert], actions=[expired], now=world.at(15))
    assert {m.reason for m in result.messages} == {NotifyReason.APPROVAL_EXPIRED}
    english = next(m for m in result.messages if m.channel == "slack")
    assert english.title.startswith("[P1, approval expired]")
    assert "outrider remediate request act-1" in english.body
    assert "已过期" in next(m for m in result.messages if m.channel == "ding").title
    assert say(world, result.incidents[0], [alert], actions=[], now=world.at(30)).messages == ()


def test_the_expiry_of_a_recommendation_is_not_reported(world):
    alert = world.alert()
    opened = say(world, world.incident(alert), [alert])
    objection = GuardAnswer("autonomy", Verdict.ASK, DecisionReason.AUTONOMY_RECOMMEND)
    idea = action(world, status=ActionStatus.REFUSED, reason=DecisionReason.EXPIRED, objections=(objection,))
    assert say(world, opened.incidents[0], [alert], actions=[idea], now=world.at(15)).messages == ()


def test_the_expiry_of_a_request_of_the_plan_goes_without_an_incident(world):
    expired = action(
        world,
        because="plan",
        kind=ActionKind.SCALE,
        target=world.service,
        status=ActionStatus.REFUSED,
        reason=DecisionReason.EXPIRED,
        ended_at=world.at(1800),
    )
    result = messages([], [], [], [expired], MESSAGING, world.at(1800))
    assert {(m.reason, m.incident) for m in result.messages} == {(NotifyReason.APPROVAL_EXPIRED, None)}


def test_an_action_for_two_people_says_so(world):
    alert = world.alert()
    opened = say(world, world.incident(alert), [alert])
    asks = action(world, status=ActionStatus.WAITING_APPROVAL, decision=Verdict.ASK, approvals_needed=2)
    requested = say(world, opened.incidents[0], [alert], actions=[asks], now=world.at(15))
    assert "Two people must approve" in next(m for m in requested.messages if m.channel == "slack").body


def test_the_breaker_sends_one_message_with_its_numbers(world):
    opened = BreakerState(opened_at=world.t0, unsuccessful=4, performed=6)
    result = messages([], [], [], [], MESSAGING, world.t0, breaker=opened)
    assert {(m.reason, m.priority, m.incident) for m in result.messages} == {
        (NotifyReason.BREAKER_OPENED, Priority.P1, None)
    }
    english = next(m for m in result.messages if m.channel == "slack")
    assert "4 of 6" in english.body
    assert "outrider remediate reset" in english.body
    assert "熔断器" in next(m for m in result.messages if m.channel == "ding").title


def test_the_body_has_cause_impact_evidence_and_actions(world):
    annotations = {"runbook": "docs/runbooks/engine-dead.md", "default_action_text": "alerts.engine-dead.action"}
    alert = world.alert(
        annotations={**annotations, "evidence": '[{"signal":"engine_up","observed":0.0,"text":"","arguments":{}}]'}
    )
    result = say(world, world.incident(alert), [alert], actions=[action(world)])
    english = next(m for m in result.messages if m.channel == "slack")
    status = word("action_status", ActionStatus.INTENDED)
    done = f"{word('action_kind', ActionKind.CORDON)} {entity_name(world.node)}: {status}"
    facts = ("chat-0", "confidence 90 %", "Since: 2026-05-04 12:00 UTC", "Affected: chat", "15m", "engine_up = 0")
    for part in (*facts, done, "docs/runbooks/engine-dead.md", "Restart the pod"):
        assert part in english.body, part
    assert english.link == "https://outrider.example/incident?incident=inc-1"
    assert english.link in english.body
    chinese = next(m for m in result.messages if m.channel == "ding")
    assert chinese.language == "zh"
    assert "疑似根因" in chinese.body
    assert "重启 Pod" in chinese.body
    assert "{" not in english.title + english.body + chinese.title + chinese.body


def test_a_dry_run_is_marked(world):
    alert = world.alert()
    result = say(world, world.incident(alert), [alert], actions=[action(world, dry_run=True)])
    assert "dry run" in result.messages[1].body


def test_an_unknown_cause_is_reported_as_unknown(world):
    alert = world.alert()
    result = say(world, world.incident(alert, cause=None), [alert])
    assert "not yet known" in result.messages[1].body


def test_the_timeline_reads_as_a_sentence(world):
    alert = world.alert()
    entry = say(world, world.incident(alert), [alert]).incidents[0].timeline[-1]
    from outrider.text.i18n import translate

    assert translate(entry.what, "en", **entry.arguments) == "Notified ding, slack (P1)"
    assert translate(entry.what, "zh", **entry.arguments) == "已通知 ding, slack（P1）"


def test_samples_for_a_channel(world):
    samples = sample_messages("ding", MESSAGING, world.t0)
    assert [m.priority for m in samples] == list(Priority)
    assert all("测试" in m.title for m in samples)


def test_languages_carry_the_same_keys_and_placeholders():
    import string

    def fields(text):
        return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name)

    tables = {language: texts(language) for language in LANGUAGES}
    for area in ("alerts.", "notify.", "actions."):
        keys = {language: {key for key in table if key.startswith(area)} for language, table in tables.items()}
        assert keys["en"] == keys["zh"]
        for key in keys["en"]:
            assert fields(tables["en"][key]) == fields(tables["zh"][key]), key


def test_repeat_interval_may_be_switched_off(world):
    alert = world.alert()
    messaging = replace(MESSAGING, repeat={})
    result = say(world, world.incident(alert), [alert], messaging=messaging)
    assert (
        say(world, result.incidents[0], [alert], now=world.t0 + timedelta(days=9), messaging=messaging).messages == ()
    )


def alike(world, *entities, fault="gateway-fault", priority=Priority.P1):
    alerts = [world.alert(fault, entity, fault=fault, priority=priority) for entity in entities]
    found = [
        world.incident(alert, cause=(fault, alert.entity), id_=f"inc-{number}", priority=priority)
        for number, alert in enumerate(alerts)
    ]
    return found, alerts


def services(world, *names):
    return [replace(world.service, name=name) for name in names]


def test_simultaneous_pages_of_one_fault_are_one_message(world):
    found, alerts = alike(world, *services(world, "chat", "code", "search"))
    result = messages([], found, alerts, [], MESSAGING, world.t0)
    assert [(one.channel, one.is_page, one.incident, one.also) for one in result.messages] == [
        ("ding", True, "inc-0", ("inc-1", "inc-2")),
        ("slack", True, "inc-0", ("inc-1", "inc-2")),
    ]
    slack = result.messages[1]
    assert slack.title.startswith("[P1] ")
    assert all(name in slack.title for name in ("3", "chat", "code", "search"))
    assert all(f"incident=inc-{number}" in slack.body for number in range(3))
    assert all(name in slack.facts[Fact.WHERE] for name in ("chat", "code", "search")), "an SMS names all of them"
    assert [one.pages for one in result.incidents] == [1, 0, 0]
    assert set(result.reasons.values()) == {NotifyReason.OPENED}


def test_a_channel_that_holds_one_alert_for_each_incident_has_a_page_and_an_end_of_each(world):
    found, alerts = alike(world, *services(world, "chat", "code"))
    messaging = replace(MESSAGING, separate=frozenset({"slack"}))
    result = messages([], found, alerts, [], messaging, world.t0)
    assert [(one.channel, one.incident, one.also) for one in result.messages] == [
        ("ding", "inc-0", ("inc-1",)),
        ("slack", "inc-0", ()),
        ("slack", "inc-1", ()),
    ]
    ended = [replace(result.incidents[0], resolved_at=world.at(60)), result.incidents[1]]
    over = messages(result.incidents, ended, alerts, [], messaging, world.at(60))
    assert [(one.channel, one.incident) for one in over.messages] == [("ding", "inc-0"), ("slack", "inc-0")]


def test_after_a_shared_page_each_incident_has_its_own_messages(world):
    found, alerts = alike(world, *services(world, "chat", "code"))
    result = messages([], found, alerts, [], MESSAGING, world.t0).incidents
    assert messages(found, result, alerts, [], MESSAGING, world.at(15)).messages == ()
    later = world.at(60)
    ended = [result[0], replace(result[1], resolved_at=later)]
    assert [one.incident for one in messages(result, ended, alerts, [], MESSAGING, later).messages] == ["inc-1"] * 2
    worse = [result[0], replace(result[1], priority=Priority.P0)]
    raised = messages(result, worse, alerts, [], MESSAGING, later)
    assert {(one.incident, one.reason, one.is_page) for one in raised.messages} == {
        ("inc-1", NotifyReason.PRIORITY_RAISED, True)
    }
    assert [one.pages for one in raised.incidents] == [1, 1]


@pytest.mark.parametrize("case", ["fault", "cluster", "kind", "priority", "unknown", "quiet"])
def test_only_pages_of_one_fault_and_cluster_are_merged(world, case):
    chat, code = services(world, "chat", "code")
    found, alerts = alike(world, chat, code, priority=Priority.P2 if case == "quiet" else Priority.P1)
    other = {
        "fault": {"cause": ("cert-or-dns", code)},
        "cluster": {"cause": ("gateway-fault", replace(code, cluster="c2"))},
        "kind": {"cause": ("gateway-fault", world.replica)},
        "priority": {"cause": ("gateway-fault", code), "priority": Priority.P0},
        "unknown": {"cause": None},
        "quiet": {"cause": ("gateway-fault", code), "priority": Priority.P2},
    }[case]
    second = world.incident(alerts[1], id_="inc-1", **other)
    result = messages([], [found[0], second], alerts, [], MESSAGING, world.t0)
    assert {one.incident for one in result.messages} == {"inc-0", "inc-1"}
    assert not any(one.also for one in result.messages)


def test_a_shared_page_describes_five_incidents_in_full_and_lists_the_rest(world):
    found, alerts = alike(world, *services(world, *(f"s{number}" for number in range(8))))
    result = messages([], found, alerts, [], MESSAGING, world.t0).messages[-1]
    assert len(result.also) == 7
    assert all(f"incident=inc-{number}" in result.body for number in range(8))
    assert result.body.count("No actions taken") == 5


def test_progress_is_reported_when_its_state_changes_and_at_its_interval(world):
    """Also for an acknowledged incident: the status messages of a long repair continue."""
    alert = world.alert(priority=Priority.P0)
    incident = say(world, world.incident(alert, priority=Priority.P0), [alert]).incidents[0]
    incident = replace(incident, acknowledged_at=world.t0, acknowledged_by="ann")
    line = ProgressLine("cluster.verified", {"service": "chat", "cluster": "west", "share": "100%", "level": "0"})
    states = {0.25: "switching", 0.5: "switching", 1: "verified", 15: "verified", 16: "verified", 17: "verified"}
    reported = []
    for minute, state in states.items():
        progress = {incident.id: IncidentProgress(timedelta(minutes=15), state, (line,))}
        now = world.t0 + timedelta(minutes=minute)
        result = messages([], [incident], [alert], [], MESSAGING, now, progress)
        incident = result.incidents[0]
        reported += [(minute, message) for message in result.messages if message.channel == "ding"]
    assert [minute for minute, _ in reported] == [0.25, 1, 16]
    assert {message.reason for _, message in reported} == {NotifyReason.STATUS}
    assert "chat：100% 的流量由 west 承接" in reported[-1][1].body
    assert incident.pages == 1


def test_without_progress_a_p1_has_no_status_message(world):
    alert = world.alert()
    incident = say(world, world.incident(alert), [alert]).incidents[0]
    incident = replace(incident, acknowledged_at=world.t0)
    assert say(world, incident, [alert], now=world.t0 + timedelta(hours=2)).messages == ()


def test_an_open_p0_is_reported_every_15_minutes_without_a_phone_call(world):
    alert = world.alert(priority=Priority.P0)
    incident = say(world, world.incident(alert, priority=Priority.P0), [alert]).incidents[0]
    incident = replace(incident, acknowledged_at=world.t0)
    sent = []
    for minute in range(1, 46):
        result = say(world, incident, [alert], now=world.t0 + timedelta(minutes=minute))
        incident = result.incidents[0]
        sent += [(minute, message.reason, message.channel) for message in result.messages]
    assert sent == [(minute, NotifyReason.STATUS, channel) for minute in (15, 30, 45) for channel in ("ding", "slack")]
    over = replace(incident, resolved_at=world.t0 + timedelta(minutes=50))
    last = say(world, over, [], now=world.t0 + timedelta(minutes=50))
    assert {message.reason for message in last.messages} == {NotifyReason.RESOLVED}


def test_an_acknowledgement_is_sent_once_to_the_channels_that_show_the_state_of_an_incident(world):
    alert = world.alert()
    tracking = replace(MESSAGING, tracking=frozenset({"slack", "mail"}))
    opened = say(world, world.incident(alert), [alert], messaging=tracking).incidents[0]
    taken = replace(opened, acknowledged_at=world.at(60), acknowledged_by="li")
    plan = say(world, taken, [alert], now=world.at(75), messaging=tracking)
    assert [(message.channel, message.reason) for message in plan.messages] == [("slack", NotifyReason.ACKNOWLEDGED)]
    assert "Acknowledged by: li" in plan.messages[0].body
    assert "Acknowledge within" not in plan.messages[0].body
    assert say(world, plan.incidents[0], [alert], now=world.at(90), messaging=tracking).messages == ()


def test_a_message_has_the_facts_that_short_messages_and_programs_need(world):
    burning = world.alert("slo-burn:availability", world.service, labels={"service_level": "true"})
    alert = world.alert()
    incident = world.incident(alert, burning, services=("chat", "embed"))
    english, chinese = (
        next(m for m in say(world, incident, [alert, burning]).messages if m.channel == name)
        for name in ("slack", "ding")
    )
    assert english.facts == {
        Fact.WHAT: fault_name("engine-dead"),
        Fact.WHERE: "replica chat-0",
        Fact.SINCE: "2026-05-04 12:00 UTC",
        Fact.IMPACT: "chat, embed; SLO at risk",
        Fact.CONFIDENCE: "90 %",
        Fact.ALERTS: "2",
    }
    assert chinese.facts[Fact.WHAT] == fault_name("engine-dead", "zh")
    assert "SLO impact: " in english.body
    calm = say(world, world.incident(alert), [alert]).messages[1]
    assert "SLO impact: none measured" in calm.body
    assert calm.facts[Fact.IMPACT] == "chat; no SLO at risk"


def test_a_label_cannot_add_a_line_to_a_message_or_make_it_long(world):
    alert = world.alert()
    hostile = "chat\nSuspected cause: none\r\n" + "x" * 1_000_000
    message = say(world, world.incident(alert, services=(hostile,)), [alert]).messages[0]
    assert "\nSuspected cause: none" not in message.body
    assert len(message.body) < 5_000
    assert max(map(len, message.labels.values())) <= 500
    assert max(map(len, message.facts.values())) <= 500
