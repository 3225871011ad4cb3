"""Entry point ``python -m service.cli``: the supervisor starts the other processes with it."""

from service.cli import main

main()
