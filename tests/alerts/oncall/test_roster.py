"""Which team owns an incident, and whom each step of a ladder notifies."""

from datetime import date, time
from zoneinfo import ZoneInfo

import pytest

from alerts.oncall.roster import Contact, Person, Roster, StepTarget, Team
from alerts.oncall.rotation import Rotation
from alerts.oncall.schedule import Schedule
from outrider.model import Layer, Recipient

PEOPLE = {name: Person(name) for name in ("li", "wang", "chen", "zhao")}
WEEKLY = Rotation("primary", ("li", "wang"), date(2026, 5, 4), time(0), 7, ZoneInfo("UTC"))
SCHEDULE = Schedule("model", (WEEKLY,))
MODEL = Team("model", ("li", "wang", "chen"), "chen", "model", layers=frozenset({Layer.ENGINE, Layer.TRAFFIC}))
HARDWARE = Team("hardware", ("zhao",), layers=frozenset({Layer.HARDWARE}))
CHAT = Team("chat", ("chen",), services=("chat", "vip-*"))
ROSTER = Roster(PEOPLE, (MODEL, HARDWARE, CHAT), {"model": SCHEDULE})


@pytest.mark.parametrize(
    ("layer", "services", "team"),
    [
        (Layer.ENGINE, ("chat",), "chat"),
        (Layer.ENGINE, ("llm/chat",), "chat"),
        (Layer.ENGINE, ("prod/vip-70b",), "chat"),
        (Layer.ENGINE, ("code",), "model"),
        (Layer.HARDWARE, ("chat",), "hardware"),
        (Layer.HARDWARE, (), "hardware"),
        (Layer.MONITORING, ("code",), "model"),
    ],
)
def test_the_layer_owns_faults_of_the_infrastructure_and_the_service_all_others(world, layer, services, team):
    incident = world.incident(layer=layer, services=services)
    assert ROSTER.owner_of(incident).name == team


def test_a_team_with_layers_and_services_comes_first(world):
    both = Team("chat-hardware", ("li",), layers=frozenset({Layer.HARDWARE}), services=("chat",))
    roster = Roster(PEOPLE, (MODEL, HARDWARE, CHAT, both))
    assert roster.owner_of(world.incident(layer=Layer.HARDWARE)).name == "chat-hardware"
    assert roster.owner_of(world.incident(layer=Layer.HARDWARE, services=("code",))).name == "hardware"


def test_without_teams_nobody_owns_an_incident(world):
    assert Roster().owner_of(world.incident()) is None


def test_the_steps_of_a_ladder_name_people(world):
    on = {target: ROSTER.on_step(MODEL, target, world.t0) for target in StepTarget}
    assert on == {
        StepTarget.ON_CALL: ("li",),
        StepTarget.SECOND: ("wang",),
        StepTarget.LEAD: ("chen",),
        StepTarget.TEAM: ("li", "wang", "chen"),
    }


def test_a_team_without_a_schedule_has_only_lead_and_members(world):
    on = {target: ROSTER.on_step(HARDWARE, target, world.t0) for target in StepTarget}
    assert on == {
        StepTarget.ON_CALL: (),
        StepTarget.SECOND: (),
        StepTarget.LEAD: (),
        StepTarget.TEAM: ("zhao",),
    }


def test_a_schedule_of_its_own_names_the_second_person(world):
    second = Schedule("second", (Rotation("b", ("zhao",), date(2026, 5, 4), time(0), 7, ZoneInfo("UTC")),))
    team = Team("model", ("li",), schedule="model", second="second")
    roster = Roster(PEOPLE, (team,), {"model": SCHEDULE, "second": second})
    assert roster.on_step(team, StepTarget.SECOND, world.t0) == ("zhao",)


def test_a_recipient_has_the_addresses_of_the_channel():
    person = Person("li", "+861", "li@example.com", {"ding": Contact(mention="138"), "duty": Contact(phone="+862")})
    assert person.recipient("ding") == Recipient("li", ("138",), "+861", "li@example.com")
    assert person.recipient("duty") == Recipient("li", (), "+862", "li@example.com")
