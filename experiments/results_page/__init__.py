"""RESULTS.md, the pages and the pictures of docs/results, from the records.

Words are written by hand in a template, numbers are not; see `page`.
"""
