"""Lives of an engine that runs a procedure: the degrade ladder, or the switch of a lost cluster and its return.

As in ``remediation_life``, only the store and the journal survive a kill. The world follows the journal: a surge lasts
until the deepest level is reached, a cluster stays lost until all of its services are switched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from outrider import log
from outrider.clock import ManualClock
from outrider.model import (
    Action,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    Layer,
    Outcome,
    OutcomeStatus,
    Priority,
)
from outrider.topology import Topology
from remediation.decide.limits import FleetFacts
from remediation.decide.service_entry import ServiceEntry
from remediation.decide.service_load import LoadSample, ServiceLoad
from remediation.procedures import files
from remediation.procedures.bundle import Procedures
from remediation.procedures.degrade_ladder import Ladders, ServiceOptions
from store.factory import open_state
from tests.remediation.conftest import CYCLE, SERVICE, T0, Fleet
from tests.service.engine.remediation_life import Journal, KilledStore, Kills
from tests.support.repair_loop import RepairLoop

LADDER, CLUSTER_LOST = "degrade-ladder", "cluster-lost"
PROCEDURES = (LADDER, CLUSTER_LOST)
LEVELS = tuple(level.number for level in files.ladder().levels if not level.limits_prompts)  # no prompt here is long
DEEPEST = LEVELS[-1]
HOME, STANDBY = (EntityRef(cluster, EntityKind.SERVICE, "llm", "chat") for cluster in ("home", "standby"))
_OPTIONS = ServiceOptions(classes=frozenset({"vip", "standard", "offline"}), fallback_model="chat-8b")
_LADDERS = Ladders(files.ladder(), services={"chat": _OPTIONS})
_OBSERVED = 40  # cycles of values in the facts: 10 minutes
_STAYS_LOST = timedelta(minutes=3)  # after the switch
_QUIET_CYCLES = 10
_LONGEST = timedelta(hours=4)


class ProcedureActuator:
    """Records levels and shares in the journal, once per id."""

    def __init__(self, journal: Journal, clock: ManualClock) -> None:
        self._journal, self._clock = journal, clock

    def perform(self, action: Action) -> Outcome:
        """Performs the action unless its id is in the journal."""
        now = self._clock.now()
        if any(line.get("effect") == action.id for line in self._journal.lines()):
            return Outcome(action.id, OutcomeStatus.ALREADY, "already done", now, now)
        params = {key: action.params[key] for key in ("level", "cluster", "share") if key in action.params}
        self._journal.add(effect=action.id, kind=action.kind, target=action.target.key, at=now.isoformat(), **params)
        return Outcome(action.id, OutcomeStatus.DONE, "done", now, now)

    def requests(self, action: Action) -> tuple[()]:
        """No requests."""
        del action
        return ()


class ProcedureFleet(Fleet):
    """A fleet whose facts follow the journal. No playbook takes part."""

    def __init__(self, journal: Journal, procedures: Procedures) -> None:
        super().__init__(max_actions_per_hour=1000)
        self._journal, self._procedures = journal, procedures

    def decide(self, **changed: Any) -> Any:
        """Decides with the procedures alone."""
        return super().decide(**{"procedures": self._procedures, "playbooks": {}, **changed})

    def observe(self, now: datetime) -> None:
        """Takes over the values of the last minutes."""
        raise NotImplementedError

    def is_over(self, now: datetime) -> bool:
        """True once nothing is left to do."""
        raise NotImplementedError

    def done(self, kind: str, target: EntityRef) -> list[dict[str, Any]]:
        """The effects of one kind on a target, oldest first."""
        lines = self._journal.lines()
        return [line for line in lines if "effect" in line and (line["kind"], line["target"]) == (kind, target.key)]


class SurgedFleet(ProcedureFleet):
    """A surge that no level ends, until the deepest one is reached."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal, Procedures(_LADDERS))
        self._incident = self.break_("traffic-surge", SERVICE)

    def observe(self, now: datetime) -> None:
        """Sets the load of the service."""
        end = self._end()
        samples = [_surged(at) if end is None or at <= end else _calm(at) for at in _times(now)]
        load = {SERVICE: ServiceLoad(tuple(samples))}
        self.facts = replace(self.facts, ready_replicas={SERVICE: 8}, needed_replicas={}, load=load)
        if self.is_over(now):
            self.mend(SERVICE, resolve=self._incident)

    def is_over(self, now: datetime) -> bool:
        """True at level 0 after the surge."""
        del now
        return any(line["level"] == 0 for line in self.done("restore_service", SERVICE))

    def _end(self) -> datetime | None:
        reached = [line["at"] for line in self.done("degrade_service", SERVICE) if line["level"] == DEEPEST]
        return datetime.fromisoformat(reached[0]) if reached else None


class LostClusterFleet(ProcedureFleet):
    """A cluster that is lost until its service was switched for some minutes. Its standby is one replica short."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal, Procedures(_LADDERS, files.switch()))
        self.topology = Topology.build(
            (EntityRef(service.cluster, EntityKind.REPLICA, "llm", f"chat-{number}"), service)
            for service in (HOME, STANDBY)
            for number in range(4)
        )
        whole = EntityRef(HOME.cluster, EntityKind.CLUSTER, None, HOME.cluster)
        cause = Hypothesis(whole, "cluster-lost", 0.95)
        self.incidents["inc"] = Incident(
            "inc", Layer.PLATFORM, Priority.P0, T0, (cause,), (), (), (), T0, services=("chat",)
        )

    def observe(self, now: datetime) -> None:
        """Sets probes, values and replicas of both clusters."""
        back, away = self._back(), self._away()
        up = [(at, back is not None and at > back) for at in _times(now)]
        home = ServiceEntry(tuple(up), tuple((at, 1.0) for at, alive in up if alive), up[-1][1], 50.0)
        standby = [(at, True) for at, _ in up]
        twin = ServiceEntry(tuple(standby), tuple((at, 1.0) for at, _ in up), True, 50.0 * away)
        load = ServiceLoad(tuple(LoadSample(at, 0.0, 50.0 * away, 0.0, 0.0) for at in _times(now)))
        ready = {HOME: 4 if up[-1][1] else 0, STANDBY: 3}
        self.facts = FleetFacts(entries={HOME: home, STANDBY: twin}, ready_replicas=ready, load={STANDBY: load})
        if up[-1][1]:
            self.incidents["inc"] = replace(self.incidents["inc"], resolved_at=now)

    def is_over(self, now: datetime) -> bool:
        """True once all of the traffic is back, and the standby is at level 0."""
        del now
        returned = any(line["share"] == 1.0 for line in self.done("switch_cluster", HOME) if line["cluster"] == "home")
        return returned and any(line["level"] == 0 for line in self.done("restore_service", STANDBY))

    def _back(self) -> datetime | None:
        switched = [line["at"] for line in self.done("switch_cluster", HOME) if line["cluster"] == STANDBY.cluster]
        return datetime.fromisoformat(switched[0]) + _STAYS_LOST if switched else None

    def _away(self) -> float:
        """The share of the standby."""
        newest = next(reversed(self.done("switch_cluster", HOME)), None)
        if newest is None:
            return 0.0
        return float(newest["share"] if newest["cluster"] == STANDBY.cluster else 1.0 - newest["share"])


def _times(now: datetime) -> Sequence[datetime]:
    return [now - CYCLE * cycle for cycle in reversed(range(_OBSERVED))]


def _surged(at: datetime) -> LoadSample:
    return LoadSample(at, 5000.0 + 30.0 * (at - T0).total_seconds(), 80.0, 0.0, 0.0)


def _calm(at: datetime) -> LoadSample:
    return LoadSample(at, 0.0, 40.0, 0.0, 0.0)


def live(folder: str, procedure: str, *, kills: bool) -> None:
    """One life, to its end or to a kill. Raises AssertionError if the end never comes."""
    log.configure(level="warning")  # thousands of actions
    path, journal = Path(folder), Journal(Path(folder))
    points, file = Kills(path, armed=kills), path / "clock"
    clock = ManualClock(datetime.fromisoformat(file.read_text()) + CYCLE if file.exists() else T0)
    state = KilledStore(open_state(f"sqlite:///{path}/state.db"), points)
    fleet = SurgedFleet(journal) if procedure == LADDER else LostClusterFleet(journal)
    loop = RepairLoop(fleet, state, ProcedureActuator(journal, clock), clock)
    quiet = 0
    while quiet < _QUIET_CYCLES:
        now = clock.now()
        assert now - T0 < _LONGEST, "the procedure never ends"
        new = path / "clock.new"
        new.write_text(now.isoformat())
        new.replace(file)
        fleet.observe(now)
        busy = loop.cycle()
        quiet = 0 if busy or not fleet.is_over(now) else quiet + 1
