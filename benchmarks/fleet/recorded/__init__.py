"""The engine model against recordings of a real engine: reading, replay of arrivals, fit, errors.

Must not change a recording or import ``service``.
"""
