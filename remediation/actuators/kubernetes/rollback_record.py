"""The annotation of a workload that was rolled back: the revision restored, and the revisions abandoned.

The revision before a restored one is the abandoned one. Without this record a second rollback would return to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from remediation.actuators.kubernetes.ownership import Json, annotations_of

ROLLED_BACK = "outrider.io/rolled-back"


@dataclass(frozen=True, slots=True)
class RollbackRecord:
    """The newest rollback of a workload, by an action of a session.

    ``restored`` is the name of a ReplicaSet or ControllerRevision. ``abandoned`` maps such names to their numbers at
    the time: one that is rolled out again by hand has a new number, and is no longer abandoned.
    """

    action: str
    session: str
    restored: str
    abandoned: Mapping[str, int]

    def text(self) -> str:
        """Returns the value of the annotation."""
        return json.dumps(asdict(self), sort_keys=True)


def record_of(workload: Json) -> RollbackRecord | None:
    """Returns the record of a workload; None without one, or if it was edited to something else."""
    try:
        record = RollbackRecord(**json.loads(annotations_of(workload).get(ROLLED_BACK, "")))
    except (TypeError, ValueError):
        return None
    return record if isinstance(record.abandoned, dict) else None
