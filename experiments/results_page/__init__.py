"""RESULTS.md and its pictures, made of the records in experiments/results.

No number on that page is typed; see `page.text`. `shipped` makes of the same
records what `gs.advise` quotes.
"""
