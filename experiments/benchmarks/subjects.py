"""What is measured: schemes, SparseLoCo's message too, and a model's shapes."""

import math

from experiments.benchmarks.compress import contenders
from experiments.benchmarks.compress import trees
import optax

AXIS = 'workers'
DENSITY = contenders.DENSITY

_FEW = 2  # matrices of a small model


# Those of `contenders`, and their other arguments.
SCHEMES: dict[str, tuple[str, dict[str, str]]] = {
  'dense': ('dense', {}),
  'topk_allgather': ('dropping', {}),
  'gtopk_tree': ('gtopk', {'topology': 'tree', 'put_back': 'paper'}),
  'gtopk_butterfly': ('gtopk', {}),
  'dgc': ('dgc', {}),
  'sparse_loco': (
    'dropping',
    {'scope': 'tile', 'values': 'table4', 'mean': 'senders'},
  ),
  'qsgd4': ('qsgd4', {}),
  'qsgd4_scatter': ('qsgd4', {'exchange': 'reduce_scatter'}),
  'one_bit': ('one_bit', {}),
  'one_bit_scatter': ('one_bit', {'exchange': 'reduce_scatter'}),
}
_SPARSE = ('dropping', 'gtopk', 'dgc')


def make(name: str, density: float = DENSITY) -> optax.GradientTransformation:
  """A scheme and its parameter update: momentum SGD.

  DGC has the momentum inside, and plain SGD after it.
  """
  contender, more = SCHEMES[name]
  if contender in _SPARSE:
    more = {'density': density, **more}
  scheme = contenders.SCHEMES[contender](axis_name=AXIS, **more)
  momentum = None if name == 'dgc' else 0.9
  return optax.chain(scheme, optax.sgd(0.1, momentum=momentum))


def _kernels(width: int) -> list[tuple[int, int]]:
  """ResNet-50's convolution kernels as matrices (taps x inputs, outputs)."""
  leaves = trees.resnet(width).values()
  return [(math.prod(x[:-1]), x[-1]) for x in leaves if len(x) == 4]


def shapes(floats: int) -> dict[str, tuple[int, int]]:
  """The matrices of a network like ResNet-50 with about this many parameters.

  The kernels of the widest ResNet-50 that fits (width 64 is the real one, 25.5
  million), and a classifier of as many classes, in steps of 64, as fill it up.
  Vectors (biases, normalisation) are left out: DGC and others keep them dense.
  Below 400,000 parameters a few equal matrices, for a quick look.

  Args:
    floats: wanted number of parameters, at least 32,000.

  Raises:
    ValueError: fewer are wanted.
  """
  if floats < 32_000:
    raise ValueError(f'floats must be at least 32,000, got {floats:,}')
  if floats < 400_000:
    rows = round(floats / _FEW / 64)
    return {f'kernel_{i}': (rows, 64) for i in range(_FEW)}
  # Multiples of 8, so that most sizes are multiples of 64.
  width = 8
  while _count(_kernels(width + 8)) <= floats:
    width += 8
  kernels = _kernels(width)
  features = kernels[-1][1]
  missing = (floats - _count(kernels)) / features / 64
  named = {f'kernel_{i:02}': shape for i, shape in enumerate(kernels)}
  return named | {'classifier': (features, 64 * max(1, round(missing)))}


def _count(matrices) -> int:
  return sum(rows * columns for rows, columns in matrices)


def size(named: dict[str, tuple[int, int]]) -> int:
  """How many parameters there are."""
  return _count(named.values())
