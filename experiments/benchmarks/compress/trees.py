"""Trees of parameters to measure on: a matrix, ResNet-50, transformers."""

from collections.abc import Callable
import functools
import math

Shapes = dict[str, tuple[int, ...]]

# ResNet-50: (blocks, factor of the base width) of its four stages. A block's
# output has four times the width of its inside.
_STAGES = ((3, 1), (4, 2), (6, 4), (3, 8))
_EXPANSION = 4
_CLASSES = 1000
_LAYERS = 12
_STEP = 8  # of widths
_LEAST = 500_000


def one(floats: int) -> Shapes:
  """A matrix of 1024 columns."""
  return {'weights': (max(1, floats // 1024), 1024)}


def _widest(
  make_one: Callable[[int], Shapes], floats: int, step: int = _STEP
) -> Shapes:
  """The tree of the largest width, a multiple of `step`, that fits."""
  width = step
  while size(make_one(width + step)) <= floats:
    width += step
  return make_one(width)


def resnet(width: int) -> Shapes:
  """A ResNet-50, 161 leaves; width 64 is the real one."""
  shapes: Shapes = {}

  def convolution(name, taps, inputs, outputs):
    shapes[f'{name}/kernel'] = (taps, taps, inputs, outputs)
    shapes[f'{name}/scale'] = shapes[f'{name}/bias'] = (outputs,)

  convolution('stem', 7, 3, width)
  inputs = width
  for stage, (blocks, factor) in enumerate(_STAGES):
    inside = width * factor
    outside = inside * _EXPANSION
    for block in range(blocks):
      name = f'stage{stage}/block{block}'
      convolution(f'{name}/reduce', 1, inputs, inside)
      convolution(f'{name}/conv', 3, inside, inside)
      convolution(f'{name}/expand', 1, inside, outside)
      if block == 0:
        convolution(f'{name}/shortcut', 1, inputs, outside)
      inputs = outside
  # As many classes for a width of 64 as ImageNet has.
  classes = max(1, _CLASSES * width // 64)
  return shapes | {'head/kernel': (inputs, classes), 'head/bias': (classes,)}


def _transformer(width: int) -> Shapes:
  """12 layers, and as many tokens as 32 times the width."""
  shapes = _outside_layers(width)
  for number in range(_LAYERS):
    layer = _layer(width)
    shapes |= {f'layer{number:02}/{k}': v for k, v in layer.items()}
  return shapes


def _scanned(width: int) -> Shapes:
  """The same with its layers stacked, as `jax.lax.scan` wants them."""
  layers = {f'layers/{k}': (_LAYERS, *v) for k, v in _layer(width).items()}
  return _outside_layers(width) | layers


def _outside_layers(width: int) -> Shapes:
  return {'embedding': (32 * width, width), 'norm/scale': (width,)}


def _layer(width: int) -> Shapes:
  return {
    'attention/norm': (width,),
    'attention/qkv': (width, 3 * width),
    'attention/out': (width, width),
    'mlp/norm': (width,),
    'mlp/in': (width, 4 * width),
    'mlp/out': (4 * width, width),
  }


# By how many parameters there may be.
TREES: dict[str, Callable[[int], Shapes]] = {
  'one': one,
  'resnet50': functools.partial(_widest, resnet),
  'transformer': functools.partial(_widest, _transformer),
  # As many as 16 devices can divide each matrix among them.
  'scanned': functools.partial(_widest, _scanned, step=2 * _STEP),
}
# Those that speed is measured on, if no others are asked for.
MEASURED = ('one', 'resnet50', 'transformer')


def make(name: str, floats: int) -> Shapes:
  """Shapes of leaves by name.

  Args:
    name: a key of TREES.
    floats: how many parameters there may be, at least 500,000.

  Raises:
    ValueError: there may be fewer.
  """
  if floats < _LEAST:
    raise ValueError(f'floats must be at least {_LEAST:,}, got {floats:,}')
  return TREES[name](floats)


def size(shapes: Shapes) -> int:
  """How many parameters there are."""
  return sum(math.prod(shape) for shape in shapes.values())
