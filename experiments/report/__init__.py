"""Reports of runs: a page with pictures.

`python -m experiments.report DIR...` writes the page.
"""
