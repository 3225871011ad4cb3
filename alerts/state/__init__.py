"""The alert state machine (pending, firing, resolved) and silences. Pure; imports ``alerts.rules`` only."""
