"""Exposition pages of real exporters, one file each, written from the fleet's state; ``ENGINE_PAGES`` by engine kind.

Must not import ``faults``.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.exporters.cadvisor import CadvisorPages
from simulator.exporters.dcgm import DcgmPages
from simulator.exporters.engines import EnginePages
from simulator.exporters.istio import IstioPage
from simulator.exporters.kube_state import KubeStatePage
from simulator.exporters.mindie import MindiePages
from simulator.exporters.node import NodePages
from simulator.exporters.npu import NpuPages
from simulator.exporters.probe import ProbePages
from simulator.exporters.sdk import SdkPages
from simulator.exporters.sglang import SglangPages
from simulator.exporters.tgi import TgiPages
from simulator.exporters.triton import TritonPages
from simulator.exporters.vllm import VllmPages

ENGINE_PAGES: dict[str, Callable[[], EnginePages]] = {
    "vllm": VllmPages,
    "sglang": SglangPages,
    "tgi": TgiPages,
    "triton": TritonPages,
    "mindie": MindiePages,
}

__all__ = [
    "ENGINE_PAGES",
    "CadvisorPages",
    "DcgmPages",
    "EnginePages",
    "IstioPage",
    "KubeStatePage",
    "NodePages",
    "NpuPages",
    "ProbePages",
    "SdkPages",
]
