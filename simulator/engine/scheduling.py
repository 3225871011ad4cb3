"""Continuous batching step by step for all replicas at once, in the order of vLLM's scheduler.

Each step gives one token to every decoding sequence and the rest of the token budget to prompts. A partly computed
prompt comes first, then waiting requests in order of arrival, while a seat and KV blocks for the whole prompt are free.

Steps without prompts are alike, so a replica runs as many of them at once as fit before its next event: an arrival, a
complete sequence, full blocks, or the end of the slice. Each replica has its own clock. A step that ends after the
slice stays in progress, so results do not depend on the slice length.
"""

from __future__ import annotations

import numpy as np

from outrider.model import Floats
from simulator.engine.batching import Batches
from simulator.engine.counters import EngineCounters
from simulator.engine.prefix_cache import Prefixes
from simulator.engine.request_table import DECODE, DONE, PREFILL, WAITING, RequestTable, group_sum
from simulator.engine.step import Limits, Parameters, Plan, StepResult

MOST_STEPS = 1e9


class Scheduler:
    """The steps of every replica. Arrays are of shape (replicas,)."""

    def __init__(self, parameters: Parameters, table: RequestTable, counters: EngineCounters) -> None:
        replicas = parameters.step.size
        self._model, self._table, self._counters = parameters, table, counters
        self.batches = Batches(replicas, table, parameters.block)
        self.prefixes = Prefixes(replicas)
        self.clock = np.zeros(replicas)  # start of the next or current step
        self.step_end = np.full(replicas, np.inf)  # end of the current step with prompts
        self.last_begin = np.full(replicas, -np.inf)  # start of the last completed step
        self.lost_transfers = np.zeros(replicas)
        self._part = np.full(replicas, -1)  # row with a partly computed prompt
        self._chunk = np.zeros(replicas)  # its tokens in the current step
        self._prompt_blocks = np.zeros(replicas)  # reserved for prompts in prefill
        self._step_seconds = np.zeros(replicas)
        self._mark = np.zeros(replicas, dtype=bool)
        self._step_tokens = np.zeros(replicas)
        self._completing = np.empty(0, dtype=np.int64)  # rows whose prompt ends with the current step
        self._returned = np.full(replicas, -1)  # newest row preempted in this slice
        self._blocked = np.zeros(replicas, dtype=bool)  # no admission until a sequence completes
        self._short = np.zeros(replicas, dtype=bool)  # blocks ran out for the next step
        self._queue = np.empty(0, dtype=np.int64)
        self._head = self._tail = np.zeros(replicas, dtype=np.int64)

    def advance(self, end: float, limits: Limits) -> StepResult:
        """Runs every step that ends by ``end``."""
        self._limits, self._done = limits, StepResult(self.clock.size)
        self._sort_waiting()
        working = (self.batches.size > 0) | (self._part >= 0) | np.isfinite(self.step_end) | (self._head < self._tail)
        active = np.flatnonzero(working & ~limits.stalled)
        while active.size:
            active = self._advance_to_event(active, end)
        return self._done

    def working(self) -> np.ndarray:
        """Returns True for replicas with a step in progress."""
        return np.asarray((self.batches.size > 0) | (self._part >= 0) | np.isfinite(self.step_end))

    def remove(self, rows: np.ndarray) -> None:
        """Removes requests from queue and batch, between slices; their rows stay in the table."""
        table = self._table
        self.batches.remove(rows[table.state[rows] == DECODE])
        computed = rows[table.state[rows] == PREFILL]
        if computed.size:
            replica = table.replica[computed]
            cut = computed[self._part[replica] == computed]
            self._part[table.replica[cut]], self._prompt_blocks[table.replica[cut]] = -1, 0.0
            self._completing = self._completing[~np.isin(self._completing, computed)]
        self.prefixes.leave(table, rows[(table.state[rows] == PREFILL) | (table.state[rows] == DECODE)])

    def reset(self, replica: int) -> None:
        """Resets a replica to a new process; its requests have been removed."""
        self.batches.reset(replica)
        self._part[replica], self._prompt_blocks[replica] = -1, 0.0
        self.step_end[replica], self.last_begin[replica] = np.inf, -np.inf
        self.lost_transfers[replica] = 0.0

    def postpone(self, late: Floats) -> None:
        """Delays the end of the steps in progress."""
        self.clock += late
        self.step_end += late

    def held_blocks(self, begun: np.ndarray) -> Floats:
        """Returns KV blocks after the last completed step, including ``begun``, the rows in prefill in that step."""
        table, replica = self._table, self._table.replica[begun]
        own = np.maximum(table.done[begun] - table.common[begun], 0.0)
        prompts = group_sum(replica, np.ceil(own / self._model.block[replica]), self.clock.size)
        everyone = np.arange(self.clock.size)
        return np.asarray(self.batches.blocks(everyone, -1) + prompts + self.prefixes.blocks, dtype=np.float64)

    # --- until the next event -----------------------------------------------------------------------

    def _sort_waiting(self) -> None:
        """Sorts waiting requests by replica and arrival."""
        table = self._table
        rows = np.flatnonzero(table.state == WAITING)
        replica = table.replica[rows]
        self._queue = rows[np.argsort((replica << 40) + table.order[rows])]
        count = np.bincount(replica, minlength=self.clock.size)
        self._tail = np.cumsum(count)
        self._head = self._tail - count
        self._returned.fill(-1)
        self._blocked[:] = self._short

    def _head_due(self, replica: np.ndarray) -> Floats:
        """Returns the time at which the scheduler gets the first waiting request, inf without one."""
        if self._queue.size == 0:
            due = np.full(replica.size, np.inf)
        else:
            head = self._head[replica]
            first = self._queue[np.minimum(head, self._queue.size - 1)]
            due = np.where(head < self._tail[replica], self._table.due[first], np.inf)
        return np.where(self._returned[replica] >= 0, -np.inf, due)

    def _advance_to_event(self, replica: np.ndarray, end: float) -> np.ndarray:
        """Advances each of these replicas to its next event. Returns those with more to do before ``end``."""
        ends = self.step_end[replica]
        self._complete(replica[ends <= end])
        replica = replica[(ends <= end) | np.isinf(ends)]
        due = self._head_due(replica)
        idle = (self.batches.size[replica] == 0) & (self._part[replica] < 0)
        self.clock[replica] = np.where(idle & (due < end), np.maximum(self.clock[replica], due), self.clock[replica])
        going = (self.clock[replica] < end) & ~(idle & (due >= end))
        replica, due = replica[going], due[going]
        if replica.size == 0:
            return replica
        room = self._make_room(replica)
        known = self._blocked[replica].copy()
        steps = self._run(replica, room, due, end)
        clock = self.clock[replica]
        seats = self.batches.size[replica] < self._limits.sequences[replica]
        admits = (due <= clock) & seats & ~self._blocked[replica]
        self._begin(replica[(room > steps) & (clock < end) & (admits | (self._part[replica] >= 0))])
        ends = self.step_end[replica]
        return np.asarray(replica[(ends <= end) | np.isinf(ends) & ((steps > 0) | (self._blocked[replica] & ~known))])

    def _make_room(self, replica: np.ndarray) -> np.ndarray:
        """Returns the number of steps that the KV blocks allow; if 0, preempts the newest sequences."""
        model, batches = self._model, self.batches
        while True:
            self._hold_parts(replica)
            size, block = batches.size[replica], model.block[replica]
            limit = self._limits.blocks[replica] - self._prompt_blocks[replica] - self.prefixes.blocks[replica]
            # A sequence uses less than one block more than its tokens fill, so this many steps always fit.
            sure = ((limit - size) * block - batches.context[replica]) / np.maximum(size, 1)
            room = np.where(size > 0, np.floor(sure), MOST_STEPS)
            tight = np.flatnonzero(room < block)
            if tight.size:
                exact = batches.steps_that_fit(replica[tight], limit[tight])
                room[tight] = np.maximum(room[tight], exact)
            over = (room < 1) & (size + (self._part[replica] >= 0) > 1)
            if not over.any():
                return np.asarray(np.maximum(room, 1.0))
            self._preempt(replica[over])

    def _preempt(self, replica: np.ndarray) -> None:
        """Preempts the newest sequence of each replica: frees its KV blocks, to be recomputed."""
        table = self._table
        rows = self._part[replica].copy()
        seated = np.flatnonzero(rows < 0)
        newest = rows[seated] = self.batches.newest(replica[seated])
        table.generated[newest] = self.batches.tokens(newest) - table.prompt[newest]
        table.last[newest] = self.clock[replica[seated]]
        self.batches.remove(newest)
        self._part[replica], self._prompt_blocks[replica] = -1, 0.0
        self.prefixes.leave(table, rows)
        table.state[rows], table.begin[rows] = WAITING, np.inf
        table.below[rows], self._returned[replica] = self._returned[replica], rows
        table.preempted[rows] += 1
        self._blocked[replica] = self._short[replica] = True
        self._counters.add("preemptions", replica, np.ones(replica.size))

    def _run(self, replica: np.ndarray, room: Floats, due: Floats, end: float) -> Floats:
        """Runs steps without prompts up to the next event of each replica; returns their number."""
        model, batches = self._model, self.batches
        size = batches.size[replica]
        base, sequence, context = model.steps[:, replica] * self._limits.slow[replica]
        step = base + sequence * size + context * batches.context[replica]
        # Each step reads ``size`` tokens more than the last: n steps take n (step - grows) + n^2 grows.
        grows = 0.5 * context * size
        left = end - self.clock[replica]
        steps = np.minimum(np.floor(_steps_in(left, step, grows) + 1e-9), room)
        admits = (size < self._limits.sequences[replica]) & ~self._blocked[replica]
        until_due = np.ceil(_steps_in(np.clip(due - end + left, 0.0, left), step, grows) - 1e-9)
        steps = np.where(admits, np.minimum(steps, until_due), steps)
        until_complete = batches.next_end[replica] - batches.steps[replica]
        steps = np.where(model.fine[replica] | ~admits, np.minimum(steps, until_complete), steps)
        steps = np.where((size == 0) | (self._part[replica] >= 0), 0.0, steps)
        if self._short.any():  # no admission in a step with preemption
            steps = np.where(self._short[replica], np.minimum(steps, 1.0), steps)
            self._blocked[replica[self._short[replica] & (steps > 0)]] = False
            self._short[replica[steps > 0]] = False
        go = np.flatnonzero(steps > 0)
        some = steps[go]
        self._run_steps(replica[go], some.astype(np.int64), step[go] + grows[go] * (some - 1), grows[go], size[go])
        return steps

    def _run_steps(self, replica: np.ndarray, steps: np.ndarray, step: Floats, grows: Floats, size: np.ndarray) -> None:
        """Runs ``steps`` steps without prompts, of ``step`` seconds on average."""
        done = self._done
        self.batches.advance(replica, steps)
        self.clock[replica] += steps * step
        self.last_begin[replica] = self.clock[replica] - step - grows * (steps - 1)
        self._step_seconds[replica] = step
        rows, ago = self.batches.complete(replica)
        where = self._table.replica[rows]
        self._finish(rows, where, self.clock[where] - ago * self._step_seconds[where])
        # Sequences that complete before the last of these steps make no tokens in the rest.
        generated = steps * size - np.bincount(where, ago, self.clock.size)[replica]
        done.busy[replica] += steps * step
        done.batch[replica] += step * generated
        done.generated[replica] += generated
        self._counters.observe(("itl", "step"), replica, step, generated, steps)
        self._counters.observe("iteration", replica, size, steps)

    # --- steps with prompts -------------------------------------------------------------------------

    def _begin(self, replica: np.ndarray) -> None:
        """Starts a step that computes prompts on each of these replicas, if anything can be admitted."""
        if replica.size == 0:
            return
        model, batches = self._model, self.batches
        size = batches.size[replica].astype(np.float64)
        plan = Plan(replica, np.maximum(model.budget[replica] - size, 1.0), self._limits.sequences[replica] - size)
        self._continue_prompts(plan)
        self._admit(plan)
        go = np.flatnonzero(plan.tokens > 0)
        where = replica[go]
        prompts = model.prompt[where] * plan.tokens[go] + model.pair[where] * plan.pairs[go]
        seconds = (
            model.step[where]
            + model.sequence[where] * (size[go] + plan.prompts[go])
            + model.context[where] * batches.context[where]
            + prompts * self._limits.prefill[where]
        )
        self.step_end[where] = self.clock[where] + seconds * self._limits.slow[where]
        self._step_tokens[where] = plan.tokens[go]
        self._completing = np.concatenate([self._completing, *plan.completing])

    def _continue_prompts(self, plan: Plan) -> None:
        """Continues the partly computed prompts first."""
        has = np.flatnonzero(self._part[plan.replica] >= 0)
        if has.size:
            rows = self._part[plan.replica[has]]
            self._part[plan.replica[has]] = -1
            self._compute(plan, has, rows)

    def _compute(self, plan: Plan, place: np.ndarray, rows: np.ndarray) -> None:
        """Assigns budget to these prompts; ``place`` is the index in the plan (no repeats)."""
        table, where = self._table, plan.replica[place]
        rest = table.prompt[rows] + table.generated[rows] - table.done[rows]
        chunk = np.minimum(rest, plan.left[place])
        plan.tokens[place] += chunk
        plan.pairs[place] += chunk * (table.done[rows] + chunk / 2)
        plan.left[place] -= chunk
        plan.seats[place] -= 1
        plan.prompts[place] += 1
        cut = chunk < rest
        self._part[where[cut]], self._chunk[where[cut]] = rows[cut], chunk[cut]
        plan.completing.append(rows[~cut])

    def _admit(self, plan: Plan) -> None:
        """Admits waiting requests, one per replica at a time, while budget, seats and KV blocks last."""
        table = self._table
        plan.used[:] = self._most_used(plan.replica)
        go = np.flatnonzero(~self._blocked[plan.replica])
        while go.size:
            go = go[(plan.left[go] > 0) & (plan.seats[go] > 0)]
            rows = self._first(plan.replica[go])
            go, rows = go[rows >= 0], rows[rows >= 0]
            if go.size == 0:
                return
            where = plan.replica[go]
            own = np.ceil((table.prompt[rows] + table.generated[rows] - table.common[rows]) / self._model.block[where])
            need = own + self.prefixes.missing(table, rows, self._model.block)
            fits = self._fits(plan, go, need)
            self._blocked[where[~fits]] = True
            go, rows, where, own, need = go[fits], rows[fits], where[fits], own[fits], need[fits]
            self._start_prefill(rows, where)
            self._prompt_blocks[where] += own
            plan.used[go] += need
            self._compute(plan, go, rows)

    def _most_used(self, replica: np.ndarray) -> Floats:
        """Returns an upper bound of KV blocks in the next step: at most one partly filled block per sequence."""
        batches, size = self.batches, self.batches.size[replica]
        tokens = batches.context[replica] / self._model.block[replica]
        return np.asarray(tokens + size + self._prompt_blocks[replica] + self.prefixes.blocks[replica])

    def _fits(self, plan: Plan, place: np.ndarray, need: Floats) -> np.ndarray:
        """Returns True if there are enough blocks; an idle engine admits any request."""
        where = plan.replica[place]
        limit = self._limits.blocks[where]
        unsure = np.flatnonzero((plan.used[place] + need > limit) & ~plan.exact[place])
        if unsure.size:
            some = where[unsure]
            held = self.batches.blocks(some, 0) + self._prompt_blocks[some] + self.prefixes.blocks[some]
            plan.used[place[unsure]], plan.exact[place[unsure]] = held, True
        alone = (self.batches.size[where] == 0) & (plan.tokens[place] == 0)
        return np.asarray((plan.used[place] + need <= limit) | alone)

    def _first(self, replica: np.ndarray) -> np.ndarray:
        """Returns the next row of each replica, -1 if none has arrived."""
        if self._queue.size == 0:
            return np.asarray(self._returned[replica])
        head = self._head[replica]
        row = self._queue[np.minimum(head, self._queue.size - 1)]
        there = (head < self._tail[replica]) & (self._table.due[row] <= self.clock[replica])
        returned = self._returned[replica]
        return np.where(returned >= 0, returned, np.where(there, row, -1))

    def _start_prefill(self, rows: np.ndarray, replica: np.ndarray) -> None:
        table = self._table
        again = self._returned[replica] >= 0
        self._returned[replica[again]] = table.below[rows[again]]
        self._head[replica[~again]] += 1
        lost = self.lost_transfers[replica] >= 1
        self.lost_transfers[replica[lost]] -= 1
        table.cached[rows[lost]] = 0.0
        table.done[rows] = table.cached[rows]
        table.state[rows] = PREFILL
        table.begin[rows] = self.clock[replica]
        table.scheduled[rows] = np.minimum(table.scheduled[rows], self.clock[replica])
        self.prefixes.enter(table, rows, self._model.block)

    def _complete(self, replica: np.ndarray) -> None:
        """Completes steps with prompts: one more token for each sequence in the batch and each complete prompt."""
        if replica.size == 0:
            return
        table, batches, done = self._table, self.batches, self._done
        self._mark.fill(False)
        self._mark[replica] = True
        mine = self._mark[table.replica[self._completing]]
        rows, self._completing = self._completing[mine], self._completing[~mine]
        size, seconds = batches.size[replica], self.step_end[replica] - self.clock[replica]
        self.last_begin[replica] = self.clock[replica]
        self.clock[replica], self.step_end[replica] = self.step_end[replica], np.inf
        self._prompt_blocks[replica] = 0.0
        cut = replica[self._part[replica] >= 0]
        table.done[self._part[cut]] += self._chunk[cut]
        batches.advance(replica, np.ones(replica.size, dtype=np.int64))
        self._first_tokens(rows)
        batches.add(table.replica[rows], rows)
        over, _ = batches.complete(replica)
        self._finish(over, table.replica[over], self.clock[table.replica[over]])
        done.busy[replica] += seconds
        done.prefill[replica] += seconds
        done.batch[replica] += seconds * size
        done.generated += np.bincount(table.replica[rows], minlength=self.clock.size)
        done.generated[replica] += size
        done.computed[replica] += self._step_tokens[replica]
        self._counters.observe(("itl", "step"), replica, seconds, size, np.ones(replica.size))
        self._counters.observe("iteration", replica, size + self._step_tokens[replica])

    def _hold_parts(self, replica: np.ndarray) -> None:
        """Reserves KV blocks for the next chunk of partly computed prompts; no other prompt is in progress."""
        table = self._table
        cut = replica[self._part[replica] >= 0]
        rows = self._part[cut]
        total = table.prompt[rows] + table.generated[rows]
        next_end = np.minimum(total, table.done[rows] + self._model.budget[cut] - self.batches.size[cut])
        own = np.maximum(next_end - table.common[rows], 0.0)
        self._prompt_blocks[cut] = np.ceil(own / self._model.block[cut])

    def _first_tokens(self, rows: np.ndarray) -> None:
        table, counters = self._table, self._counters
        table.state[rows] = DECODE
        again = np.isfinite(table.last[rows])
        resumed, fresh = rows[again], rows[~again]
        counters.observe("itl", table.replica[resumed], self.clock[table.replica[resumed]] - table.last[resumed])
        replica = table.replica[fresh]
        table.first[fresh] = self.clock[replica]
        counters.observe("ttft", replica, table.first[fresh] - table.at[fresh])
        counters.add("prompt_tokens", replica, table.prompt[fresh])
        counters.add("cached_tokens", replica, table.cached[fresh])

    def _finish(self, rows: np.ndarray, replica: np.ndarray, at: Floats) -> None:
        if rows.size:
            self._table.state[rows] = DONE
            self._blocked[replica] = False
            self.prefixes.leave(self._table, rows)
            self._done.finished.append((rows, at))


def _steps_in(seconds: Floats, step: Floats, grows: Floats) -> Floats:
    """Returns the number of steps in ``seconds``; the first takes ``step``, each later one 2 ``grows`` more."""
    first = step - grows
    return np.asarray(2.0 * seconds / (first + np.sqrt(first * first + 4.0 * grows * seconds)), dtype=np.float64)
