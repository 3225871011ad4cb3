"""The Streamlit dashboard: pages, figures and formatting of values.

Not here: decisions, formulas of measures and reads of the store; everything comes from the HTTP API. ``service`` starts
it with the command line of ``dashboards.run``. Streamlit puts this folder first on ``sys.path``, so no file in it may
have the name of a stage package.
"""
