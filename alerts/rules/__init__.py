"""Alert rules: loading, editing, SLO rules, matching findings to rules. Pure but for reading files."""
