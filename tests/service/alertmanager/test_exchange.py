"""Alerts and silences exchanged with real Alertmanagers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from alerts.state.silence import silenced
from outrider.audit import AuditEvent
from outrider.clock import ManualClock
from outrider.model import (
    RECEIVED_FROM,
    Alert,
    AlertReason,
    AlertState,
    CycleRecord,
    EntityKind,
    EntityRef,
    Priority,
)
from outrider.ports import CycleCommit
from outrider.records.silences import Silence, SilenceWindow, in_force, parse_matcher
from service.alertmanager.client import AlertmanagerClient
from service.alertmanager.emitter import AlertEmitter, EmitOptions
from service.alertmanager.silence_sync import SilenceSync, SyncOptions
from service.engine.liveness import Liveness
from store.memory import MemoryStateStore
from tests.support import alertmanagers, metric_servers
from tests.support.alertmanagers import Alertmanager
from tests.support.json_server import Response, json_server
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.live
NODE = EntityRef("prod", EntityKind.NODE, None, "n1")
GPU = EntityRef("prod", EntityKind.GPU, None, "GPU-1")
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Alertmanager, Alertmanager]]:
    why = metric_servers.missing((alertmanagers.PROGRAM,))
    if why is not None:
        pytest.skip(why)
    with alertmanagers.pair(tmp_path_factory.mktemp("pair")) as both:
        yield both


class World:
    """A state store with alerts, and the tasks that exchange them; ``origin`` keeps tests apart."""

    def __init__(
        self, origin: str, *servers: Alertmanager | str, state: MemoryStateStore | None = None, **options
    ) -> None:
        self.state, self.origin = state or MemoryStateStore(), origin
        urls = [server if isinstance(server, str) else server.url for server in servers]
        clients = [AlertmanagerClient(url, timeout=timedelta(seconds=5)) for url in urls]
        emit = EmitOptions(
            origin=origin, base_url="https://outrider.example", interval=timedelta(seconds=30), **options
        )
        self.clock = ManualClock(now())
        self.liveness = Liveness(self.clock, timedelta(seconds=15))
        self.emitter = AlertEmitter(self.state, clients, emit, self.liveness.is_alive)
        self.sync = SilenceSync(self.state, clients, SyncOptions(origin))

    def commit(self, *alerts: Alert, at: datetime | None = None, values: int = 10, targets: int = 1) -> None:
        at = at or now()
        record = CycleRecord(f"c{at.timestamp()}", at, 0.1, 1, targets, values, 0, len(alerts), 0)
        self.state.commit(CycleCommit(record, alerts=alerts))
        self.liveness.note(record)

    def alert(self, rule: str = "node-lost", entity: EntityRef = NODE, **fields) -> Alert:
        started = now() - MINUTE
        base = Alert(
            fingerprint=f"{rule}|{entity.key}",
            rule=rule,
            priority=Priority.P1,
            entity=entity,
            state=AlertState.FIRING,
            reason=AlertReason.STILL_TRUE,
            starts_at=started,
            seen_at=started,
            fault=rule,
            labels={"team": "infra"},
            annotations={"fired_at": started.isoformat()},
        )
        return replace(base, **fields)

    def shown(self, server: Alertmanager, name: str = "node-lost/n1") -> dict:
        """An alert there, once Alertmanager has processed it."""
        return until(lambda: self.there(server).get(name), f"{name} is in Alertmanager")

    def there(self, server: Alertmanager) -> dict:
        return server.alerts(self.origin)


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def world(*arguments, **options) -> World:
        made.append(World(*arguments, **options))
        return made[-1]

    yield world
    for one in made:
        one.emitter.close()


def test_every_member_receives_every_firing_alert_with_labels_annotations_and_link(pair, make):
    world = make("members", *pair)
    world.commit(world.alert(incident="inc-1"))
    world.emitter.run_due(now())
    for server in pair:
        item = world.shown(server)
        labels = item["labels"]
        assert (labels["severity"], labels["priority"], labels["node"], labels["fault"], labels["team"]) == (
            "critical", "P1", "n1", "node-lost", "infra",
        )  # fmt: skip
        assert item["annotations"]["summary"] == "P1: Node lost: node n1"
        assert item["generatorURL"] == "https://outrider.example/incident?incident=inc-1"
        assert datetime.fromisoformat(item["endsAt"]) > now() + MINUTE
    assert sorted(world.state.heartbeats()) == sorted(f"alertmanager/{server.url}" for server in pair)


def test_an_alert_is_sent_again_before_its_end_and_ended_on_resolve(pair, make):
    world = make("again", *pair)
    alert = world.alert()
    world.commit(alert)
    world.emitter.run_due(now())
    first = world.shown(pair[0])["endsAt"]
    world.emitter.run_due(now() + timedelta(seconds=30))
    until(lambda: world.shown(pair[0])["endsAt"] > first, "its end is later")
    world.commit(replace(alert, state=AlertState.RESOLVED, ends_at=now()))
    world.emitter.run_due(now())
    for server in pair:
        until(lambda server=server: "node-lost/n1" not in world.there(server), "the alert has ended")


def test_a_member_that_is_down_keeps_no_alert_from_the_other(pair, make):
    world = make("down", f"http://127.0.0.1:{free_port()}", pair[1])
    world.commit(world.alert())
    world.emitter.run_due(now())
    assert world.shown(pair[1])
    assert list(world.state.heartbeats()) == [f"alertmanager/{pair[1].url}"]


def test_pending_received_and_unwanted_alerts_are_not_sent(pair, make):
    world = make("left-out", *pair, priorities=frozenset({Priority.P0, Priority.P1}), watchdog=False)
    world.commit(
        world.alert(),
        world.alert("pending", state=AlertState.PENDING),
        world.alert("received", labels={RECEIVED_FROM: "alertmanager"}),
        world.alert("low", priority=Priority.P3),
    )
    world.emitter.run_due(now())
    world.shown(pair[0])
    assert list(world.there(pair[0])) == ["node-lost/n1"]


def test_an_alert_whose_priority_rises_replaces_its_earlier_form(pair, make):
    world = make("raised", pair[0])
    world.commit(world.alert(priority=Priority.P2))
    world.emitter.run_due(now())
    world.commit(world.alert(priority=Priority.P1))
    world.emitter.run_due(now())

    def priorities():
        labels = [item["labels"] for item in pair[0].get("/alerts")]
        return [one["priority"] for one in labels if one.get("outrider_origin") == "raised" and "priority" in one]

    until(lambda: sorted(priorities()) == ["P1"], "the form with the lower priority has ended")


def test_a_megabyte_of_labels_and_markup_is_sent_as_cut_text(pair, make):
    world = make("odd", pair[0], watchdog=False)
    odd = EntityRef("prod", EntityKind.NODE, None, "<b>n</b>\0" + "x" * 1_000_000)
    world.commit(world.alert(entity=odd, labels={"1 bad name": "y" * 1_000_000, "empty": ""}))
    world.emitter.run_due(now())
    (item,) = until(lambda: [*world.there(pair[0]).values()], "the alert is in Alertmanager")
    assert len(item["labels"]["entity"].encode()) <= 2000
    assert "_1_bad_name" in item["labels"]


def test_thousands_of_alerts_are_sent_in_parts(pair, make):
    world = make("many", pair[0], watchdog=False)
    nodes = [EntityRef("prod", EntityKind.NODE, None, f"n{number}") for number in range(1200)]
    world.commit(*(world.alert(entity=node) for node in nodes))
    world.emitter.run_due(now())
    until(lambda: len(world.there(pair[0])) == 1200, "all alerts are in Alertmanager")


def test_the_watchdog_fires_only_while_cycles_complete_with_fresh_values(pair, make):
    world = make("alive", pair[0])
    world.emitter.run_due(now())
    assert "Watchdog" not in world.there(pair[0])
    world.commit()
    world.emitter.run_due(now())
    assert world.shown(pair[0], "Watchdog")
    before = world.there(pair[0])["Watchdog"]["endsAt"]
    world.clock.advance(10 * MINUTE)
    world.emitter.run_due(now() + 10 * MINUTE)  # no cycle since: it is not sent again, and Alertmanager ends it
    assert world.there(pair[0])["Watchdog"]["endsAt"] == before


# --- silences ---------------------------------------------------------------------------------------


def silence_there(server: Alertmanager, *matchers: dict, minutes: float = 60) -> str:
    starts, ends = now().isoformat(), (now() + minutes * MINUTE).isoformat()
    body = {"matchers": list(matchers), "startsAt": starts, "endsAt": ends, "createdBy": "bob", "comment": "disk swap"}
    return server.send("POST", "/silences", body)["silenceID"]


def equal(name: str, value: str, *, regex: bool = False, equal: bool = True) -> dict:
    return {"name": name, "value": value, "isRegex": regex, "isEqual": equal}


def test_a_silence_of_alertmanager_mutes_our_alerts_until_it_ends_there(pair, make):
    world = make("reads", *pair)
    matchers = (equal("node", "n.*", regex=True), equal("alertname", "node-lost"), equal("zone", "a", equal=False))
    number = silence_there(pair[0], *matchers)
    until(lambda: any(item["id"] == number for item in pair[1].get("/silences")), "the silence is on both members")
    world.sync.run_due(now())
    known = {silence.id: silence for silence in world.state.silences(now())}
    silence = known[f"alertmanager/{number}"]
    assert (silence.by, silence.comment, silence.source) == ("bob", "disk swap", "alertmanager")
    assert silenced(world.alert(), in_force([silence], now() + timedelta(seconds=1)))
    assert not silenced(world.alert(entity=GPU), in_force([silence], now() + timedelta(seconds=1)))
    pair[0].send("DELETE", f"/silence/{number}")
    world.sync.run_due(now())
    assert silence.id not in {item.id for item in world.state.silences(now())}
    events = [record.event for record in world.state.audit() if record.subject == silence.id]
    assert events == [AuditEvent.UNSILENCED, AuditEvent.SILENCED]


def test_a_silence_of_our_origin_alone_mutes_all_that_we_emit_and_no_received_alert(pair, make):
    world = make("alone", pair[0])
    silence_there(pair[0], equal("outrider_origin", "alone"))
    world.sync.run_due(now())
    (silence,) = [item for item in world.state.silences(now()) if item.source]
    then = in_force([silence], now() + timedelta(seconds=1))
    assert silenced(world.alert(), then)
    assert silenced(world.alert(entity=GPU), then)
    assert not silenced(replace(world.alert(), labels={RECEIVED_FROM: "grafana"}), then)


def test_a_silence_of_ours_is_created_there_once_and_ends_there_with_ours(pair, make):
    world = make("writes", *pair)
    ours = Silence("s1", "node-lost", NODE, now() + 60 * MINUTE, "ann", "swap", (parse_matcher('priority!="P0"'),))
    world.state.add_silence(ours)
    for _ in range(3):
        world.sync.run_due(now())

    def marked(state: str) -> list[dict]:
        found = [item for item in pair[0].get("/silences") if "[outrider writes/s1]" in item["comment"]]
        return [item for item in found if item["status"]["state"] == state]

    (item,) = marked("active")
    assert item["createdBy"] == "ann"
    assert {(part["name"], part["value"], part["isEqual"]) for part in item["matchers"]} >= {
        ("rule", "node-lost", True),
        ("entity", "n1", True),
        ("priority", "P0", False),
        ("outrider_origin", "writes", True),
    }
    world.commit(world.alert())
    world.emitter.run_due(now())
    until(lambda: world.shown(pair[0])["status"]["state"] == "suppressed", "the silence applies")
    assert not [silence for silence in world.state.silences(now()) if silence.source], (
        "ours does not come back as theirs"
    )
    world.state.remove_silence("s1")
    world.sync.run_due(now())
    assert not marked("active")


def test_a_silence_of_ours_that_is_ended_there_ends_here(pair, make):
    world = make("ended", pair[0])
    world.state.add_silence(Silence("s2", "r", None, now() + 60 * MINUTE, "ann"))
    world.sync.run_due(now())
    (number,) = [item["id"] for item in pair[0].get("/silences") if "[outrider ended/s2]" in item["comment"]]
    pair[0].send("DELETE", f"/silence/{number}")
    world.sync.run_due(now())
    assert [silence.id for silence in world.state.silences(now()) if not silence.source] == []


def standing(server: Alertmanager, mark: str) -> list[dict]:
    found = [item for item in server.get("/silences") if f"[outrider {mark}]" in item["comment"]]
    return [item for item in found if item["status"]["state"] in ("active", "pending")]


@pytest.mark.parametrize("minutes", [30, 120])
@pytest.mark.parametrize("begins", [-5, 10])
def test_a_silence_of_ours_that_gets_longer_or_shorter_is_changed_there(pair, make, minutes, begins):
    world = make(f"length{minutes}{begins}", pair[0])
    event = Silence(
        "event", "r", None, now() + 60 * MINUTE, "ann", starts_at=now() + begins * MINUTE, source="calendar"
    )
    world.state.add_silence(event)
    world.sync.run_due(now())
    (before,) = standing(pair[0], f"{world.origin}/event")
    changed = replace(event, until=now() + minutes * MINUTE)
    world.state.add_silence(changed)
    world.sync.run_due(now())
    (after,) = standing(pair[0], f"{world.origin}/event")
    assert after["id"] == before["id"]
    assert abs(datetime.fromisoformat(after["endsAt"]) - changed.until) < timedelta(seconds=1)
    world.sync.run_due(now())
    assert standing(pair[0], f"{world.origin}/event") == [after], "what is equal is not written again"


def test_a_silence_of_ours_with_other_matchers_or_a_later_start_replaces_the_one_there(pair, make):
    world = make("replaced", pair[0])
    event = Silence("event", "r", None, now() + 60 * MINUTE, "ann", source="calendar")
    world.state.add_silence(event)
    world.sync.run_due(now())
    for change in ({"matchers": (parse_matcher("node=n2"),)}, {"starts_at": now() + 20 * MINUTE}):
        event = replace(event, **change)
        world.state.add_silence(event)
        for _ in range(2):
            world.sync.run_due(now())
    (item,) = standing(pair[0], "replaced/event")
    assert ("node", "n2") in {(part["name"], part["value"]) for part in item["matchers"]}
    assert item["status"]["state"] == "pending"


def test_a_silence_of_ours_without_an_end_is_not_written_again(pair, make):
    world = make("endless", pair[0])
    world.state.add_silence(Silence("m", "r", None, datetime(9999, 1, 1, tzinfo=UTC), "ann", source="maintenance"))
    world.sync.run_due(now())
    before = standing(pair[0], "endless/m")
    world.sync.run_due(now() + MINUTE)
    assert standing(pair[0], "endless/m") == before


def test_a_recurring_silence_is_there_only_during_its_window(pair, make):
    world = make("window", pair[0])
    minute = now().hour * 60 + now().minute
    open_now = SilenceWindow((minute - 5) % 1440, (minute + 30) % 1440)
    later = SilenceWindow((minute + 120) % 1440, (minute + 180) % 1440)
    for name, window in (("open", open_now), ("later", later)):
        world.state.add_silence(Silence(name, "r", None, now() + timedelta(days=30), "ann", window=window))
    world.sync.run_due(now())
    comments = [item["comment"] for item in pair[0].get("/silences") if item["status"]["state"] == "active"]
    assert "[outrider window/open]" in comments
    assert "[outrider window/later]" not in comments
    (item,) = [item for item in pair[0].get("/silences") if item["comment"] == "[outrider window/open]"]
    assert datetime.fromisoformat(item["endsAt"]) < now() + timedelta(hours=1)


def test_a_silence_that_is_refused_there_keeps_no_other_from_being_created(pair, make):
    world = make("refused", pair[0])
    odd = parse_matcher(r'pod=~"\C"')  # RE2 in C++ has it, the one in Go has not
    world.state.add_silence(Silence("a-odd", None, None, now() + 60 * MINUTE, "ann", matchers=(odd,)))
    world.state.add_silence(Silence("b-plain", "r", None, now() + 60 * MINUTE, "ann"))
    world.sync.run_due(now())
    comments = [item["comment"] for item in pair[0].get("/silences") if "[outrider refused/" in item["comment"]]
    assert comments == ["[outrider refused/b-plain]"]
    assert {silence.id for silence in world.state.silences(now()) if not silence.source} == {"a-odd", "b-plain"}


def test_a_proxy_that_answers_for_alertmanager_changes_no_silence(pair, make):
    with json_server() as server:
        server.responses["GET /api/v2/silences"] = Response(raw=b"<html>sign in</html>")
        world = make("proxy", server.url)
        world.state.add_silence(Silence("s3", "r", None, now() + 60 * MINUTE, "ann"))
        world.sync.run_due(now())
        assert server.sent("POST") == []
        assert [silence.id for silence in world.state.silences(now())] == ["s3"]


def test_while_no_alertmanager_responds_silences_stay(pair, make):
    world = make("stays", pair[0])
    number = silence_there(pair[0], equal("node", "n77"))
    world.sync.run_due(now())
    gone = make("stays", f"http://127.0.0.1:{free_port()}", state=world.state)
    gone.sync.run_due(now())
    assert f"alertmanager/{number}" in {silence.id for silence in world.state.silences(now())}
