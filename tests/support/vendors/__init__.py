"""HTTP servers that check requests as each vendor documents them: signature, schema and limits."""
