"""What is made of finished runs: a page with pictures, a file of results.

`python -m experiments.report DIR...` writes the page.
"""
