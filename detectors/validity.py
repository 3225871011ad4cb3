"""garbled-output: answers that are empty, endlessly repeated or garbled, by the service's own count of them.

Latency says nothing here. The count is the service's, so the service is what can be named; which of its
replicas gives such answers, only the service's owner can tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, ClassVar

import numpy as np

from detectors.memory import Arrays
from detectors.remembering import Remembering
from detectors.spells import newest, silences
from detectors.verdicts import evidence, finding
from outrider import windows
from outrider.model import (
    EntityKind,
    Finding,
    Interval,
    NoVerdict,
    SignalKey,
    Window,
)
from outrider.topology import Topology

INVALID = "svc_output_invalid_ratio"
REQUESTS = "svc_requests_total"
RECENT = timedelta(minutes=2)
SCRAPES = 3
LIMIT = 0.01  # ten times what the goal of 99.9 % valid answers leaves
TIMES_USUAL = 3.0
ANSWERS = 5.0  # fewer invalid answers in two minutes than this are single prompts
USUAL_SECONDS = 6 * 3600.0


class ValidityDetector(Remembering):
    """One verdict per service that counts its invalid answers."""

    name = "validity"
    kind = EntityKind.SERVICE
    keys: tuple[SignalKey, ...] = (SignalKey(INVALID), SignalKey(REQUESTS))
    window = timedelta(minutes=5)
    state_version = 1
    defaults: ClassVar[dict[str, Any]] = {"usual": np.nan}

    def judge(
        self, window: Window, memory: Arrays, _topology: Topology, now: datetime
    ) -> Iterable[Finding | NoVerdict]:
        """A finding while the share of the last two minutes is far above the goal and above the usual."""
        columns = windows.recent(window, RECENT)
        ratio, requests = (windows.believed(window, name)[:, columns] for name in (INVALID, REQUESTS))
        known = ~np.isnan(ratio) & ~np.isnan(requests)
        bad = np.where(known, ratio * requests, 0.0).sum(axis=1)
        answers = np.where(known, requests, 0.0).sum(axis=1)
        share = np.divide(bad, answers, out=np.full_like(bad, np.nan), where=answers > 0)
        above = np.nan_to_num(ratio) >= LIMIT
        lasting = (above.sum(axis=1) >= SCRAPES) & (newest(window, window.column(INVALID)) >= LIMIT / 2)
        ill = lasting & (bad >= ANSWERS) & (share >= LIMIT) & ~(share < TIMES_USUAL * memory["usual"])
        found: list[Finding | NoVerdict] = []
        for row in np.flatnonzero(ill):
            value = float(share[row])
            one = evidence(
                INVALID, value, "answers_invalid", Interval(None, LIMIT), ratio=value, answers=float(bad[row])
            )
            since = float(window.times[columns][np.argmax(above[row])])
            entity, fault = window.entities[row], "garbled-output"
            found.append(finding(self.name, entity, fault, score=0.9, since=since, now=now, because=(one,)))
        step = window.step.total_seconds() / USUAL_SECONDS
        held = np.where(np.isnan(memory["usual"]), np.minimum(share, LIMIT), memory["usual"])
        learns = ~ill & ~np.isnan(share)
        memory["usual"] = np.where(learns, held + step * (share - held), memory["usual"])
        found.extend(silences(self.name, window.entities, window.column_status(INVALID), np.isnan(share)))
        return found
