"""Joins a memory, a compressor and an exchange to an optax transformation."""
