"""Lives of an engine that repairs one fault: decide, commit, dispatch; each life may end in a kill.

The state store and the journal of the cluster survive; everything else dies with the process. The fleet is the one of
``tests/remediation``. It recovers once nothing was done to it for some minutes. Diverted replicas return step by step.
With ``renames`` a restarted pod returns under another name, as that of a Deployment, and a drained node is deleted.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import alembic.context  # noqa: F401  slow to import: loaded once, before the fork of each life

from outrider import log
from outrider.clock import ManualClock
from outrider.model import Action, EntityKind, EntityRef, Outcome, OutcomeStatus
from outrider.ports import CycleCommit
from outrider.topology import Topology
from outrider.vocabulary.faults import fault as fault_of
from remediation.decide.limits import HalfOpen
from remediation.playbooks.files import packaged
from store.factory import SqlStateStore, open_state
from tests.remediation.conftest import CYCLE, T0, Fleet
from tests.support.repair_loop import RepairLoop

KILLED = 9
_RECOVERS_AFTER = timedelta(minutes=25)  # longer than a lease and every wait and timeout of a step
_PROCEDURES = ("cluster-lost",)  # no list of steps
_QUIET_CYCLES = 10  # at the end, so that an undo too many would be seen
_LONGEST = timedelta(hours=6)
_DRAIN_ATTEMPTS = 3
_IDLE, _PAUSE = timedelta(minutes=2), timedelta(seconds=45)  # after so long without an attempt, cycles are rarer
packaged()  # read once, before the fork of each life
_TRIAL = HalfOpen((0.01, 0.1), time=timedelta(seconds=30), hold=timedelta(0))
_WEIGHTS = {"chat-0": 1, "chat-1": 3}  # what skewed traffic is balanced to


class Journal:
    """What happened to the cluster, in a file: it survives the engine. Idempotent by action id, as a real one is."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal.jsonl"

    def lines(self) -> list[dict[str, Any]]:
        """Every line, oldest first."""
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def add(self, **line: Any) -> None:
        """Appends a line in one write."""
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def effects(self) -> Counter[tuple[str, str]]:
        """How often each kind of action changed each target."""
        return Counter((line["kind"], line["target"]) for line in self.lines() if "effect" in line)

    def idle_for(self, now: datetime) -> timedelta:
        """Time since the last attempt of an action, or since the start."""
        return now - max((datetime.fromisoformat(line["at"]) for line in self.lines() if "at" in line), default=T0)

    def recovered(self, now: datetime) -> bool:
        """True once nothing had been done for some minutes."""
        times = [datetime.fromisoformat(line["at"]) for line in self.lines() if "effect" in line]
        moments = [T0, *times, now]
        return any(later - earlier >= _RECOVERS_AFTER for earlier, later in itertools.pairwise(moments))


class JournalActuator:
    """Changes the journal. A drain takes several attempts."""

    def __init__(self, journal: Journal, clock: ManualClock) -> None:
        self._journal, self._clock = journal, clock

    def perform(self, action: Action) -> Outcome:
        """Performs the action once per id."""
        now = self._clock.now()
        before = [line for line in self._journal.lines() if line.get("attempt") == action.id]
        self._journal.add(attempt=action.id, at=now.isoformat())
        if any("effect" in line and line["effect"] == action.id for line in self._journal.lines()):
            return Outcome(action.id, OutcomeStatus.ALREADY, "already done", now, now)
        if action.kind == "drain" and len(before) + 1 < _DRAIN_ATTEMPTS:
            return Outcome(action.id, OutcomeStatus.IN_PROGRESS, f"attempt {len(before) + 1}", now, now)
        share = f" to {action.params['weight']:g}" if action.params.get("weight") else ""
        self._journal.add(effect=action.id, kind=f"{action.kind}{share}", target=action.target.key, at=now.isoformat())
        return Outcome(action.id, OutcomeStatus.DONE, "done", now, now)

    def requests(self, action: Action) -> tuple[()]:
        """No requests."""
        del action
        return ()


class Kills:
    """Ends the process once at each point between two steps, if it is armed."""

    def __init__(self, folder: Path, *, armed: bool) -> None:
        self._path, self._armed = folder / "kills", armed

    def point(self, name: str, keys: Iterable[str]) -> None:
        """Ends the process unless it ended here before. Nothing is flushed or closed."""
        line = f"{name} {' '.join(sorted(keys))}\n"
        if self._armed and line not in (self._path.read_text() if self._path.exists() else ""):
            with self._path.open("a") as file:
                file.write(line)
            os._exit(KILLED)


class KilledStore:
    """The state store, with a point for a kill after every write that concerns an action."""

    def __init__(self, state: SqlStateStore, kills: Kills) -> None:
        self._state, self._kills = state, kills

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def claim_actions(self, *arguments: Any, **named: Any) -> tuple[Action, ...]:
        claimed = self._state.claim_actions(*arguments, **named)
        for action in claimed:
            self._kills.point("claimed", [action.id])
        return claimed

    def defer_action(self, action_id: str, detail: str, until: datetime) -> None:
        self._state.defer_action(action_id, detail, until)
        self._kills.point("deferred", [action_id, detail])

    def finish_action(self, outcome: Outcome) -> None:
        self._kills.point("performed", [outcome.action_id])
        self._state.finish_action(outcome)
        self._kills.point("recorded", [outcome.action_id])

    def commit(self, commit: CycleCommit) -> None:
        self._state.commit(commit)
        if commit.actions:
            self._kills.point("decided", [f"{action.id}:{action.status}" for action in commit.actions])


class Life:
    """One process life of the engine."""

    def __init__(self, folder: Path, fault: str, *, kills: bool, renames: bool) -> None:
        self._journal, self._folder, self._renames = Journal(folder), folder, renames
        points = Kills(folder, armed=kills)
        state = KilledStore(open_state(f"sqlite:///{folder}/state.db"), points)
        self._clock = ManualClock(self._resume_at())
        self._fleet = Fleet(max_actions_per_hour=1000, half_open=_TRIAL)
        self._incident = _break(self._fleet, fault)
        actuator = JournalActuator(self._journal, self._clock)
        self._loop = RepairLoop(
            self._fleet, state, actuator, self._clock, approved=lambda action_id: points.point("approved", [action_id])
        )

    def _resume_at(self) -> datetime:
        """The next cycle after the last one that began: time goes on while the engine is away."""
        clock = self._folder / "clock"
        return datetime.fromisoformat(clock.read_text()) + CYCLE if clock.exists() else T0

    def live(self) -> None:
        """Runs until nothing is left to do. Raises AssertionError if that never comes."""
        quiet = 0
        while quiet < _QUIET_CYCLES:
            now = self._clock.now()
            assert now - T0 < _LONGEST, "the repair never ends"
            self._remember(now)
            recovered = self._journal.recovered(now)
            self._rename()
            self._fleet.facts = replace(self._fleet.facts, unschedulable=self._cordoned())
            if recovered:
                for entity in (*self._fleet.sick, *self._fleet.alerts):
                    self._fleet.mend(entity, resolve=self._incident)
            busy = self._loop.cycle()
            if self._journal.idle_for(now) > _IDLE:
                self._clock.advance(_PAUSE)
            quiet = 0 if busy or not recovered else quiet + 1

    def _rename(self) -> None:
        """Replaces pods that were restarted, and deletes a node that was drained. The alerts of what is gone end."""
        fleet, done = self._fleet, self._journal.effects()
        before = fleet.topology.entities
        for number, pod in enumerate(fleet.pods if self._renames else ()):
            if pod in before and (done["restart_pod", pod.key] or done["delete_stuck_pod", pod.key]):
                cordoned = fleet.nodes[number] in self._cordoned()
                fleet.replace_pod(number, ready=False, to=number + 1 if cordoned else None)
            if fleet.nodes[number] in before and done["drain", fleet.nodes[number].key]:
                fleet.remove_node(number)
        for entity in (before - fleet.topology.entities) & set(fleet.alerts):
            fleet.mend(entity, resolve=self._incident)

    def _cordoned(self) -> frozenset[EntityRef]:
        done = self._journal.effects()
        cordons = {node: done[("cordon", node.key)] - done[("uncordon", node.key)] for node in self._fleet.nodes}
        return frozenset(node for node, count in cordons.items() if count > 0)

    def _remember(self, now: datetime) -> None:
        """Replaces the time in one step: a kill must not leave half of it."""
        new = self._folder / "clock.new"
        new.write_text(now.isoformat())
        new.replace(self._folder / "clock")


def _break(fleet: Fleet, fault: str) -> str:
    """Breaks an entity of the fault's kind, and the replica that rests on it."""
    kind = fault_of(fault).entity
    known = {
        EntityKind.NODE: fleet.nodes, EntityKind.GPU: fleet.gpus, EntityKind.POD: fleet.pods,
        EntityKind.REPLICA: fleet.replicas, EntityKind.SERVICE: [fleet.service],
    }  # fmt: skip
    if kind in known:
        cause = known[kind][0]
    else:
        cause = EntityRef("c1", kind, None, f"{kind}-0")
        fleet.topology = Topology.build([*fleet.topology.edges, (cause, fleet.nodes[0])])
    incident = fleet.break_(fault, cause)
    fleet.sick.add(fleet.replicas[0])
    fleet.facts = replace(fleet.facts, ready_pods=frozenset(fleet.pods), traffic_weights={fleet.service: _WEIGHTS})
    fleet.facts = replace(fleet.facts, not_ready=frozenset({fleet.nodes[0]} if kind is EntityKind.NODE else ()))
    return incident


def automatic_faults() -> list[str]:
    """Every fault whose playbook has a step."""
    return sorted(fault for fault, playbook in packaged().items() if playbook.steps and fault not in _PROCEDURES)


def live(folder: str, fault: str, *, kills: bool, renames: bool = False) -> None:
    """One life, to its end or to a kill."""
    log.configure(level="warning")  # thousands of actions
    Life(Path(folder), fault, kills=kills, renames=renames).live()
