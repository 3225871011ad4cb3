"""One collection round: scrape every target, normalise, carry forward, log page anomalies once."""
