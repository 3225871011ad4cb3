"""Navigation only: the pages are functions in ``dashboards.views``."""

from __future__ import annotations

from importlib import resources

import streamlit as st

from dashboards import session
from dashboards.components import html
from dashboards.views import capacity, detectors, drills, incident, overview

HERE = resources.files("dashboards")
st.set_page_config(page_title="Outrider", page_icon=str(HERE.joinpath("icon.svg")), layout="wide")
WHO = session.viewer()
st.html(html.style(WHO.palette))
st.logo(HERE.joinpath("logo.svg").read_text(encoding="utf-8"), size="large")
session.controls(WHO)

INCIDENT = st.Page(
    lambda: incident.page(WHO), title=WHO.say("page.incident"), url_path="incident", icon=":material/emergency_home:"
)
OVERVIEW = st.Page(
    lambda: overview.page(WHO, INCIDENT),
    title=WHO.say("page.overview"),
    url_path="overview",
    icon=":material/grid_view:",
    default=True,
)
CAPACITY = st.Page(
    lambda: capacity.page(WHO), title=WHO.say("page.capacity"), url_path="capacity", icon=":material/trending_up:"
)

DRILLS = st.Page(lambda: drills.page(WHO), title=WHO.say("page.drills"), url_path="drills", icon=":material/exercise:")

DETECTORS = st.Page(
    lambda: detectors.page(WHO), title=WHO.say("page.detectors"), url_path="detectors", icon=":material/sensors:"
)

CURRENT = st.navigation([OVERVIEW, INCIDENT, CAPACITY, DRILLS, DETECTORS], position="top")
if CURRENT == OVERVIEW and "incident" in st.query_params:
    # Links in messages lead to the bare address with ?incident=ID.
    st.switch_page(INCIDENT, query_params=st.query_params.to_dict())
CURRENT.run()
