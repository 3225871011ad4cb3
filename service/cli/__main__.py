"""``python -m service.cli``: how the supervisor starts the other processes."""

from service.cli import main

main()
