"""XLA's estimate of QSGD's rounding and packing, in momentum SGD steps.

  python -m tests.experiments.benchmarks.workers_side resnet50 4

Nothing is exchanged. Leaves that QSGD leaves dense are left out.
"""

import sys

from experiments.benchmarks.accelerators import cost
from experiments.benchmarks.accelerators import programs
from experiments.benchmarks.accelerators import targets
from experiments.benchmarks.compress import trees
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

_TARGET = 'v5e:2x4'
# Parameters of the trees as they are recorded.
_NUM_PARAMS = {'one': 25_600_000, 'resnet50': 25_600_000}
_OTHERS = 26_000_000


def of_sgd(tree: str, width: int) -> float:
  """The estimate for codes of so many bits.

  Args:
    tree: a name of `trees.TREES`.
    width: bits of a level and its sign.
  """
  targets.prepare([_TARGET], 1)
  target = targets.make(_TARGET, 1)
  shapes = trees.make(tree, _NUM_PARAMS.get(tree, _OTHERS))
  sgd = programs.Bench(shapes, target).sgd
  compressor = gs.qsgd(2 ** (width - 1) - 1, axis_name='w').scheme.compressor
  code = compressor.code
  sizes = {name: jax.ShapeDtypeStruct(x, 'f4') for name, x in shapes.items()}
  names = [x for x in shapes if sizes[x].size >= compressor.leaves.min_size]
  key = jax.random.key(0)

  def pack(*grads):
    leaves = gs.extend.MessageLeaves(tuple(x.shape for x in grads))
    ctx = gs.extend.Context(leaves, 8, jnp.int32(3), key, key)
    return code.pack(code.round(gs.extend.Leaves([*grads]), ctx), ctx)

  mesh = Mesh(target.devices, ('w',))
  everywhere = NamedSharding(mesh, P())
  grads = [
    jax.ShapeDtypeStruct(shapes[x], 'f4', sharding=everywhere) for x in names
  ]
  step = jax.shard_map(
    pack, mesh=mesh, in_specs=P(), out_specs=P('w'), check_vma=False
  )
  compiled = jax.jit(step).lower(*grads).compile(dict(target.options))
  estimate, one = (cost.of(x.as_text()) for x in (compiled, sgd))
  assert not estimate.unknown_loops and not estimate.uncounted.get('sort')
  return estimate.cycles / one.cycles


if __name__ == '__main__':
  print(f'{of_sgd(sys.argv[1], int(sys.argv[2])):.2f}')
