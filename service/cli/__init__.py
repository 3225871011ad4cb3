"""The command line. Command names, options, exit codes and JSON keys are a stable interface for scripts.

No other package of ``service`` may import it.
"""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Runs the command line.

    The agent runs next to models on every node. It loads only its own modules and needs a quarter of the memory.
    """
    tree = "service.cli.ops.agent" if sys.argv[1:2] == ["agent"] else "service.cli.tree"
    importlib.import_module(tree).main()


__all__ = ["main"]
