"""Wrong arguments of plans and audits."""

from __future__ import annotations

from collections.abc import Iterator
import re

import gradsparse as gs
import jax
from jax.sharding import AbstractMesh
from tests.bad_input.cases import Case
from tests.bad_input.cases import whole
from tests.bad_input.subjects import DROPPING
from tests.bad_input.subjects import DROPPING_ON
from tests.bad_input.subjects import PARAMS


def plans() -> Iterator[Case]:
  """Numbers of workers, axes and steps that no plan has."""
  for sizes, says in (
    ({'worker': 2}, r"\{'worker': 2\} \(did you mean 'worker'\?\)"),
    ({}, r'\{\}'),
    ({3: 2}, r'\{3: 2\}'),
  ):
    yield Case(
      f'plan-num_workers={sizes}',
      lambda s=sizes: gs.plan(DROPPING_ON, PARAMS, s),
      ValueError,
      f"num_workers must give the size of axis 'workers', got {says}",
    )
  plan = gs.plan(DROPPING_ON, PARAMS, 2)
  yield from whole('over_run', plan.over_run, 'steps', (0, -1), 'at least 1')
  for axis in ('worker', 3, None):
    yield Case(
      f'plan.over-{axis}',
      lambda a=axis: plan.over(a),
      ValueError,
      f"axis_name must be an axis .*'workers'.*, got {axis!r}",
    )
  yield from whole(
    'plan',
    lambda v: gs.plan(DROPPING_ON, PARAMS, 2, step=v),
    'step',
    (-1, 10**12),
    'in 0..2147483647',
  )


def audits() -> Iterator[Case]:
  """What is no program, and meshes that are not the program's."""
  jitted = jax.jit(lambda x: x)
  for program in (None, 3, b'', [], DROPPING):
    kind = type(program).__name__
    yield Case(
      f'audit-{kind}',
      lambda p=program: gs.audit(p),
      TypeError,
      f'program must be a function, or a compiled .*or its text, got {kind}',
    )
  for program in (len, jitted):
    yield Case(
      f'audit-{type(program).__name__}',
      lambda p=program: gs.audit(p),
      TypeError,
      'program cannot be called with args: missing a required argument',
    )
  for text in ('', 'hello', jitted.lower(1.0).as_text()):
    yield Case(
      f'audit-text-{text[:6]}',
      lambda t=text: gs.audit(t),
      ValueError,
      f'begins with HloModule, got {re.escape(repr(text[:40]))}',
    )
  for mesh in (3, 'workers'):
    yield Case(
      f'audit-mesh-{mesh}',
      lambda m=mesh: gs.audit('HloModule x', m),
      TypeError,
      f'mesh must be a .*Mesh.*, got {mesh!r}',
    )
  yield Case(
    'audit-mesh-size',
    lambda: gs.audit('HloModule x', AbstractMesh((2, 4), ('a', 'b'))),
    ValueError,
    'mesh must have the 1 devices that the program runs on, or as many in each '
    'slice, got 8',
  )


CASES = (*plans(), *audits())
