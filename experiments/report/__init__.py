"""What is made of finished runs: a page with pictures.

`python -m experiments.report DIR...` writes the page.
"""
