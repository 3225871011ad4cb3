"""Target lists: valid, broken, changing and unavailable ones."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web
from dnslib import RR
from dnslib.server import DNSLogger, DNSServer
from hypothesis import given
from hypothesis import strategies as st

from collectors.discovery.static_file_http_dns import DnsSource, FileSource, HttpSource, StaticSource
from collectors.discovery.target_groups import is_address, read_groups
from collectors.discovery.types import DiscoveredTarget, DiscoverySnapshot
from collectors.net.dns_client import NameServer
from collectors.net.http import HttpClient
from outrider.errors import CollectError, CollectReason, ConfigError
from tests.collectors.server import serving

GOOD = """\
# engines
- targets: ["10.0.0.1:8000", "[fd00::1]:8000"]
  labels: {job: vllm, tier: 1}
- targets: [dcgm.example]
"""
EXPECTED = [
    DiscoveredTarget("10.0.0.1:8000", {"job": "vllm", "tier": "1"}),
    DiscoveredTarget("[fd00::1]:8000", {"job": "vllm", "tier": "1"}),
    DiscoveredTarget("dcgm.example", {}),
]


def read(source) -> DiscoverySnapshot:
    async def whole() -> DiscoverySnapshot:
        try:
            return await source.read()
        finally:
            await source.close()

    return asyncio.run(whole())


def addresses(seen: DiscoverySnapshot) -> list[str]:
    return [one.address for one in seen.targets]


# --- groups ---------------------------------------------------------------------------------------


def test_groups_in_yaml_and_json() -> None:
    assert read_groups(GOOD, "a.yaml") == (EXPECTED, [])
    document = [{"targets": ["10.0.0.1:8000"], "labels": {"job": "x"}}]
    assert read_groups(json.dumps(document), "a.json") == ([DiscoveredTarget("10.0.0.1:8000", {"job": "x"})], [])
    assert read_groups("", "a.yaml") == ([], [])
    assert read_groups("[]", "a.json") == ([], [])


@pytest.mark.parametrize(
    ("text", "line", "key", "expected"),
    [
        ("targets: [a:1]\n", 1, "(file)", "expected a list of groups"),
        ("- targets: [a:1]\n- b:1\n", 2, "[1]", "expected a group"),
        ("- labels: {}\n", 1, "[0].targets", "expected a list such as"),
        ("- targets:\n    - a:1\n    - http://b:1/metrics\n", 3, "[0].targets[1]", "expected host:port, not 'http://b"),
        ("- targets: [a:1]\n  label: {x: y}\n", 2, "[0].label", "unknown key"),
        ("- targets: [a:1]\n  labels:\n    x: y\n    0z: y\n", 4, "[0].labels.0z", "not a valid label name"),
        ("- targets: [a:1]\n  labels:\n    x: [1]\n", 3, "[0].labels.x", "expected a string"),
        ('- targets: [a:1]\n  labels:\n    x: "a\\x00b"\n', 3, "[0].labels.x", "printable"),
        ("- targets: ['a:99999']\n", 1, "[0].targets[0]", "expected host:port"),
        ("- targets: [7]\n", 1, "[0].targets[0]", "expected host:port"),
    ],
)
def test_unusable_entries_are_reported_by_line_and_the_rest_is_kept(text, line, key, expected) -> None:
    found, problems = read_groups(text, "a.yaml")
    assert [(one.line, one.key) for one in problems] == [(line, key)]
    assert expected in problems[0].message
    if "a:1" in text and not text.startswith("targets"):
        assert "a:1" in [one.address for one in found]


@pytest.mark.parametrize(
    ("text", "file", "line"),
    [
        ('[{"targets": ["a:1"],}]', "a.json", 1),
        ('[\n{"targets": ["a:1"]\n', "a.json", 3),
        ("- targets: [a:1\n- x: {", "a.yaml", 2),
        ("\t- x", "a.yaml", 1),
        ("[" * 5000, "a.json", 0),
    ],
)
def test_a_broken_file_is_reported_with_its_line(text, file, line) -> None:
    with pytest.raises(ConfigError) as fault:
        read_groups(text, file)
    assert fault.value.problems[0].line == line


@given(st.text(max_size=200))
def test_arbitrary_text_does_not_raise(text: str) -> None:
    try:
        found, _ = read_groups(text, "a.yaml")
    except ConfigError:
        return
    assert all(is_address(one.address) for one in found)


def test_a_list_of_a_hundred_thousand_targets() -> None:
    document = [{"targets": [f"10.{a}.{b}.{c}:8000" for a in range(10) for b in range(100) for c in range(100)]}]
    found, problems = read_groups(json.dumps(document), "big.json")
    assert (len(found), problems) == (100_000, [])


# --- files ----------------------------------------------------------------------------------------


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("- targets: [a:1]\n")
    (tmp_path / "b.json").write_text('[{"targets": ["b:1"]}]')
    source = FileSource("files", [f"{tmp_path}/*.yaml", f"{tmp_path}/*.json"])
    first = read(source)
    assert addresses(first) == ["a:1", "b:1"]
    assert read(source) is first, "nothing changed"
    touch(tmp_path / "a.yaml", "- targets: [a:1, a:2]\n")
    assert addresses(read(source)) == ["a:1", "a:2", "b:1"]
    (tmp_path / "b.json").unlink()
    (tmp_path / "c.yaml").write_text("- targets: [c:1]\n")
    assert addresses(read(source)) == ["a:1", "a:2", "c:1"]


def touch(path: Path, text: str) -> None:
    stamp = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(stamp, stamp + 10**9))


def test_a_file_that_breaks_keeps_its_targets_and_reports_it(tmp_path: Path) -> None:
    good, broken = tmp_path / "a.yaml", tmp_path / "b.yaml"
    good.write_text("- targets: [a:1]\n")
    broken.write_text("- targets: [b:1]\n")
    source = FileSource("files", [f"{tmp_path}/*.yaml"])
    assert read(source).faults == ()
    touch(broken, "- targets: [b:1\n")
    seen = read(source)
    assert addresses(seen) == ["a:1", "b:1"]
    (fault,) = seen.faults
    assert f"{broken}:" in fault.message
    assert "keeping its last targets" in fault.message
    assert read(source) is seen
    touch(broken, "- targets: [b:2, '???']\n")
    os.utime(broken, ns=(1, 10**18))
    seen = read(source)
    assert addresses(seen) == ["a:1", "b:2"]
    assert "b.yaml:1: [0].targets[1]: expected host:port" in seen.faults[0].message


def test_a_source_without_readable_files_is_down(tmp_path: Path) -> None:
    source, there = FileSource("files", [f"{tmp_path}/none.yaml", f"{tmp_path}/some.yaml"]), tmp_path / "some.yaml"
    for _ in range(2):
        with pytest.raises(CollectError, match=r"none.yaml cannot be read .*; it has had no targets yet"):
            read(source)
    there.write_text("- targets: [a:1]\n", encoding="utf-8")
    seen = read(source)
    assert len(seen.targets) == 1
    assert "none.yaml cannot be read (FileNotFoundError)" in seen.faults[0].message
    assert read(FileSource("files", [f"{tmp_path}/*.json"])).faults == ()


# --- HTTP -----------------------------------------------------------------------------------------


def test_targets_are_listed_over_http() -> None:
    answers: list[web.Response] = []

    async def listed(request: web.Request) -> web.StreamResponse:
        return answers.pop(0)

    async def whole() -> None:
        async with serving([("/sd", listed)]) as url:
            source = HttpSource("sd", HttpClient("sd", f"{url}/sd", timeout=timedelta(seconds=2)))
            good = '[{"targets": ["a:1"], "labels": {"job": "vllm"}}]'
            answers.extend([web.Response(text=good), web.Response(text=good)])
            first = await source.read()
            assert first.targets == (DiscoveredTarget("a:1", {"job": "vllm"}),)
            assert await source.read() is first
            for answer, reason in (
                (web.Response(status=503), CollectReason.HTTP_STATUS),
                (web.Response(text="<html>"), CollectReason.TRUNCATED),
                (web.Response(body=b"\xff\xfe"), CollectReason.TRUNCATED),
                (web.Response(text='{"targets": []}'), CollectReason.TRUNCATED),
            ):
                answers.append(answer)
                with pytest.raises(CollectError) as fault:
                    await source.read()
                assert fault.value.reason == reason
                assert fault.value.message.startswith("sd: ")
            answers.append(web.Response(text='[{"targets": ["a:1", "b"], "labels": {"x": {}}}]'))
            part = await source.read()
            assert (addresses(part), len(part.faults)) == (["a:1", "b"], 1)
            await source.close()
        with pytest.raises(CollectError) as fault:
            await source.read()
        assert fault.value.reason == CollectReason.REFUSED
        await source.close()

    asyncio.run(whole())


# --- DNS and the configuration itself -------------------------------------------------------------


class Zone:
    """``srv.test`` and ``a.test`` exist while ``there`` is true."""

    there = True

    def resolve(self, request, handler):
        reply, name = request.reply(), str(request.q.qname)
        zone = {
            "srv.test.": "srv.test. 9 IN SRV 0 0 8000 e1.test.\nsrv.test. 9 IN SRV 0 0 8001 e0.test.",
            "a.test.": "a.test. 9 IN A 10.0.0.2\na.test. 9 IN A 10.0.0.1",
            "six.test.": "six.test. 9 IN AAAA fd00::2",
        }
        if self.there and name in zone:
            reply.add_answer(*RR.fromZone(zone[name]))
        else:
            reply.header.rcode = 3
        return reply


def test_dns_names_are_targets_and_survive_dns_failures() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    zone = Zone()
    server = DNSServer(zone, address="127.0.0.1", port=port, logger=DNSLogger(logf=lambda _line: None))
    server.start_thread()
    servers = [NameServer("127.0.0.1", port)]
    try:
        source = DnsSource("dns", ["srv.test"], servers=servers)
        first = read(source)
        assert addresses(first) == ["e0.test:8001", "e1.test:8000"]
        assert first.targets[0].labels == {"__meta_dns_name": "srv.test"}
        assert read(source) is first
        some = DnsSource("dns", ["a.test", "gone.test"], record="A", port=9400, servers=servers)
        seen = read(some)
        assert addresses(seen) == ["10.0.0.1:9400", "10.0.0.2:9400"]
        assert "gone.test" in seen.faults[0].message
        six = DnsSource("dns", ["six.test"], record="AAAA", port=1, servers=servers)
        assert addresses(read(six)) == ["[fd00::2]:1"]
        zone.there = False
        with pytest.raises(CollectError) as fault:
            read(source)
        assert fault.value.reason == CollectReason.DNS
    finally:
        server.stop()
        server.server.server_close()


def test_static_targets_of_the_configuration() -> None:
    assert read(StaticSource("here", ["a:1"], {"job": "x"})).targets == (DiscoveredTarget("a:1", {"job": "x"}),)
