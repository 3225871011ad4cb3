"""The dashboard pages. Each draws data of the API and must not compute a measure."""
