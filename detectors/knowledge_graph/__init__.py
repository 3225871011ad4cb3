"""The fault catalogue joined with the live topology: build, query, draw."""
