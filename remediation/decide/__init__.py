"""The decision what to do about an incident or a plan: guards, policy, sessions, recovery. Pure."""
