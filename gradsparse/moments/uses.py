"""Sums over examples of a parameter's gradients and squares, from its uses.

A parameter q in a product (a dense layer, a convolution) has the gradient
g_z = sum_t a_zt d_zt^T of example z: a are the layer's inputs, d the
derivatives with respect to its outputs, and t runs over the pixels of an image
or the steps of a recurrent network. From all a and d follow

  sum_z g_z   and   sum_z g_z^2 (elementwise)

without the gradients of all examples in memory. With one t they are A^T D and
(A * A)^T (D * D). With several, there is one product for each example, and the
products are summed in blocks of examples.

A rule is for one primitive of JAX. `match` returns the rule for an equation
whose operand `position` is the parameter, or None if there is none. Uses with
the same `layout` have gradients of one form, which may be added. A matrix may
be looked up and multiplied, also transposed (as in a tied embedding).
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
  """The rule for an equation whose only parameter is operand `position`."""
  rule = _RULES.get(eqn.primitive.name)
  return rule and rule(eqn, position)


def transposed(rule: Rule) -> Rule | None:
  """The rule of the same use for q's transpose, a matrix, or None."""
  return products.transposed(rule) if isinstance(rule, Dense) else None


def sums(rules: Sequence[Rule], pairs: Sequence[Pair]) -> Pair:
  """Sums over examples of the gradients of q, and of their squares.

  Args:
    rules: the rules of all uses of q, of one layout.
    pairs: for each use, the other operand and the derivative with respect to
      the result, [examples, steps of loops, ...].

  Returns:
    Two float32 arrays of q's shape.
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
