"""The dashboard pages. Each draws data of the API; none computes a measure."""
