"""The pages. Each draws what the API says; none computes a measure."""
