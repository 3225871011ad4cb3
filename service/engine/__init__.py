"""The cycle: collect, store, detect, plan, alert, correlate, decide, commit, dispatch.

Must not import ``sources``, ``scaling``, ``incidents`` or ``recorder``.
"""
