"""Traced arguments of a scheme.

A density by `optax.inject_hyperparams` is known at run time only. JAX forbids
its use in a shard_map that was entered later, unless it is passed in.
"""

from __future__ import annotations

from typing import Any

from gradsparse import arguments
import jax
from jax.extend import core as jex_core
from jax.interpreters import batching
from jax.interpreters import mlir

# The identity, whose result is typed as equal on all devices. JAX has no public
# function for it.
same_p = jex_core.Primitive('gradsparse_same')
same_p.def_impl(lambda x: x)
same_p.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
mlir.register_lowering(same_p, lambda _, x: [x])
batching.primitive_batchers[same_p] = lambda args, dims: (
  same_p.bind(*args),
  dims[0],
)


def here(x: Any) -> Any:
  """Makes an argument of a scheme usable in any shard_map.

  Args:
    x: a number, or a traced number that is equal on all devices.
  """
  if not isinstance(x, jax.core.Tracer):
    return x
  if not jax.sharding.get_abstract_mesh().manual_axes:
    return x
  return same_p.bind(x)


def in_range(*numbers: tuple[Any, arguments.Range]) -> Any:
  """Whether traced numbers are in their ranges.

  Args:
    *numbers: each with its range. The factory has checked those not traced.

  Returns:
    bool scalar; True if no number is traced.
  """
  fits: Any = True
  for number, within in numbers:
    if isinstance(number, jax.core.Tracer):
      fits &= within.holds(here(number))
  return fits
