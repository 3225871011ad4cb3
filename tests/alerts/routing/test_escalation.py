"""An unacknowledged incident goes up the ladder of its team, and moves with its cause to another team."""

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from alerts.oncall.roster import Contact, Person, Roster, StepTarget, Team
from alerts.oncall.rotation import Rotation
from alerts.oncall.schedule import Schedule
from alerts.routing.escalation import Ladder, Responders
from alerts.routing.pipeline import messages
from alerts.routing.routes import NotificationSettings
from outrider.model import (
    Alert,
    ButtonAction,
    EntityKind,
    EntityRef,
    Fact,
    Incident,
    Layer,
    MuteReason,
    NotifyReason,
    Priority,
    Recipient,
    TimelineEntry,
)
from outrider.records.response import FollowUp, IncidentNote, NoteKind

MINUTE = timedelta(minutes=1)
PEOPLE = {
    "li": Person("li", "+8613800000001", "li@example.com", {"ding": Contact("13800000001")}),
    **{name: Person(name) for name in ("wang", "chen", "zhao")},
}
WEEKLY = Rotation("primary", ("li", "wang"), date(2026, 5, 4), time(9), 7, ZoneInfo("UTC"))
MODEL = Team("model", ("li", "wang", "chen"), "chen", "model", layers=frozenset({Layer.ENGINE}))
HARDWARE = Team(
    "hardware",
    ("zhao",),
    "zhao",
    layers=frozenset({Layer.HARDWARE}),
    groups={"im": ("ding-hw",), "phone": ("hw-phone",)},
)
ROSTER = Roster(PEOPLE, (MODEL, HARDWARE), {"model": Schedule("model", (WEEKLY,))})
MESSAGING = NotificationSettings(
    routes={"phone": ("voice",), "im": ("ding",), "mail": ("mail",)}, base_url="https://outrider.example"
)


class Night:
    """One incident, minute by minute."""

    def __init__(self, world, priority=Priority.P0, *, messaging=MESSAGING, roster=ROSTER, **fields) -> None:
        self.alert: Alert = world.alert(priority=priority)
        self.incident: Incident = world.incident(self.alert, priority=priority, **fields)
        self.start: datetime = world.t0
        self.now = self.start
        self.messaging, self.responders = messaging, Responders(roster)
        self.sent = []
        self.reasons = []

    def until(self, minute):
        """Cycles up to a minute after the start, four in a minute. Returns what was sent meanwhile."""
        new = []
        while self.now <= self.start + minute * MINUTE:
            new += self.cycle()
        return new

    def run_for(self, minutes):
        """Cycles for some minutes from now, four in a minute. Returns what was sent meanwhile."""
        return [one for _ in range(int(4 * minutes)) for one in self.cycle()]

    def step_clock(self, hours):
        self.now += timedelta(hours=hours)

    @property
    def elapsed(self):
        return (self.now - self.start) / MINUTE

    def cycle(self):
        plan = messages([], [self.incident], [self.alert], [], self.messaging, self.now, responders=self.responders)
        self.incident = plan.incidents[0]
        self.reasons.append(plan.reasons.get("inc-1"))
        self.sent += plan.messages
        self.now += timedelta(seconds=15)
        return list(plan.messages)

    def add(self, kind, **fields):
        note = IncidentNote(
            f"n{len(self.responders.notes.get('inc-1', ()))}", "inc-1", kind, "wang", self.now, **fields
        )
        notes = (*self.responders.notes.get("inc-1", ()), note)
        self.responders = replace(self.responders, notes={"inc-1": notes})

    def change_layer(self, layer):
        entry = TimelineEntry(self.now, "incidents.timeline.cause_changed", {"fault": "gpu-lost"})
        self.incident = replace(self.incident, layer=layer, timeline=(*self.incident.timeline, entry))


def summary(sent):
    """Minute, reason, channel and people of messages."""
    return [
        (int((one.created_at - sent[0].created_at) / MINUTE), one.reason.value, one.channel, names(one)) for one in sent
    ]


def names(message):
    return ",".join(recipient.name for recipient in message.recipients)


def test_an_unacknowledged_p0_goes_up_every_five_minutes(world):
    night = Night(world)
    by_voice = [entry for entry in summary(night.until(24)) if entry[2] == "voice"]
    assert by_voice == [
        (0, "opened", "voice", "li"),
        (5, "escalated", "voice", "wang"),
        (10, "escalated", "voice", "chen"),
        (20, "repeat", "voice", "chen"),
    ]


def test_a_step_that_adds_nobody_is_left_out(world):
    alone = replace(MODEL, members=("li", "wang", "chen", "zhao"), lead="li")
    night = Night(world, roster=replace(ROSTER, teams=(alone,)))
    escalated = [entry for entry in summary(night.until(20)) if entry[1] == "escalated" and entry[2] == "voice"]
    assert escalated == [(5, "escalated", "voice", "wang"), (10, "escalated", "voice", "li,wang,chen,zhao")]


@pytest.mark.parametrize(("priority", "minutes"), [(Priority.P0, 5), (Priority.P1, 15), (Priority.P2, 60)])
def test_the_time_on_a_step_depends_on_the_priority(world, priority, minutes):
    night = Night(world, priority)
    night.until(minutes - 1)
    assert {one.reason for one in night.sent} == {NotifyReason.OPENED}
    assert NotifyReason.ESCALATED in {one.reason for one in night.until(minutes)}


def test_an_acknowledgement_ends_the_escalation(world):
    night = Night(world)
    night.until(6)
    night.incident = replace(night.incident, acknowledged_at=night.now, acknowledged_by="wang")
    assert {one.reason for one in night.until(60)} == {NotifyReason.STATUS}


def voices(sent):
    """Reason and people of the messages by voice."""
    return [(one.reason.value, names(one)) for one in sent if one.channel == "voice"]


@pytest.mark.parametrize("hours", [-2, 2])
@pytest.mark.parametrize(("priority", "minutes"), [(Priority.P0, 5), (Priority.P1, 15), (Priority.P2, 60)])
def test_after_a_clock_step_the_next_person_is_notified_at_once_and_the_others_in_their_time(
    world, hours, priority, minutes
):
    night = Night(world, priority, messaging=replace(MESSAGING, routes={"im": ("ding",), "mail": ("mail",)}))
    night.until(1)
    night.step_clock(hours)
    by_step = [{name for name in map(names, night.cycle()) if name}]
    for _ in range(2):
        assert {one.reason for one in night.run_for(minutes - 1)} <= {NotifyReason.STATUS}
        by_step.append({names(one) for one in night.run_for(1) if one.reason is NotifyReason.ESCALATED})
    assert by_step == [{"wang"}, {"chen"}, set()], "one step for each time to answer"


def test_a_small_step_back_of_the_clock_notifies_nobody_early(world):
    night = Night(world)
    night.until(1)
    night.now -= 3 * MINUTE
    assert night.run_for(5) == []
    assert voices(night.run_for(4)) == [("escalated", "wang")]


def test_after_a_clock_step_back_reminders_and_status_messages_go_on(world):
    night = Night(world)
    night.until(41)
    night.step_clock(-2)
    later = night.run_for(31)
    assert voices(later) == [("repeat", "chen")] * 4, "one at once, then every ten minutes"
    assert [one.reason for one in later if one.channel == "ding"].count(NotifyReason.STATUS) >= 2
    ids = [one.id for one in night.sent]
    assert len(set(ids)) == len(ids), "an outbox drops a message with a known id"


def test_after_a_clock_step_back_an_incident_moves_with_its_cause(world):
    night = Night(world, layer=Layer.ENGINE)
    night.until(1)
    night.change_layer(Layer.HARDWARE)
    night.step_clock(-2)
    assert NotifyReason.REROUTED in {one.reason for one in night.cycle()}


def test_two_engines_plan_the_same_escalation(world):
    first, second = Night(world), Night(world)
    second.now += timedelta(seconds=4)
    assert [one.id for one in first.until(16)] == [one.id for one in second.until(16)]


def test_a_restart_between_two_steps_repeats_and_drops_nothing(world):
    expected = [one.id for one in Night(world).until(16)]
    night = Night(world)
    sent = []
    for minute in range(17):
        after = Night(world)  # another engine, with nothing but the stored incident
        after.incident, after.now = night.incident, night.now
        sent += [one.id for one in after.until(minute)]
        night.incident, night.now = after.incident, after.now
    assert sent == expected


def test_an_engine_that_was_down_goes_one_step_up_and_waits_again(world):
    night = Night(world)
    night.cycle()
    night.now += timedelta(hours=1)
    assert [one.reason for one in night.cycle()] == [NotifyReason.ESCALATED] * 2
    assert {one.reason for one in night.until(night.elapsed + 4)} == {NotifyReason.STATUS}


def test_a_silenced_incident_does_not_escalate(world):
    night = Night(world)
    night.until(2)
    night.alert = replace(night.alert, muted_by=MuteReason.SILENCED)
    assert night.until(60) == []
    night.alert = replace(night.alert, muted_by=None)
    assert {one.reason for one in night.cycle()} == {NotifyReason.ESCALATED}


def test_a_higher_priority_notifies_the_same_step_and_shortens_the_next(world):
    night = Night(world, Priority.P2)
    night.until(10)
    night.incident = replace(night.incident, priority=Priority.P0)
    assert {(one.reason, names(one)) for one in night.cycle()} == {(NotifyReason.PRIORITY_RAISED, "li")}
    assert {names(one) for one in night.until(16) if one.reason is NotifyReason.ESCALATED} == {"wang"}


def test_a_reminder_does_not_delay_the_next_step(world):
    messaging = replace(MESSAGING, repeat={Priority.P0: 2 * MINUTE})
    night = Night(world, messaging=messaging)
    reasons = [(entry[0], entry[1]) for entry in summary(night.until(6)) if entry[2] == "voice"]
    assert (5, "escalated") in reasons
    assert (2, "repeat") in reasons


def test_an_incident_from_before_the_settings_escalates_after_its_next_reminder(world):
    night = Night(world, roster=Roster())
    night.until(4)
    night.responders = Responders(ROSTER)
    by_voice = [entry for entry in summary(night.until(16)) if entry[2] == "voice"]
    assert [(reason, people) for _, reason, _, people in by_voice] == [("repeat", "li"), ("escalated", "wang")]


def test_ladders_are_data(world):
    ladder = Ladder(2 * MINUTE, (StepTarget.LEAD, StepTarget.TEAM), groups=("mail",))
    night = Night(world, Priority.P1, messaging=replace(MESSAGING, ladders={Priority.P1: ladder}))
    assert summary(night.until(3)) == [
        (0, "opened", "ding", "chen"),
        (2, "escalated", "ding", "li,wang,chen"),
        (2, "escalated", "mail", "li,wang,chen"),
    ]
    assert "Acknowledge within: 2m" in night.sent[0].body


def test_without_teams_nothing_escalates(world):
    night = Night(world, roster=Roster())
    assert {one.reason for one in night.until(14)} == {NotifyReason.OPENED, NotifyReason.REPEAT}
    assert not any(one.recipients for one in night.sent)


def test_a_gap_in_the_schedule_starts_with_the_next_step_that_has_people(world):
    empty = replace(ROSTER, schedules={"model": Schedule("model")})
    night = Night(world, roster=empty)
    assert [names(one) for one in night.cycle()] == ["chen", "chen"]


def test_a_page_without_any_person_goes_to_the_channels(world):
    nobody = replace(ROSTER, teams=(Team("model", ()),))
    night = Night(world, roster=nobody)
    first = night.cycle()
    assert [one.channel for one in first] == ["voice", "ding"]
    assert all(one.is_page and not one.recipients for one in first)
    assert {one.reason for one in night.until(30)} <= {NotifyReason.REPEAT, NotifyReason.STATUS}


def test_recipients_have_the_addresses_of_each_channel(world):
    first = Night(world).cycle()
    assert first[1].recipients == (Recipient("li", ("13800000001",), "+8613800000001", "li@example.com"),)


def test_a_cause_that_moves_to_another_layer_pages_the_new_team_once(world):
    night = Night(world)
    night.until(2)
    night.change_layer(Layer.HARDWARE)
    moved = night.until(4)
    assert [(one.reason.value, one.channel, names(one), one.is_page) for one in moved] == [
        ("moved", "ding", "li", False),
        ("rerouted", "hw-phone", "zhao", True),
        ("rerouted", "ding-hw", "zhao", True),
    ]
    assert night.incident.pages == 2
    assert "moved to another team" in moved[0].title
    assert {one.labels["team"] for one in moved} == {"hardware"}
    assert all("Team: hardware. Notified: zhao" in one.body for one in moved), "both teams read who has it now"
    night.change_layer(Layer.ENGINE)
    back = night.until(6)
    assert not any(one.is_page for one in back), "the first team was paged before"
    assert [names(one) for one in back if one.reason is NotifyReason.REROUTED] == ["li", "li"]


def test_a_cause_that_does_not_stand_moves_nothing(world):
    night = Night(world)
    night.until(2)
    night.change_layer(Layer.HARDWARE)
    night.until(2.5)
    night.change_layer(Layer.ENGINE)
    assert {one.reason for one in night.until(4)} == set()


def test_the_ladder_begins_again_with_the_new_team(world):
    hardware = replace(HARDWARE, schedule="model", members=("zhao", "wang"))
    night = Night(world, roster=replace(ROSTER, teams=(MODEL, hardware)))
    night.until(6)
    night.change_layer(Layer.HARDWARE)
    after = [entry for entry in summary(night.until(14)) if entry[2] == "hw-phone"]
    assert [(reason, people) for _, reason, _, people in after] == [("rerouted", "li"), ("escalated", "wang")]


def test_the_end_is_reported_to_everyone_who_was_notified(world):
    night = Night(world)
    night.until(6)
    night.change_layer(Layer.HARDWARE)
    night.until(8)
    night.incident = replace(night.incident, resolved_at=night.now)
    over = night.cycle()
    assert {one.channel for one in over} == {"voice", "ding", "hw-phone", "ding-hw"}
    assert {names(one) for one in over} == {"li,wang,zhao"}


def test_an_assignment_notifies_its_person_once_and_keeps_the_team(world):
    night = Night(world)
    night.until(1)
    night.add(NoteKind.ASSIGNMENT, to="zhao")
    assert {(one.reason, names(one)) for one in night.cycle()} == {(NotifyReason.ASSIGNED, "zhao")}
    assert "Assigned to: zhao" in night.sent[-1].body
    night.change_layer(Layer.HARDWARE)
    assert NotifyReason.REROUTED not in {one.reason for one in night.until(30)}
    assigned = [one for one in night.sent if one.reason is NotifyReason.ASSIGNED]
    assert len(assigned) == 2


def test_an_assignment_works_without_teams(world):
    night = Night(world, roster=Roster())
    night.cycle()
    night.add(NoteKind.ASSIGNMENT, to="zhao")
    assert {one.reason for one in night.until(3)} == {NotifyReason.ASSIGNED}


def test_a_person_can_escalate_an_acknowledged_incident(world):
    night = Night(world)
    night.until(1)
    night.incident = replace(night.incident, acknowledged_at=night.now, acknowledged_by="li")
    expected = ["wang", "chen", "li,wang,chen"]
    for people in expected:
        night.add(NoteKind.ESCALATION)
        assert {(one.reason, names(one)) for one in night.cycle()} == {(NotifyReason.ESCALATED, people)}
        assert night.cycle() == []
    assert len({one.id for one in night.sent}) == len(night.sent)


def test_simultaneous_incidents_escalate_in_one_message(world):
    nodes = [EntityRef("c1", EntityKind.NODE, None, f"node-{number}") for number in range(3)]
    alerts = [world.alert("node-lost", node, priority=Priority.P0, fault="node-lost") for node in nodes]
    incidents = [
        world.incident(alert, priority=Priority.P0, cause=("node-lost", node), id_=f"inc-{node.name}")
        for alert, node in zip(alerts, nodes, strict=True)
    ]
    sent = []
    for minute in (0, 5):
        plan = messages([], incidents, alerts, [], MESSAGING, world.t0 + minute * MINUTE, responders=Responders(ROSTER))
        incidents, sent = list(plan.incidents), [*sent, *plan.messages]
    by_voice = [one for one in sent if one.channel == "voice"]
    assert [(one.reason, names(one), len(one.also)) for one in by_voice] == [
        (NotifyReason.OPENED, "li", 2),
        (NotifyReason.ESCALATED, "wang", 2),
    ]
    assert "escalated" in by_voice[1].title


def follow_up(world, **fields):
    made = FollowUp(
        "f1", "inc-0", "replace the riser", "hardware", date(2026, 5, 9), "li", world.t0 - timedelta(days=9),
        "engine-dead", world.replica,
    )  # fmt: skip
    return replace(made, **fields)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "Follow-up still open: replace the riser (owner hardware, due 2026-05-09)"),
        ({"closed_at": datetime(2026, 5, 1, tzinfo=UTC)}, "Follow-up closed on 2026-05-01: replace the riser"),
        ({"closed_at": datetime(2026, 4, 1, tzinfo=UTC)}, ""),
        ({"fault": "gpu-lost"}, ""),
        ({"incident": "inc-1"}, ""),
        ({"fault": None, "entity": None}, ""),
        ({"at": datetime(2026, 5, 5, tzinfo=UTC)}, ""),
    ],
)
def test_the_same_fault_again_names_the_follow_up_of_the_earlier_incident(world, fields, line):
    night = Night(world)
    night.responders = replace(night.responders, follow_ups=(follow_up(world, **fields),))
    body = night.cycle()[0].body
    assert (line in body) if line else ("Happened before" not in body)


WITH_BUTTONS = replace(MESSAGING, buttons_valid=timedelta(hours=12))


@pytest.mark.parametrize(
    ("zone", "since"),
    [("UTC", "{:%Y-%m-%d %H:%M} UTC"), ("Asia/Shanghai", "{:%Y-%m-%d %H:%M} UTC+08:00")],
)
def test_times_in_messages_are_in_the_zone_of_the_team(world, zone, since):
    team = replace(MODEL, zone=ZoneInfo(zone))
    night = Night(world, layer=Layer.ENGINE, roster=replace(ROSTER, teams=(team, HARDWARE)))
    expected = since.format(night.incident.opened_at.astimezone(ZoneInfo(zone)))
    [first, *_] = night.cycle()
    assert expected in first.title
    assert expected in first.body
    assert first.facts[Fact.SINCE] == expected
    night.incident = replace(night.incident, resolved_at=night.now)
    [end, *_] = night.cycle()
    assert since.format(night.incident.resolved_at.astimezone(ZoneInfo(zone))) in end.body


def test_an_incident_that_moves_is_reported_to_each_team_in_its_own_zone(world):
    there = replace(HARDWARE, zone=ZoneInfo("Asia/Shanghai"))
    night = Night(world, layer=Layer.ENGINE, roster=replace(ROSTER, teams=(MODEL, there)))
    night.until(1)
    night.change_layer(Layer.HARDWARE)
    moved = {one.reason: one.facts[Fact.SINCE] for one in night.until(4)}
    assert moved[NotifyReason.REROUTED].endswith("UTC+08:00")
    assert moved[NotifyReason.MOVED].endswith(" UTC")


def claims_of(sent):
    return [button.claim for message in sent for button in message.buttons if button.claim is not None]


def test_a_page_has_buttons_to_acknowledge_silence_escalate_and_open(world):
    first = Night(world, messaging=WITH_BUTTONS).cycle()
    claims = claims_of(first)
    assert [button.action for button in first[0].buttons] == [
        ButtonAction.ACKNOWLEDGE,
        ButtonAction.SILENCE_1H,
        ButtonAction.ESCALATE,
        ButtonAction.OPEN,
    ]
    assert {claim.subject for claim in claims} == {"inc-1"}
    assert {claim.recipient for claim in claims} == {""}, "a group chat does not show who pressed"
    assert {claim.expires_at - world.t0 for claim in claims} == {timedelta(hours=12)}
    assert len({claim.nonce for claim in claims}) == len(claims)


def test_the_button_of_a_personal_channel_names_its_person(world):
    sent = Night(world, messaging=replace(WITH_BUTTONS, personal=frozenset({"ding"}))).cycle()
    assert {claim.channel: claim.recipient for claim in claims_of(sent)} == {"voice": "", "ding": "li"}


def test_a_planned_button_has_no_link(world):
    [first, *_] = Night(world, messaging=WITH_BUTTONS).cycle()
    assert {button.url for button in first.buttons if button.action is not ButtonAction.OPEN} == {""}


def test_an_acknowledged_incident_has_no_button_to_acknowledge_and_a_resolved_one_only_a_link(world):
    night = Night(world, messaging=WITH_BUTTONS)
    night.cycle()
    night.incident = replace(night.incident, acknowledged_at=night.now)
    [status] = night.until(15)
    assert ButtonAction.ACKNOWLEDGE not in {button.action for button in status.buttons}
    night.incident = replace(night.incident, resolved_at=night.now)
    assert {button.action for one in night.cycle() for button in one.buttons} == {ButtonAction.OPEN}


def test_two_engines_give_a_button_the_same_number(world):
    numbers = []
    for seconds in (0, 3):
        night = Night(world, messaging=WITH_BUTTONS)
        night.now += timedelta(seconds=seconds)
        numbers.append([claim.nonce for claim in claims_of(night.cycle())])
    assert numbers[0] == numbers[1] != []


def test_a_priority_without_a_ladder_has_no_time_to_acknowledge(world):
    [first, *_] = Night(world, messaging=replace(MESSAGING, ladders={})).cycle()
    assert "Acknowledge within" not in first.body
