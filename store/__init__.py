"""Where values and decisions are kept.

Here live the two stores behind the protocols of ``outrider.ports``: metrics (columnar blocks) and
state (decisions, intents, outbox, audit), each on SQLite and in memory, with their codecs and
migrations. No judgement lives here: the store neither detects nor decides, it keeps whole cycles
and gives them back. ``service`` opens the stores and hands them to everyone else.
"""
