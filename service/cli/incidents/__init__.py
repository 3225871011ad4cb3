"""Commands about alerts, incidents, feedback, remediation, SLOs and the knowledge graph."""
