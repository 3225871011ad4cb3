"""The configuration: one YAML file, checked to the line, handed down as values."""
