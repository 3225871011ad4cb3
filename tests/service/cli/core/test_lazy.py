"""Imports of help and of rejected options."""

from __future__ import annotations

import subprocess
import sys

import pytest

from service.cli.tree import COMMANDS

HEAVY = ("sqlalchemy", "aiohttp", "httpx", "prophet", "sklearn", "pandas", "kubernetes")
PROGRAM = """
import sys
sys.argv = ["outrider", *sys.argv[1:]]
from service.cli.tree import main
try:
    main()
except SystemExit as left:
    print("\\n", left.code, *(name for name in %r if name in sys.modules))
"""


def call(*arguments):
    """The exit code, and the heavy modules that were imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % (HEAVY,), *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    code, *heavy = done.stdout.splitlines()[-1].split()
    return int(code), heavy


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--help",), 0),
        (("knowledge", "--help"), 0),
        (("knowledge", "draw", "--nope"), 2),
        (("feedback", "list", "--limit", "0"), 2),
        (("alerts", "list", "--help"), 0),
        (("rootcause", "backtest", "--help"), 0),
        (("remediate", "--help"), 0),
        (("drill", "score", "--nope"), 2),
    ],
)
def test_help_and_a_rejected_option_import_no_store_and_no_client(arguments, code):
    assert call(*arguments) == (code, [])


@pytest.mark.slow
def test_long_running_commands_import_everything_at_once():
    assert {name for name, place in COMMANDS.items() if place.long_running} >= {
        "serve",
        "run-engine",
        "run-api",
        "demo",
    }
    assert "sqlalchemy" in call("run-api", "--help")[1]
