"""The flight recorder: recordings on request and around every P0 and P1 incident.

Must not import ``service.wiring`` or a package above it.
"""
