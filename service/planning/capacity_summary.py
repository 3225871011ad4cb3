"""The state of a service's capacity as JSON, for the API and the commands. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outrider.documents.summaries import word
from outrider.model import Incident, NoRecommendation, Recommendation
from outrider.text.i18n import Language
from outrider.topology import Topology
from planner.capacity import summary
from service.planning import concerned


def document(
    item: Recommendation | NoRecommendation, incidents: Iterable[Incident], topology: Topology, language: Language
) -> dict[str, Any]:
    """Returns state, sentence and reason of a recommendation, with the open incidents of load of its service.

    ``topology`` has role pools as services. The reason ``why`` is null if a newer incident of load contradicts it.
    """
    load_incidents = concerned.load_incidents(incidents, item.service, topology)
    explained = summary.is_explained(item, load_incidents)
    return {
        "state": summary.state_of(item).value,
        "sentence": summary.sentence(item, load_incidents, language),
        "why": word("plan_reason", item.reason, language) if explained else None,
        "load_incidents": [incident.id for incident in load_incidents],
    }
