"""The engine model: continuous batching, scheduling, prefix cache, KV blocks, step times.

Must not import another package of ``simulator`` except ``spec``.
"""
