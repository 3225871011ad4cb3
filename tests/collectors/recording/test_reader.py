"""Recordings of a real engine, read back; a broken line is reported with file and line."""

from __future__ import annotations

import gzip
import json
import re
import resource
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collectors.mapping.target import targets_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.recording import reader
from collectors.recording.reader import page_scrape, read_fleet, read_recording, target_of_file
from collectors.recording.recorder import FlightRecorder
from collectors.scrape.result import Scrape
from outrider.errors import CollectReason, ConfigError, UsageError
from outrider.model import CellStatus, EntityKind, SignalKey

RECORDINGS = Path(__file__).parents[2] / "recordings"


def track(name, *signals):
    """(value or status) of signals of the one replica, scrape by scrape."""
    scrapes = list(read_recording(RECORDINGS / f"{name}.metrics.jsonl.gz"))
    collector, rows = ScrapeManager([scrapes[0].target]), []
    for scrape in scrapes:
        collected = collector.absorb([scrape], scrape.at)
        batch = next(one for one in collected.batches if one.kind is EntityKind.REPLICA)
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


def test_a_hung_engine_makes_no_progress_with_a_growing_queue() -> None:
    rows = track("i_hang", "engine_generation_tokens_total", "engine_inflight_requests", "engine_health_ok")
    still = [n for n, (tokens, load, _) in enumerate(rows) if tokens == 0 and load > 5]
    assert len(still) >= 12
    assert all(rows[n][2] == 1 for n in still)
    assert rows[still[-1]][1] > rows[still[0]][1] + 50


def test_a_sleeping_engine_reports_it() -> None:
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
    collector = ScrapeManager(fleet.targets)
    collected = collector.absorb(scrapes[:3], scrapes[2].at)
    kinds = {batch.kind for batch in collected.batches}
    assert {EntityKind.REPLICA, EntityKind.NODE, EntityKind.SERVICE, EntityKind.WORKLOAD} <= kinds


def test_recorded_events_of_a_fleet(tmp_path) -> None:
    fleet = write_fleet(tmp_path)
    expected = {
        "at": "2026-01-01T00:00:00Z",
        "kind": "change",
        "entity": {"kind": "service", "name": "s"},
        "code": "rollout",
        "text": "v2",
    }
    (fleet / "events.jsonl").write_text(json.dumps(expected) + "\n\n", encoding="utf-8")
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


def test_recorded_errors_become_failure_reasons(tmp_path) -> None:
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
def test_an_invalid_scrape_line_is_reported(tmp_path, line) -> None:
    path = write(tmp_path / "x.metrics.jsonl.gz", '{"t": 1, "text": "a 1\\n"}', line)
    with pytest.raises(UsageError, match=r"x\.metrics\.jsonl\.gz:2: not a scrape"):
        list(read_recording(path))


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ('"health": "ok"', "health is 'ok', expected an integer HTTP status"),
        ('"health": 200.5', "health is 200.5"),
        ('"health": true', "health is True"),
        ('"health": [1]', r"health is \[1\]"),
        ('"health": 200, "load": "3"', "load is '3', expected a number of requests"),
        ('"load": NaN', "load is nan"),
        ('"load": Infinity', "load is inf"),
        ('"load": -1', "load is -1"),
        (f'"load": 1{"0" * 400}', "out of range"),
    ],
)
def test_invalid_probe_results_are_reported_with_their_line(tmp_path, expected, words) -> None:
    path = write(
        tmp_path / "x.metrics.jsonl.gz", '{"t": 1, "text": "a 1\\n"}', f'{{"t": 2, "text": "a 1\\n", {expected}}}'
    )
    with pytest.raises(UsageError, match=rf"x\.metrics\.jsonl\.gz:2: not a scrape: .*{words}"):
        list(read_recording(path))


def test_a_truncated_recording(tmp_path) -> None:
    whole = (RECORDINGS / "a_idle.metrics.jsonl.gz").read_bytes()
    path = tmp_path / "cut.metrics.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"cut\.metrics\.jsonl\.gz:\d+: the recording is truncated"):
        list(read_recording(path))
    path.write_bytes(b"no gzip at all")
    with pytest.raises(UsageError, match=":1: the recording is truncated"):
        list(read_recording(path))
    with pytest.raises(UsageError, match="does not exist"):
        list(read_recording(tmp_path / "none.metrics.jsonl.gz"))


def test_unreadable_fleet_recordings(tmp_path) -> None:
    with pytest.raises(UsageError, match="not a recorded fleet"):
        read_fleet(tmp_path)
    fleet = write_fleet(tmp_path)
    (fleet / "events.jsonl").write_text('{"at": 1}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"events\.jsonl:1: not an event"):
        read_fleet(fleet)
    (fleet / "events.jsonl").unlink()
    (fleet / "a.metrics.jsonl.gz").unlink()
    with pytest.raises(UsageError, match="the recording of target 'a' is missing"):
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


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"\xff\xfe{}\n", "events.jsonl:1: not an event: byte 1 is not UTF-8"),
        (
            b'\n{"at": 1e300, "kind": "log", "entity": {"kind": "node", "name": "n"}}\n',
            "2: not an event: a number is out",
        ),
        (b"[" * 100_000 + b"\n", "events.jsonl:1: not an event: it is nested too deeply"),
        (b'{"at": 1, "kind": "log"}\n', "events.jsonl:1: not an event: the key 'entity' is missing"),
        (b'{"at": 1, "kind": "log", "entity": []}\n', "events.jsonl:1: not an event"),
    ],
)
def test_invalid_events_are_reported_with_their_line(tmp_path, written, expected) -> None:
    fleet = write_fleet(tmp_path)
    (fleet / "events.jsonl").write_bytes(written)
    with pytest.raises(UsageError, match=re.escape(expected)):
        read_fleet(fleet)


def test_event_lines_end_only_at_line_feeds(tmp_path) -> None:
    fleet = write_fleet(tmp_path)
    expected = {"at": 1, "kind": "log", "entity": {"kind": "node", "name": "n"}, "code": "x", "text": "a\u2028b\x85c"}
    (fleet / "events.jsonl").write_text(json.dumps(expected, ensure_ascii=False) + "\n", encoding="utf-8")
    (event,) = read_fleet(fleet).events
    assert event.attributes == {"message": "a\u2028b\x85c"}


@pytest.mark.parametrize(
    "line",
    ["[" * 100_000, '{"t": 1, "text": "a", "health": "ok"}', '{"t": 1e300, "text": "a"}', '{"t": NaN, "text": ""}'],
)
def test_only_valid_json_lines_are_accepted(tmp_path, line) -> None:
    path = write(tmp_path / "x.metrics.jsonl.gz", '{"t": 1, "text": "a 1\\n"}', line)
    with pytest.raises(UsageError, match=r"x\.metrics\.jsonl\.gz:2: not a scrape"):
        list(reader.track(path, target_of_file(path)).scrapes())


def test_invalid_utf8_is_reported_with_its_line(tmp_path) -> None:
    path = tmp_path / "x.metrics.jsonl.gz"
    good = b'{"t": 1, "text": "a 1\\n"}\n'
    path.write_bytes(gzip.compress(good * 3 + b'{"t": 4, "text": "\xff"}\n' + good))
    with pytest.raises(UsageError, match=r"x\.metrics\.jsonl\.gz:4: not a scrape: byte 19 is not UTF-8"):
        list(read_recording(path))


def test_lines_are_sorted_by_time(tmp_path) -> None:
    path = write(tmp_path / "x.metrics.jsonl.gz", *(f'{{"t": {at}, "text": "a {at}\\n"}}' for at in (30, 45, 10, 60)))
    collected = reader.track(path, target_of_file(path))
    assert (list(collected.times), collected.misplaced) == ([30, 45, 10, 60], 3)
    assert [one.body for one in collected.scrapes()] == [b"a 10\n", b"a 30\n", b"a 45\n", b"a 60\n"]
    swapped = write(tmp_path / "y.metrics.jsonl.gz", '{"text": "a 1\\n", "t": 7}', '{ "t" :8.5, "text": "a 2\\n"}')
    assert list(reader.track(swapped, target_of_file(swapped)).times) == [7, 8.5]


def test_a_compressed_file_with_several_members(tmp_path) -> None:
    """Like ``cat a.gz b.gz``, with a line longer than one read and zero padding."""
    path, long = tmp_path / "x.metrics.jsonl.gz", "x" * 3_000_000 + "".join(map(str, range(100_000)))
    parts = [json.dumps({"t": number, "text": long if number == 1 else "a 1\n"}) + "\n" for number in range(4)]
    path.write_bytes(b"".join(gzip.compress(part.encode()) for part in parts) + b"\0" * 40_000)
    assert [one.at.timestamp() for one in read_recording(path)] == [0, 1, 2, 3]
    assert [len(one.body or b"") for one in read_recording(path)] == [4, len(long), 4, 4]


def test_a_fleet_with_more_targets_than_the_open_file_limit(tmp_path) -> None:
    many = targets_of("c", [{"name": f"t{number}", "adapter": "vllm"} for number in range(80)])
    at = datetime(2026, 3, 1, tzinfo=UTC)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, hard))
    try:
        recorder = FlightRecorder(tmp_path / "new", "c", many)
        for number in range(3):
            recorder.add([Scrape(one, at + timedelta(seconds=number), b"a 1\n", None, 0.1) for one in many])
        recorder.close()
        fleet = read_fleet(tmp_path / "new")
        assert len(list(fleet.scrapes())) == 240
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_unreadable_file_is_not_reported_as_broken(tmp_path) -> None:
    path = tmp_path / "x.metrics.jsonl.gz"
    path.mkdir()
    with pytest.raises(UsageError, match=r"cannot read .*x\.metrics\.jsonl\.gz: Is a directory") as reported:
        list(read_recording(path))
    assert "cut" not in reported.value.hint


def test_errors_of_a_target_list_have_their_lines(tmp_path) -> None:
    fleet = write_fleet(tmp_path)
    bad = "- {name: b, adapter: abacus}\n- just a name\n- {name: a, adapter: vllm}\n"
    written = f"cluster: lab\ntargets:\n- name: a\n  adapter: vllm\n{bad}"
    (fleet / "targets.yaml").write_text(written, encoding="utf-8")
    with pytest.raises(ConfigError) as reported:
        read_fleet(fleet)
    assert [one.line for one in reported.value.problems] == [5, 6, 7]
    assert f"{fleet}/targets.yaml:5: targets[1]: unknown adapter 'abacus'" in reported.value.message
    assert "config check" not in reported.value.hint
    (fleet / "targets.yaml").write_text("cluster: lab\ncluster: lab\ntargets: []\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="is duplicated") as reported:
        read_fleet(fleet)
    assert "config check" not in reported.value.hint
