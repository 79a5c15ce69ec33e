"""Value codes applied to whole leaves, of which a bitmap says what is sent.

For messages of so many elements that to name them one by one takes more bits,
or far more time. Words: the scales of all leaves, and of each leaf a bitmap and
the codes of all its elements.
"""

from __future__ import annotations

from typing import NamedTuple

from gradsparse import folding
from gradsparse.codes import entries
from gradsparse.codes.sparse_values import ValueCode
from gradsparse.sockets import Marked
from gradsparse.wire import bitmap
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp


class Words(NamedTuple):
  """A message.

  Attributes:
    scales: uint32, of all leaves.
    marks: uint32 for each leaf, which elements are sent.
    codes: uint32 for each leaf, of all its elements.
  """

  scales: jax.Array
  marks: list[jax.Array]
  codes: list[jax.Array]


def round(code: ValueCode, m: Marked, key: jax.Array) -> Marked:
  """What the code can say; what it cannot is not marked any more."""
  if code.round is None:
    return m
  values, marks = [], []
  tops = _scales_of(code, m)
  for number, (x, mark) in enumerate(zip(m.values, m.marks, strict=True)):
    scales = [top[number] for top in tops]
    new, kept = code.round(x, scales, jax.random.fold_in(key, number))
    values.append(new)
    marks.append(mark if kept is None else mark & kept)
  return Marked.of(values, marks)


def pack(code: ValueCode, m: Marked) -> Words:
  """What was rounded, as words."""
  tops = _scales_of(code, m)
  codes = [
    code.encode(x.reshape(-1), [top[number] for top in tops])
    for number, x in enumerate(m.values)
  ]
  return Words(
    entries.pack_scales(code, tops),
    [bitmap.pack(mark.reshape(-1)) for mark in m.marks],
    [fixed_width.pack(x, code.width) for x in codes],
  )


def unpack(code: ValueCode, words: Words, like: Marked) -> Marked:
  """What was packed, of leaves like these."""
  tops, _ = entries.unpack_scales(code, words.scales, len(like.values))
  values, marks = [], []
  for number, x in enumerate(like.values):
    codes = fixed_width.unpack(words.codes[number], x.size, code.width)
    values.append(
      code.decode(codes, [top[number] for top in tops]).reshape(x.shape)
    )
    mark = bitmap.unpack(words.marks[number], x.size)
    marks.append(mark.reshape(x.shape))
  return Marked.of(values, marks)


def _scales_of(code: ValueCode, m: Marked) -> list[jax.Array]:
  """The scales of each leaf, as `entries.scales_of`."""
  by_leaf = [code.scales(x) for x in m.values]
  return [
    jnp.stack([folding.top(x) for x in own])
    for own in zip(*by_leaf, strict=True)
  ]
