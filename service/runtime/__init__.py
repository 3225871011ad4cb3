"""The processes of the platform: engine process, leader lease, supervisor, scheduled jobs."""
