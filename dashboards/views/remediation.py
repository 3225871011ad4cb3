"""Remediation: its state, pause and breaker, and the actions that wait for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from dashboards.client import ApiError, ApiUnreachableError
from dashboards.components import format as fmt
from dashboards.components import html
from dashboards.session import Viewer
from outrider.documents.summaries import word

_REFUSED = "remediation_refused"
WAITING, PROPOSED, EXPIRED = "waiting_approval", "proposed", "expired"
_EVIDENT = frozenset({"needs_approval", "autonomy_approve", "autonomy_recommend"})  # as the status says it


def draw_refusal() -> None:
    """Shows the API's refusal of the last change, once."""
    refusal = st.session_state.pop(_REFUSED, None)
    if refusal:
        st.html(html.note(*refusal, away=True))


def warnings(viewer: Viewer, state: dict[str, Any], as_of: str) -> list[str]:
    """One note for each reason that holds remediation; empty if none does."""
    notes = []
    if state["kill_switch"]["on"]:
        hint = viewer.localize("remediation.kill_switch_hint", file=state["kill_switch"]["file"])
        notes.append(html.note(viewer.localize("remediation.kill_switch"), hint, away=True))
    if state["breaker"]["open"]:
        counts = {name: state["breaker"][name] for name in ("unsuccessful", "performed")}
        since = fmt.when(state["breaker"]["opened_at"], as_of, viewer.language)
        hint = viewer.localize("remediation.breaker_hint", since=since, **counts)
        notes.append(html.note(viewer.localize("remediation.breaker"), hint, away=True))
    if state["paused"]:
        notes.append(html.note(viewer.localize("monitoring.paused")))
    return notes


def controls(viewer: Viewer, state: dict[str, Any]) -> None:
    """The level of autonomy, and buttons that pause, resume and reset. Each asks for confirmation."""
    level = viewer.localize(f"remediation.level_{state['autonomy']}")
    about = [level, viewer.localize("actions.dry_run") if state["dry_run"] else ""]
    with st.container(horizontal=True, vertical_alignment="center", key="o-remediation"):
        st.html(html.label(" · ".join(filter(None, about))), width="stretch")
        if state["breaker"]["open"]:
            _confirmed(viewer, "reset", "/remediation/breaker/reset")
        if state["paused"]:
            _confirmed(viewer, "resume", "/remediation/resume")
        else:
            _confirmed(viewer, "pause", "/remediation/pause")


def pending(viewer: Viewer, actions: Sequence[dict[str, Any]]) -> None:
    """Each waiting or recommended action with its buttons."""
    for action in actions:
        decision(viewer, action)


def decision(viewer: Viewer, action: dict[str, Any]) -> None:
    """One action: approve and reject if it waits, request if it is recommended or expired; else nothing."""
    expired = action["status"] == "refused" and action["reason"] == EXPIRED
    if action["status"] not in (WAITING, PROPOSED) and not expired:
        return
    key, path = action["id"], f"/actions/{action['id']}"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.html(_about(viewer, action), width="stretch")
        if action["status"] == WAITING:
            change_button(viewer, viewer.localize("actions.approve"), f"yes-{key}", f"{path}/approve", main=True)
            change_button(viewer, viewer.localize("actions.reject"), f"no-{key}", f"{path}/reject")
        else:
            change_button(viewer, viewer.localize("actions.request"), f"ask-{key}", f"{path}/request")


def _about(viewer: Viewer, action: dict[str, Any]) -> str:
    """Kind, target, approvals so far, and the objections of the guards."""
    kind, target = word("action_kind", action["kind"], viewer.language), fmt.entity(action["target"], viewer.language)
    parts = [f"{kind} · {target}", word("action_status", action["status"], viewer.language)]
    if action["requested_by"]:
        parts.append(viewer.localize("actions.requested_by", by=action["requested_by"]))
    if action["status"] == WAITING and action["approvals_needed"] > 1:
        counts = {"n": len(action["approvals"]), "needed": action["approvals_needed"]}
        parts.append(viewer.localize("actions.approvals", by=", ".join(action["approvals"]) or fmt.DASH, **counts))
    notes = [_objection(viewer, answer) for answer in action["objections"] if answer["reason"] not in _EVIDENT]
    return html.label(" · ".join([*parts, *notes]))


def _objection(viewer: Viewer, answer: dict[str, Any]) -> str:
    reason = word("decision_reason", answer["reason"], viewer.language)
    about = answer["compared"] or answer["detail"]
    return f"{reason} ({about})" if about else reason


def change_button(viewer: Viewer, label: str, key: str, path: str, *, main: bool = False) -> None:
    """A button for a change; without the token it shows what is missing."""
    st.button(
        label,
        key=key,
        type="primary" if main else "secondary",
        disabled=not viewer.may_change,
        help=None if viewer.may_change else viewer.localize("token.needed"),
        on_click=_change,
        args=(viewer, path),
    )


def _confirmed(viewer: Viewer, name: str, path: str) -> None:
    """A change behind a second click."""
    with st.popover(viewer.localize(f"remediation.{name}"), width="content"):
        st.html(html.label(viewer.localize(f"remediation.{name}_confirm")))
        change_button(viewer, viewer.localize(f"remediation.{name}_yes"), f"remediation-{name}", path, main=True)


def _change(viewer: Viewer, path: str) -> None:
    try:
        viewer.client.post(path)
    except (ApiError, ApiUnreachableError) as error:
        st.session_state[_REFUSED] = (error.message, error.hint)
