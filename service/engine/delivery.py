"""Delivers the messages of the outbox: one queue per channel, with limits, retries, fallback and receipts.

At least once, with one duplicate at most per kill and channel: a claim is a conditional UPDATE with a lease. A slow or
failing channel delays no other one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from alerts.notify import recipients
from alerts.notify.unreached import again_for
from alerts.routing.buttons import Sign, signed
from alerts.routing.fallback import end_copy, fallback_copies, is_fallback_due
from alerts.routing.merging import merge, plan_deliveries
from outrider import log
from outrider.audit import AuditEvent, AuditRecord
from outrider.clock import Clock
from outrider.errors import DeliveryError
from outrider.model import ChannelPolicy, DeliveryNote, Message, Priority, Receipt
from outrider.ports import Notifier, StateStore, ThreadingNotifier
from service.engine.rate_window import RateWindow
from service.engine.steady_time import SteadyTime

_log = log.get("delivery")
LEASE = timedelta(seconds=60)
_SENDS_WITHIN = LEASE / 2  # of a claim; then the others return, so that the send in progress ends within the lease
FIRST_RETRY = timedelta(seconds=5)
LAST_RETRY = timedelta(minutes=10)
LAST_URGENT_RETRY = timedelta(minutes=1)
GIVE_UP_AFTER = timedelta(hours=24)
WORKERS = 16  # channels at once
CHECK_AGAIN = 0.5  # seconds, for retries on other channels while one is slow
LIMIT_AGAIN = 1.0  # seconds, before a channel at its limit is tried again
MOST_CLAIMED = 20  # of a channel without a limit; a lease must outlast their delivery
MOST_MERGED = 500
PATIENCE = timedelta(seconds=10)  # a limit per second merges nothing that the next seconds can deliver
_FAILURES_IN_A_ROW = 2  # then the rest of a claim waits: each attempt may take the timeout of the channel
_MOST_OF_INCIDENT = 500
_PAUSED = "paused"


@dataclass(slots=True)
class _Lane:
    """Messages of a channel that share its limit and its failures: all, or those to the same phone numbers.

    Known since the start of the process. Times are monotonic, except ``failing_since``.
    """

    windows: tuple[RateWindow, ...]
    blocked_until: float = 0.0
    failing_since: datetime | None = None
    sent_at: float = -math.inf

    def free(self, now: float) -> int | None:
        """The number of messages that may be sent now; None: any number."""
        slots = [count for window in self.windows if (count := window.free(now)) is not None]
        return min(slots, default=None)

    def wait(self, now: float) -> float:
        """Seconds until another message may be sent."""
        return max(window.wait(now) for window in self.windows)

    def is_full(self, now: float) -> bool:
        """True if nothing may be sent now, without a pause that its messages should know of."""
        return self.free(now) == 0 and self.blocked_until <= now

    def record(self, now: float) -> None:
        """Counts one message."""
        self.sent_at = now
        for window in self.windows:
            window.record(now)


@dataclass(slots=True)
class _Claim:
    """The work on one claim of a channel: when it began, what had woken the run before it, and what happened since."""

    began: float
    wakes: int
    sent: int = 0
    failures: int = 0  # in a row that may be due to the channel
    error: DeliveryError | None = None

    @property
    def stopped_by(self) -> DeliveryError | None:
        """The last error, once the failures are too many for one more attempt."""
        return self.error if self.failures >= _FAILURES_IN_A_ROW else None

    def note(self, error: DeliveryError | None) -> None:
        """Counts one attempt. A requested pause is about its lane: a number that was called too often."""
        self.sent += 1
        if error is None or not error.retryable:
            self.failures = 0
        elif error.retry_after is None:
            self.failures, self.error = self.failures + 1, error

    def is_over(self, now: float, wakes: int, *, urgent: bool) -> bool:
        """True if the next message must return: its lease ends soon, or a page may have been decided meanwhile."""
        late = now - self.began >= _SENDS_WITHIN.total_seconds()
        return self.sent > 0 and (late or (wakes != self.wakes and not urgent))


class MessageDelivery:
    """Works off the messages of one store. Several may run; each message is claimed by one."""

    def __init__(
        self,
        state: StateStore,
        notifiers: Mapping[str, Notifier],
        clock: Clock,
        owner: str,
        policies: Mapping[str, ChannelPolicy] | None = None,
        *,
        sign: Sign | None = None,
        check_again: float = CHECK_AGAIN,
    ) -> None:
        """``notifiers`` and ``policies`` by channel name; a channel without a policy has no limit and no fallback.

        ``sign`` makes the links of buttons, only here, so that none is in the store; None: no button acts.
        While a slow channel delivers, messages of others are looked for every ``check_again`` seconds and on ``wake``.
        """
        self._check_again = check_again
        self._sign = sign
        self._woken: Future[None] = Future()
        self._wakes = 0
        self._state = state
        self._notifiers = notifiers
        self._clock = clock
        self._time = SteadyTime(clock)
        self._owner = owner
        self._policies = policies or {}
        self._lanes: dict[tuple[str, tuple[str, ...]], _Lane] = {}
        self._windows: dict[tuple[str, str], RateWindow] = {}

    def run_once(self) -> int:
        """Delivers the due messages of each channel once, one channel after another. Returns their number."""
        return sum(self._deliver_channel(channel) for channel in self._state.due_channels(self._time.now()))

    def wake(self) -> None:
        """Makes a run in progress look for messages now, before it sends what is not urgent. From any thread."""
        self._wakes += 1
        with suppress(InvalidStateError):  # woken already
            self._woken.set_result(None)

    def run(self, stopping: Callable[[], bool] = lambda: False) -> int:
        """Delivers messages until none is due, several channels at once. Returns their number.

        ``stopping`` ends it after the messages in progress and the urgent ones that are claimed.
        """
        delivered = 0
        running: dict[str, Future[int]] = {}
        exhausted: dict[str, float] = {}  # channels at their limit, and since when
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="deliver") as threads:
            while True:
                self._woken = Future()
                now, stops = self._clock.monotonic(), stopping()
                self._wakes += stops
                for channel in () if stops else self._state.due_channels(self._time.now()):
                    if channel not in running and now - exhausted.get(channel, -LIMIT_AGAIN) >= LIMIT_AGAIN:
                        running[channel] = threads.submit(self._deliver_channel, channel)
                if not running:
                    return delivered
                signals: list[Future[Any]] = [*running.values(), self._woken]
                wait(signals, self._check_again, FIRST_COMPLETED)
                for channel in [name for name, future in running.items() if future.done()]:
                    count = running.pop(channel).result()
                    delivered += count
                    if not count:
                        exhausted[channel] = self._clock.monotonic()

    def _deliver_channel(self, channel: str) -> int:
        """Claims and delivers due messages of a channel. Returns the number of messages that were decided on."""
        policy, claim = self._policies.get(channel, ChannelPolicy()), _Claim(self._clock.monotonic(), self._wakes)
        if not policy.per_number and self._lane(channel, ()).is_full(self._clock.monotonic()):
            return 0
        most = MOST_CLAIMED if policy.limit is None else MOST_MERGED
        claimed = self._state.claim_messages(self._owner, self._time.now(), LEASE, most, channel=channel)
        lanes = self._in_lanes(channel, self._skip_unwanted(claimed, policy), policy)
        waiting = sum(self._deliver_lane(lane, messages, policy, claim) for lane, messages in lanes)
        return len(claimed) - waiting

    def _in_lanes(
        self, channel: str, messages: Sequence[Message], policy: ChannelPolicy
    ) -> list[tuple[_Lane, list[Message]]]:
        """The messages of each lane, urgent incidents apart and first; then the lane that has waited longest."""
        if not policy.per_number:
            return [(self._lane(channel, ()), list(messages))] if messages else []
        ranks: dict[str, int] = {}
        for message in messages:
            if message.is_urgent:
                key = message.incident or message.id
                ranks[key] = min(message.rank, ranks.get(key, message.rank))
        parts: dict[tuple[int, tuple[str, ...]], list[Message]] = {}
        for message in messages:
            rank = ranks.get(message.incident or message.id, Priority.P3.rank + 1)
            parts.setdefault((rank, recipients.phones(message, ())), []).append(message)
        found = [(rank, self._lane(channel, numbers), part) for (rank, numbers), part in parts.items()]
        found.sort(key=lambda item: (item[0], item[1].sent_at))
        return [(lane, part) for _, lane, part in found]

    def _lane(self, channel: str, numbers: tuple[str, ...]) -> _Lane:
        """The lane of these phone numbers. Two lanes with a number in common share its limit."""
        known = self._lanes.get((channel, numbers))
        if known is None:
            limit = self._policies.get(channel, ChannelPolicy()).limit
            keys = [(channel, number) for number in numbers or ("",)]
            windows = tuple(self._windows.setdefault(key, RateWindow(limit)) for key in keys)
            known = self._lanes.setdefault((channel, numbers), _Lane(windows))
        return known

    def _deliver_lane(self, lane: _Lane, messages: Sequence[Message], policy: ChannelPolicy, claim: _Claim) -> int:
        """Delivers messages of a claim. Returns the number of those that wait for the limit."""
        now = self._clock.monotonic()
        if lane.blocked_until > now:
            pause, text = (
                timedelta(seconds=lane.blocked_until - now),
                f"the {messages[0].channel} channel requested a pause",
            )
            self._fail_all(messages, lane, DeliveryError(text, retryable=True, reason=_PAUSED, retry_after=pause))
            return 0
        most_sent = 0 if policy.limit is None else policy.limit.count
        merges = policy.merges and not _clears_soon(len(messages), policy)
        plan = plan_deliveries(messages, lane.free(now), most=most_sent, merges=merges)
        self._send_all(plan.batches, lane, claim)
        self._put_back(plan.waiting, lane)
        return len(plan.waiting)

    def _skip_unwanted(self, messages: Sequence[Message], policy: ChannelPolicy) -> Sequence[Message]:
        """Ends the messages that the channel does not send; they use none of its slots. Returns the others."""
        wanted = []
        for message in messages:
            if policy.accepts is None or policy.accepts(message):
                wanted.append(message)
            else:
                self._delivered([message], message, Receipt(note=DeliveryNote.NOT_NEEDED))
        return wanted

    def _send_all(self, batches: Sequence[tuple[Message, ...]], lane: _Lane, claim: _Claim) -> None:
        """Sends the batches in order. After failures in a row or a requested pause the others wait as well.

        If a page may have been decided since the claim, the others that are not urgent return for it. A lane whose
        turn has not come returns without a failure, so that it is the next one.
        """
        for index, batch in enumerate(batches):
            stopped_by = claim.stopped_by
            over = claim.is_over(self._clock.monotonic(), self._wakes, urgent=batch[0].is_urgent)
            if over or (stopped_by is not None and index == 0):
                self._put_back(_messages(batches[index:]), lane)
                return
            if stopped_by is not None:
                self._fail_all(_messages(batches[index:]), lane, stopped_by)
                return
            error = self._send(batch, lane)
            claim.note(error)
            if error is not None and error.retry_after is not None:
                self._fail_all(_messages(batches[index + 1 :]), lane, error)
                return

    def _put_back(self, messages: Sequence[Message], lane: _Lane) -> None:
        """Returns claimed messages that cannot be sent now to the outbox."""
        pause = timedelta(seconds=max(1.0, lane.wait(self._clock.monotonic())))
        now = self._time.now()
        for message in messages:
            self._state.finish_message(message.id, delivered=False, now=now, retry_at=now + pause)

    def _send(self, batch: tuple[Message, ...], lane: _Lane) -> DeliveryError | None:
        message = batch[0] if len(batch) == 1 else merge(batch)
        lane.record(self._clock.monotonic())
        try:
            receipt = self._deliver(message)
        except DeliveryError as error:
            self._fail_all(batch, lane, error)
            return error
        lane.failing_since = None
        self._delivered(batch, message, replace(receipt, merged=len(batch)))
        return None

    def _deliver(self, message: Message) -> Receipt:
        notifier = self._notifiers.get(message.channel)
        if notifier is None:
            raise DeliveryError(f"no channel is named {message.channel!r}", retryable=False, reason="no_channel")
        message = signed(message, self._sign)
        try:
            if message.incident is not None and isinstance(notifier, ThreadingNotifier):
                first = self._state.first_receipt(message.channel, message.incident)
                if first is not None:
                    return notifier.follow_up(message, first)
            return notifier.send(message)
        except DeliveryError:
            raise
        except Exception as error:  # one message must not stop the others
            _log.exception("delivery_crashed", message=message.id, channel=message.channel)
            text = f"internal error ({type(error).__name__}); report it with the engine's log"
            raise DeliveryError(text, retryable=False, reason="internal") from error

    def _delivered(self, batch: Sequence[Message], message: Message, receipt: Receipt) -> None:
        now = self._time.now()
        copies = [copy for part in batch for copy in self._end_copies(part, now)]
        if receipt.unreached:
            copies.append(again_for(message, receipt.unreached))
        self._state.deliver_messages([part.id for part in batch], receipt, now, tuple(copies))
        detail = {
            "channel": message.channel,
            "receipt": receipt.id,
            "messages": " ".join(part.id for part in batch) if len(batch) > 1 else "",
        }
        reason = receipt.note.value if receipt.note else "merged" if len(batch) > 1 else "delivered"
        self._audit(now, AuditEvent.MESSAGE_DELIVERED, message.id, reason, detail)
        _log.info(
            "message_delivered", message=message.id, channel=message.channel, reason=message.reason, count=len(batch)
        )

    def _end_copies(self, message: Message, now: datetime) -> tuple[Message, ...]:
        policy = self._policies.get(message.channel, ChannelPolicy())
        if policy.fallback is None or message.incident is None or message.is_urgent:
            return ()
        earlier = self._state.messages(incident=message.incident, limit=_MOST_OF_INCIDENT)
        copy = end_copy(message, policy, now, earlier)
        return () if copy is None else (copy,)

    def _fail_all(self, messages: Sequence[Message], lane: _Lane, error: DeliveryError) -> None:
        """Records a failure of each message, and the pause of the channel."""
        now = self._time.now()
        if error.reason != _PAUSED:
            lane.failing_since = lane.failing_since or now
            if error.retry_after is not None:
                pause = error.retry_after.total_seconds()
                lane.blocked_until = max(lane.blocked_until, self._clock.monotonic() + pause)
        for message in messages:
            self._failed(message, error, now, lane.failing_since)

    def _failed(self, message: Message, error: DeliveryError, now: datetime, failing_since: datetime | None) -> None:
        age = now - message.created_at
        retry = error.retryable and age < GIVE_UP_AFTER
        policy = self._policies.get(message.channel, ChannelPolicy())
        copies: tuple[Message, ...] = ()
        if is_fallback_due(message, policy, now, failing_since, final=not retry):
            separate = not self._policies.get(policy.fallback or "", ChannelPolicy()).merges
            copies = fallback_copies(message, policy, now, separate=separate)
        added = self._state.finish_message(
            message.id,
            delivered=False,
            now=now,
            retry_at=now + _pause(message, error, age) if retry else None,
            error=error.message,
            follow_ups=copies,
        )
        if not retry:
            self._audit(now, AuditEvent.MESSAGE_FAILED, message.id, error.reason, {"error": error.message})
        for copy in (copy for copy in copies if copy.id in added):
            detail = {"from": message.channel, "to": copy.channel, "message": copy.id, "error": error.message}
            self._audit(now, AuditEvent.FALLBACK_USED, message.id, error.reason, detail)
        _log.warning(
            "message_failed",
            message=message.id,
            channel=message.channel,
            reason=error.reason,
            retry=retry,
            fallback=policy.fallback if copies else None,
        )

    def _audit(self, at: datetime, event: AuditEvent, subject: str, reason: str, detail: Mapping[str, str]) -> None:
        texts = {name: text for name, text in detail.items() if text}
        self._state.append_audit([AuditRecord(min(at, self._clock.now()), event, subject, reason, detail=texts)])


def _messages(batches: Sequence[tuple[Message, ...]]) -> list[Message]:
    return [message for batch in batches for message in batch]


def _clears_soon(count: int, policy: ChannelPolicy) -> bool:
    """True if so many messages can be sent one by one within ``PATIENCE``."""
    return policy.limit is not None and count <= policy.limit.count * (PATIENCE // policy.limit.per)


def _pause(message: Message, error: DeliveryError, age: timedelta) -> timedelta:
    """The wait before the next attempt: 5 s, 10 s, 20 s ... since the age of the message doubles."""
    longest = LAST_URGENT_RETRY if message.is_urgent else LAST_RETRY
    return max(error.retry_after or FIRST_RETRY, min(longest, max(FIRST_RETRY, age)))
