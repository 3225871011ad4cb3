"""The Streamlit dashboard: four questions on three pages.

What lives here: pages, figures, wording of numbers and instants. What must not: decisions, formulas of
measures and reads of the store; everything comes from the HTTP API. Started by ``service`` with the
command line of ``dashboards.run``. Streamlit puts this folder first on ``sys.path``, so no file in it may
bear the name of a stage package.
"""
