"""The Streamlit dashboard: pages, figures and formatting of values.

Must not decide, compute measures or read a store: everything comes from the HTTP API.
"""

# Streamlit puts this folder first on ``sys.path``: no file in it may have the name of a stage package.
