"""A store with rows in every table, and everything that its readers return."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from outrider.audit import AuditEvent, AuditRecord
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    Calibration,
    CellStatus,
    CycleRecord,
    DecisionReason,
    DetectorState,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Hypothesis,
    Incident,
    Interval,
    Layer,
    Message,
    NoPlanReason,
    NoRecommendation,
    NotifyReason,
    Outcome,
    OutcomeStatus,
    Plan,
    Priority,
    RemediationSession,
    SampleBatch,
    SignalKey,
    Verdict,
)
from outrider.ports import CycleCommit, Silence
from outrider.records.change_log import ActorKind, Change, ChangeEnd, ChangeStatus, PhaseTime, StartPhase, Startup
from outrider.records.drill import Drill
from outrider.records.feedback import Usefulness, judged
from outrider.records.ingest_buffer import PushedBlock
from outrider.records.on_call import ButtonPress, ShiftOverride, StoredCalendar
from outrider.records.response import FollowUp, IncidentNote, NoteKind
from outrider.topology import Topology
from outrider.vocabulary import catalog
from store import migrate
from store.admin import backup as backups
from store.admin import introspection
from store.admin import restore as restores
from store.factory import open_change_log, open_ingest_buffer, open_metrics, open_state, urls_of
from store.schema import json_codec

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEP = timedelta(minutes=1)
CYCLES = 70
POWER, ECC = SignalKey("hw_accel_power_watts"), SignalKey("hw_accel_ecc_uncorrectable_total")
TTFT = catalog.signal("engine_ttft_seconds").bucket_keys
GPUS = tuple(EntityRef("prod", EntityKind.GPU, None, f"gpu-{number}") for number in range(40))
REPLICAS = tuple(EntityRef("prod", EntityKind.REPLICA, "llm", f"chat-{number}") for number in range(5))
NODE = EntityRef("prod", EntityKind.NODE, None, "node-1")
SERVICE = EntityRef("prod", EntityKind.SERVICE, "llm", "chat")


def batches(number: int) -> list[SampleBatch]:
    at = T0 + number * STEP
    generator = np.random.default_rng(number)
    power = np.round(generator.uniform(100, 700, (len(GPUS), 2)))
    status = np.zeros(power.shape, dtype=np.uint8)
    power[3, 0], status[3, 0] = np.nan, CellStatus.STALE
    power[4, 1], status[4, 1] = np.nan, CellStatus.RESET
    ttft_counts = generator.poisson(3.0, (len(REPLICAS), len(TTFT))).astype(float)
    return [
        SampleBatch("dcgm", at, EntityKind.GPU, (POWER, ECC), GPUS, power, status),
        SampleBatch(
            "vllm", at, EntityKind.REPLICA, TTFT, REPLICAS, ttft_counts, np.zeros(ttft_counts.shape, dtype=np.uint8)
        ),
    ]


def event(number: int) -> Event:
    at = T0 + number * STEP
    return Event(
        f"e{number}",
        EventKind.XID,
        GPUS[number % 40],
        at,
        "dcgm",
        "79",
        {"text": "掉卡 'x' \\ \0 \U0001f525"},
        f"k{number}",
    )


def commit(number: int, written: int) -> CycleCommit:
    at = T0 + number * STEP
    gpu = GPUS[number % 40]
    status = AlertState.RESOLVED if number % 2 else AlertState.FIRING
    ends = at + STEP if number % 2 else None
    alert = Alert(
        f"f{number}", "gpu-lost", Priority.P1, gpu, status, AlertReason.CONDITION_SEEN, at, at, ends, value=1.5,
        labels={"team": "推理"}, incident=f"i{number}",
    )  # fmt: skip
    incident = Incident(
        f"i{number}",
        Layer.HARDWARE,
        Priority.P1,
        at,
        (Hypothesis(gpu, "gpu-lost", 0.93, ()),),
        (),
        (f"f{number}",),
        (),
        at,
    )
    action = Action(
        f"a{number}", f"s{number}", ActionKind.CORDON, NODE, {"replicas": 3}, f"i{number}", False, Verdict.ALLOWED,
        DecisionReason.WITHIN_LIMITS, ActionStatus.INTENDED, at,
    )  # fmt: skip
    record = AuditRecord(at, AuditEvent.ACTION_DECIDED, f"a{number}", "within_limits", f"c{number}", detail={"n": "1"})
    return CycleCommit(
        CycleRecord(f"c{number}", at, 0.4, 10, 9, written, 2, 1, 1, ("collected 9 of 10 targets",)),
        alerts=(alert,),
        incidents=(incident,),
        actions=(action,),
        sessions=(RemediationSession(f"s{number}", f"i{number}", at, cordoned=(NODE,)),),
        messages=(Message(f"m{number}", "im", NotifyReason.OPENED, Priority.P1, f"i{number}", "GPU lost", "身体", at),),
        audit=(record,),
        plan=Plan((), (NoRecommendation(SERVICE, NoPlanReason.NO_HISTORY, at),)),
        topology=Topology.build([(gpu, NODE), (REPLICAS[0], SERVICE)], [GPUS[1]], {gpu: {"gpu_type": "H100"}}, at),
    )


def fill(store_url: str, first: int = 0, count: int = CYCLES) -> None:
    """Writes cycles from ``first`` on, with complete hours compacted and rolled up, and rows of every other table."""
    state_url, metrics_url = urls_of(store_url)
    state, metrics = open_state(state_url), open_metrics(metrics_url)
    change_log, ingest_buffer = open_change_log(state_url), open_ingest_buffer(state_url)
    try:
        for number in range(first, first + count):
            written = metrics.write(T0 + number * STEP, batches(number), [event(number)] if number % 20 == 0 else [])
            if number % 5 == 0:
                state.commit(commit(number, written))
        metrics.prune(T0 + (first + count) * STEP)
        now = T0 + (first + count) * STEP
        (claimed,) = state.claim_actions("worker", now, STEP, limit=1)
        state.finish_action(Outcome(claimed.id, OutcomeStatus.DONE, "cordoned", now, now + STEP))
        (sent,) = state.claim_messages("worker", now, STEP, limit=1)
        state.finish_message(sent.id, delivered=True, now=now)
        state.add_silence(Silence(f"quiet{first}", "gpu-lost", GPUS[0], T0 + timedelta(days=365), "ada", "planned"))
        state.save_drill(Drill(f"d{first}", "gpu-lost", GPUS[1], 7, now, now + STEP, "ada"))
        wrong = judged(
            state.alerts(limit=1)[0], Usefulness.WRONG_CAUSE, by="ada", at=now, cause="node-lost", comment="节点"
        )
        state.save_feedback([wrong])
        state.add_note(IncidentNote(f"n{first}", f"i{first}", NoteKind.COMMENT, "ada", now, "正在处理"))
        after = FollowUp(f"u{first}", f"i{first}", "replace it", "hardware", date(2026, 3, 9), "ada", now, "gpu-lost")
        state.save_follow_up(after, "ada", now)
        state.add_shift_override(ShiftOverride(f"o{first}", "model", "ada", now, now + STEP, "ada", now))
        state.save_calendar(StoredCalendar("model", "BEGIN:VCALENDAR", now, "status 404"))
        state.press_button(ButtonPress(f"nonce{first}", "ada", now, acknowledges=(f"i{first}",)))
        figures = Calibration(
            SERVICE, "H100", 250.0, 64.0, 20.0, 4, 1, 210.0, 100, "measured", "prior", "llama", "0.9", now,
            {"batch": Interval(64.0, 96.0)}, "vllm", now + timedelta(days=30),
        )  # fmt: skip
        state.save_load_test(figures)
        state.set_paused(True, "ada", now)
        arrays = {"mean": np.arange(6.0).reshape(2, 3), "seen": np.array([True, False])}
        state.save_detector_states({"seasonal": DetectorState(2, GPUS[:2], arrays)}, now)
        change = Change(f"g{first}", "image", SERVICE, now, "kubernetes", "ada", ActorKind.PERSON, "v1", "v2")
        change_log.append_changes([change])
        change_log.append_ends([ChangeEnd(f"g{first}", ChangeStatus.SUCCEEDED, now + STEP, "rolled out")])
        phase = PhaseTime(StartPhase.PULL, 41.5, "event Pulled")
        change_log.save_startups([Startup(f"u{first}", REPLICAS[0], now, node="node-1", phases=(phase,))])
        change_log.post([event(first + 1), event(first + 2)], now)
        change_log.put_document("audit", {"findings": [{"说": "a"}]}, now)
        for number in range(3):
            ingest_buffer.put(PushedBlock("remote_write", "prom", now, 10, bytes(range(256)) * (number + 1)), 1 << 20)
        ingest_buffer.release(1)
        ingest_buffer.count({"too_many": 5})
    finally:
        for store in (state, metrics, change_log, ingest_buffer):
            store.close()


def read_all(store_url: str) -> dict[str, Any]:
    """Everything that the ports return, comparable."""
    state_url, metrics_url = urls_of(store_url)
    state, metrics = open_state(state_url), open_metrics(metrics_url)
    change_log, ingest_buffer = open_change_log(state_url), open_ingest_buffer(state_url)
    end = T0 + timedelta(days=2)
    try:
        detectors = state.load_detector_states()
        return {
            "gpus": _window(metrics.read_windows(EntityKind.GPU, [POWER, ECC], T0, T0 + timedelta(hours=3), STEP)),
            "replicas": _window(metrics.read_windows(EntityKind.REPLICA, TTFT, T0, T0 + timedelta(hours=3), STEP)),
            "latest": _window(metrics.latest(EntityKind.GPU)),
            "entities": metrics.entities(EntityKind.GPU),
            "events": metrics.events(T0, end),
            "alerts": state.alerts(limit=10_000),
            "incidents": state.incidents(limit=10_000),
            "actions": state.actions(limit=10_000),
            "sessions": state.sessions(),
            "messages": state.messages(limit=10_000),
            "audit": state.audit(limit=10_000),
            "cycles": state.cycles(limit=10_000),
            "plan": json_codec.dumps(state.plan()),
            "topology": state.topology(),
            "silences": state.silences(T0),
            "drills": state.drills(),
            "feedback": state.feedback(),
            "notes": state.notes([f"i{number}" for number in range(CYCLES)]),
            "follow_ups": state.follow_ups(),
            "overrides": state.shift_overrides(T0),
            "calendars": state.calendars(),
            "load_tests": state.load_tests(),
            "paused": state.paused(),
            "detectors": {
                name: (
                    detector.version,
                    detector.entities,
                    {key: value.tolist() for key, value in detector.arrays.items()},
                )
                for name, detector in detectors.items()
            },
            "changes": change_log.changes(),
            "startups": change_log.startups(),
            "posted": change_log.posted(0, T0 - timedelta(days=1)),
            "paper": change_log.document("audit"),
            "pushed": ingest_buffer.take(0, 1_000_000),
            "left_out": ingest_buffer.counted(),
        }
    finally:
        for store in (state, metrics, change_log, ingest_buffer):
            store.close()


def _window(window: Any) -> tuple[Any, ...]:
    cells = np.ascontiguousarray(window.values).view(np.uint64)
    return window.entities, window.keys, window.times.tobytes(), cells.tobytes(), window.status.tobytes()


def all_rows(store_url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, including owners and attempts of claims."""
    tables: dict[str, list[tuple[Any, ...]]] = {}
    for name, database in migrate.databases_of(store_url, create=False).items():
        try:
            with database.reading() as connection:
                for table in introspection.of(connection, name):
                    columns = sorted(column.name for column in table.columns)
                    rows = (row._mapping for part in introspection.rows(connection, table) for row in part)
                    tables[table.name] = sorted((tuple(row[column] for column in columns) for row in rows), key=repr)
        finally:
            database.close()
    return tables


NOW = datetime(2026, 3, 2, tzinfo=UTC)


def quiet(_stage: str, _share: float) -> None:
    pass


def back_up(url: str, file: Path, *, force: bool = False) -> backups.Backup:
    return backups.backup(url, file, program="1.2.3", now=NOW, force=force, progress=quiet)


def restore_into(url: str, file: Path, *, force: bool = False) -> restores.RestoreResult:
    return restores.restore(url, file, now=NOW, force=force, progress=quiet)
