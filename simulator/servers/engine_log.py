"""Container logs of model servers, as the kubelet serves them, written from the journal.

Every process starts with its start-up lines; the engine lines of the journal follow (``LINES`` has the default text of
a code without one). A new process has its own log; a new pod does not have the old pod's log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.clock import from_unix
from simulator.cluster.pod import Phase, Pod
from simulator.fleet import Fleet
from simulator.journal import JournalEntry, JournalSource

MOST_LINES = 500  # of one pod
LINES = {
    "cuda_oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total capacity of "
    "79.11 GiB of which 212.50 MiB is free. Including non-PyTorch memory, this process has 78.89 GiB memory in use. Of "
    "the allocated memory 77.30 GiB is allocated by PyTorch, and 341.02 MiB is reserved by PyTorch but unallocated.",
    "memory_fragmented": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 640.00 MiB. GPU 0 has a total "
    "capacity of 79.11 GiB of which 498.00 MiB is free. Including non-PyTorch memory, this process has 78.61 GiB "
    "memory in use. Of the allocated memory 68.02 GiB is allocated by PyTorch, and 9.71 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
    "nccl_timeout": "[rank1]:[E ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=118207, OpType=ALLREDUCE, NumelIn=4194304, NumelOut=4194304, Timeout(ms)=600000) ran for 600029 "
    "milliseconds before timing out.",
    "nccl_error": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited "
    "or there was a network error, NCCL version 2.27.5",
    "weights_missing": "OSError: Error no file named model.safetensors found in directory /models/current.",
    "weights_corrupt": "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file "
    "not fully covered",
    "weights_wrong": "ValueError: There is no module or parameter named 'lm_head.weight_scale' in LlamaForCausalLM",
    "kv_cache_too_small": "ValueError: To serve at least one request with the model's max seq len (131072), 40.00 GiB "
    "KV cache is needed, which is larger than the available KV cache memory (11.36 GiB).",
    "engine_dead": "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace "
    "(above) for the root cause.",
    "cuda_error": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "gpu_missing": "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
    "kv_transfer_failed": "NIXL transfer failed for request: remote agent is unreachable (NIXL_ERR_REMOTE_DISCONNECT)",
    "invalid_logits": "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
}
_WAITING = (Phase.PENDING, Phase.PULLING)
_HEAD = "{} ERROR "
_HEADS = {"vllm": "(EngineCore_DP0 pid=278) ERROR {} [core.py:708] ", "sglang": "[{} TP0] "}


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Options of a log request; timestamps are unix seconds."""

    since: float | None = None
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    limit_bytes: int | None = None


class EngineLogs:
    """Every pod's log. Each request first reads new journal entries."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._number = 0
        self._lines: dict[int, deque[JournalEntry]] = {}
        self._slot_of = {pod.name: pod.slot for pod in fleet.pods.pods}

    def waits(self, pod: Pod) -> bool:
        """Returns True until a container has started, while there is no log."""
        return pod.phase in _WAITING or not pod.exists

    def text(self, pod: Pod, query: LogQuery) -> str:
        """Returns the log of a pod's container, or of the previous one; oldest line first."""
        self._read_journal()
        running = pod.phase is not Phase.CRASHED
        # The kubelet keeps the newest log and one before; while a container is down, the newest is the dead one's.
        begin, end = (pod.started_at, float("inf"))
        if query.previous and running:
            begin, end = pod.created_at, pod.started_at
        result = [
            (at, line)
            for at, line in (*self._start_up(pod, begin, end), *self._engine_lines(pod, begin, end))
            if query.since is None or at >= query.since
        ]
        result.sort(key=lambda pair: pair[0])
        wanted = result if query.tail is None else result[max(0, len(result) - query.tail) :]
        text = "".join(f"{_stamp(at)} {line}\n" if query.timestamps else f"{line}\n" for at, line in wanted)
        return text if query.limit_bytes is None else text.encode()[: query.limit_bytes].decode(errors="ignore")

    def _read_journal(self) -> None:
        for line in self._fleet.journal.after(self._number):
            self._number = line.number
            slot = self._slot_of.get(line.entity.name)
            if line.source is JournalSource.ENGINE and slot is not None:
                self._lines.setdefault(slot, deque(maxlen=MOST_LINES)).append(line)

    def _engine_lines(self, pod: Pod, begin: float, end: float) -> Iterator[tuple[float, str]]:
        for line in self._lines.get(pod.slot, ()):
            if begin <= line.at < end:
                head = _HEADS.get(pod.service.engine_kind, _HEAD).format(f"{from_unix(line.at):%m-%d %H:%M:%S}")
                for part in (line.text or LINES.get(line.code, line.code)).splitlines():
                    yield line.at, head + part

    def _start_up(self, pod: Pod, begin: float, end: float) -> Iterator[tuple[float, str]]:
        """Yields the start-up lines of a process."""
        kind, model = pod.service.engine_kind, pod.service.engine.model
        steps = [(begin, f"INFO {kind} serves {model}"), (begin + 3.0, f"INFO loading weights of {model}")]
        if begin == pod.started_at and pod.ready_at is not None:
            steps.append((pod.ready_at, "INFO Application startup complete."))
        for at, line in steps:
            if begin <= at < end and at <= self._fleet.at:
                yield at, f"{from_unix(at):%m-%d %H:%M:%S} {line}"


def _stamp(at: float) -> str:
    """Formats RFC 3339 with nanoseconds, as the kubelet does."""
    return f"{from_unix(at):%Y-%m-%dT%H:%M:%S.%f}000Z"
