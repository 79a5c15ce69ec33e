"""Second moments of per-example gradients, for the variance criterion.

`second_moments` has the public functions. `per_example` adds up gradients and
their squares in one backward pass: `tapped` runs the program of a loss, and
`uses`, `products` and `lookups` know how a parameter can meet an example.

Of the library only `gradsparse/__init__.py` imports this folder. A training
program that has second moments of its own needs none of it.
"""

from gradsparse.moments.second_moments import batch_value_and_grad_moments
from gradsparse.moments.second_moments import dense_with_moment
from gradsparse.moments.second_moments import moments_from_microbatches
from gradsparse.moments.second_moments import value_and_grad_moments

__all__ = (
  'batch_value_and_grad_moments',
  'dense_with_moment',
  'moments_from_microbatches',
  'value_and_grad_moments',
)
