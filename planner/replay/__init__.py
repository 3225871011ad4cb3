"""The scaling replay: a trace of traffic, strategies beside each other, and what each costs and breaks."""
