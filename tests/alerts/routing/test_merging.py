"""Which messages a limited channel sends one by one, which as one, and which wait."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from alerts.routing.merging import MOST_LISTED, merge, plan_deliveries
from outrider.model import Fact, Message, NotifyReason, Priority

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def note(name, priority=Priority.P2, reason=NotifyReason.OPENED, **fields):
    message = Message(
        name, "im", reason, priority, f"inc-{name}", f"title {name}", "b", NOW,
        link=f"https://outrider.example/{name}", is_page=priority is Priority.P0,
    )  # fmt: skip
    return replace(message, **fields)


def names(plan):
    return [[message.id for message in batch] for batch in plan.batches]


def test_everything_is_sent_one_by_one_below_the_limit():
    messages = [note(str(number)) for number in range(5)]
    assert names(plan_deliveries(messages, 20, most=20)) == [["0"], ["1"], ["2"], ["3"], ["4"]]
    assert len(plan_deliveries(messages * 100, None).batches) == 500


def test_urgent_messages_come_first_and_the_others_become_one():
    messages = [*(note(str(number)) for number in range(30)), note("p1", Priority.P1), note("p0", Priority.P0)]
    plan = plan_deliveries(messages, 10, most=20)
    assert names(plan)[:2] == [["p0"], ["p1"]]
    assert len(plan.batches) == 3
    assert len(plan.batches[2]) == 30
    assert plan.waiting == ()


def test_a_quarter_of_the_limit_is_kept_for_urgent_messages():
    messages = [note(str(number)) for number in range(3)]
    assert names(plan_deliveries(messages, 5, most=20)) == []
    assert names(plan_deliveries([*messages, note("p0", Priority.P0)], 5, most=20)) == [["p0"]]
    assert len(plan_deliveries(messages, 6, most=20).batches) == 1


def test_of_too_many_urgent_messages_the_last_are_merged():
    messages = [note(f"{number:02}", Priority.P1) for number in range(12)]
    plan = plan_deliveries(messages, 5, most=5)
    assert [len(batch) for batch in plan.batches] == [1, 1, 1, 1, 8]


def test_a_channel_that_cannot_merge_lets_the_rest_wait():
    messages = [*(note(str(number)) for number in range(4)), *(note(f"u{n}", Priority.P0) for n in range(3))]
    plan = plan_deliveries(messages, 2, most=2, merges=False)
    assert names(plan) == [["u0"], ["u1"]]
    assert len(plan.waiting) == 5


def test_the_messages_of_one_incident_keep_their_order():
    opened = note("a", Priority.P1, incident="inc")
    raised = note("b", Priority.P0, NotifyReason.PRIORITY_RAISED, incident="inc", created_at=NOW + timedelta(seconds=1))
    other = note("c", Priority.P1)
    assert names(plan_deliveries([raised, other, opened], None)) == [["a"], ["b"], ["c"]]


@given(
    ranks=st.lists(st.sampled_from(list(Priority)), max_size=40),
    most=st.integers(1, 25),
    used=st.integers(0, 25),
    merges=st.booleans(),
)
def test_no_message_is_lost_and_no_limit_exceeded(ranks, most, used, merges):
    slots = max(0, most - used)
    messages = [note(str(number), rank) for number, rank in enumerate(ranks)]
    plan = plan_deliveries(messages, slots, most=most, merges=merges)
    planned = [message.id for batch in plan.batches for message in batch] + [m.id for m in plan.waiting]
    assert sorted(planned) == sorted(message.id for message in messages)
    assert len(plan.batches) <= slots
    assert merges or all(len(batch) == 1 for batch in plan.batches)
    if slots and merges:
        assert not any(message.is_urgent for message in plan.waiting), "urgent messages never wait for a free slot"


def test_a_merged_message_counts_lists_and_links_all():
    messages = [note("x", Priority.P2), note("y", Priority.P0), note("z", None, NotifyReason.REPORT)]
    merged = merge(messages)
    assert merged.title == "3 notifications at once: 1 P0, 1 P2, 1"
    assert [line[:9] for line in merged.body.splitlines()[1:]] == ["- title y", "- title x", "- title z"]
    assert "https://outrider.example/y" in merged.body
    assert (merged.priority, merged.is_page, merged.incident) == (Priority.P0, True, None)
    assert merged.also == ("inc-x", "inc-y", "inc-z")
    assert merge(messages).id == merged.id, "a second attempt is recognizable"


def test_a_merged_message_has_facts_for_an_sms_and_the_reason_of_its_most_urgent_part():
    ended = note(
        "a", Priority.P0, NotifyReason.RESOLVED, facts={Fact.WHERE: "node-1", Fact.SINCE: "2026-05-04 12:00 UTC"}
    )
    again = note(
        "b", Priority.P0, NotifyReason.REPEAT, facts={Fact.WHERE: "node-2", Fact.SINCE: "2026-05-04 11:00 UTC"}
    )
    merged = merge([ended, again])
    assert merged.reason is NotifyReason.REPEAT, "a call for the reminder is not lost to the end of another incident"
    assert merged.facts[Fact.WHAT] == "2 notifications at once: 2 P0"
    assert merged.facts[Fact.WHERE] == "node-1, node-2"
    assert merged.facts[Fact.SINCE] == "2026-05-04 11:00 UTC"


def test_a_merged_message_of_very_many_is_short_and_names_their_number():
    merged = merge([replace(note(str(number)), language="zh") for number in range(400)])
    assert len(merged.body.splitlines()) == MOST_LISTED + 2
    assert "370" in merged.body.splitlines()[-1]
    assert merged.title.startswith("400 条通知")
