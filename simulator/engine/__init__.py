"""The engine model: continuous batching, scheduling, prefix cache, KV blocks, step times."""
