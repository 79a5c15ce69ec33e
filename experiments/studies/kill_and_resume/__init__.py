"""Runs that are killed at random moments and resumed, bit for bit."""
