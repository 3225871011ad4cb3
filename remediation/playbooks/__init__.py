"""Playbooks: for each fault the steps that repair it, as data."""
