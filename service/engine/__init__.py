"""The cycle: collect, store, detect, plan, alert, correlate, decide, commit, dispatch."""
