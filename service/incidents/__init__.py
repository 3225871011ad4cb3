"""Incidents beside the cycle: narratives, topology of the time, feedback, rule tuning."""
