"""Continuous batching, for all replicas at once.

A request is a row of a table. In each slice of time (half a second) every replica admits waiting
requests first come first served while a batch slot and KV blocks are free, prefills them one after
another in chunks of the token budget, and makes one token a step for every request that decodes. A
step's duration follows from the batch, its context and the clock of the GPUs, so that latencies,
queue, KV use and throughput are consequences. Times inside a slice are exact; slots and blocks freed
in a slice are filled at the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from outrider.model import Floats
from simulator.counters import EngineCounters
from simulator.spec import EngineModel
from simulator.table import RUNNING, WAITING, RequestTable, group_sum, positions_in_group, running_maximum


@dataclass(slots=True)
class Ledger:
    """Where every request went. ``arrived`` = ``finished`` + ``failed`` + ``gave_up`` + those in the table."""

    arrived: int = 0
    finished: int = 0
    failed: int = 0
    gave_up: int = 0


def _all(value: float) -> Floats:
    return np.full(1, value)


@dataclass(slots=True)
class Conditions:
    """What bends the engines, each of shape (replicas,) or (1,) for all alike; neutral by default.

    ``slow`` stretches every step, ``prefill`` only what prompts add to it; ``kv`` is the share of the KV
    blocks that can be used, ``batch`` that of the most sequences at once. ``stalled`` ones (boolean) stand
    still; once they go on, what they had scheduled happens that much later. ``transfer_failures`` per
    second: each is a KV block set that did not arrive, so a prompt is computed from its beginning.
    """

    slow: Floats = field(default_factory=lambda: _all(1.0))
    prefill: Floats = field(default_factory=lambda: _all(1.0))
    kv: Floats = field(default_factory=lambda: _all(1.0))
    batch: Floats = field(default_factory=lambda: _all(1.0))
    stalled: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=bool))
    transfer_failures: Floats = field(default_factory=lambda: _all(0.0))

    def of(self, replicas: int) -> Conditions:
        """The same with every array of shape (replicas,)."""
        each = (self.slow, self.prefill, self.kv, self.batch, self.stalled, self.transfer_failures)
        return Conditions(*(np.broadcast_to(values, replicas) for values in each))


@dataclass(slots=True)
class Work:
    """What each replica did in one slice, shape (replicas,): what its GPUs feel.

    ``batch`` is the mean number decoding, ``prefill_ratio`` the share of time with prefill in the
    step, ``busy_ratio`` the share with any step, ``tokens_per_second`` generated.
    """

    batch: Floats
    prefill_ratio: Floats
    busy_ratio: Floats
    tokens_per_second: Floats
    prompt_tokens_per_second: Floats


class EngineBank:
    """Every replica of a fleet. ``models[i]`` describes replica i; gauges are read after each ``step``."""

    def __init__(self, models: list[EngineModel], seed: int, patience_seconds: float) -> None:
        def column(field: str) -> Floats:
            return np.array([getattr(model, field) for model in models], dtype=np.float64)

        self.size = len(models)
        self.step_base = column("step_seconds")
        self.step_sequence = column("step_per_sequence_seconds")
        self.step_context = column("step_per_context_token_seconds")
        self.prefill_token = column("prefill_per_token_seconds")
        self.max_sequences = column("max_sequences")
        self.budget = column("token_budget")
        self.block = column("block_size")
        self.kv_blocks = column("kv_blocks")
        self.patience = patience_seconds
        self.table = RequestTable()
        self.counters = EngineCounters(self.size)
        self.ledger = Ledger()
        self.running = np.zeros(self.size)
        self.waiting = np.zeros(self.size)
        self.kv_used_ratio = np.zeros(self.size)
        self.step_time = self.step_base.copy()
        self._usable_blocks = self.kv_blocks
        self._usable_sequences = self.max_sequences
        self._free_at = np.zeros(self.size)  # when each replica's prefill pipe is free
        self._carry = np.zeros(self.size)  # fractions of steps not yet counted
        self._failures = np.zeros(self.size)  # fractions of transfer failures not yet counted
        self._stalled_since = np.full(self.size, np.nan)
        self._random = np.random.default_rng([seed, 2])

    @property
    def in_flight(self) -> Floats:
        """Requests accepted by each HTTP server and not yet answered, stalled ones too."""
        return np.bincount(self.table.replica, minlength=self.size).astype(np.float64)

    def accept(
        self,
        replica: np.ndarray,
        at: Floats,
        prompt: Floats,
        computed: Floats,
        output: Floats,
        leaves: Floats | None = None,
    ) -> None:
        """New requests, in order of arrival. ``leaves``: when each client goes away, inf for those that stay."""
        self.table.append(replica, at, prompt, computed, output, leaves)
        self.ledger.arrived += int(at.size)

    def refuse(self, count: int) -> None:
        """Requests that reached no engine."""
        self.ledger.arrived += count
        self.ledger.failed += count

    def fail(self, replica: np.ndarray) -> None:
        """Requests (one entry each, replicas may repeat) that their engine answers 500 at once."""
        self.refuse(int(replica.size))
        one = np.ones(replica.size)
        self.counters.add("finished_error", replica, one)
        self.counters.add("http_5xx", replica, one)

    def refuse_by_server(self, replica: np.ndarray) -> None:
        """Requests that the HTTP server answers 503 because there is no core behind it: nothing else counts them."""
        self.refuse(int(replica.size))
        self.counters.add("http_5xx", replica, np.ones(replica.size))

    def reject(self, replica: np.ndarray) -> None:
        """Bad requests, answered 400 before the scheduler sees them: they show in the HTTP counters only."""
        self.refuse(int(replica.size))
        self.counters.add("http_4xx", replica, np.ones(replica.size))

    def abort(self, rows: np.ndarray, at: Floats, counted: bool = False) -> None:
        """Requests of the table end before their answer does.

        Clients that leave count as 2xx answers and nowhere among the finished ones, as vLLM 0.32 has it;
        ``counted``: those that the engine itself gives up count with the reason abort.
        """
        if rows.size == 0:
            return
        table, counters = self.table, self.counters
        replica, took = table.replica[rows], np.maximum(at - table.at[rows], 0.0)
        counters.add("http_ok", replica, np.ones(rows.size))
        counters.observe("http_fine", replica, took)
        counters.observe("http", replica, took)
        if counted:
            counters.add("finished_abort", replica, np.ones(rows.size))
        self.ledger.gave_up += int(rows.size)
        self._remove(rows)

    def _remove(self, rows: np.ndarray) -> None:
        stays = np.ones(len(self.table), dtype=bool)
        stays[rows] = False
        self.table.keep(stays)

    def drop(self, replica: int) -> int:
        """The process of a replica ends: its requests fail, its counters start anew. How many failed."""
        lost = self.table.replica == replica
        count = int(lost.sum())
        self.table.keep(~lost)
        self.ledger.failed += count
        self.counters.reset(replica)
        for gauge in (self.running, self.waiting, self.kv_used_ratio, self._free_at, self._carry):
            gauge[replica] = 0.0
        self._stalled_since[replica] = np.nan
        return count

    def release(self, replica: int, now: float, stalled_seconds: float) -> None:
        """A stalled replica goes on at ``now``: what it had scheduled happens that much later."""
        late = np.zeros(self.size)
        late[replica] = stalled_seconds
        self._postpone(now, late)
        self._stalled_since[replica] = np.nan

    def _postpone(self, now: float, late: Floats) -> None:
        """What was due after ``now - late`` happens ``late`` seconds later, in each replica where that is above 0."""
        by = late[self.table.replica]
        rows = (by > 0) & (self.table.state == RUNNING)
        for times in (self.table.begin, self.table.ready):
            due = rows & (times > now - by)
            times[due] += by[due]
        self._free_at[late > 0] = np.maximum(self._free_at[late > 0], now)

    def _mark_stalled(self, now: float, stalled: np.ndarray) -> None:
        """Note when replicas begin to stand still; let those go on that do so no longer."""
        known = ~np.isnan(self._stalled_since)
        if not (known.any() or stalled.any()):
            return
        over = known & ~stalled
        if over.any():
            self._postpone(now, np.where(over, now - self._stalled_since, 0.0))
            self._stalled_since[over] = np.nan
        self._stalled_since[stalled & ~known] = now

    def step(self, start: float, span: float, conditions: Conditions) -> Work:
        """Advance by ``span`` seconds from ``start`` (unix seconds) under ``conditions``."""
        given = conditions.of(self.size)
        slow, stalled = given.slow, given.stalled
        self._usable_blocks = np.maximum(np.floor(self.kv_blocks * given.kv), 1.0)
        self._usable_sequences = np.maximum(np.floor(self.max_sequences * given.batch), 1.0)
        self._mark_stalled(start, stalled)
        self._give_up(start)
        self._admit(start, span, given)
        work = self._decode(start, span, slow, stalled)
        self._preempt(stalled)
        self._measure(start + span, stalled)
        return work

    def _give_up(self, now: float) -> None:
        """Clients leave: those without a first token once their patience is over, others when they want to."""
        table = self.table
        gone = ((table.at < now - self.patience) & (table.first > now)) | (table.leaves <= now)
        if gone.any():
            rows = np.flatnonzero(gone)
            self.abort(rows, np.minimum(table.leaves[rows], now))

    def _needed_blocks(self, rows: np.ndarray) -> Floats:
        tokens = self.table.prompt[rows] + self.table.generated[rows] + 1
        return np.asarray(np.ceil(tokens / self.block[self.table.replica[rows]]), dtype=np.float64)

    def _admit(self, start: float, span: float, given: Conditions) -> None:
        table = self.table
        waiting = np.flatnonzero((table.state == WAITING) & ~given.stalled[table.replica])
        if waiting.size == 0:
            return
        order = waiting[np.argsort(table.replica[waiting], kind="stable")]
        replica = table.replica[order]
        running = np.flatnonzero(table.state == RUNNING)
        on = table.replica[running]
        batch = np.bincount(on, minlength=self.size)
        free_blocks = self._usable_blocks - group_sum(on, self._needed_blocks(running), self.size)
        rank, blocks = positions_in_group(replica, self._needed_blocks(order))
        fits = (rank < (self._usable_sequences - batch)[replica]) & (blocks <= free_blocks[replica])
        self._lose_transfers(order[fits], rank[fits], span, given)
        self._prefill(order[fits], start, given, batch)

    def _lose_transfers(self, rows: np.ndarray, rank: np.ndarray, span: float, given: Conditions) -> None:
        """KV blocks that should have come from elsewhere did not: their prompts are computed in full."""
        if not given.transfer_failures.any():
            return
        due = self._failures + given.transfer_failures * span
        hit = rows[rank < due[self.table.replica[rows]] - 1e-9]
        self.table.computed[hit] = np.maximum(self.table.computed[hit], self.table.prompt[hit])
        whole = np.floor(due)
        self._failures = due - whole
        self.counters.add("kv_transfer_failures", np.arange(self.size), whole)

    def _prefill(self, rows: np.ndarray, start: float, given: Conditions, batch: np.ndarray) -> None:
        """Queue admitted rows (grouped by replica, in order) for prefill, one after another."""
        table, replica = self.table, self.table.replica[rows]
        chunk = np.maximum(self.budget - batch, 256.0)[replica]
        steps = np.maximum(1.0, np.ceil(table.computed[rows] / chunk))
        step = (self.step_time * given.slow)[replica]
        token = (self.prefill_token * given.slow * given.prefill)[replica]
        duration = table.computed[rows] * token + steps * step
        # A request joins at the end of the step that is under way.
        rest = self._random.random(rows.size) * step * (batch > 0)[replica]
        ready = np.maximum(table.at[rows], start) - start + rest
        _, spent = positions_in_group(replica, duration)
        idle_from = ready - (spent - duration)
        free = np.maximum(self._free_at - start, 0.0)[replica]
        ends = spent + np.maximum(free, running_maximum(replica, idle_from))
        table.state[rows] = RUNNING
        table.begin[rows] = start + ends - duration
        table.ready[rows] = start + ends
        table.steps[rows] = steps
        fresh = rows[~table.counted[rows]]
        table.queued[fresh] = table.begin[fresh] - table.at[fresh]
        table.first[fresh] = table.ready[fresh]
        np.maximum.at(self._free_at, replica, start + ends)

    def _decode(self, start: float, span: float, slow: Floats, stalled: np.ndarray) -> Work:
        table = self.table
        rows = np.flatnonzero((table.state == RUNNING) & ~stalled[table.replica])
        replica = table.replica[rows]
        begin, ready = table.begin[rows] - start, table.ready[rows] - start
        overlap = np.clip(np.minimum(ready, span) - np.maximum(begin, 0.0), 0.0, None)
        share = overlap / np.maximum(ready - begin, 1e-9)
        prefill_steps = group_sum(replica, share * table.steps[rows], self.size)
        prefill_busy = np.minimum(group_sum(replica, overlap, self.size), span)
        prefill_tokens = group_sum(replica, share * table.computed[rows], self.size)

        active = np.clip(span - np.maximum(ready, 0.0), 0.0, None)
        batch = group_sum(replica, active, self.size) / span
        context = group_sum(replica, active * (table.prompt[rows] + table.generated[rows]), self.size) / span
        self.step_time = self.step_base + self.step_sequence * batch + self.step_context * context
        plain_steps = np.where(batch > 0, (span - prefill_busy) / (self.step_time * slow), 0.0)
        steps = plain_steps + prefill_steps
        self._note_first_tokens(rows, start, span)
        made = self._make_tokens(rows, start, span, steps / span, active)
        self._count_steps(batch, plain_steps, prefill_steps, prefill_busy, prefill_tokens, made, slow)
        decode_busy = np.where(batch > 0, np.minimum(1.0, batch), 0.0)
        return Work(
            batch=batch,
            prefill_ratio=prefill_busy / span,
            busy_ratio=np.maximum(decode_busy, prefill_busy / span),
            tokens_per_second=made / span,
            prompt_tokens_per_second=prefill_tokens / span,
        )

    def _note_first_tokens(self, rows: np.ndarray, start: float, span: float) -> None:
        table, counters = self.table, self.counters
        fresh = rows[(table.ready[rows] <= start + span) & ~table.counted[rows]]
        table.first[fresh] = table.ready[fresh]
        table.counted[fresh] = True
        table.generated[fresh] = 1.0
        replica = table.replica[fresh]
        counters.observe("ttft", replica, table.first[fresh] - table.at[fresh])
        counters.add("generation_tokens", replica, np.ones(fresh.size))
        counters.add("prompt_tokens", replica, table.prompt[fresh])
        counters.add("cached_tokens", replica, table.prompt[fresh] - table.computed[fresh])

    def _make_tokens(self, rows: np.ndarray, start: float, span: float, speed: Floats, active: Floats) -> Floats:
        """Give every decoding row its tokens; finish those that are complete. Whole tokens per replica."""
        table = self.table
        replica = table.replica[rows]
        before = table.generated[rows]
        after = np.minimum(before + active * speed[replica], table.output[rows])
        table.generated[rows] = after
        made = np.floor(after + 1e-9) - np.floor(before + 1e-9)
        per_replica = group_sum(replica, made, self.size)
        self.counters.add("generation_tokens", replica, made)
        over = (after >= table.output[rows]) & table.counted[rows]
        done = rows[over]
        with np.errstate(divide="ignore", invalid="ignore"):
            took = (table.output[done] - before[over]) / speed[table.replica[done]]
        since = np.maximum(table.ready[done], start)
        self._finish(done, np.minimum(since + np.nan_to_num(took, posinf=0.0), start + span))
        return per_replica

    def _finish(self, rows: np.ndarray, at: Floats) -> None:
        table, counters = self.table, self.counters
        if rows.size == 0:
            return
        replica, output = table.replica[rows], table.output[rows]
        arrived, queued, first = table.at[rows], table.queued[rows], table.first[rows]
        decode = np.maximum(at - first, 0.0)
        for name, values in (
            ("e2e", at - arrived),
            ("http_fine", at - arrived),
            ("http", at - arrived),
            ("queue", queued),
            ("queue_fine", queued),
            ("prefill", first - arrived - queued),
            ("prefill_fine", first - arrived - queued),
            ("decode", decode),
            ("inference", at - arrived - queued),
            ("tpot", decode / np.maximum(output - 1, 1.0)),
            ("prompt_length", table.prompt[rows]),
            ("output_length", output),
            ("max_output_length", output),
            ("computed_length", table.computed[rows]),
            ("choices", np.ones(rows.size)),
            ("preempted", table.preempted[rows]),
        ):
            counters.observe(name, replica, values)
        cut = output % 8 == 0  # about one answer in eight ends at max_tokens
        counters.add("finished_length", replica, cut.astype(np.float64))
        counters.add("finished_stop", replica, (~cut).astype(np.float64))
        counters.add("http_ok", replica, np.ones(rows.size))
        self.ledger.finished += int(rows.size)
        self._remove(rows)

    def _count_steps(
        self,
        batch: Floats,
        plain: Floats,
        prefill: Floats,
        prefill_busy: Floats,
        prefill_tokens: Floats,
        made: Floats,
        slow: Floats,
    ) -> None:
        """Iterations and inter-token gaps: plain steps, and the longer ones that carry prefill."""
        everyone = np.arange(self.size)
        exact = plain + prefill + self._carry
        whole = np.floor(exact)
        self._carry = exact - whole
        mixed = np.minimum(np.round(prefill), whole)
        with np.errstate(divide="ignore", invalid="ignore"):
            per_prefill = np.nan_to_num(prefill_tokens / prefill)
            long_gap = np.nan_to_num(prefill_busy / prefill)
            mixed_ratio = np.nan_to_num(prefill / (plain + prefill))
        self.counters.observe("iteration", everyone, np.maximum(np.round(batch), 1.0), whole - mixed)
        self.counters.observe("iteration", everyone, np.round(batch + per_prefill), mixed)
        self.counters.observe("step", everyone, self.step_time * slow, whole - mixed)
        self.counters.observe("step", everyone, long_gap, mixed)
        in_mixed = np.round(made * mixed_ratio)
        self.counters.observe("itl", everyone, self.step_time * slow, made - in_mixed)
        self.counters.observe("itl", everyone, long_gap, in_mixed)

    def _preempt(self, stalled: np.ndarray) -> None:
        """Where KV blocks ran out, the newest requests go back to the queue and are computed again."""
        table = self.table
        rows = np.flatnonzero((table.state == RUNNING) & ~stalled[table.replica])
        need = self._needed_blocks(rows)
        used = group_sum(table.replica[rows], need, self.size)
        excess = used - self._usable_blocks
        if not (excess > 0).any():
            return
        order = np.lexsort((-table.at[rows], table.replica[rows]))
        rows, need = rows[order], need[order]
        replica = table.replica[rows]
        _, freed = positions_in_group(replica, need)
        out = (excess[replica] > 0) & (freed - need < excess[replica])
        victims = rows[out]
        table.state[victims] = WAITING
        table.computed[victims] = table.prompt[victims] + np.floor(table.generated[victims])
        table.preempted[victims] += 1
        table.begin[victims] = table.ready[victims] = np.inf
        self.counters.add("preemptions", replica[out], np.ones(victims.size))

    def _measure(self, now: float, stalled: np.ndarray) -> None:
        """Gauges as the engine core last set them: those of a stalled engine stay as they were."""
        table = self.table
        running = (table.state == RUNNING) & (table.begin <= now)
        held = np.flatnonzero(table.state == RUNNING)
        used = group_sum(table.replica[held], self._needed_blocks(held), self.size)
        everyone = np.bincount(table.replica, minlength=self.size)
        in_batch = np.bincount(table.replica[running], minlength=self.size)
        self.running = np.where(stalled, self.running, in_batch)
        self.waiting = np.where(stalled, self.waiting, everyone - in_batch)
        # Blocks that cannot be used were never given back: the block pool counts them as used.
        taken = used + self.kv_blocks - self._usable_blocks
        self.kv_used_ratio = np.where(stalled, self.kv_used_ratio, np.minimum(taken / self.kv_blocks, 1.0))
