"""Float32 shapes of parameters, from a number, a file of shapes or a tree."""

from __future__ import annotations

import json
import math
import pathlib
import re
from typing import Any

from gradsparse import arguments
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

# A guessed model has about this many layers.
LAYERS = 24
_WIDTH_STEP = 128
# The square of this many elements still fits one message.
_WIDEST = 46_080
# A number beyond it would be a guess of hundreds of layers.
_MOST = 2e11
_NUMBER = re.compile(r'([+-]?[\d.,_]+(?:e[+-]?\d+)?)([kmbt]?)', re.IGNORECASE)
_POWERS = {'k': 'e3', 'm': 'e6', 'b': 'e9', 't': 'e12'}


def of(params: Any) -> tuple[Any, str]:
  """The shapes of the parameters, and their source in words.

  Args:
    params: a number of parameters; the path of a JSON file; or a tree whose
      leaves are arrays, `jax.ShapeDtypeStruct` or lists of whole numbers.

  Returns:
    A tree of float32 ShapeDtypeStructs, and a clause for the assumptions.

  Raises:
    TypeError, ValueError: params is none of these, or has no element.
  """
  if isinstance(params, str):
    return _parsed(params)
  if isinstance(params, (int, float)) or getattr(params, 'shape', None) == ():
    n = arguments.number('params', params, arguments.POSITIVE)
    if n < 1 or n > _MOST or n != round(n):
      raise ValueError(
        'params must be a whole number in 1..2e11, or a tree of shapes, got '
        f'{n:g}'
      )
    return _guessed(int(n)), (
      'shapes are a guess of square matrices with biases; pass your own tree'
    )
  shapes = jax.tree.map(_shape, params, is_leaf=_is_shape)
  if not sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)):
    raise ValueError(f'params must have an element, got {params!r}')
  return shapes, 'shapes are those of params, gradients float32'


def elements(shapes: Any) -> int:
  """The number of parameters."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def sharded(shapes: Any, axis_name: str, inner: int) -> Any:
  """PartitionSpecs that shard each leaf's largest divisible dimension.

  Args:
    shapes: from `of`.
    axis_name: the axis of a worker's devices.
    inner: the number of a worker's devices.
  """

  def spec(leaf):
    divided = _divided(leaf.shape, inner)
    if divided is None:
      return PartitionSpec()
    return PartitionSpec(*[None] * divided, axis_name)

  return jax.tree.map(spec, shapes)


def local(shapes: Any, inner: int) -> Any:
  """The shapes on one device of a worker, sharded as by `sharded`."""

  def part(leaf):
    shape = list(leaf.shape)
    if (divided := _divided(leaf.shape, inner)) is not None:
      shape[divided] //= inner
    return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)

  return jax.tree.map(part, shapes)


def _divided(shape: tuple[int, ...], inner: int) -> int | None:
  """The largest dimension that `inner` divides; None if there is none."""
  fits = [d for d, n in enumerate(shape) if n and n % inner == 0]
  return max(fits, key=lambda d: shape[d]) if fits else None


def _is_shape(leaf: Any) -> bool:
  return isinstance(leaf, (list, tuple)) and all(
    isinstance(n, int) and not isinstance(n, bool) for n in leaf
  )


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
  shape = leaf if _is_shape(leaf) else getattr(leaf, 'shape', None)
  if shape is None:
    raise TypeError(
      'params must have arrays or shapes such as [512, 512] as leaves, got '
      f'{leaf!r}'
    )
  if any(n < 0 for n in shape):
    raise ValueError(f'params must have shapes of sizes >= 0, got {leaf!r}')
  return jax.ShapeDtypeStruct(tuple(shape), jnp.float32)


def _parsed(text: str) -> tuple[Any, str]:
  number = _written(text)
  if number is not None:
    return of(number)
  path = pathlib.Path(text)
  if not path.is_file():
    if path.suffix == '.json':
      raise ValueError(f'params: there is no file {text!r}')
    raise ValueError(
      'params must be a number such as 25e6 or 1.3B, or a JSON file of shapes '
      f'such as {{"layer": {{"kernel": [512, 512]}}}}, got {text!r}'
    )
  try:
    tree = json.loads(path.read_text())
  except ValueError as e:
    raise ValueError(f'params must be a JSON file, got {text!r}: {e}') from e
  if isinstance(tree, (str, bool, type(None))) or _is_shape(tree):
    raise ValueError(
      f'params must be a JSON file of a tree or a number, got {text!r}'
    )
  return of(tree)


def _written(text: str) -> float | None:
  """A number such as 25e6, 25,000,000, 25M or 1.3B; None if it is none."""
  found = _NUMBER.fullmatch(text.strip())
  try:
    if not found:
      return float(text)
    digits, suffix = found[1].replace(',', ''), found[2].lower()
    if suffix and 'e' in digits.lower():
      return None
    # 1.1e9 is exact, 1.1 times 1e9 need not be.
    return float(digits + _POWERS[suffix]) if suffix else float(digits)
  except ValueError:
    return None


def _guessed(n: int) -> dict[str, Any]:
  """Square matrices, each with a bias, and a remainder: n elements in all."""
  width = min(_WIDEST, max(1, math.isqrt(n // LAYERS)))
  if width > _WIDTH_STEP:
    width -= width % _WIDTH_STEP
  layers, rest = divmod(n, width * width + width)
  rows, vector = divmod(rest, width)
  sizes: dict[str, tuple[int, ...]] = {
    f'layer_{i:02}': (width, width) for i in range(layers)
  }
  sizes |= {f'bias_{i:02}': (width,) for i in range(layers)}
  sizes |= {'rest': (rows, width)} if rows else {}
  sizes |= {'last': (vector,)} if vector else {}
  return {
    name: jax.ShapeDtypeStruct(shape, jnp.float32)
    for name, shape in sizes.items()
  }
