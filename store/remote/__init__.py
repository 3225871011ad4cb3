"""Remote write and PromQL: how the metric store on a Prometheus-compatible server speaks.

``names`` says what a column is called there, ``columns`` and ``encode`` make requests of a cycle,
``answers`` and ``cells`` matrices of what comes back; ``cycles`` knows which instants count. Only
``server`` touches the network. Nothing here knows SQL.
"""
