"""Second moments of per-example gradients, for the variance criterion.

`second_moments` has the public functions. `per_example` sums gradients and
their squares in one backward pass: `tapped` runs the jaxpr of a loss, and
`uses`, `products` and `lookups` have rules for the uses of a parameter.

In the library, only `gradsparse/__init__.py` imports this folder. A training
program that computes its own second moments does not need it.
"""
