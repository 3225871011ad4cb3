"""Recordings of a real engine, read back; a broken line is told with file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from collectors.collect import Collector
from collectors.recording import page_scrape, read_fleet, read_recording, target_of_file
from outrider.errors import CollectReason, ConfigError, UsageError
from outrider.model import CellStatus, EntityKind, SignalKey

RECORDINGS = Path(__file__).parents[1] / "recordings"


def track(name, *signals):
    """(value or status) of signals of the one replica, scrape by scrape."""
    scrapes = list(read_recording(RECORDINGS / f"{name}.metrics.jsonl.gz"))
    collector, rows = Collector([scrapes[0].target]), []
    for scrape in scrapes:
        found = collector.absorb([scrape], scrape.at)
        batch = next(one for one in found.batches if one.kind is EntityKind.REPLICA)
        cells = []
        for signal in signals:
            column = batch.keys.index(SignalKey(signal))
            status = CellStatus(int(batch.status[0, column]))
            cells.append(float(batch.values[0, column]) if status is CellStatus.PRESENT else status)
        rows.append(tuple(cells))
    return rows


def test_a_killed_engine() -> None:
    rows = track("g_sigkill", "engine_up", "engine_generation_tokens_total", "engine_health_ok")
    ups = [up for up, _, _ in rows]
    first, again = ups.index(0), ups.index(1, ups.index(0))
    assert again - first == 15
    assert all(tokens is CellStatus.ABSENT and ok == 0 for _, tokens, ok in rows[first:again])
    assert rows[again][1] is CellStatus.RESET
    assert isinstance(rows[again + 1][1], float)


def test_a_hung_engine_stands_still_while_requests_pile_up() -> None:
    rows = track("i_hang", "engine_generation_tokens_total", "engine_inflight_requests", "engine_health_ok")
    still = [n for n, (tokens, load, _) in enumerate(rows) if tokens == 0 and load > 5]
    assert len(still) >= 12
    assert all(rows[n][2] == 1 for n in still)
    assert rows[still[-1]][1] > rows[still[0]][1] + 50


def test_a_sleeping_engine_says_so() -> None:
    states = [state for (state,) in track("l_sleep", "engine_sleep_state")]
    assert set(states) == {0.0, 1.0}


def test_an_idle_engine_is_fresh_and_undefined() -> None:
    rows = track("a_idle", "engine_generation_tokens_total", "engine_error_ratio", "engine_up")
    assert set(rows[1:]) == {(0.0, CellStatus.UNDEFINED, 1.0)}


def test_a_recorded_fleet() -> None:
    fleet = read_fleet(RECORDINGS / "n_fleet_hang")
    assert fleet.cluster == "lab"
    assert [target.name for target in fleet.targets] == ["replica-0", "replica-1", "node-0"]
    scrapes = list(fleet.scrapes())
    assert [one.at for one in scrapes] == sorted(one.at for one in scrapes)
    collector = Collector(fleet.targets)
    found = collector.absorb(scrapes[:3], scrapes[2].at)
    kinds = {batch.kind for batch in found.batches}
    assert {EntityKind.REPLICA, EntityKind.NODE, EntityKind.SERVICE, EntityKind.WORKLOAD} <= kinds


def test_events_of_a_fleet(tmp_path) -> None:
    fleet = write_fleet(tmp_path)
    said = {
        "at": "2026-01-01T00:00:00Z",
        "kind": "change",
        "entity": {"kind": "service", "name": "s"},
        "code": "rollout",
        "text": "v2",
    }
    (fleet / "events.jsonl").write_text(json.dumps(said) + "\n\n", encoding="utf-8")
    (event,) = read_fleet(fleet).events
    assert (event.kind, event.code, event.attributes) == ("change", "rollout", {"message": "v2"})
    assert event.entity.cluster == "lab"


def write_fleet(folder):
    (folder / "targets.yaml").write_text("cluster: lab\ntargets:\n  - {name: a, adapter: vllm}\n", encoding="utf-8")
    write(folder / "a.metrics.jsonl.gz", '{"t": 1, "text": "a 1\\n"}')
    return folder


def write(path, *lines):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
    return path


def test_errors_of_a_recording_become_reasons(tmp_path) -> None:
    path = write(
        tmp_path / "x.metrics.jsonl.gz",
        json.dumps({"t": 1, "error": "URLError: [Errno 111] Connection refused", "dur": 0.1, "health": None}),
        json.dumps({"t": 2, "error": "HTTP Error 503: Service Unavailable", "health": 503}),
        json.dumps({"t": 3, "text": "a 1\n"}),
    )
    refused, sick, plain = read_recording(path)
    assert refused.error.reason == CollectReason.REFUSED
    assert (refused.probed, refused.health) == (True, None)
    assert (sick.error.reason, sick.health) == (CollectReason.HTTP_STATUS, 503)
    assert (plain.probed, plain.body) == (False, b"a 1\n")
    assert plain.target.service.name == "x"


@pytest.mark.parametrize(
    "line", ["nonsense", "[]", "{}", '{"t": 1}', '{"t": 1, "text": "a", "error": "b"}', '{"t": "x", "text": "a"}']
)
def test_a_line_that_is_no_scrape(tmp_path, line) -> None:
    path = write(tmp_path / "x.metrics.jsonl.gz", '{"t": 1, "text": "a 1\\n"}', line)
    with pytest.raises(UsageError, match=r"x\.metrics\.jsonl\.gz:2: no scrape"):
        list(read_recording(path))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('"health": "ok"', "health is 'ok', expected an HTTP status"),
        ('"health": 200.5', "health is 200.5"),
        ('"health": true', "health is True"),
        ('"health": [1]', r"health is \[1\]"),
        ('"health": 200, "load": "3"', "load is '3', expected a number of requests"),
        ('"load": NaN', "load is nan"),
        ('"load": Infinity', "load is inf"),
        ('"load": -1', "load is -1"),
        (f'"load": 1{"0" * 400}', "int too large"),
    ],
)
def test_odd_answers_of_the_probe_are_named_with_their_line(tmp_path, said, words) -> None:
    path = write(tmp_path / "x.metrics.jsonl.gz", '{"t": 1, "text": "a 1\\n"}', f'{{"t": 2, "text": "a 1\\n", {said}}}')
    with pytest.raises(UsageError, match=rf"x\.metrics\.jsonl\.gz:2: no scrape: .*{words}"):
        list(read_recording(path))


def test_a_recording_that_breaks_off(tmp_path) -> None:
    whole = (RECORDINGS / "a_idle.metrics.jsonl.gz").read_bytes()
    path = tmp_path / "cut.metrics.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"cut\.metrics\.jsonl\.gz:\d+: the recording breaks off"):
        list(read_recording(path))
    path.write_bytes(b"no gzip at all")
    with pytest.raises(UsageError, match=":1: the recording breaks off"):
        list(read_recording(path))
    with pytest.raises(UsageError, match="no recording"):
        list(read_recording(tmp_path / "none.metrics.jsonl.gz"))


def test_fleets_that_cannot_be_read(tmp_path) -> None:
    with pytest.raises(UsageError, match="no recorded fleet"):
        read_fleet(tmp_path)
    fleet = write_fleet(tmp_path)
    (fleet / "events.jsonl").write_text('{"at": 1}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"events\.jsonl:1: no event"):
        read_fleet(fleet)
    (fleet / "events.jsonl").unlink()
    (fleet / "a.metrics.jsonl.gz").unlink()
    with pytest.raises(UsageError, match="no recording of target 'a'"):
        read_fleet(fleet)
    (fleet / "targets.yaml").write_text("cluster: [", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"targets\.yaml:1"):
        read_fleet(fleet)
    (fleet / "targets.yaml").write_text("cluster: x\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="cluster and targets"):
        read_fleet(fleet)


def test_a_page_from_a_file_may_lack_its_last_newline() -> None:
    scrape = page_scrape(
        target_of_file(Path("x.txt")), b"a 1", next(read_recording(RECORDINGS / "a_idle.metrics.jsonl.gz")).at
    )
    assert scrape.body == b"a 1\n"
