"""Commands about alerts, incidents, feedback, remediation, SLOs and the knowledge graph.

Must not import commands of another folder.
"""
