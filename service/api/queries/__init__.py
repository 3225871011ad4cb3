"""Queries shared by routers: SLO status, entity location.

Must not import ``service.api.routers`` or change state.
"""
