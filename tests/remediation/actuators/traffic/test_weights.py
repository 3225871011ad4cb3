"""Apportionment of whole weights, and the record of diverted values, without a server."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from outrider.model import Action, ActionKind, EntityKind, EntityRef
from remediation.actuators.traffic.diversions import Slot, diversions_of, divert, give_up, pointer, request
from remediation.actuators.traffic.weighted_route import apportioned
from tests.support.actions import claimed_action

AT = datetime(2026, 11, 23, tzinfo=UTC)
SLOTS = ("/spec/a", "/spec/b")


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 1000), min_size=1).filter(lambda it: any(it.values())),
    st.integers(8, 5000),
)
@example({"a": 1, "b": 1, "c": 1, "d": 21}, 8)  # what is too much is taken from d twice, from no other
def test_apportioned_weights_add_up_and_are_in_proportion(weights: dict[str, int], total: int) -> None:
    found = apportioned(weights, total)
    assert sum(found.values()) == total
    whole = sum(weights.values())
    for name, weight in weights.items():
        assert (found[name] > 0) == (weight > 0)
        exact = weight * total / whole
        if exact >= 1:
            assert abs(found[name] - exact) <= len(weights)


def act(session: str, number: int) -> Action:
    target = EntityRef("c", EntityKind.REPLICA, "ns", "chat-0")
    return claimed_action(ActionKind.SHIFT_TRAFFIC, target, id_=f"act-{number}", decided_at=AT, session=session)


def applied(document: dict, action: Action, edit: object) -> dict:
    """The document after a patch: values of the spec, labels and annotations."""
    slots = slots_of(document)
    result = {"metadata": dict(document["metadata"]), "spec": dict(document["spec"])}
    for operation in request(document, "/x", slots, edit, action).body[1:]:  # type: ignore[arg-type]
        part, key = operation["path"].strip("/").split("/")
        if operation["op"] == "remove":
            del result[part][key]
        else:
            result[part][key] = operation["value"]
    return result


def slots_of(document: dict) -> dict[str, Slot]:
    return {path[-1]: Slot(path, document["spec"].get(path[-1])) for path in SLOTS}


@given(
    st.lists(st.tuples(st.sampled_from(["s1", "s2", "s3"]), st.booleans(), st.integers(0, 9)), max_size=12),
    st.integers(10, 50),
)
def test_any_order_of_sessions_ends_with_the_former_values(steps: list[tuple[str, bool, int]], former: int) -> None:
    """Sessions divert and give up in any order; once all have given up, nothing of ours is left."""
    original = {"metadata": {"resourceVersion": "1", "labels": {"team": "llm"}}, "spec": {"a": former, "b": 7}}
    document, open_sessions = original, dict[str, int]()
    for number, (session, diverts, value) in enumerate(steps):
        action = act(session, number)
        if diverts:
            document = applied(document, action, divert(document, slots_of(document), {"a": value}, action))
            open_sessions[session] = value
        elif session in open_sessions:
            document = applied(document, action, give_up(document, slots_of(document), action))
            del open_sessions[session]
        assert document["spec"] == {"a": min(open_sessions.values(), default=former), "b": 7}
    for number, session in enumerate(list(open_sessions)):
        action = act(session, 100 + number)
        document = applied(document, action, give_up(document, slots_of(document), action))
    assert document["spec"] == original["spec"]
    assert document["metadata"]["labels"] == {"team": "llm"}
    assert diversions_of(document) == {}


def test_pointers_escape_names() -> None:
    assert pointer("metadata", "labels", "a/b~c") == "/metadata/labels/a~1b~0c"
