"""The command line. Names and JSON keys are a contract: people script against them."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Run the command line.

    The agent runs beside models on every node, so it loads nothing of the platform: a quarter of its memory.
    """
    tree = "service.cli.ops.agent" if sys.argv[1:2] == ["agent"] else "service.cli.tree"
    importlib.import_module(tree).main()


__all__ = ["main"]
