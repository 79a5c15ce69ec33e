"""Value codes applied to whole leaves, of which a bitmap says what is sent.

For messages of so many elements that to name them one by one takes more bits,
or far more time. Words: the scales of all leaves, and of each leaf a bitmap and
the codes of all its elements.
"""

from __future__ import annotations

from typing import NamedTuple

from gradsparse import folding
from gradsparse import opaque
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
  scales = _of_each(_scales_of(code, m), m)
  keys = opaque.numbers(range(len(m.values)), jax.random.key_data(key))
  for x, mark, own, number in zip(m.values, m.marks, scales, keys, strict=True):
    new, kept = code.round(x, own, jax.random.fold_in(key, number))
    values.append(new)
    marks.append(mark if kept is None else mark & kept)
  return Marked.of(values, marks)


def pack(code: ValueCode, m: Marked) -> Words:
  """What was rounded, as words."""
  tops = _scales_of(code, m)
  both = zip(m.values, _of_each(tops, m), strict=True)
  codes = [code.encode(x.reshape(-1), own) for x, own in both]
  return Words(
    entries.pack_scales(code, tops),
    [bitmap.pack(mark.reshape(-1)) for mark in m.marks],
    [fixed_width.pack(x, code.width) for x in codes],
  )


def unpack(code: ValueCode, words: Words, like: Marked) -> Marked:
  """What was packed, of leaves like these."""
  tops, _ = entries.unpack_scales(code, words.scales, len(like.values))
  values, marks = [], []
  for x, own, packed, bits in zip(
    like.values, _of_each(tops, like), words.codes, words.marks, strict=True
  ):
    codes = fixed_width.unpack(packed, x.size, code.width)
    values.append(code.decode(codes, own).reshape(x.shape))
    marks.append(bitmap.unpack(bits, x.size).reshape(x.shape))
  return Marked.of(values, marks)


def _of_each(tops: list[jax.Array], m: Marked) -> list[list[jax.Array]]:
  """The scales of each leaf, scalars."""
  if not tops:
    return [[] for _ in m.values]
  cut = [opaque.cut(top, [()] * len(m.values)) for top in tops]
  return [list(own) for own in zip(*cut, strict=True)]


def _scales_of(code: ValueCode, m: Marked) -> list[jax.Array]:
  """The scales of each leaf, as `entries.scales_of`."""
  by_leaf = [code.scales(x) for x in m.values]
  return [
    jnp.stack([folding.top(x) for x in own])
    for own in zip(*by_leaf, strict=True)
  ]
