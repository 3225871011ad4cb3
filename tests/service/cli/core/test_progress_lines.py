from __future__ import annotations

from types import SimpleNamespace

from service.cli.core import progress


def test_without_a_terminal_old_enough_tenths_are_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    with progress.bars(SimpleNamespace(progress=True, language="en")) as report:
        for share in (0.0, 0.04, 0.1, 0.14, 0.5, 1.0):
            report("replay", share)
    assert capsys.readouterr().err.splitlines() == ["replaying: 10 %", "replaying: 50 %", "replaying: 100 %"]


def test_a_short_command_and_a_quiet_one_print_no_lines(capsys):
    for wanted in (True, False):
        with progress.bars(SimpleNamespace(progress=wanted, language="en")) as report:
            report("replay", 1.0)
    assert capsys.readouterr().err == ""
