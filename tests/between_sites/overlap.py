"""Compiles a step for two slices of TPUs, and prints the order of its parts.

  python -m tests.between_sites.overlap dense|qsgd prompt|delayed

The step is that of three layers, sharded over the devices of a slice; a scheme
exchanges between the slices. A line is `send`, `recv`, `done` (of either) or
`matmul`, in the order in which the compiled program begins them.
"""

import re
import sys

from experiments.benchmarks.accelerators import targets
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import optax

SCHEMES = {
  'dense': lambda: gs.dense(axis_name='slice'),
  'qsgd': lambda: gs.qsgd(7, axis_name='slice'),
}
_WIDTH, _SLICES = 1024, 2
_PARTS = (
  ('done', re.compile(r' (send|recv)-done\(')),
  ('send', re.compile(r' send\(')),
  ('recv', re.compile(r' recv\(')),
  ('matmul', re.compile(r'op_name="[^"]*dot_general')),
)


def compiled(scheme: str, delayed: bool) -> str:
  """The text of the compiled step."""
  target = targets.make('v5e:2x2', _SLICES)
  mesh = Mesh(
    target.devices, ('slice', 'fsdp'), axis_types=(AxisType.Auto,) * 2
  )
  specs = {name: P('fsdp', None) for name in 'abc'}

  def array(shape, spec, dtype=jnp.float32):
    sharding = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  square = (_WIDTH, _WIDTH)
  params = {name: array(square, spec) for name, spec in specs.items()}
  tx = gs.sharded(SCHEMES[scheme](), specs)
  tx = optax.chain(gs.delayed(tx) if delayed else tx, optax.sgd(0.1))
  state = jax.tree.map(
    lambda x, sharding: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding
    ),
    jax.eval_shape(lambda p: gs.workers.init(tx, p, _SLICES, 'slice'), params),
    gs.workers.shardings(tx, params, mesh, 'slice'),
  )

  def loss_fn(params, x):
    for name in params:
      x = jnp.tanh(x @ params[name])
    return jnp.sum(x**2)

  def step(params, state, x):
    grads = jax.grad(loss_fn)(gs.workers.local(params, 'slice'), x)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  own = gs.workers.specs(tx, params, _SLICES, 'slice')
  step = gs.workers.wrap(
    step,
    mesh=mesh,
    axis_name='slice',
    in_specs=(P(), own, P('slice')),
    out_specs=(P(), own),
  )
  lowered = jax.jit(step, donate_argnums=(0, 1)).lower(
    params, state, array(square, P(('slice', 'fsdp')))
  )
  return lowered.compile(compiler_options=dict(target.options)).as_text()


def parts(text: str) -> list[str]:
  """The parts of a step, in order."""
  lines = text[text.index('\nENTRY') :].splitlines()
  found = ([name for name, p in _PARTS if p.search(line)] for line in lines)
  return [names[0] for names in found if names]


def main(scheme: str, when: str) -> None:
  targets.prepare(['v5e:2x2'], _SLICES)
  print('\n'.join(parts(compiled(scheme, when == 'delayed'))))


if __name__ == '__main__':
  main(*sys.argv[1:])
