"""The engines of a fleet: every replica's queue, batch, gauges and counters, as arrays.

A request is a row of a table. ``scheduling`` decides the content and duration of each step from the batch, its context,
its prompts and the GPU clocks. Latencies, queue, KV-cache use and throughput follow from the steps. This module is the
interface: requests arrive, fail and leave; gauges are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from outrider.model import Floats
from simulator.engine.counters import EngineCounters
from simulator.engine.request_table import PREFILL, WAITING, RequestTable
from simulator.engine.scheduling import Scheduler
from simulator.engine.step import Limits, Parameters, StepResult
from simulator.spec.parts import EngineModel

LENGTH_RATIO = 1 / 8  # share of outputs that end at max_tokens


@dataclass(slots=True)
class RequestTotals:
    """Request totals. ``arrived`` = ``finished`` + ``failed`` + ``gave_up`` + those in the table."""

    arrived: int = 0
    finished: int = 0
    failed: int = 0
    gave_up: int = 0


def _all(value: float) -> Floats:
    return np.full(1, value)


@dataclass(slots=True)
class Conditions:
    """External conditions of the engines, each of shape (replicas,) or (1,) for all; neutral by default.

    ``slow`` stretches every step, ``prefill`` only the prompt part; ``kv`` is the usable share of the KV blocks,
    ``batch`` that of the maximum sequences. ``stalled`` replicas (bool) hang; their scheduled work is delayed by that
    time. ``transfer_failures`` per second: each is a failed KV transfer, so a prompt is recomputed.
    """

    slow: Floats = field(default_factory=lambda: _all(1.0))
    prefill: Floats = field(default_factory=lambda: _all(1.0))
    kv: Floats = field(default_factory=lambda: _all(1.0))
    batch: Floats = field(default_factory=lambda: _all(1.0))
    stalled: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=bool))
    transfer_failures: Floats = field(default_factory=lambda: _all(0.0))

    def of(self, replicas: int) -> Conditions:
        """Returns the conditions with every array of shape (replicas,)."""
        each = (self.slow, self.prefill, self.kv, self.batch, self.stalled, self.transfer_failures)
        return Conditions(*(np.broadcast_to(values, replicas) for values in each))


@dataclass(slots=True)
class Work:
    """Work of each replica in one slice, shape (replicas,), as input of its GPUs.

    ``batch`` is the mean number of decoding sequences, ``prefill_ratio`` the share of time in steps with prefill,
    ``busy_ratio`` the share in any step, ``tokens_per_second`` the generated tokens.
    """

    batch: Floats
    prefill_ratio: Floats
    busy_ratio: Floats
    tokens_per_second: Floats
    prompt_tokens_per_second: Floats


class EngineBank:
    """Every replica of a fleet. ``models[i]`` describes replica i; gauges are read after each ``step``.

    ``running``, ``waiting`` and ``kv_used_ratio`` are, as on a real page, those at the end of each engine's last step:
    arrivals during a long step are not visible.
    """

    def __init__(self, models: list[EngineModel], seed: int, patience_seconds: float) -> None:
        self.size = len(models)
        self._model = Parameters(models)
        self.max_sequences = self._model.max_sequences
        self.kv_blocks, self.block = self._model.kv_blocks, self._model.block
        self.patience = patience_seconds
        self.table = RequestTable()
        self.counters = EngineCounters(self.size)
        self.totals = RequestTotals()
        # Called for complete responses: request number in order of arrival, replica, times of first and last token.
        self.answered: Callable[[np.ndarray, np.ndarray, Floats, Floats], None] | None = None
        self.running = np.zeros(self.size)
        self.waiting = np.zeros(self.size)
        self.kv_used_ratio = np.zeros(self.size)
        self._scheduler = Scheduler(self._model, self.table, self.counters)
        self._overhang = np.zeros(self.size)  # seconds of the current step in past slices
        self._failures = np.zeros(self.size)  # fractions of transfer failures not yet counted
        self._stalled_since = np.full(self.size, np.nan)
        self._random = np.random.default_rng([seed, 2])

    @property
    def in_flight(self) -> Floats:
        """Requests accepted by each HTTP server and not yet answered, including stalled ones."""
        return np.bincount(self.table.replica[self.table.rows()], minlength=self.size).astype(np.float64)

    @property
    def step_time(self) -> Floats:
        """Current step seconds of each replica, without prompts and under neutral conditions."""
        batches, model = self._scheduler.batches, self._model
        return model.step + model.sequence * batches.size + model.context * batches.context

    def accept(
        self,
        replica: np.ndarray,
        at: Floats,
        prompt: Floats,
        computed: Floats,
        output: Floats,
        leaves: Floats | None = None,
        *,
        prefix: np.ndarray | None = None,
        common: Floats | None = None,
    ) -> None:
        """Adds new requests, in order of arrival.

        ``computed`` are the prompt tokens that the prefix cache lacks, ``leaves`` is the time at which each client
        aborts (inf: never). Running requests of the same ``prefix`` (a small number, -1 for none) share the KV blocks
        of its first ``common`` tokens (whole blocks).
        """
        columns = {"replica": replica, "at": at, "due": at + self._model.front[replica]}
        columns |= {"prompt": prompt, "cached": prompt - computed, "output": output}
        if leaves is not None:
            columns["leaves"] = leaves
        if prefix is not None and common is not None:
            columns |= {"prefix": prefix, "common": np.where(prefix >= 0, common, 0.0)}
        self.table.append(at.size, **columns)
        self.totals.arrived += int(at.size)

    def refuse(self, count: int) -> None:
        """Counts requests that reached no engine."""
        self.totals.arrived += count
        self.totals.failed += count

    def fail(self, replica: np.ndarray) -> None:
        """Counts requests (one entry each, replicas may repeat) with an immediate 500."""
        self.refuse(int(replica.size))
        ones = np.ones(replica.size)
        self.counters.add("finished_error", replica, ones)
        self.counters.add("http_5xx", replica, ones)

    def refuse_by_server(self, replica: np.ndarray) -> None:
        """Counts requests that get 503 from an HTTP server without a core; no other counter includes them."""
        self.refuse(int(replica.size))
        self.counters.add("http_5xx", replica, np.ones(replica.size))

    def reject(self, replica: np.ndarray) -> None:
        """Counts bad requests: status 400 before the scheduler, visible only in the HTTP counters."""
        self.refuse(int(replica.size))
        self.counters.add("http_4xx", replica, np.ones(replica.size))

    def abort(self, rows: np.ndarray, at: Floats, counted: bool = False) -> None:
        """Ends requests of the table before their output is complete.

        Requests aborted by clients count as 2xx responses and not as finished, as in vLLM 0.32. With ``counted``,
        requests aborted by the engine count with the reason abort.
        """
        if rows.size == 0:
            return
        table, counters = self.table, self.counters
        replica, duration = table.replica[rows], np.maximum(at - table.at[rows], 0.0)
        counters.add("http_ok", replica, np.ones(rows.size))
        counters.observe(("http", "http_fine"), replica, duration)
        if counted:
            counters.add("finished_abort", replica, np.ones(rows.size))
        self.totals.gave_up += int(rows.size)
        self._scheduler.remove(rows)
        table.release(rows)

    def drop(self, replica: int) -> int:
        """Ends the process of a replica: its requests fail, its counters restart. Returns the number of failed ones."""
        rows = self.table.rows()
        rows = rows[self.table.replica[rows] == replica]
        self._scheduler.remove(rows)
        self._scheduler.reset(replica)
        self.table.release(rows)
        self.totals.failed += int(rows.size)
        self.counters.reset(replica)
        for gauge in (self.running, self.waiting, self.kv_used_ratio, self._overhang, self._failures):
            gauge[replica] = 0.0
        self._stalled_since[replica] = np.nan
        return int(rows.size)

    def step(self, start: float, span: float, conditions: Conditions) -> Work:
        """Advances by ``span`` seconds from ``start`` (unix seconds) under ``conditions``."""
        current = conditions.of(self.size)
        self._mark_stalled(start, current.stalled)
        self._give_up(start)
        self._count_lost_transfers(span * current.transfer_failures)
        blocks = np.maximum(np.floor(self.kv_blocks * current.kv), 1.0)
        sequences = np.maximum(np.floor(self.max_sequences * current.batch), 1.0)
        done = self._scheduler.advance(
            start + span, Limits(current.slow, current.prefill, blocks, sequences, current.stalled)
        )
        self._finish(done)
        self._measure(blocks, current.stalled)
        return self._work(done, start + span, span, current.stalled)

    # --- internals ----------------------------------------------------------------------------------

    def _mark_stalled(self, now: float, stalled: np.ndarray) -> None:
        """Records replicas that start to hang; resumes those that no longer do."""
        known = ~np.isnan(self._stalled_since)
        if not (known.any() or stalled.any()):
            return
        over = known & ~stalled
        if over.any():
            self._scheduler.postpone(np.where(over, now - self._stalled_since, 0.0))
            self._stalled_since[over] = np.nan
        self._stalled_since[stalled & ~known] = now

    def _give_up(self, now: float) -> None:
        """Aborts requests without a first token after the client timeout, and those whose client leaves now."""
        table = self.table
        rows = np.flatnonzero((table.at < now - self.patience) & (table.first > now) | (table.leaves <= now))
        rows = rows[np.isfinite(table.at[rows])]  # rows in use
        self.abort(rows, np.minimum(table.leaves[rows], now))

    def _count_lost_transfers(self, due: Floats) -> None:
        if not due.any():
            return
        whole = np.floor(self._failures + due)
        self._failures += due - whole
        self._scheduler.lost_transfers += whole
        self.counters.add("kv_transfer_failures", np.arange(self.size), whole)

    def _finish(self, done: StepResult) -> None:
        """Counts complete requests."""
        table, counters = self.table, self.counters
        counters.add("generation_tokens", np.arange(self.size), done.generated)
        if not done.finished:
            return
        rows = np.concatenate([rows for rows, _ in done.finished])
        at = np.concatenate([at for _, at in done.finished])
        replica, output, arrived = table.replica[rows], table.output[rows], table.at[rows]
        first, scheduled = table.first[rows], table.scheduled[rows]
        decode, queued = np.maximum(at - first, 0.0), np.maximum(scheduled - table.due[rows], 0.0)
        observe = counters.observe
        observe(("e2e", "http", "http_fine"), replica, at - arrived)
        observe(("queue", "queue_fine"), replica, queued)
        observe(("prefill", "prefill_fine"), replica, first - scheduled)
        observe("decode", replica, decode)
        observe("inference", replica, at - scheduled)
        observe("tpot", replica, decode / np.maximum(output - 1, 1.0))
        observe("prompt_length", replica, table.prompt[rows])
        observe("computed_length", replica, table.prompt[rows] - table.cached[rows])
        observe(("output_length", "max_output_length"), replica, output)
        observe("choices", replica, np.ones(rows.size))
        observe("preempted", replica, table.preempted[rows])
        cut = self._random.random(rows.size) < LENGTH_RATIO
        counters.add("finished_length", replica, cut.astype(np.float64))
        counters.add("finished_stop", replica, (~cut).astype(np.float64))
        counters.add("http_ok", replica, np.ones(rows.size))
        self.totals.finished += int(rows.size)
        if self.answered is not None:
            self.answered(table.order[rows], replica, first, at)
        table.release(rows)

    def _measure(self, blocks: Floats, stalled: np.ndarray) -> None:
        """Sets the gauges as the engine core does: those of a stalled engine stay unchanged."""
        table, scheduler = self.table, self._scheduler
        begun = np.flatnonzero(table.state == PREFILL)
        replica = table.replica[begun]
        # Admitted for the current step: on the page they still wait, or have not arrived yet.
        fresh = (table.begin[begun] >= scheduler.clock[replica]) & np.isfinite(scheduler.step_end[replica])
        running = scheduler.batches.size + np.bincount(replica[~fresh], minlength=self.size)
        waiting = np.concatenate([np.flatnonzero(table.state == WAITING), begun[fresh]])
        waiting = waiting[table.due[waiting] <= scheduler.last_begin[table.replica[waiting]]]
        queue = np.bincount(table.replica[waiting], minlength=self.size)
        # Unusable blocks were never freed: the block pool counts them as used.
        used = np.minimum((scheduler.held_blocks(begun[~fresh]) + self.kv_blocks - blocks) / self.kv_blocks, 1.0)
        self.running = np.where(stalled, self.running, running)
        self.waiting = np.where(stalled, self.waiting, queue)
        self.kv_used_ratio = np.where(stalled, self.kv_used_ratio, used)

    def _work(self, done: StepResult, end: float, span: float, stalled: np.ndarray) -> Work:
        """Returns the work of the slice: completed steps, and the share of current steps in it."""
        scheduler = self._scheduler
        in_progress = scheduler.working() & ~stalled
        overhang = np.where(in_progress, np.maximum(end - scheduler.clock, 0.0), 0.0)
        more = overhang - self._overhang
        self._overhang = overhang
        prefill = done.prefill + np.where(np.isfinite(scheduler.step_end), more, 0.0)
        busy = np.clip((done.busy + more) / span, 0.0, 1.0)
        size = np.where(done.busy > 0, done.batch / np.maximum(done.busy, 1e-9), scheduler.batches.size)
        return Work(
            batch=size * busy,
            prefill_ratio=np.clip(prefill / span, 0.0, busy),
            busy_ratio=busy,
            tokens_per_second=done.generated / span,
            prompt_tokens_per_second=done.computed / span,
        )
