"""Load: arrival rates, traffic shapes, recorded traces, gateways."""
