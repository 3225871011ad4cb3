"""Control endpoints of inference engines, by adapter, as their public sources define them. Data.

vLLM (vllm-project/vllm at 0.32: ``vllm/entrypoints/serve/dev/sleep/api_router.py``, ``.../dev/cache/api_router.py``,
``vllm/entrypoints/rl/online/api_router.py``): registered only with ``VLLM_SERVER_DEV_MODE=1``. Releases that lack
``/pause`` and ``/is_paused`` answer 404. SGLang (sgl-project/sglang, ``python/sglang/srt/entrypoints/http_server.py``).
LMDeploy (InternLM/lmdeploy, ``lmdeploy/serve/openai/api_server.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.model import ActionKind

_DEV_MODE = "start it with VLLM_SERVER_DEV_MODE=1"
_SLEEP_MODE = "start it with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode"
_PAUSE = "start it with VLLM_SERVER_DEV_MODE=1; releases without /pause cannot drain"


@dataclass(frozen=True, slots=True)
class State:
    """A readable state: ``key`` of the JSON at ``path`` equals ``done`` once the action is done."""

    path: str
    key: str
    done: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """One POST. ``hint`` is the remedy for 404.

    ``busy`` is the status while requests still run. ``confirms`` is the key of the response that is false if the engine
    did nothing. ``blocks`` means that the engine responds only once its running requests have finished.
    """

    path: str
    hint: str
    state: State | None = None
    busy: int | None = None
    confirms: str = ""
    blocks: bool = False


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The reason why an engine cannot perform an action safely, and what to do instead."""

    reason: str
    hint: str


_ASLEEP, _AWAKE = State("/is_sleeping", "is_sleeping", done=True), State("/is_sleeping", "is_sleeping", done=False)
_NO_STATE = Unsupported(
    "SGLang does not report whether its memory is released, and a second call ends its scheduler",
    "restart the pod",
)
ENGINES: Mapping[str, Mapping[ActionKind, Operation | Unsupported]] = {
    "vllm": {
        # mode=wait lets running requests finish; level 1 keeps the weights in host memory, level 2 loses them. A paused
        # engine also reports is_sleeping, so that state does not show whether it sleeps; a second call does nothing.
        ActionKind.SLEEP_ENGINE: Operation("/sleep?level=1&mode=wait", _SLEEP_MODE, blocks=True),
        ActionKind.WAKE_ENGINE: Operation("/wake_up", _SLEEP_MODE, _AWAKE),
        ActionKind.DRAIN_ENGINE: Operation("/pause?mode=wait&clear_cache=false", _PAUSE, blocks=True),
        ActionKind.RESUME_ENGINE: Operation("/resume", _PAUSE, State("/is_paused", "is_paused", done=False)),
        ActionKind.RESET_PREFIX_CACHE: Operation("/reset_prefix_cache", _DEV_MODE, confirms="success"),
    },
    "sglang": {
        ActionKind.SLEEP_ENGINE: _NO_STATE,
        ActionKind.WAKE_ENGINE: _NO_STATE,
        ActionKind.DRAIN_ENGINE: Unsupported(
            "SGLang aborts, freezes or retracts running requests when it pauses; it cannot let them finish",
            "take the replica out of rotation with shift_traffic",
        ),
        ActionKind.RESUME_ENGINE: Operation("/continue_generation", "upgrade SGLang"),
        ActionKind.RESET_PREFIX_CACHE: Operation("/flush_cache", "upgrade SGLang", busy=400),
    },
    "lmdeploy": {
        ActionKind.SLEEP_ENGINE: Operation("/sleep?level=1", "upgrade LMDeploy", _ASLEEP),
        ActionKind.WAKE_ENGINE: Operation("/wakeup", "upgrade LMDeploy", _AWAKE),
    },
}
KINDS = frozenset(kind for operations in ENGINES.values() for kind in operations)
# vLLM counts the sleep level as a gauge by state (facts: vllm:engine_sleep_state); at level 2 the weights are gone.
LEVEL_2_SAMPLE = ("vllm:engine_sleep_state", 'sleep_state="discard_all"')
