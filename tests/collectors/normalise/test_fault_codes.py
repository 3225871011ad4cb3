"""A changed fault code is an event; a sticky one after a restart is not."""

from __future__ import annotations

import pytest

from outrider.clock import rfc3339
from outrider.errors import CollectReason
from outrider.model import EntityKind, EventKind


def page(*codes: tuple[str, float], counts: tuple[tuple[str, str, float], ...] = ()) -> str:
    gauges = (
        f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="{uuid}",err_code="{code:g}",err_msg="m{code:g}"}} {code}\n'
        for uuid, code in codes
    )
    counted = (f'DCGM_EXP_XID_ERRORS_COUNT{{UUID="{uuid}",xid="{xid}"}} {n}\n' for uuid, xid, n in counts)
    return "".join((*gauges, *counted))


def node(bench):
    return bench("dcgm", entity={"kind": "node", "name": "node-0"})


def codes(collected):
    return [(event.entity.name, event.code) for event in collected.events]


def test_a_change_to_a_code_is_an_event(bench) -> None:
    one = node(bench)
    assert codes(one.scrape(page(("GPU-a", 0), ("GPU-b", 0)))) == []
    events = one.scrape(page(("GPU-a", 0), ("GPU-b", 79))).events
    assert [(event.entity.kind, event.entity.name, event.code) for event in events] == [(EntityKind.GPU, "GPU-b", "79")]
    assert events[0].kind is EventKind.XID
    assert events[0].attributes == {"message": "m79"}
    assert events[0].at == one.at
    assert codes(one.scrape(page(("GPU-a", 0), ("GPU-b", 79)))) == []
    assert codes(one.scrape(page(("GPU-a", 0), ("GPU-b", 48)))) == [("GPU-b", "48")]
    assert codes(one.scrape(page(("GPU-a", 0), ("GPU-b", 0)))) == []
    assert codes(one.scrape(page(("GPU-a", 0), ("GPU-b", 48)))) == [("GPU-b", "48")]


def test_the_first_scrape_is_a_baseline(bench) -> None:
    one = node(bench)
    assert codes(one.scrape(page(("GPU-a", 79)))) == []
    assert codes(one.scrape(page(("GPU-a", 79)))) == []


def test_a_sticky_code_after_an_exporter_restart_is_not_an_event(bench) -> None:
    one = node(bench)
    one.scrape(page(("GPU-a", 0)))
    one.scrape(page(("GPU-a", 79)))
    one.fail(CollectReason.REFUSED)
    assert codes(one.scrape(page(("GPU-a", 79)))) == []
    one.scrape("")
    assert codes(one.scrape(page(("GPU-a", 79)))) == []


def test_a_repeated_code_is_detected_by_its_count(bench) -> None:
    one = node(bench)
    one.scrape(page(("GPU-a", 0)))
    first = one.scrape(page(("GPU-a", 31), counts=(("GPU-a", "31", 1),)))
    assert codes(first) == [("GPU-a", "31")]  # both as gauge and count, reported once
    again = one.scrape(page(("GPU-a", 31), counts=(("GPU-a", "31", 3),)))
    assert codes(again) == [("GPU-a", "31"), ("GPU-a", "31")]
    assert len({event.id for event in (*first.events, *again.events)}) == 3
    assert codes(one.scrape(page(("GPU-a", 31), counts=(("GPU-a", "31", 2),)))) == []  # the window moved on


def test_equal_events_have_equal_ids(bench) -> None:
    seen = []
    for _ in range(2):
        one = node(bench)
        one.scrape(page(("GPU-a", 0)))
        seen.append(one.scrape(page(("GPU-a", 79))).events[0].id)
    assert seen[0] == seen[1]


# --- other vendors --------------------------------------------------------------------------------

OTHERS = """
adapter: others
target: node
seen: {gpu: hw_accel_seen}
entities:
  node: {target: true}
  gpu: {name: id}
events:
  - {kind: xid, entity: gpu, code: npu_chip_info_error_code}
  - {kind: xid, entity: gpu, code: npu_chip_info_error_code_1}
  - {kind: xid, entity: gpu, code: gpu_afid_errors, attributes: {severity: severity}}
signals:
  hw_accel_temperature_celsius: {gauge: temperature}
"""
HEALTHY = 'temperature{id="0"} 50\ntemperature{id="1"} 50\n'


def ascend(bench):
    return bench("others", text=OTHERS, entity={"kind": "node", "name": "node-0"})


def test_a_temporary_code_is_an_event_at_each_appearance(bench) -> None:
    one = ascend(bench)
    one.scrape(HEALTHY)
    dropped = HEALTHY + 'npu_chip_info_error_code{id="1"} 1090014720\n'
    assert codes(one.scrape(dropped)) == [("1", "ascend:40F84E00")]
    assert codes(one.scrape(dropped)) == []
    assert codes(one.scrape(HEALTHY)) == []
    assert codes(one.scrape(dropped)) == [("1", "ascend:40F84E00")]


def test_several_codes_of_one_device_are_separate_events(bench) -> None:
    one = ascend(bench)
    one.scrape(HEALTHY)
    first = HEALTHY + 'npu_chip_info_error_code{id="0"} 2164753923\n'
    assert codes(one.scrape(first)) == [("0", "ascend:81078603")]
    both = f'{first}npu_chip_info_error_code_1{{id="0"}} 1090014720\n'
    assert codes(one.scrape(both)) == [("0", "ascend:40F84E00")]
    moved = HEALTHY + 'npu_chip_info_error_code{id="0"} 1090014720\n'  # the first one has healed
    assert codes(one.scrape(moved)) == []


def test_a_fault_before_the_first_scrape_is_not_an_event(bench) -> None:
    one = ascend(bench)
    dropped = HEALTHY + 'npu_chip_info_error_code{id="1"} 1090014720\n'
    assert codes(one.scrape(dropped)) == []
    one.fail(CollectReason.REFUSED)
    assert codes(one.scrape(dropped)) == []


def test_afids_keep_their_severity_and_are_not_xids(bench) -> None:
    one = ascend(bench)
    one.scrape(HEALTHY)
    events = one.scrape(HEALTHY + 'gpu_afid_errors{id="0",afid_index="0",severity="FATAL"} 79\n').events
    assert [(event.code, event.attributes) for event in events] == [("afid:79", {"severity": "FATAL"})]


def test_a_second_code_of_a_device_is_reported(bench) -> None:
    one = node(bench)
    one.scrape(page(("GPU-a", 79)))
    assert codes(one.scrape(page(("GPU-a", 79), ("GPU-a", 13)))) == [("GPU-a", "13")]


NPU = """\
npu_chip_info_temperature{{id="0",vdie_id="V0"}} 50
npu_chip_info_health_status{{id="0",vdie_id="V0"}} {healthy}
"""


def test_all_codes_of_an_ascend_device_are_reported(bench) -> None:
    target = bench("npu_exporter", entity={"kind": "node", "name": "node-0"})
    assert codes(target.scrape(NPU.format(healthy=1))) == []
    names = ("npu_chip_info_error_code", "npu_chip_info_error_code_1", "npu_chip_info_error_code_9")
    numbers = (2164753923, 1090014720, 18)
    lines = [
        f'{name}{{id="0",vdie_id="V0",pod_name="chat-0"}} {code}\n' for name, code in zip(names, numbers, strict=True)
    ]
    events = target.scrape(NPU.format(healthy=0) + "".join(lines))
    assert codes(events) == [("V0", "ascend:81078603"), ("V0", "ascend:40F84E00"), ("V0", "ascend:12")]
    assert events.events[1].attributes == {"pod": "chat-0"}
    assert codes(target.scrape(NPU.format(healthy=0) + "".join(lines[1:]))) == []
    assert codes(target.scrape(NPU.format(healthy=0) + "".join(lines))) == [("V0", "ascend:81078603")]


AMD = 'gpu_gfx_activity{gpu_uuid="A0",gpu_id="0",gpu_compute_partition_type="cpx"} 5\n'
AFID = 'gpu_afid_errors{gpu_uuid="A0",gpu_id="0",afid_index="0",severity="FATAL"} 24\n'


@pytest.mark.parametrize("prefix", ["", "amd_"])
def test_amd_codes_are_reported_with_the_exporter_prefix_too(bench, prefix: str) -> None:
    target = bench("amd", entity={"kind": "node", "name": "node-0"})
    assert codes(target.scrape(prefix + AMD)) == []
    events = target.scrape(prefix + AMD + prefix + AFID)
    assert codes(events) == [("A0", "afid:24")]
    (gpu,) = [entity for entity in events.labels if entity.kind is EntityKind.GPU]
    assert events.labels[gpu]["partition_mode"] == "cpx"


def test_a_code_after_a_gap_reports_its_earliest_start(bench) -> None:
    one = node(bench)
    first = one.scrape(page(("GPU-a", 0)))
    assert first.events == ()
    began = one.at
    for _ in range(10):
        one.fail(CollectReason.TIMEOUT)
    (event,) = one.scrape(page(("GPU-a", 79))).events
    assert event.attributes == {"message": "m79", "since": rfc3339(began)}
