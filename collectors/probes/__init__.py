"""Black-box probes: what a client of a service finds at its door, asked from here.

Each probe asks one door and says in one ``Result`` what came of it; ``runner`` asks them side by side and turns
results into signals. Nothing here decides what a failure means, and nothing here looks at a metrics page: the
engine probe beside each scrape is ``collectors.scrape.engine_health``.
"""
