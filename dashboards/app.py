"""Navigation only: the dashboard pages are functions in ``dashboards.views``."""

from __future__ import annotations

from importlib import resources

import streamlit as st

from dashboards import session
from dashboards.components import html
from dashboards.views import capacity, detectors, drills, incident, oncall, overview, silences

HERE = resources.files("dashboards")
st.set_page_config(page_title="Outrider", page_icon=str(HERE.joinpath("icon.svg")), layout="wide")
VIEWER = session.viewer()
st.html(html.style(VIEWER.palette))
st.logo(HERE.joinpath("logo.svg").read_text(encoding="utf-8"), size="large")
session.controls(VIEWER)

INCIDENT = st.Page(
    lambda: incident.page(VIEWER),
    title=VIEWER.localize("page.incident"),
    url_path="incident",
    icon=":material/emergency_home:",
)
OVERVIEW = st.Page(
    lambda: overview.page(VIEWER, INCIDENT),
    title=VIEWER.localize("page.overview"),
    url_path="overview",
    icon=":material/grid_view:",
    default=True,
)
CAPACITY = st.Page(
    lambda: capacity.page(VIEWER),
    title=VIEWER.localize("page.capacity"),
    url_path="capacity",
    icon=":material/trending_up:",
)

ON_CALL = st.Page(
    lambda: oncall.page(VIEWER, INCIDENT),
    title=VIEWER.localize("page.oncall"),
    url_path="oncall",
    icon=":material/support_agent:",
)

DRILLS = st.Page(
    lambda: drills.page(VIEWER), title=VIEWER.localize("page.drills"), url_path="drills", icon=":material/exercise:"
)

DETECTORS = st.Page(
    lambda: detectors.page(VIEWER),
    title=VIEWER.localize("page.detectors"),
    url_path="detectors",
    icon=":material/sensors:",
)

SILENCES = st.Page(
    lambda: silences.page(VIEWER),
    title=VIEWER.localize("page.silences"),
    url_path="silences",
    icon=":material/notifications_off:",
)

CURRENT = st.navigation([OVERVIEW, INCIDENT, ON_CALL, SILENCES, CAPACITY, DRILLS, DETECTORS], position="top")
if CURRENT == OVERVIEW and "incident" in st.query_params:
    # Links in messages point to the base address with ?incident=ID.
    st.switch_page(INCIDENT, query_params=st.query_params.to_dict())
CURRENT.run()
