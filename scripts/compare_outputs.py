"""Records the output and stored data of commands for fixed inputs, and compares two such recordings.

Usage: python scripts/compare_outputs.py record OUT [--repo DIR] [--data DIR] [--only drill,replay] [--quick]
       python scripts/compare_outputs.py compare OUT_A OUT_B [--texts] [--renamed OLD=NEW]

It runs only the ``outrider`` command of the checkout's own environment, so that any two commits can be compared.
``--data`` is the folder with ``traffic/`` and ``recordings/`` (or ``data/traffic/``). A recording has one JSON file per
item. Numbers, names, timestamps and structure must be equal. Differences in prose are listed separately and count only
with ``--texts``.

``drill``, ``replay`` and ``capacity`` use simulated or recorded time and are deterministic. ``store`` is the headless
demo. It uses the system time and stores durations, so it runs under CLOCK_SHIM. VARYING lists the remaining
differences.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import pi, sin
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GROUPS = frozenset({"drill", "replay", "capacity", "store"})
SEED = "21"
QUICK_FAULTS = ("gpu-lost", "engine-hung", "traffic-surge", "kv-pressure", "planned-rollout")
DEMO = ("demo", "--headless", "--minutes", "50", "--seed", "7")
RECORDED = ".metrics.jsonl.gz"
HEARTBEAT_SECONDS = 60

# Freezes the system time, so that the demo always starts at the same time. Differences of two monotonic readings are
# zero; deadlines (reading + duration) keep working. Timeouts are five times longer, because a late response on a busy
# host would be missing in the store.
CLOCK_SHIM = """
import asyncio, ctypes, datetime, gc, time
_AT = 1772625600.0  # 2026-03-04T12:00:00Z
class _Reading(float):
    __slots__ = ()
    def __sub__(self, other):
        return 0.0 if isinstance(other, _Reading) else float.__sub__(self, other)
    def __rsub__(self, other):
        return 0.0 if isinstance(other, _Reading) else float.__sub__(float(other), self)
def _read(clock):
    return lambda: _Reading(clock())
time.monotonic, time.perf_counter = _read(time.monotonic), _read(time.perf_counter)
time.time, time.time_ns = (lambda: _AT), (lambda: int(_AT) * 10**9)
_names = gc.get_referents(datetime.datetime.__dict__)[0]
_names["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(_AT, tz))
ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))
def _stretched(seconds):
    return None if seconds is None else 5 * seconds
_timeout, _wait = asyncio.timeout, asyncio.wait
asyncio.timeout = lambda delay: _timeout(_stretched(delay))
asyncio.wait = lambda tasks, *, timeout=None, **more: _wait(tasks, timeout=_stretched(timeout), **more)
"""

# Texts in the store that differ between two runs of one commit, with their replacements.
VARYING = (
    (re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)-[0-9a-f]{4}\b"), r"\1-random"),  # cycle id
    (re.compile(rf"\b{re.escape(os.uname().nodename)}:\d+"), "host:pid"),  # holder of a lease
    (re.compile(r"\b127\.0\.0\.1:\d+"), "127.0.0.1:port"),  # free ports of the simulated fleet
)

# Keys whose strings are prose, or the id of a text.
TEXTS = frozenset({
    "because", "body", "comment", "default_action_text", "description", "detail", "equation", "fix", "hint", "lines",
    "message", "note", "notes", "read_from", "said", "sentence", "sentences", "summary", "text", "title", "what", "why",
})  # fmt: skip
TEXTS_WHEN_SPACED = frozenset({"reason", "explanation"})  # a single word is a reason id, not prose


@dataclass(frozen=True, slots=True)
class Item:
    """One command; ``stored`` if the databases that it writes are compared as well."""

    name: str
    arguments: tuple[str, ...]
    stored: bool = False


@dataclass(slots=True)
class Differences:
    """Differences of two recordings, one line each."""

    values: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def items(repo: Path, data: Path | None, scratch: Path, *, quick: bool) -> Iterator[tuple[str, Item]]:
    """Yields every item with its ``--only`` group, the slowest last."""
    for name, path in _recordings(repo, data):
        yield "replay", Item(name, ("replay", str(path), "--emit", "signals,alerts,incidents"))
    for path in (_synthetic_trace(scratch / "made.csv"), *_traces(data)):
        yield "capacity", Item(f"capacity-{path.stem}", ("capacity", "replay", str(path)))
    yield "store", Item("store", DEMO, stored=True)
    if quick:
        for fault in QUICK_FAULTS:
            yield "drill", Item(f"drill-{fault}", ("drill", "run", fault, "--seed", SEED))
    else:
        yield "drill", Item("drill-score", ("drill", "score", "--seed", SEED))


def _recordings(repo: Path, data: Path | None) -> list[tuple[str, Path]]:
    """Returns recorded pages in the tests and the data; a folder with ``targets.yaml`` is one recorded fleet."""
    roots = {"tests": repo / "tests"} | ({} if data is None else {"data": data / "recordings"})
    pages = {}
    for origin, root in roots.items():
        for path in root.rglob(f"*{RECORDED}"):
            whole = path.parent if (path.parent / "targets.yaml").exists() else path
            pages[f"replay-{origin}-{whole.name.removesuffix(RECORDED)}"] = whole
    return sorted(pages.items())


def _traces(data: Path | None) -> list[Path]:
    """Returns the traffic traces of the data folder; the repository has none."""
    return [] if data is None else sorted([*data.glob("traffic/*.csv"), *data.glob("data/traffic/*.csv")])


def _synthetic_trace(path: Path) -> Path:
    """Writes a synthetic week of daily waves with a weaker weekend, for checkouts without data."""
    start, lines = datetime(2026, 3, 2, tzinfo=UTC), ["time_utc,requests_per_second"]
    for slot in range(7 * 144):
        wave = 20 + 15 * sin(2 * pi * slot / 144) + 2 * sin(slot * slot)
        at = start + slot * timedelta(minutes=10)
        lines.append(f"{at:%Y-%m-%dT%H:%M:%SZ},{wave * (0.6 if slot >= 5 * 144 else 1):.4f}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def record(repo: Path, out: Path, data: Path | None, only: set[str], *, quick: bool) -> int:
    """Runs all items in order and writes their files; returns 1 if one has no JSON output."""
    out.mkdir(parents=True, exist_ok=True)
    silent = 0
    with tempfile.TemporaryDirectory(prefix="compare-outputs-") as folder:
        scratch = Path(folder)
        for group, item in items(repo, data, scratch, quick=quick):
            if only and group not in only:
                continue
            begun = time.monotonic()
            answer = answered(repo, item, scratch / item.name)
            text = json.dumps(answer, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
            (out / f"{item.name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
            silent += answer["answer"] is None
            print(f"{item.name}: exit {answer['exit']}, {time.monotonic() - begun:.0f} s", flush=True)
    return int(silent > 0)


def answered(repo: Path, item: Item, folder: Path) -> dict[str, Any]:
    """Returns the output of one run and, if compared, its stored data. Deletes the folder."""
    folder.mkdir()
    code, stdout, stderr = _run(repo, item, folder)
    try:
        answer = opened(json.loads(stdout))
    except ValueError:
        answer = None
        print(f"{item.name}: no JSON output; end of standard error:\n{stderr[-2000:]}", file=sys.stderr)
    result: dict[str, Any] = {"exit": code, "answer": answer}
    if item.stored:
        result["stores"] = {path.name: stored(path) for path in sorted(folder.rglob("*.db"))}
    shutil.rmtree(folder)
    return result


def _run(repo: Path, item: Item, folder: Path) -> tuple[int, str, str]:
    """Returns exit code, standard output and standard error of one command in an empty folder."""
    command = [str(repo / ".venv/bin/outrider"), *item.arguments, "-o", "json", "--no-progress", "--lang", "en"]
    environment = {key: text for key, text in os.environ.items() if not key.startswith(("OUTRIDER_", "PYTHON"))}
    environment["TZ"] = "UTC"
    if item.stored:
        shim = folder / "shim"
        shim.mkdir()
        (shim / "sitecustomize.py").write_text(CLOCK_SHIM, encoding="utf-8")
        environment["PYTHONPATH"] = str(shim)
    print(f"{item.name}: outrider {' '.join(item.arguments)}", flush=True)
    stdout_path, stderr_path = folder / "stdout", folder / "stderr"
    with stdout_path.open("wb") as output, stderr_path.open("wb") as errors:
        running = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=errors)
        code = _wait(running, item.name)
    return code, stdout_path.read_text(encoding="utf-8"), stderr_path.read_text(encoding="utf-8")


def _wait(running: subprocess.Popen[bytes], name: str) -> int:
    """Waits for the exit code and prints progress from time to time."""
    begun = time.monotonic()
    while True:
        try:
            return running.wait(timeout=HEARTBEAT_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"{name}: {time.monotonic() - begun:.0f} s so far", flush=True)
        except BaseException:
            running.terminate()
            raise


def stored(path: Path) -> dict[str, Any]:
    """Returns all rows of a database, and the hash of the file if none of its rows vary between runs."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        named = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        tables = {name: _rows(connection, name) for (name,) in named.fetchall()}
    steady = {name: varying_out(rows) for name, rows in tables.items()}
    result: dict[str, Any] = {"tables": {name: [opened(row) for row in rows] for name, rows in steady.items()}}
    if steady == tables:
        result["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return result


def _rows(connection: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    """Returns the rows in stored order, by column; blobs as hashes."""
    try:
        rows = connection.execute(f'SELECT * FROM "{table}" ORDER BY rowid')
    except sqlite3.OperationalError:  # WITHOUT ROWID tables are in key order
        rows = connection.execute(f'SELECT * FROM "{table}"')
    columns = [column[0] for column in rows.description]
    return [
        {
            column: hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value
            for column, value in zip(columns, row, strict=True)
        }
        for row in rows
    ]


def varying_out(value: Any) -> Any:
    """Returns the value with varying texts replaced."""
    if isinstance(value, dict):
        return {key: varying_out(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [varying_out(inner) for inner in value]
    if isinstance(value, str):
        for pattern, instead in VARYING:
            value = pattern.sub(instead, value)
    return value


def opened(value: Any) -> Any:
    """Returns the value with JSON documents in strings parsed, so that differences have a path."""
    if isinstance(value, dict):
        return {key: opened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [opened(inner) for inner in value]
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return opened(json.loads(value))
        except ValueError:
            return value
    return value


def compare(left: Path, right: Path, renamed: dict[str, str], *, texts: bool) -> int:
    """Prints the differences of two recordings; returns 1 if a compared value differs."""
    differences = Differences()
    names = {path.name for folder in (left, right) for path in folder.glob("*.json.gz")}
    for name in sorted(names):
        both = [_read(folder / name) for folder in (left, right)]
        if None in both:
            differences.values.append(f"{name}: only in {left if both[1] is None else right}")
        else:
            differ(name.removesuffix(".json.gz"), "", rename(both[0], renamed), both[1], differences)
    _print("values differ", differences.values)
    _print("texts differ", differences.texts)
    print(f"{len(names)} items, {len(differences.values)} values and {len(differences.texts)} texts differ")
    return int(not names or bool(differences.values) or (texts and bool(differences.texts)))


def differ(path: str, key: str, left: Any, right: Any, differences: Differences) -> None:
    """Collects every leaf that differs; ``key`` is the innermost key above the value."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted({*left, *right}):
            if name in left and name in right:
                differ(f"{path}.{name}", name, left[name], right[name], differences)
            else:
                differences.values.append(f"{path}.{name}: only in the {'first' if name in left else 'second'}")
    elif isinstance(left, list) and isinstance(right, list) and (len(left) == len(right) or not _prose(key, left)):
        if len(left) != len(right):
            differences.values.append(f"{path}: {len(left)} entries, {len(right)} entries")
        for index, (one, other) in enumerate(zip(left, right, strict=False)):
            differ(f"{path}[{index}]", key, one, other, differences)
    elif type(left) is not type(right) or left != right:
        line = f"{path}: {_shown(left)} -> {_shown(right)}"
        if not (_prose(key, left) and _prose(key, right)):
            differences.values.append(line)
        else:
            same = _numbers(left) == _numbers(right)
            differences.texts.append(line if same else f"{line} (other numbers)")


def rename(value: Any, renamed: dict[str, str]) -> Any:
    """Returns the value with renamed keys and renamed strings (whole strings only)."""
    if isinstance(value, dict):
        return {renamed.get(key, key): rename(inner, renamed) for key, inner in value.items()}
    if isinstance(value, list):
        return [rename(inner, renamed) for inner in value]
    return renamed.get(value, value) if isinstance(value, str) else value


def _prose(key: str, value: Any) -> bool:
    """Returns True for prose, a list of prose, or the id of a text."""
    if isinstance(value, list):
        return all(isinstance(one, str) and _prose(key, one) for one in value)
    return isinstance(value, str) and (key in TEXTS or (key in TEXTS_WHEN_SPACED and " " in value))


def _numbers(text: Any) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", str(text))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"


def _read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes())) if path.exists() else None


def _print(title: str, lines: Sequence[str]) -> None:
    if lines:
        print(f"{title}:")
        print("".join(f"  {line}\n" for line in lines), end="")


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Records what the command line answers and compares two recordings.")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run all items and write their output")
    recording.add_argument("out", type=Path)
    recording.add_argument("--repo", type=Path, default=ROOT, help="checkout with its own .venv (default: this one)")
    recording.add_argument("--data", type=Path, default=os.environ.get("OUTRIDER_DATA"), help="else $OUTRIDER_DATA")
    recording.add_argument("--only", default="", help="comma-separated: drill, replay, capacity, store (default: all)")
    recording.add_argument("--quick", action="store_true", help="run a few single drills instead of all scenarios")
    comparing = commands.add_parser("compare", help="print differences; exit 1 if a compared value differs")
    comparing.add_argument("left", type=Path)
    comparing.add_argument("right", type=Path)
    comparing.add_argument("--texts", action="store_true", help="compare prose as well")
    comparing.add_argument("--renamed", action="append", default=[], metavar="OLD=NEW", help="rename in the first")
    return parser.parse_args(arguments)


def main() -> int:
    """Records or compares."""
    options = parsed(sys.argv[1:])
    if options.command == "compare":
        renamed = dict(pair.split("=", 1) for pair in options.renamed)
        return compare(options.left, options.right, renamed, texts=options.texts)
    only = set(filter(None, options.only.split(",")))
    if unknown := only - GROUPS:
        print(f"unknown --only value {', '.join(sorted(unknown))}; known: {', '.join(sorted(GROUPS))}", file=sys.stderr)
        return 2
    data = None if options.data is None else Path(options.data).resolve()
    return record(options.repo.resolve(), options.out, data, only, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
