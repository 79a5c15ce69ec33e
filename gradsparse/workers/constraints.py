"""Sharding constraints inside of a step, which JAX refuses in its own words."""

from __future__ import annotations

from collections.abc import Collection, Iterator
import contextlib
import re

import jax


@contextlib.contextmanager
def explained(axes: Collection[str]) -> Iterator[None]:
  """Says how to write a sharding constraint that JAX refuses in a step.

  JAX tells it apart by no type of error, so its words are looked at.

  Args:
    axes: names of the axes of the workers.

  Raises:
    ValueError: a constraint names an axis of the workers, or a mesh on which
      that axis is automatic still.
  """
  try:
    yield
  except ValueError as e:
    spec = re.search(
      'can only refer to Auto axes.*? spec=(.*?) and mesh', f'{e}'
    )
    named = [a for a in axes if spec and repr(a) in spec[1]]
    if not named and 'should be of type `Manual`' not in f'{e}':
      raise
    workers = ', '.join(map(repr, named or axes))
    mesh = jax.sharding.get_abstract_mesh()
    others = [name for name in mesh.axis_names if name not in axes]
    cure = (
      f' Over other axes of the mesh, {", ".join(others)}, write the '
      'spec alone: jax.lax.with_sharding_constraint(x, '
      f'P(None, {others[0]!r})); or give it the mesh inside of the step, '
      'jax.sharding.get_abstract_mesh()'
      if others
      else ''
    )
    raise ValueError(
      f'a sharding constraint inside of the step names {workers}, or a mesh on '
      'which that axis is automatic. It is the axis of the workers, and each '
      f'has its own block already: leave the constraint out.{cure}'
    ) from e
