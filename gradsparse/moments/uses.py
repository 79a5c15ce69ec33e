"""What a parameter's gradients of all examples are, from how it was used.

A parameter q that meets an example in a product (a dense layer, a convolution)
has the gradient g_z = sum_t a_zt d_zt^T: a are the layer's inputs, d the
derivatives with respect to its outputs, and t goes over the pixels of an image
or the steps of a recurrent network. From all a and d come, without a gradient
of every example side by side,

  sum_z g_z   and   sum_z g_z^2 (elementwise).

With one t that is A^T D and (A * A)^T (D * D). With several, one product an
example, added up in blocks of examples.

A rule here knows one primitive of JAX. `match` gives the rule for an equation
whose operand `position` is the parameter, or None where it does not know how.
Rules with the same `layout` may be added up: they give gradients of q alike.
A matrix may be looked up and multiplied, as it is and transposed (an embedding
that is the output's matrix, too).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsparse.moments import lookups
from gradsparse.moments import products
from gradsparse.moments.lookups import Lookup
from gradsparse.moments.products import Convolution
from gradsparse.moments.products import Dense
from gradsparse.moments.products import Pair

Rule = Dense | Convolution | Lookup

_RULES = {
  'conv_general_dilated': products.convolution,
  'dot_general': products.dense,
  'gather': lookups.lookup,
}


def match(eqn: Any, position: int) -> Rule | None:
  """The rule for an equation whose operand `position` alone is a parameter."""
  rule = _RULES.get(eqn.primitive.name)
  return rule and rule(eqn, position)


def transposed(rule: Rule) -> Rule | None:
  """The same use of q's transpose, a matrix; None: it has no rule."""
  return products.transposed(rule) if isinstance(rule, Dense) else None


def sums(rules: Sequence[Rule], pairs: Sequence[Pair]) -> Pair:
  """Sum over examples of the gradients of q, and of their squares.

  Args:
    rules: how q was used, each time; all of one layout.
    pairs: for each use what q met and the derivative with respect to the
      result, [examples, steps of loops, ...].

  Returns:
    Two of float32 in q's shape.
  """
  both = list(zip(rules, pairs, strict=True))
  looked_up = [(r, x) for r, x in both if isinstance(r, Lookup)]
  multiplied = [(r, x) for r, x in both if not isinstance(r, Lookup)]
  if not looked_up:
    return products.sums(multiplied)
  rows = lookups.Rows(looked_up)
  if not multiplied:
    return rows.sums()
  total, squares = (
    x + y for x, y in zip(rows.sums(), products.sums(multiplied), strict=True)
  )
  return total, squares + 2 * rows.times(multiplied)
