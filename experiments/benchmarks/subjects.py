"""What is measured: the schemes of the contract, and a model's shapes."""

from __future__ import annotations

from collections.abc import Callable

import gradsparse as gs
import optax

AXIS = 'workers'
DENSITY = 0.001
_LEARNING_RATE = 0.1
_MOMENTUM = 0.9

# ResNet-50: (blocks, factor of the base width) of its four stages. A block's
# output has four times the width of its inside.
_STAGES = ((3, 1), (4, 2), (6, 4), (3, 8))
_EXPANSION = 4
_FEW = 2  # matrices of a small model


def _followed_by_momentum(
  scheme: optax.GradientTransformation,
) -> optax.GradientTransformation:
  return optax.chain(scheme, optax.sgd(_LEARNING_RATE, momentum=_MOMENTUM))


# Each with its parameter update; momentum SGD in all of them (DGC has the
# momentum inside, and plain SGD after it).
SCHEMES: dict[str, Callable[[float], optax.GradientTransformation]] = {
  'dense': lambda density: _followed_by_momentum(gs.dense(axis_name=AXIS)),
  'topk_allgather': lambda density: _followed_by_momentum(
    gs.gradient_dropping(density, axis_name=AXIS)
  ),
  'gtopk_tree': lambda density: _followed_by_momentum(
    gs.gtopk(density, topology='tree', put_back='paper', axis_name=AXIS)
  ),
  'gtopk_butterfly': lambda density: _followed_by_momentum(
    gs.gtopk(density, axis_name=AXIS)
  ),
  'dgc': lambda density: optax.chain(
    gs.dgc(density, momentum=_MOMENTUM, axis_name=AXIS),
    optax.sgd(_LEARNING_RATE),
  ),
  'qsgd4': lambda density: _followed_by_momentum(gs.qsgd(7, axis_name=AXIS)),
  'qsgd4_scatter': lambda density: _followed_by_momentum(
    gs.qsgd(7, exchange='reduce_scatter', axis_name=AXIS)
  ),
  'one_bit': lambda density: _followed_by_momentum(
    gs.one_bit_sgd(axis_name=AXIS)
  ),
  'one_bit_scatter': lambda density: _followed_by_momentum(
    gs.one_bit_sgd(exchange='reduce_scatter', axis_name=AXIS)
  ),
}


def _kernels(width: int) -> list[tuple[int, int]]:
  """ResNet-50's convolution kernels as matrices (taps x inputs, outputs)."""
  shapes = [(7 * 7 * 3, width)]
  inputs = width
  for blocks, factor in _STAGES:
    inside = width * factor
    outside = inside * _EXPANSION
    for block in range(blocks):
      shapes += [(inputs, inside), (9 * inside, inside), (inside, outside)]
      if block == 0:
        shapes.append((inputs, outside))  # the shortcut's projection
      inputs = outside
  return shapes


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
  features = width * _STAGES[-1][1] * _EXPANSION
  missing = (floats - _count(kernels)) / features / 64
  named = {f'kernel_{i:02}': shape for i, shape in enumerate(kernels)}
  return named | {'classifier': (features, 64 * max(1, round(missing)))}


def _count(matrices) -> int:
  return sum(rows * columns for rows, columns in matrices)


def size(named: dict[str, tuple[int, int]]) -> int:
  """How many parameters there are."""
  return _count(named.values())
