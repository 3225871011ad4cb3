"""The pages real exporters publish, written from the fleet's state. One file an exporter.

``ENGINE_PAGES`` has what writes the page of each kind of engine.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.pages.cadvisor import CadvisorPages
from simulator.pages.dcgm import DcgmPages
from simulator.pages.engines import EnginePages
from simulator.pages.istio import IstioPage
from simulator.pages.kube_state import KubeStatePage
from simulator.pages.mindie import MindiePages
from simulator.pages.node import NodePages
from simulator.pages.npu import NpuPages
from simulator.pages.probe import ProbePages
from simulator.pages.sdk import SdkPages
from simulator.pages.sglang import SglangPages
from simulator.pages.tgi import TgiPages
from simulator.pages.triton import TritonPages
from simulator.pages.vllm import VllmPages

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
