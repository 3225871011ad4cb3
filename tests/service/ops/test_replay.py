"""Replay of imperfect recordings: out of order, at one time, with events after their end."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outrider.clock import from_unix
from service.config.settings import Settings
from service.ops import replay

ROOT = Path(__file__).parents[3]
PAGE = (
    "# TYPE vllm:num_requests_running gauge\n"
    'vllm:num_requests_running{model_name="m",engine="0"} 1\n'
)  # fmt: skip
START = 1_790_000_000


def written(path: Path, times: Iterable[float]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"t": at, "dur": 0.1, "text": PAGE}) + "\n" for at in times)
    return path


def fleet(folder: Path, *events: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "targets.yaml").write_text("cluster: c\ntargets:\n- {name: a, adapter: vllm}\n", encoding="utf-8")
    written(folder / "a.metrics.jsonl.gz", [START + 15 * number for number in range(6)])
    entity = {"kind": "gpu", "name": "GPU-1"}
    lines = (json.dumps({"kind": "xid", "entity": entity, "code": "79"} | event) + "\n" for event in events)
    (folder / "events.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def replayed(path: Path, *emit: str) -> dict[str, Any]:
    return replay.replay([path], adapter="vllm", emit=emit, settings=Settings(), language="en")


def test_lines_out_of_order_are_replayed_in_order_with_a_note(tmp_path: Path) -> None:
    path = written(tmp_path / "x.metrics.jsonl.gz", [START + at for at in (0, 15, 45, 30, 60)])
    result = replayed(path, "signals")
    instants = [row["at"] for row in result["signals"]]
    assert instants == sorted(instants)
    assert result["cycles"] == 5
    (note,) = result["notes"]
    assert note.startswith(f"{path}:4: this line is earlier than the one before it")
    assert replay.load(path, "vllm").step == timedelta(seconds=15)
    back = replayed(written(tmp_path / "back.metrics.jsonl.gz", [START - 5 * number for number in range(5)]))
    assert (back["from"], back["to"]) == ("2026-09-21T14:13:00Z", "2026-09-21T14:13:20Z")


@pytest.mark.parametrize("times", [[START] * 5, [START]])
def test_the_default_step_is_used_without_a_scrape_interval(tmp_path: Path, times: list[float]) -> None:
    path = written(tmp_path / "x.metrics.jsonl.gz", times)
    assert replay.load(path, "vllm").step == replay.DEFAULT_STEP
    assert replayed(path)["cycles"] == len(times)


def test_the_step_is_the_median_scrape_interval(tmp_path: Path) -> None:
    folder = fleet(tmp_path / "f")
    (folder / "targets.yaml").write_text(
        "cluster: c\ntargets:\n- {name: a, adapter: vllm}\n- {name: b, adapter: vllm}\n", encoding="utf-8"
    )
    written(folder / "b.metrics.jsonl.gz", [START + 5 + 10 * number for number in range(20)])
    assert replay.load(folder, "vllm").step == timedelta(seconds=10)


def test_an_event_after_the_last_scrape_is_replayed_or_noted(tmp_path: Path) -> None:
    last = START + 75
    folder = fleet(tmp_path / "f", {"at": last + 3600, "code": "13"}, {"at": last + 9})
    result = replayed(folder, "incidents")
    assert [incident["suspected_cause"]["fault"] for incident in result["incidents"]] == ["gpu-lost"]
    assert result["cycles"] == 7
    end = from_unix(last + 15).isoformat().replace("+00:00", "Z")
    assert result["to"] == end
    (note,) = result["notes"]
    assert note.startswith(f"1 event is later than the last scrapes, which end at {end}, and not replayed")
    assert "xid 13 of gpu/GPU-1" in note


@pytest.mark.slow
def test_a_bad_line_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    folder = fleet(tmp_path / "f")
    (folder / "events.jsonl").write_bytes(b"\xff\xfe{}\n")
    command = [sys.executable, "-m", "service.cli", "replay", str(folder), "-o", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["message"].startswith(f"{folder}/events.jsonl:1: not an event")
