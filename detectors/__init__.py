"""Detection: windows of values in; findings, incidents and root causes out.

Pure: no clock, store, network or other stage. Only ``packaged_data`` reads files, and only ``service`` calls it.
"""
