"""Decisions about incidents and plans: guards, policy, sessions, recovery. Pure; reads no playbook files."""
