"""Second moments of per-example gradients, for the variance criterion.

`second_moments` has the public functions. `per_example` adds up gradients and
their squares in one backward pass: `tapped` runs the program of a loss, and
`uses`, `products` and `lookups` know how a parameter can meet an example.

Of the library only `gradsparse/__init__.py` imports this folder. A training
program that has second moments of its own needs none of it.
"""
