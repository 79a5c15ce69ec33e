"""The papers' tables and figures: what they printed, and what is measured here.

A file of `configs/` holds a table, a row a setting; see `table.Table`.
"""
