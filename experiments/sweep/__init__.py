"""Runs of one configuration with some fields changed, all with all."""
