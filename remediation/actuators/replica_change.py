"""A decided number of replicas, compared with the number that is live when the action is performed."""

from __future__ import annotations

from outrider.errors import ActuationError
from outrider.model import Action
from outrider.text.i18n import fill


def is_reached(action: Action, live: int | None, replicas: int, *, floor: bool = False) -> bool:
    """True if nothing is left to change: a scale-out never lowers the live number, a scale-in never raises it.

    ``replicas`` is the decided number within its bounds. ``floor``: both are least numbers of an autoscaler, and a
    scale-in may still raise one up to the decided number.
    """
    if live is None or "current" not in action.params:
        return live == replicas
    if not _shrinks(action):
        return live >= replicas
    return live == replicas if floor else live <= replicas


def check_basis(action: Action, live: int | None, name: str, *, floor: bool = False) -> None:
    """Raises ActuationError for a scale-in whose live number is not the one that its guards judged."""
    if live is None or not _shrinks(action):
        return
    current = int(action.params["current"])
    if live > current or (live < current and not floor):
        text = "{name} has {n} [replica|replicas], and the scale-in was decided for {current}"
        sentence = fill(text, name=name, n=live, current=current)
        raise ActuationError(sentence, retryable=False, hint="the next plan starts from the new number")


def _shrinks(action: Action) -> bool:
    current = action.params.get("current")
    return current is not None and int(action.params["replicas"]) < int(current)
