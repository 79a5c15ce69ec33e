"""Scores of what models say, and the decoding of their outputs.

Counts of parts of a test set add up to those of the whole set, so that several
processes can share a test.
"""
