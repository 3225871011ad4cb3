"""What a report reads: the week's values and decisions, by service and by GPU."""
