"""What every command shares: options, output, tables, progress, exit codes."""
