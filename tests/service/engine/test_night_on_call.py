"""A night on call: page, no answer, escalation, acknowledgement by button, recovery, one summary in the morning."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from outrider.audit import AuditEvent
from outrider.model import ButtonAction, NotifyReason, Receipt
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.config.api_settings import ApiSettings
from service.config.oncall_settings import ButtonSettings
from service.config.settings import Settings
from service.engine.dispatch import Dispatcher
from service.oncall.roster import RosterSource
from service.wiring import alerting as wiring_alerting
from store.factory import open_state, urls_of
from tests.service.api.test_api import Http
from tests.service.engine.test_cycle import STEP, World
from tests.support import on_call, postgres

EVENING = datetime(2026, 5, 6, 22, 0, tzinfo=UTC)
MORNING = datetime(2026, 5, 7, 6, 30, tzinfo=UTC)  # 08:30 in Berlin
KEY, TOKEN = "a key for the buttons of this test", "the admin token of this test"
NIGHT = {"night": {"start": "20:00", "end": "08:30"}, "timezone": "Europe/Berlin"}
SETTINGS = Settings.model_validate(
    {
        "notify": {
            "channels": {name: {"type": "webhook", "url": f"https://{name}.example"} for name in ("voice", "ding")},
            "groups": {"phone": ["voice"], "im": ["ding"]},
        },
        "api": {"public_url": "https://api.example"},
        "remediation": {"autonomy": "recommend"},
        "oncall": {
            "people": on_call.PEOPLE,
            "teams": [on_call.TEAMS[0] | NIGHT],
            "schedules": [on_call.SCHEDULE],
            "escalation": {"P1": {"after": "5m", "groups": ["phone"]}},
        },
    }
)


def with_key(folder):
    file = folder / "button.key"
    file.write_text(KEY)
    return SETTINGS.model_copy(
        update={"oncall": SETTINGS.oncall.model_copy(update={"buttons": ButtonSettings(key_file=file)})}
    )


class Phone:
    """A channel that keeps what it delivers."""

    def __init__(self) -> None:
        self.messages = []

    def send(self, message):
        self.messages.append(message)
        return Receipt()


class NightShift:
    """The whole loop on a store, by default in memory, its channels, and its API."""

    def __init__(self, folder, state=None) -> None:
        settings = with_key(folder)
        self.world = World(settings)
        if state is not None:
            self.world.cycle.parts.state = state
        self.world.clock.set(EVENING)
        parts = self.world.cycle.parts
        signer = wiring_alerting.button_signer(settings)
        parts.messaging = wiring_alerting.messaging_of(settings)
        parts.roster = RosterSource(settings.oncall, parts.state)
        self.phone = Phone()
        channels = dict.fromkeys(settings.notify.channels, self.phone)
        self.dispatcher = Dispatcher(parts.state, channels, None, self.world.clock, self.world.cycle, sign=signer.url)
        api = ApiSettings(
            oncall=settings.oncall, public_url=settings.api.public_url, button_key=KEY, token=TOKEN, hosts=("*",)
        )
        self.http = Http(create_app(parts.state, parts.metrics, api, ApiExtras(clock=self.world.clock)))

    def cycles(self, minutes):
        """Cycles with deliveries. Returns what was delivered."""
        before = len(self.phone.messages)
        for _ in range(int(timedelta(minutes=minutes) / STEP)):
            self.world.step()
            self.dispatcher.deliver_messages()
        return self.phone.messages[before:]

    def press(self, message, action, name):
        """Opens the page of a button, as a chat program does for its preview, then presses it."""
        path = urlsplit(url_of(message, action)).path
        assert self.http.get(path).status_code == 200
        return self.http.post(path, content=f"name={name}".encode())


def url_of(message, action):
    [url] = [button.url for button in message.buttons if button.action is action]
    return url


def reasons(messages):
    return [
        (message.reason.value, message.channel, ",".join(one.name for one in message.recipients))
        for message in messages
    ]


@pytest.mark.slow
def test_a_night_on_call(tmp_path):
    shift = NightShift(tmp_path)
    assert shift.cycles(3) == []
    shift.world.dead.add("a-1")

    paged = shift.cycles(3)
    assert reasons(paged) == [("opened", "ding", "li")]
    assert paged[0].is_page
    assert "Team: model. Notified: li" in paged[0].body

    escalated = shift.cycles(5)
    assert reasons(escalated) == [("escalated", "ding", "wang"), ("escalated", "voice", "wang")]

    pressed = shift.press(escalated[0], ButtonAction.ACKNOWLEDGE, "wang")
    assert "Acknowledged by wang" in pressed.text
    assert shift.press(escalated[0], ButtonAction.ACKNOWLEDGE, "li").status_code == 409, "it acts once"
    assert shift.cycles(15) == [], "nobody else is woken"

    shift.world.dead.clear()
    over = shift.cycles(10)
    assert reasons(over) == [("resolved", "ding", "li,wang"), ("resolved", "voice", "li,wang")]

    shift.world.clock.set(MORNING - 2 * STEP)
    morning = shift.cycles(5)
    [summary] = [message for message in morning if message.reason is NotifyReason.SHIFT_SUMMARY]
    assert summary.channel == "ding"
    assert [one.name for one in summary.recipients] == ["li", "wang"]
    assert "[night] model: 1 incident" in summary.title
    assert "Acknowledged by wang" in summary.body
    assert "Resolved at" in summary.body

    [incident] = shift.world.state.incidents()
    assert (incident.acknowledged_by, incident.pages) == ("wang", 1)
    by_button = [record for record in shift.world.state.audit() if record.event is AuditEvent.BUTTON_USED]
    assert [(record.by, record.subject) for record in by_button] == [("wang", incident.id)]


@pytest.mark.slow
def test_a_role_that_reads_every_table_of_postgresql_finds_no_key_no_token_and_no_link(
    tmp_path, postgres_url, postgres_server
):
    with closing(open_state(urls_of(postgres_url)[0])) as state:
        shift = NightShift(tmp_path, state)
        shift.cycles(3)
        shift.world.dead.add("a-1")
        [paged] = shift.cycles(3)
        shift.press(paged, ButtonAction.ACKNOWLEDGE, "li")
    _, _, token = url_of(paged, ButtonAction.SILENCE_1H).rpartition("/buttons/")
    with postgres.documented_reader(postgres_server, postgres_url) as reader:
        rows = rows_of_every_table(reader)
    assert any(paged.id in row for row in rows), "the page is in a table that the role may read"
    for secret in (KEY, TOKEN, "/buttons/", token, *token.split(".")):
        assert not [row for row in rows if secret in row]


def rows_of_every_table(reader):
    with reader.connect() as connection:
        names = sa.text("SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema = 'public'")
        tables = [f'"{schema}"."{name}"' for schema, name in connection.execute(names)]
        assert len(tables) > 20
        return [row for table in tables for (row,) in connection.execute(sa.text(f"SELECT t::text FROM {table} t"))]
