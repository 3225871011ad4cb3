"""Kernel logs: records of /dev/kmsg and journal exports, and their events."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from collectors.events.unresolved_event import FIRST_LOOK, EntityResolver, UnresolvedEvent, pci_of
from collectors.logs import kmsg
from collectors.logs.kernel_file import KernelFile, KernelLogChunk
from collectors.logs.kernel_log import KernelLogFile, KernelLogs, NodeLog
from collectors.logs.patterns import packaged, read
from collectors.net.http import HttpClient
from outrider.clock import SystemClock
from outrider.errors import CollectError, CollectReason, ConfigError
from outrider.model import EntityKind, EntityRef, EventKind
from outrider.topology import Topology
from tests.collectors.server import serving

AT = datetime(2026, 11, 18, 12, tzinfo=UTC)
BOOT = AT - timedelta(hours=1)
NODE = EntityRef("c", EntityKind.NODE, None, "node-1")
GPU = EntityRef("c", EntityKind.GPU, None, "GPU-11111111-2222-3333-4444-555555555555")
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def record(sequence: int, message: str, seconds: float = 3590.0, priority: int = 3) -> str:
    return f"{priority},{sequence},{round(seconds * 1e6)},-;{message}\n"


def look(log: NodeLog, text: str, boot: str = "b1", at: datetime = AT) -> list[UnresolvedEvent]:
    return log.new_events(text, KernelLogChunk(text, boot, BOOT), at, packaged("kernel_log"))


# --- records --------------------------------------------------------------------------------------


def test_a_record_is_read_with_its_dictionary_and_escapes() -> None:
    text = record(7, r"caf\xc3\xa9 a\x5cb\x0anew") + " SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n" + record(8, "next")
    first, second = kmsg.records(text)
    assert (first.message, first.sequence, first.since_boot_seconds) == ("café a\\b\nnew", 7, 3590.0)
    assert second.message == "next"
    assert kmsg.newest(text) == 8


def test_user_space_records_are_ignored() -> None:
    text = record(1, XID, priority=12) + record(2, "true")
    assert [one.sequence for one in kmsg.records(text)] == [2]
    assert kmsg.newest(record(9, "systemd[1]: started", priority=30)) == 9
    assert kmsg.newest("nothing\n") is None


def test_a_line_of_a_journal_has_its_own_time() -> None:
    text = "\n".join(
        [
            "-- Boot 4711 --",
            f"2026-11-18T13:00:00+0100 host-a kernel: {XID}",
            "2026-11-18T12:00:01.250000+00:00 host-a kernel: second",
            "2026-11-18T12:00:02+0000 host-a sshd[1]: kernel: no",
            "2026-99-18T12:00:02+0000 host-a kernel: no such month",
        ]
    )
    first, second = kmsg.records(text)
    assert (first.at, first.host, first.message) == (AT, "host-a", XID)
    assert second.at == AT + timedelta(seconds=1.25)


@given(st.text())
def test_arbitrary_text_does_not_raise(text: str) -> None:
    log = NodeLog(NODE)
    for whole in (text, record(1, text.replace("\n", " ")), f"2026-11-18T12:00:00+0000 h kernel: {text}"):
        for one in look(log, whole):
            assert one.at <= AT
            assert one.code


@given(st.integers(0, 10**25), st.integers(0, 10**25), st.integers(0, 10**25), st.text(max_size=20))
def test_arbitrary_numbers_do_not_raise(priority: int, sequence: int, micros: int, flags: str) -> None:
    assert isinstance(look(NodeLog(NODE), f"{priority},{sequence},{micros},{flags};{XID}\n"), list)


@given(st.from_regex(r"NVRM: Xid \((PCI:)?[0-9a-f:.]{3,24}\): \d{1,8}(, [ -~]{0,80})?", fullmatch=True))
def test_every_xid_has_a_number_for_its_code(message: str) -> None:
    for one in look(NodeLog(NODE), record(1, message)):
        assert one.kind is EventKind.XID
        assert one.code == str(int(one.code))


# --- what they say --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code", "reported"),
    [
        (XID, "79", {"pid": "<unknown>", "name": "<unknown>", "text": "GPU has fallen off the bus."}),
        ("NVRM: Xid (PCI:0000:3b:00): 43, pid=4711, name=python3, Ch 0008", "43", {"pid": "4711", "text": "Ch 0008"}),
        ("NVRM: Xid (PCI:0000:3b:00): 13, pid='4711', name=VLLM::Worker, Graphics SM", "13", {"name": "VLLM::Worker"}),
        ("NVRM: Xid (0000:3b:00): 62, 000028c1 00003a1e", "62", {"text": "000028c1 00003a1e"}),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=1, name=a, Contained", "94", {"text": "Contained"}),
        ("NVRM: Xid (PCI:0000:3b:00): 119, pid=1, Timeout after 6s", "119", {"pid": "1", "text": "Timeout after 6s"}),
    ],
)  # fmt: skip
def test_xid_lines_of_several_driver_versions(message: str, code: str, reported: dict[str, str]) -> None:
    (event,) = look(NodeLog(NODE), record(1, message))
    assert (event.kind, event.code, event.at) == (EventKind.XID, code, BOOT + timedelta(seconds=3590))
    assert reported.items() <= dict(event.attributes).items()


def test_a_device_is_resolved_by_topology_or_driver_report() -> None:
    topology = Topology.build([(NODE, GPU)], labels={GPU: {"pci": "00000000:3B:00.0"}})
    (seen,) = look(NodeLog(NODE), record(1, XID))
    assert EntityResolver().entity(seen) == NODE
    assert EntityResolver(topology).entity(seen) == GPU
    other = EntityRef("c", EntityKind.NODE, None, "node-2")
    (elsewhere,) = look(NodeLog(other), record(1, XID))
    assert EntityResolver(topology).entity(elsewhere) == other
    reported = record(1, f"NVRM: GPU at PCI:0000:3b:00: {GPU.name}") + record(2, XID)
    (seen,) = look(NodeLog(NODE), reported)
    assert EntityResolver().entity(seen) == GPU


def test_pci_addresses_are_normalized() -> None:
    assert pci_of("0000:3b:00") == pci_of("00000000:3B:00.0") == "0:3b:0"
    assert pci_of("what") == "what"


def test_an_oom_kill_is_one_event_of_the_pod_of_the_cgroup() -> None:
    uid = "0a1b2c3d-0000-1111-2222-333344445555"
    pod = EntityRef("c", EntityKind.POD, "serving", "chat-0")
    group = f"/kubepods.slice/kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    text = record(
        1, f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg={group},task=python3,pid=77,uid=0"
    ) + record(2, "Memory cgroup out of memory: Killed process 77 (python3) total-vm:1kB, anon-rss:1kB")
    (seen,) = look(NodeLog(NODE), text)
    assert (seen.kind, seen.code, seen.attributes["pid"], seen.attributes["name"]) == (
        EventKind.LOG, "oom-kill", "77", "python3",
    )  # fmt: skip
    assert EntityResolver(Topology.build([(NODE, pod)], labels={pod: {"uid": uid}})).entity(seen) == pod
    assert EntityResolver().entity(seen) == NODE
    (alone,) = look(NodeLog(NODE), record(1, "Out of memory: Killed process 78 (python3) total-vm:1kB"))
    assert alone.attributes["pid"] == "78"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("infiniband mlx5_2: Port: 1 Link DOWN", "link-down"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted", "nvswitch-error"),
        ("mlx5_core 0000:5e:00.0 ens5f0np0: Link down", "link-down"),
        ("mlx5_core 0000:5e:00.0 ens5f0np0: Link up", "link-up"),
        ("pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error message received from 0000:17:00.0", "pcie-error"),
        ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", "disk-error"),
        ("nfs: server models-0 not responding, still trying", "storage-slow"),
        ("INFO: task kworker/u8:3:912 blocked for more than 122 seconds.", "task-hung"),
        ("ipmi_si IPI0001:00: SEL: Power Supply 2 failure detected", "sensor-alarm"),
        ("ipmi_si IPI0001:00: SEL: Power Supply 2 | Failure detected | Deasserted", "sensor-ok"),
        ("SEL: Fan #0x30 | Lower Critical going low | Deasserted", "sensor-ok"),
        ("SEL: Redundancy | Fully Redundant | Asserted", "sensor-ok"),
        ("usb 1-1: new high-speed USB device number 2", None),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module", None),
    ],
)
def test_other_kernel_lines(message: str, code: str | None) -> None:
    assert [one.code for one in look(NodeLog(NODE), record(1, message))] == ([code] if code else [])


@pytest.mark.parametrize(
    ("message", "sensor"),
    [
        ("ipmi: SEL: Power Supply 2 failure detected; Fan 4 lower critical going low", "Power Supply 2"),
        ("SEL: Fan #0x30 | Lower Critical going low | Deasserted", "Fan #0x30"),
        ("IPMI: Power Supply 1: AC lost", "Power Supply 1"),
        ("SEL: Temp 3 upper critical going high", None),
    ],
)
def test_a_sensor_line_names_its_sensor(message: str, sensor: str | None) -> None:
    (event,) = look(NodeLog(NODE), record(1, message))
    assert event.attributes.get("sensor") == sensor


def test_a_table_with_an_invalid_expression_is_rejected_by_name() -> None:
    with pytest.raises(ConfigError, match=r"mine\.yaml: invalid pattern .*(unbalanced|missing)"):
        read([{"code": "a", "match": "("}], "mine.yaml")
    assert read([], "empty.yaml").find("anything") is None


# --- how often ------------------------------------------------------------------------------------


def test_equal_xids_are_two_events_and_a_repeated_record_is_one() -> None:
    log, text = NodeLog(NODE), record(1, XID) + record(2, XID)
    events = look(log, text)
    assert len({one.key for one in events}) == 2
    assert look(log, text) == []
    assert [one.key for one in look(NodeLog(NODE), text)] == [one.key for one in events]
    assert len(look(log, record(3, XID))) == 1


def test_a_reboot_starts_the_sequence_again() -> None:
    log = NodeLog(NODE)
    first = look(log, record(500, XID))
    second = look(log, record(1, XID), boot="b2")
    assert len(first) == len(second) == 1
    assert first[0].key != second[0].key


def test_old_records_are_ignored_and_future_ones_get_the_current_time() -> None:
    old = (AT - BOOT - FIRST_LOOK).total_seconds()
    assert look(NodeLog(NODE), record(1, XID, old - 1)) == []
    assert len(look(NodeLog(NODE), record(1, XID, old + 1))) == 1
    (ahead,) = look(NodeLog(NODE), record(1, XID, 7200.0))
    assert ahead.at == AT


def test_equal_journal_lines_are_separate_events() -> None:
    line = f"2026-11-18T11:59:59+0000 h kernel: {XID}\n"
    log = NodeLog(NODE)
    first = look(log, line * 2)
    assert len({one.key for one in first}) == 2
    assert len({one.key for one in (*first, *look(log, line))}) == 3


# --- this machine ---------------------------------------------------------------------------------


async def read_file(source: KernelLogFile) -> list[str]:
    events, errors = await source.read(AT, [])
    assert errors == []
    return [one.code for one in events]


def test_a_file_is_followed_through_truncation_and_rotation(tmp_path) -> None:
    path = tmp_path / "kernel.log"
    line = "2026-11-18T11:59:5{}+0000 h kernel: NVRM: Xid (PCI:0000:3b:00): {}, x\n"
    path.write_text(line.format(1, 31) + line.format(2, 43)[:20])

    async def scene() -> None:
        source = KernelLogFile("kernel_log", KernelFile(path), NODE)
        assert await read_file(source) == ["31"]
        with path.open("a") as file:
            file.write(line.format(2, 43)[20:])
        assert await read_file(source) == ["43"]
        assert await read_file(source) == []
        path.write_text(line.format(3, 48))
        assert await read_file(source) == ["48"]
        path.with_suffix(".new").write_text(line.format(4, 79) + line.format(5, 94))
        path.with_suffix(".new").rename(path)
        assert await read_file(source) == ["79", "94"]
        await source.close()

    asyncio.run(scene())


def test_a_pipe_does_not_block_and_uses_the_boot_time(tmp_path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    file = KernelFile(path)
    assert file.read().text == ""
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    assert file.read().text == ""
    os.write(writer, record(1, XID).encode() + b"half")
    part = file.read()
    os.write(writer, b" a line\n")
    assert (part.text, file.read().text) == (record(1, XID), "half a line\n")
    assert part.boot_at is not None
    assert part.boot_at < SystemClock().now()
    os.close(writer)
    file.close()


def test_an_unreadable_path_is_an_error(tmp_path) -> None:
    async def scene() -> None:
        source = KernelLogFile("kernel_log", KernelFile(tmp_path / "none"), NODE)
        events, (error,) = await source.read(AT, [])
        assert events == []
        assert error.message == f"kernel_log: cannot read {tmp_path / 'none'}: No such file or directory"
        (tmp_path / "none").write_text(f"2026-11-18T11:59:59+0000 h kernel: {XID}\n")
        assert await read_file(source) == ["79"]
        await source.close()

    asyncio.run(scene())


# --- agents ---------------------------------------------------------------------------------------


class Agent:
    """Serves kernel logs by node, like the node agents."""

    def __init__(self) -> None:
        self.logs: dict[str, list[str]] = {}
        self.boots: dict[str, str] = {}
        self.requested: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        node = request.match_info["node"]
        self.requested.append(f"{node}{request.query_string}")
        if node not in self.logs:
            raise web.HTTPServiceUnavailable
        after = int(request.query.get("after", -1))
        lines = [line for line in self.logs[node] if int(line.split(",")[1]) > after]
        reported = {"Boot-Id": self.boots.get(node, "b"), "Boot-Time": str(BOOT.timestamp())}
        return web.Response(text="".join(lines), headers=reported)


def with_agent(scene: Callable[[Agent, str], object]) -> None:
    async def whole() -> None:
        agent = Agent()
        async with serving([("/klog/{node}", agent.answer)]) as url:
            await scene(agent, url)  # type: ignore[misc]

    asyncio.run(whole())


def nodes(*names: str) -> list[EntityRef]:
    return [EntityRef("c", EntityKind.NODE, None, name) for name in names]


def source(url: str, node: EntityRef | None = None) -> KernelLogs:
    return KernelLogs("kernel_log", url, partial(HttpClient, "kernel_log", timeout=timedelta(seconds=5)), "c", node)


def test_every_node_is_queried_and_a_failing_one_stops_no_other() -> None:
    async def scene(agent: Agent, url: str) -> None:
        agent.logs = {"node-1": [record(1, XID)], "node-2": [record(4, XID)]}
        logs = source(f"{url}/klog/{{node}}")
        foreign = EntityRef("other", EntityKind.NODE, None, "node-9")
        events, errors = await logs.read(AT, [*nodes("node-1", "node-2", "node-3"), foreign])
        assert {one.entity.name for one in events} == {"node-1", "node-2"}
        assert [(one.reason, "node-3" in one.message) for one in errors] == [(CollectReason.HTTP_STATUS, True)]
        assert (await logs.read(AT, nodes("node-1", "node-2")))[0] == []
        assert agent.requested[-2:] == ["node-1after=1", "node-2after=4"]
        await logs.close()

    with_agent(scene)


def test_a_rebooted_node_is_read_from_the_start() -> None:
    async def scene(agent: Agent, url: str) -> None:
        agent.logs = {"node-1": [record(900, XID)]}
        logs = source(f"{url}/klog/{{node}}")
        await logs.read(AT, nodes("node-1"))
        agent.logs, agent.boots = {"node-1": [record(3, XID)]}, {"node-1": "b2"}
        events, errors = await logs.read(AT, nodes("node-1"))
        assert ([one.code for one in events], errors) == (["79"], [])
        await logs.close()

    with_agent(scene)


def test_one_agent_for_one_node() -> None:
    async def scene(agent: Agent, url: str) -> None:
        agent.logs = {"mine": [record(1, XID)]}
        logs = source(f"{url}/klog/mine", NODE)
        events, _ = await logs.read(AT, [])
        assert [one.entity for one in events] == [NODE]
        await logs.close()

    with_agent(scene)


def test_an_unavailable_agent_is_reported() -> None:
    async def scene() -> None:
        logs = source("http://127.0.0.1:9/klog/{node}")
        events, (error,) = await logs.read(AT, nodes("node-1"))
        assert events == []
        assert isinstance(error, CollectError)
        assert (error.reason, error.message) == (
            CollectReason.REFUSED,
            "kernel_log: http://127.0.0.1:9 refuses connections",
        )
        await logs.close()

    asyncio.run(scene())


# --- entries of a journal, and what an agent adds ---------------------------------------------------


def entry(cursor: str, message: object, seconds: float = 0.0, **more: object) -> str:
    micros = round((AT - timedelta(seconds=10)).timestamp() * 1e6 + seconds * 1e6)
    events = {"__CURSOR": cursor, "__REALTIME_TIMESTAMP": str(micros), "_TRANSPORT": "kernel", "MESSAGE": message}
    return json.dumps({**events, **more}) + "\n"


def test_journal_entries_are_deduplicated_by_cursor() -> None:
    text = entry("s=1;i=1", XID) + entry("s=1;i=2", XID)
    events = look(NodeLog(NODE), text)
    assert [(one.code, one.at) for one in events] == [("79", AT - timedelta(seconds=10))] * 2
    assert len({one.key for one in events}) == 2
    assert [one.key for one in look(NodeLog(NODE), text)] == [one.key for one in events]  # after a restart of ours


def test_non_kernel_and_broken_entries_are_skipped() -> None:
    text = (
        entry("a", XID, _TRANSPORT="syslog")
        + entry("b", None)
        + entry("c", XID, __REALTIME_TIMESTAMP="soon")
        + entry("d", [1, 300])
        + '{"MESSAGE": "torn\n[]\n{}\n'
        + entry("e", [*XID.encode(), 255])
    )
    assert [one.code for one in look(NodeLog(NODE), text)] == ["79"]


@given(st.text(max_size=60))
def test_arbitrary_entries_do_not_raise(text: str) -> None:
    assert isinstance(look(NodeLog(NODE), f"{{{text}\n" + entry("a", text) + entry(text, XID)), list)


def test_driver_events_of_an_agent_have_their_own_source() -> None:
    uuid = GPU.name
    text = (
        f"3,0,3590000000,-,source=nvml;NVRM: GPU at PCI:0000:3b:00: {uuid}\n"
        f"3,1,3590000010,-,source=nvml;NVRM: Xid (PCI:0000:3b:00 GPU-I:07): 94, uuid={uuid}\n"
        f"3,2,3590000020,-,caller=T1;{XID}\n"
    )
    first, second = look(NodeLog(NODE), text)
    assert (first.source, first.entity, first.code, first.attributes["gpu_instance"]) == ("nvml", GPU, "94", "7")
    assert (second.source, second.code) == ("kernel_log", "79")


def test_an_exception_reports_its_location_on_the_chip() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 13, pid=9, name=a, Graphics SM Warp Exception on (GPC 3, TPC 1, SM 0): Illegal"
    (event,) = look(NodeLog(NODE), record(1, line))
    assert event.attributes["unit"] == "GPC 3, TPC 1"
