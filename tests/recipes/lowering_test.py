"""Every recipe's step becomes a program for GPUs and for TPUs.

It is lowered for them, not compiled, so neither is needed: JAX translates each
primitive as it does on that platform, and refuses what has no translation
there, a call back to Python for instance.
"""

from __future__ import annotations

import gradsparse as gs
from gradsparse.backend import platforms
import jax
from jax.sharding import AbstractMesh
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
import numpy as np
import optax
import pytest
from tests import marks
from tests import runs
from tests import schemes

PLATFORMS = ('cuda', 'tpu')
# Not a power of two: gTop-k folds one worker into another.
NUM_WORKERS = 3

# A message of one size, and one of several.
KINDS = ('dgc', 'variance')


def custom_calls(lowered: jax.stages.Lowered) -> set[str]:
  """Names of what a program calls outside of StableHLO."""
  found = set()

  def visit(op):
    if op.name.endswith('.custom_call'):
      found.add(ir.StringAttr(op.attributes['call_target_name']).value)
    return ir.WalkResult.ADVANCE

  lowered.compiler_ir('stablehlo').operation.walk(visit)
  return found


def simulated(step, in_specs, out_specs):
  return gs.workers.parallel(
    step,
    runner='simulate',
    num_workers=NUM_WORKERS,
    in_specs=in_specs,
    out_specs=out_specs,
    check_vma=False,  # `on_a_mesh` checks the types of the same step
  )


def on_a_mesh(step, in_specs, out_specs):
  """On devices that nobody has."""
  mesh = AbstractMesh(
    (NUM_WORKERS,), (schemes.AXIS,), axis_types=(AxisType.Auto,)
  )

  def of_blocks(params, state, grads, second_moment):
    own = jax.tree.map(lambda x: x[0], (grads, second_moment))
    return step(params, state, *own)

  return jax.jit(
    gs.workers.wrap(
      of_blocks, mesh=mesh, in_specs=in_specs, out_specs=out_specs
    )
  )


def traced(name: str, run) -> jax.stages.Traced:
  """A setting's step, for arguments of which there are only the shapes."""
  tx, params = schemes.BY_NAME[name].make(), schemes.BY_NAME[name].params
  specs, own = runs.specs_of(name), P(schemes.AXIS)

  def step(params, state, grads, second_moment):
    updates, state = tx.update(
      grads, state, params, second_moment=second_moment
    )
    return optax.apply_updates(params, updates), state

  def arguments():
    state = jax.tree.map(
      lambda x, spec: gs.workers.stack(x, NUM_WORKERS) if spec else x,
      tx.init(params),
      specs,
    )
    grads = gs.workers.stack(params, NUM_WORKERS)
    return params, state, grads, grads

  fn = run(step, (P(), specs, own, own), (P(), specs))
  return fn.trace(*jax.eval_shape(arguments))


@pytest.mark.parametrize(
  'name, run',
  marks.few(
    [
      *((name, on_a_mesh) for name in schemes.BY_NAME),
      *((name, simulated) for name in KINDS),
    ],
    *((name, on_a_mesh) for name in KINDS),
  ),
)
def test_a_step_is_lowered_for_gpus_and_tpus(name, run, monkeypatch):
  monkeypatch.setattr(platforms, 'name', lambda: 'gpu')
  # For both at once, in GPUs' form, as TPUs' has kernels that GPUs have not.
  lowered = traced(name, run).lower(lowering_platforms=PLATFORMS)
  assert not custom_calls(lowered)


@pytest.mark.parametrize('platform', PLATFORMS)
def test_the_lowering_is_that_of_the_platform(platform):
  """What JAX cannot translate for a platform stops these tests."""

  def callback(x):
    return jax.pure_callback(np.sin, x, x)

  def eigen(x):
    return jax.lax.linalg.schur(x)[0]

  for fn in (callback, eigen):
    step = jax.jit(fn).trace(np.ones((2, 2), np.float32))
    assert custom_calls(step.lower(lowering_platforms=('cpu',)))
    with pytest.raises((NotImplementedError, ValueError), match=platform):
      step.lower(lowering_platforms=(platform,))
