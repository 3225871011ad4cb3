"""Device models of a fleet, with their physical constants."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import UsageError


@dataclass(frozen=True, slots=True)
class GpuType:
    """A device model. ``clock_megahertz`` is the boost clock while it is cool.

    ``decode_speed`` and ``prefill_speed`` are relative to an H100 of the same group size: decoding is bound by memory
    bandwidth, prefill by dense FP16 arithmetic. ``link_bytes_per_second`` is the bandwidth to its peers (NVLink, HCCS),
    0 without such a link; ``pcie_bytes_per_second`` the bandwidth from the host. ``short`` is the common name.
    """

    name: str
    short: str
    memory_mebibytes: int
    idle_watts: float
    limit_watts: float
    clock_megahertz: float
    memory_clock_megahertz: float
    throttle_celsius: float
    decode_speed: float
    prefill_speed: float
    link_bytes_per_second: float
    pcie_bytes_per_second: float
    vendor: str = "nvidia"

    @property
    def kelvin_per_watt(self) -> float:
        """Thermal resistance with healthy fans: heat sinks are sized for about 65 degrees at full load."""
        return WARMTH_KELVIN / self.limit_watts


WARMTH_KELVIN = 38.5

# Memory, power limit and clocks: from nvidia-smi, npu-smi and the vendors' data sheets. Speeds: memory bandwidth of
# 3.35, 4.8, 2.04, 0.93, 0.32, 1.6 TB/s and dense FP16 of 989, 989, 312, 165, 65, 376 TFLOPS, relative to the H100.
# Links: NVLink 4 (900 GB/s both ways), NVLink 3 (600), A30 bridge (200), HCCS (392). Throttle: slow-down temperatures
# of nvidia-smi -q.
GPU_TYPES = {
    gpu.name: gpu
    for gpu in (
        GpuType("NVIDIA H100 80GB HBM3", "H100", 81559, 72.0, 700.0, 1980.0, 2619.0, 84.0, 1.0, 1.0, 450e9, 64e9),
        GpuType("NVIDIA H200", "H200", 143771, 76.0, 700.0, 1980.0, 3201.0, 84.0, 1.43, 1.0, 450e9, 64e9),
        GpuType("NVIDIA A100-SXM4-80GB", "A100", 81920, 60.0, 400.0, 1410.0, 1593.0, 82.0, 0.61, 0.32, 300e9, 32e9),
        GpuType("NVIDIA A30", "A30", 24576, 27.0, 165.0, 1440.0, 1215.0, 88.0, 0.28, 0.17, 100e9, 32e9),
        GpuType("Tesla T4", "T4", 15360, 10.0, 70.0, 1590.0, 5001.0, 88.0, 0.095, 0.066, 0.0, 16e9),
        GpuType("Ascend 910B", "910B", 65536, 90.0, 400.0, 1800.0, 1600.0, 95.0, 0.48, 0.38, 196e9, 32e9, "huawei"),
    )
}


def gpu_type(name: str) -> GpuType:
    """Returns the device model of a long or short name. Raises UsageError if it is unknown."""
    for kind in GPU_TYPES.values():
        if name in (kind.name, kind.short):
            return kind
    raise UsageError(f"unknown GPU type {name!r}", hint=f"known: {', '.join(GPU_TYPES)}")
