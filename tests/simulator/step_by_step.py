"""The scheduler of one replica in plain loops, step by step: an exact reference for the engine model."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from simulator.spec.parts import EngineModel


@dataclass
class Request:
    """A request with its state. ``common`` prompt tokens are in blocks shared by its ``prefix``."""

    at: float
    prompt: int
    output: int
    cached: int = 0
    prefix: int = -1
    common: int = 0
    done: int = 0
    generated: int = 0
    held: int = 0
    decodes: bool = False
    first: float | None = None
    end: float | None = None

    @property
    def tokens(self) -> int:
        return self.prompt + self.generated


@dataclass
class StepByStep:
    """Serves requests in order of arrival; ``preemptions`` counts those sent back to the queue."""

    model: EngineModel
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    users: Counter[int] = field(default_factory=Counter)
    free: int = 0
    preemptions: int = 0

    def serve(self, requests: list[Request]) -> None:
        self.free = self.model.kv_blocks
        now, coming = 0.0, deque(requests)
        while coming or self.waiting or self.running:
            if not self.running and not self.waiting:
                now = max(now, coming[0].at + self.model.front_seconds)
            while coming and coming[0].at + self.model.front_seconds <= now:
                self.waiting.append(coming.popleft())
            now = self.step(now)

    def blocks(self, request: Request, tokens: int) -> int:
        return -(-max(tokens - request.common, 0) // self.model.block_size)

    def step(self, now: float) -> float:
        chunks, preempted = self.continue_running()
        if not preempted:
            self.admit(chunks, self.model.token_budget - sum(chunk for _, chunk in chunks))
        model, seconds = self.model, self.model.step_seconds
        for request, chunk in chunks:
            seconds += model.step_per_sequence_seconds
            if request.decodes:
                seconds += model.step_per_context_token_seconds * request.tokens
            else:
                seconds += model.prefill_per_token_seconds * chunk
                seconds += model.prefill_per_token_pair_seconds * chunk * (request.done + chunk / 2)
        now += seconds
        for request, chunk in chunks:
            request.done += chunk
            if request.done == request.tokens:
                self.token(request, now)
        return now

    def continue_running(self) -> tuple[list[tuple[Request, int]], bool]:
        """Continues running requests; preempts the newest ones if blocks are short."""
        chunks: list[tuple[Request, int]] = []
        preempted, left = False, self.model.token_budget
        for request in list(self.running):
            if request not in self.running or left == 0:
                continue
            chunk = min(request.tokens - request.done, left)
            need = self.blocks(request, request.done + chunk) - request.held
            while need > self.free and len(self.running) > 1:
                victim = self.running.pop()
                self.leave(victim)
                victim.done, victim.held, victim.decodes = 0, 0, False
                self.waiting.appendleft(victim)
                self.preemptions += 1
                preempted = True
                if victim is request:
                    break
            if request in self.running:
                self.free -= need
                request.held += need
                chunks.append((request, chunk))
                left -= chunk
        return chunks, preempted

    def admit(self, chunks: list[tuple[Request, int]], left: int) -> None:
        while self.waiting and left > 0 and len(self.running) < self.model.max_sequences:
            request = self.waiting[0]
            shared = 0 if request.prefix < 0 or self.users[request.prefix] else request.common // self.model.block_size
            if self.blocks(request, request.tokens) + shared > self.free and self.running:
                return
            self.waiting.popleft()
            self.running.append(request)
            request.done = request.cached
            chunk = min(request.tokens - request.done, left)
            request.held = self.blocks(request, request.done + chunk)
            self.free -= request.held + shared
            self.users[request.prefix] += 1
            chunks.append((request, chunk))
            left -= chunk

    def token(self, request: Request, now: float) -> None:
        request.generated += 1
        request.decodes = True
        if request.first is None:
            request.first = now
        if request.generated == request.output:
            request.end = now
            self.running.remove(request)
            self.leave(request)

    def leave(self, request: Request) -> None:
        self.free += request.held
        self.users[request.prefix] -= 1
        if request.prefix >= 0 and self.users[request.prefix] == 0:
            self.free += request.common // self.model.block_size
