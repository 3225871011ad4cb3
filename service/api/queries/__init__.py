"""Queries shared by routers: SLO status, entity location."""
