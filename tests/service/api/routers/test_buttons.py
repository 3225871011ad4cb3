"""Buttons of messages: a link shows, its form acts once; forged, expired and used ones are refused."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from alerts.routing.buttons import nonce_of
from outrider.audit import AuditEvent
from outrider.errors import StoreError
from outrider.model import ActionStatus, AlertState, ButtonAction, ButtonClaim, NotifyReason
from outrider.ports import CycleCommit
from outrider.records.response import NoteKind
from outrider.testing.names import NOW
from outrider.testing.story import Story
from outrider.testing.trouble import INCIDENT
from service.oncall.button_tokens import ButtonSigner
from tests.service.api.test_api import DRAIN, World
from tests.support import on_call

KEY = "a key for the buttons of this test"
SIGNER = ButtonSigner(KEY, "https://api.example")


@pytest.fixture
def world():
    return world_of(oncall=on_call.settings())


def world_of(**settings):
    return World(
        Story(history=timedelta(minutes=2)),
        **{
            "public_url": "https://api.example",
            "dashboard_url": "https://outrider.example",
            "button_key": KEY,
            **settings,
        },
    )


def claim(action=ButtonAction.ACKNOWLEDGE, **changed):
    made = ButtonClaim(action, INCIDENT, "", "ding", NOW + timedelta(hours=12), f"nonce-{action}")
    return replace(made, **changed)


def path_of(made):
    return f"/api/v1/buttons/{SIGNER.token(made)}"


def show(world, made=None, **query):
    return world.http.get(path_of(made or claim()), params=query)


def press(world, made=None, name="li", path=None):
    body = f"name={name}".encode() if name else b""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return world.http.post(path or path_of(made or claim()), content=body, headers=headers)


def commit(world, **parts):
    world.state.commit(CycleCommit(world.state.cycles(limit=1)[0], **parts))


def acknowledged_by(world):
    return world.state.incident(INCIDENT).acknowledged_by


def used(world):
    return [record for record in world.state.audit() if record.event is AuditEvent.BUTTON_USED]


def refused(world):
    """The reasons and subjects of the audited refusals, oldest first."""
    records = [record for record in world.state.audit() if record.event is AuditEvent.BUTTON_REFUSED]
    return [(record.reason, record.subject) for record in reversed(records)]


def test_a_link_that_is_opened_changes_nothing(world):
    for _ in range(3):
        response = show(world)
        assert response.status_code == 200
        assert "This button acts once. Nothing has changed yet." in response.text
    assert acknowledged_by(world) is None
    assert used(world) == []
    assert world.http.request("HEAD", path_of(claim())).status_code in (200, 405)
    assert acknowledged_by(world) is None


def test_a_page_is_not_stored_framed_or_passed_on(world):
    headers = show(world).headers
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "noindex" in headers["x-robots-tag"]


def test_a_press_acknowledges_under_the_chosen_name(world):
    assert '<option value="wang">' in show(world).text
    response = press(world, name="wang")
    assert response.status_code == 200
    assert "Acknowledged by wang" in response.text
    assert acknowledged_by(world) == "wang"
    [record] = used(world)
    assert (record.by, record.subject, record.detail["channel"]) == ("wang", INCIDENT, "ding")


def test_the_button_of_a_personal_message_acts_under_its_recipient(world):
    personal = claim(recipient="li")
    assert "You act as li." in show(world, personal).text
    press(world, personal, name="wang")
    assert acknowledged_by(world) == "li"


@pytest.mark.parametrize("name", ["", "mallory"])
def test_a_press_without_a_known_name_does_nothing(world, name):
    response = press(world, name=name)
    assert response.status_code == 422
    assert "Please choose your name." in response.text
    assert acknowledged_by(world) is None
    assert refused(world) == []
    assert press(world).status_code == 200, "the button was not used up"


def test_a_button_acts_once(world):
    assert press(world).status_code == 200
    again = press(world)
    assert again.status_code == 409
    assert "This button was already used." in again.text
    assert len(used(world)) == 1
    assert refused(world) == [("used", INCIDENT)]


def test_an_expired_button_is_refused(world):
    for made in (claim(expires_at=NOW), claim(expires_at=NOW - timedelta(hours=1))):
        for response in (show(world, made), press(world, made)):
            assert response.status_code == 410
            assert "This button has expired." in response.text
    assert acknowledged_by(world) is None
    assert refused(world) == [("expired", INCIDENT)] * 4


def test_a_button_expires_without_an_engine_too(world):
    world.clock.set(NOW + timedelta(hours=13))
    assert press(world).status_code == 410


@pytest.mark.parametrize("token", ["x", "x.y", "🔑.🔑", "a" * 5000])
def test_a_forged_button_is_refused_and_audited(world, token):
    response = world.http.get(f"/api/v1/buttons/{token}")
    assert response.status_code == 403
    assert "This link was not issued by this platform." in response.text
    assert refused(world) == [("forged", "button")]


def test_a_token_of_another_key_is_refused(world):
    forged = f"/api/v1/buttons/{replace(SIGNER, key='another key of some length').token(claim())}"
    assert press(world, path=forged).status_code == 403
    assert acknowledged_by(world) is None
    assert refused(world) == [("forged", "button")]


def test_a_resolved_or_deleted_incident_is_reported(world):
    incident = replace(world.state.incident(INCIDENT), resolved_at=NOW)
    commit(world, incidents=(incident,))
    response = press(world)
    assert response.status_code == 409
    assert "The incident is already resolved." in response.text
    assert press(world, claim(subject="inc-unknown")).status_code == 404
    assert refused(world) == [("resolved", INCIDENT), ("unknown", "inc-unknown")]


def test_a_silence_covers_the_firing_alerts_of_the_incident_for_an_hour(world):
    assert press(world, claim(ButtonAction.SILENCE_1H)).status_code == 200
    silences = world.state.silences(NOW)
    assert {silence.rule for silence in silences} == {"gpu-lost", "engine-dead", "availability-low"}
    assert {silence.until for silence in silences} == {NOW + timedelta(hours=1)}
    assert {silence.by for silence in silences} == {"li"}
    assert AuditEvent.SILENCED in {record.event for record in world.state.audit()}


def test_a_silence_lasts_an_hour_from_the_press_without_an_engine_too(world):
    pressed = NOW + timedelta(hours=2)
    world.clock.set(pressed)
    assert press(world, claim(ButtonAction.SILENCE_1H)).status_code == 200
    assert {silence.until for silence in world.state.silences(pressed)} == {pressed + timedelta(hours=1)}


def test_without_a_firing_alert_nothing_is_silenced_and_the_page_says_so(world):
    firing = world.state.alerts(states=[AlertState.FIRING])
    commit(world, alerts=tuple(replace(alert, state=AlertState.RESOLVED, ends_at=NOW) for alert in firing))
    for _ in range(2):
        response = press(world, claim(ButtonAction.SILENCE_1H))
        assert response.status_code == 409
        assert "nothing was silenced" in response.text
    assert world.state.silences(NOW) == ()
    assert used(world) == []


def test_the_page_names_the_person_who_acknowledged_first(world):
    press(world, name="wang")
    later = press(world, claim(nonce="of a later message"), name="li")
    assert later.status_code == 409
    assert "wang has already acknowledged the incident." in later.text


class FullDisk:
    """A store that refuses one press."""

    def __init__(self, state) -> None:
        self._state = state
        self.failures = 1

    def __getattr__(self, name) -> object:
        return getattr(self._state, name)

    def press_button(self, press):
        self.failures -= 1
        if self.failures >= 0:
            raise StoreError("The disk is full.")
        return self._state.press_button(press)


@pytest.mark.parametrize("action", [action for action in ButtonAction if action is not ButtonAction.OPEN])
def test_a_press_that_fails_can_be_repeated(world, action):
    context = world.app.state.context
    world.app.state.context = replace(context, state=FullDisk(context.state))
    made = approval() if action is ButtonAction.APPROVE else claim(action)
    failed = press(world, made)
    assert failed.status_code == 503
    assert "Nothing has changed; please press again." in failed.text
    assert (used(world), refused(world)) == ([], [])
    assert press(world, made).status_code == 200
    assert len(used(world)) == 1


@pytest.mark.parametrize("token", ["x.y", "forged"])
def test_every_refusal_is_in_the_language_of_the_browser(world, token):
    forged = world.http.get(f"/api/v1/buttons/{token}", params={"lang": "zh"})
    assert "此链接不是由本平台发出的。" in forged.text
    two = two_approvals(world)("li", "n1")
    press(world, two)
    again = world.http.post(path_of(replace(two, nonce="n2")) + "?lang=zh", content=b"")
    assert "li 已批准此操作，须由另一人批准。" in again.text
    large = world.http.post(path_of(claim()) + "?lang=zh", content=b"name=" + b"x" * 5000)
    assert "表单过大。" in large.text
    off = world_of(public_url=None).http.get(path_of(claim()) + "?lang=zh")
    assert "按钮功能已关闭。" in off.text
    for page in (forged, again, large, off):
        assert not re.search(r"[a-z]{3,} [a-z]{3,} [a-z]{3,}", re.sub(r"<style>.*?</style>|<[^>]*>", "", page.text))


def test_an_escalation_is_requested_once(world):
    made = claim(ButtonAction.ESCALATE)
    assert "the next person is being notified" in press(world, made).text
    press(world, made)
    assert [note.kind for note in world.state.notes([INCIDENT])] == [NoteKind.ESCALATION]


def test_a_button_of_a_merged_page_acts_on_all_its_incidents(world):
    first = world.state.incident(INCIDENT)
    others = tuple(replace(first, id=f"inc-{number}") for number in (2, 3))
    [sent] = world.state.messages(incident=INCIDENT)
    merged = replace(sent, id="merged", reason=NotifyReason.OPENED, also=("inc-2", "inc-3"))
    commit(world, incidents=others, messages=(merged,))
    made = claim(nonce=nonce_of("merged", ButtonAction.ACKNOWLEDGE))
    assert show(world, made).text.count("<li>") == 3
    press(world, made)
    assert {world.state.incident(name).acknowledged_by for name in (INCIDENT, "inc-2", "inc-3")} == {"li"}


def approval(**changed):
    return claim(ButtonAction.APPROVE, subject=DRAIN, **changed)


def test_an_action_is_approved_by_its_button(world):
    assert f"Action {DRAIN}" in show(world, approval()).text
    assert "Approved by li" in press(world, approval()).text
    assert world.state.action(DRAIN).approved_by == "li"
    assert press(world, approval(nonce="another")).status_code == 409


def two_approvals(world):
    action = replace(world.state.action(DRAIN), id="two", approvals_needed=2, approvals=())
    commit(world, actions=(action,))
    return lambda recipient, nonce: replace(approval(recipient=recipient, nonce=nonce), subject="two")


def test_two_people_approve_by_personal_buttons(world):
    made = two_approvals(world)
    assert press(world, made("li", "n1")).status_code == 200
    assert world.state.action("two").status is ActionStatus.WAITING_APPROVAL
    again = press(world, made("li", "n2"))
    assert again.status_code == 409
    assert "li has approved this action already." in again.text
    assert press(world, made("wang", "n3")).status_code == 200
    assert world.state.action("two").status is ActionStatus.INTENDED


def test_a_shared_button_does_not_count_as_one_of_two_approvals(world):
    made = two_approvals(world)
    for name in ("li", "wang"):
        response = press(world, made("", f"n-{name}"), name=name)
        assert response.status_code == 409
        assert "does not show who pressed it" in response.text
    assert world.state.action("two").approvals == ()


def test_without_a_public_address_buttons_are_off():
    world = world_of(public_url=None)
    assert press(world).status_code == 409
    assert acknowledged_by(world) is None


def test_without_configured_people_any_name_is_taken():
    world = world_of()
    assert '<input id="name" name="name" required' in show(world).text
    press(world, name="%E6%9D%8E")
    assert acknowledged_by(world) == "李"


def test_pages_are_in_the_language_of_the_browser_and_escape_what_they_show(world):
    assert "此按钮只能使用一次" in show(world, lang="zh").text
    assert 'lang="zh"' in show(world, lang="zh").text
    odd = show(world, claim(recipient="<script>alert(1)</script>"))
    assert "<script>" not in odd.text


def test_times_on_a_page_are_in_the_zone_of_the_team(world):
    opened = world.state.incident(INCIDENT).opened_at
    assert f"{opened:%H:%M} UTC" in show(world).text
    teams = [team | {"timezone": "Asia/Shanghai"} for team in on_call.TEAMS]
    there = world_of(oncall=on_call.settings(teams=teams))
    assert f"{opened + timedelta(hours=8):%H:%M} UTC+08:00" in show(there).text


def test_a_form_that_is_too_large_is_refused(world):
    response = world.http.post(path_of(claim()), content=b"name=" + b"x" * 5000)
    assert response.status_code == 400
    assert acknowledged_by(world) is None


def test_a_press_needs_no_token_even_off_loopback():
    world = world_of(oncall=on_call.settings(), host="0.0.0.0", hosts=("*",))
    assert world.http.get("/api/v1/incidents").status_code == 401
    assert press(world).status_code == 200
