"""Which leaves of a tree are compressed, and which share a message.

Both depend only on shapes, and on how leaves are sharded over the devices of
one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
import re
from typing import Any

from gradsparse import arguments
from gradsparse.sockets import Cut
from gradsparse.sockets import LeafRule
from gradsparse.sockets import Limits
from gradsparse.sockets import Shape
import jax
import jax.numpy as jnp

DensePaths = str | Callable[[str], bool] | None

# The most elements of a group of several leaves. Wire formats count in int32,
# up to two units an element. A larger leaf is a group of its own.
GROUP_ELEMENTS = 2**30
# The most elements of a message: the last index marks an empty slot, and
# bitmaps have whole words.
MOST_ELEMENTS = 2**31 - 32
_NO_LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class Group:
  """The leaves of one message.

  Attributes:
    compressed: numbers of the leaves in the message.
    dense: numbers of the leaves that are all-reduced uncompressed.
    axes: the mesh axes over which all of them are sharded, on each worker.
  """

  compressed: tuple[int, ...]
  dense: tuple[int, ...]
  axes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
  """A static division of the leaves of a tree.

  Attributes:
    treedef: structure of the tree.
    names: path of each leaf, such as "['dense']['kernel']".
    shapes: shape of each leaf, or of its part on one device (`on_device`).
    cuts: how each leaf is sharded over the devices of a worker.
    compressed: numbers of the leaves in messages.
    dense: numbers of the leaves that are all-reduced uncompressed.
    undivided: shapes of the whole leaves.
    selects_globally: whether the selection is from all compressed leaves.
    limits: the code's limits.
  """

  treedef: Any
  names: tuple[str, ...]
  shapes: tuple[Shape, ...]
  cuts: tuple[Cut, ...]
  compressed: tuple[int, ...]
  dense: tuple[int, ...]
  undivided: tuple[Shape, ...]
  selects_globally: bool = False
  limits: Limits = _NO_LIMITS

  @property
  def most_elements(self) -> int:
    """The most elements of a message."""
    return min(MOST_ELEMENTS, self.limits.most_elements or MOST_ELEMENTS)

  @property
  def compressed_shapes(self) -> tuple[Shape, ...]:
    return self.shapes_of(self.compressed)

  def shapes_of(self, numbers: Sequence[int]) -> tuple[Shape, ...]:
    return tuple(self.shapes[i] for i in numbers)

  @property
  def count_type(self) -> Any:
    """int32, or float32 where that cannot count the elements of a worker."""
    total = sum(map(math.prod, self.undivided))
    return jnp.int32 if total < 2**31 else jnp.float32

  def axes(self, number: int) -> tuple[str, ...]:
    """The mesh axes over which a leaf is sharded."""
    return tuple(
      sorted({name for names in self.cuts[number] for name in names})
    )

  def on_device(self, sizes: Mapping[str, int]) -> Layout:
    """The layout of the leaves' parts on one device.

    Args:
      sizes: sizes of the mesh axes.

    Raises:
      ValueError: an axis does not divide its dimension, or is not in the mesh.
    """
    return dataclasses.replace(
      self,
      shapes=tuple(
        _divided(name, shape, cut, sizes)
        for name, shape, cut in zip(
          self.names, self.shapes, self.cuts, strict=True
        )
      ),
    )

  def whole_leaves(self) -> Layout:
    """The same layout without sharding."""
    return dataclasses.replace(self, cuts=((),) * len(self.shapes))

  def groups(self) -> tuple[Group, ...]:
    """The groups of leaves that share a message, at least one.

    The leaves of a group are sharded over the same axes, and have fewer
    elements than int32 can count. Groups are in the order of their first
    leaves.

    Raises:
      ValueError: a leaf, or all leaves of a global selection, have too many
        elements for one message.
    """
    self.check_sizes()
    most = min(
      GROUP_ELEMENTS,
      self.limits.group_elements or GROUP_ELEMENTS,
      self.most_elements,
    )
    order: dict[tuple[str, ...], list[list[int]]] = {}
    room: dict[tuple[str, ...], int] = {}
    for i in self.compressed:
      size, axes = math.prod(self.shapes[i]), self.axes(i)
      if axes not in order or (size > room[axes] and not self.selects_globally):
        order.setdefault(axes, []).append([])
        room[axes] = most
      order[axes][-1].append(i)
      room[axes] -= size
    dense: dict[tuple[str, ...], list[int]] = {}
    for i in self.dense:
      dense.setdefault(self.axes(i), []).append(i)
    out = [
      Group(tuple(numbers), tuple(dense.pop(axes, ())), axes)
      for axes, messages in order.items()
      for numbers in messages
    ]
    out += [Group((), tuple(numbers), axes) for axes, numbers in dense.items()]
    return tuple(out)

  def check_sizes(self) -> None:
    """Refuses leaves that are too large for a message; see `groups`.

    Sharded leaves are checked on a device only.
    """
    most = self.most_elements
    limit = f'more than the {most:,} that one message can count'
    for i in self.compressed:
      size = math.prod(self.shapes[i])
      if size > most:
        raise ValueError(
          f'leaf {self.names[i]} has {size:,} elements, {limit}: divide it '
          'into several leaves, shard it (gs.sharded), or keep it dense by '
          'dense_paths=...'
        )
    total = sum(map(math.prod, self.compressed_shapes))
    if self.selects_globally and total > most:
      raise ValueError(
        f'the compressed leaves have {total:,} elements together, {limit}, and '
        'this scheme selects from all of them at once. A scheme that selects '
        "from each leaf has no such limit: scope='leaf', 'chunk' or 'tile' of "
        'gs.dgc and gs.gradient_dropping'
      )

  def is_dense(self) -> Any:
    """Tree of bools: whether the leaf stays dense."""
    kept = set(self.compressed)
    return jax.tree.unflatten(
      self.treedef, [i not in kept for i in range(len(self.shapes))]
    )

  def tree(self, nodes: Mapping[int, Any]) -> Any:
    """The tree with these nodes as leaves, by number."""
    return jax.tree.unflatten(
      self.treedef, [nodes[i] for i in range(len(self.shapes))]
    )

  def spread(self, compressed: Sequence[jax.Array]) -> Any:
    """The tree with zeros for dense leaves; () if there are no arrays."""
    if not compressed:
      return ()
    zeros = {i: jnp.zeros(self.shapes[i], jnp.float32) for i in self.dense}
    return self.tree(
      dict(zip(self.compressed, compressed, strict=True)) | zeros
    )

  def collect(self, tree: Any) -> dict[int, jax.Array]:
    """The leaves that `spread` was given, by number."""
    leaves = jax.tree.leaves(tree)
    return {i: leaves[i] for i in self.compressed} if leaves else {}


def _divided(
  name: str, shape: Shape, cut: Cut, sizes: Mapping[str, int]
) -> Shape:
  """The shape of one device's part of a leaf."""
  out = list(shape)
  for dimension, axes in enumerate(cut):
    for axis in axes:
      if axis not in sizes:
        raise ValueError(
          f'param_specs divides {name} over mesh axis {axis!r}, but the mesh '
          f'has {", ".join(sizes) or "no other axes"}'
          f'{arguments.did_you_mean(axis, sizes)}'
        )
      if out[dimension] % sizes[axis]:
        raise ValueError(
          f'{name} has {shape[dimension]} elements in dimension {dimension}, '
          f'which mesh axes {axes} of sizes {[sizes[a] for a in axes]} do not '
          'divide evenly'
        )
      out[dimension] //= sizes[axis]
  return tuple(out)


def make_layout(
  tree: Any,
  rule: LeafRule,
  min_size: int | None,
  dense_paths: DensePaths,
  *,
  cuts: Sequence[Cut] | None = None,
  selects_globally: bool = False,
  limits: Limits = _NO_LIMITS,
) -> Layout:
  """Divides leaves into compressed and dense ones.

  Args:
    tree: parameters or gradients, whole.
    rule: the scheme's rule: which leaves it accepts, and which it compresses.
    min_size: leaves with fewer elements stay dense; None is the scheme's
      rule; 0 compresses every leaf that the compressor accepts.
    dense_paths: leaves whose path matches (re.search) or for which the
      function returns True stay dense, whatever their size.
    cuts: how each leaf is sharded over the devices of a worker; None: all are
      whole.
    selects_globally: whether the selection is from all compressed leaves.
    limits: the code's limits.
  """
  pairs, treedef = jax.tree_util.tree_flatten_with_path(tree)
  names = tuple(jax.tree_util.keystr(path) for path, _ in pairs)
  shapes = tuple(tuple(jnp.shape(leaf)) for _, leaf in pairs)

  def is_dense(name, shape):
    if math.prod(shape) == 0 or not rule.accepts(shape):
      return True
    if _matches(dense_paths, name):
      return True
    if min_size is not None:
      return math.prod(shape) < min_size
    if rule.dense_1d and len(shape) < 2:
      return True
    return math.prod(shape) < rule.min_size

  stays = [is_dense(n, s) for n, s in zip(names, shapes, strict=True)]
  return Layout(
    treedef,
    names,
    shapes,
    cuts=((),) * len(shapes) if cuts is None else tuple(cuts),
    compressed=tuple(i for i, d in enumerate(stays) if not d),
    dense=tuple(i for i, d in enumerate(stays) if d),
    undivided=shapes,
    selects_globally=selects_globally,
    limits=limits,
  )


def _matches(dense_paths: DensePaths, name: str) -> bool:
  """Whether a leaf stays dense because of its path."""
  if isinstance(dense_paths, str):
    return re.search(dense_paths, name) is not None
  return dense_paths is not None and bool(dense_paths(name))


def check_dense_paths(layout: Layout, dense_paths: DensePaths) -> None:
  """Refuses dense_paths that match no leaf, or all leaves.

  Raises:
    ValueError: none or all match; the message shows some paths.
  """
  if dense_paths is None or not layout.names:
    return
  chosen = [_matches(dense_paths, name) for name in layout.names]
  if any(chosen) and not all(chosen):
    return
  shown = ', '.join(layout.names[:4]) + ', ...' * (len(layout.names) > 4)
  how = ''
  if isinstance(dense_paths, str):
    how = (
      '. It is a regular expression: write a bracket of a path as \\[, or any '
      'text between two names as .*'
    )
  raise ValueError(
    f'dense_paths must match some leaves but not all, got {dense_paths!r}, '
    f'which matches {"all" if all(chosen) else "none"} of the '
    f'{len(layout.names)} leaves. Their paths are {shown}{how}'
  )


def check_something_to_do(layout: Layout, rule: LeafRule, name: str) -> None:
  """Refuses a tree of which no leaf is compressed.

  That is law 7 of `gs.testing.check_scheme`.

  Args:
    layout: the leaves' layout.
    rule: the scheme's rule.
    name: the scheme's name, for the message.

  Raises:
    ValueError: there are leaves, but none is compressed.
  """
  if layout.compressed or not any(map(math.prod, layout.shapes)):
    return
  none = not any(map(rule.accepts, layout.shapes))
  why = [rule.refusal] if rule.refusal else []
  if rule.dense_1d:
    why.append('leaves of fewer than two dimensions stay dense')
  if rule.min_size:
    why.append(f'leaves under {rule.min_size} elements stay dense')
  raise ValueError(
    f'{name} has nothing to compress: none of the {len(layout.shapes)} leaves '
    'qualifies'
    + (f' ({"; ".join(why)})' if why else '')
    + '. min_size=0 compresses every leaf that the scheme accepts'
    + ' (it accepts none of these)' * none
    + '; use gs.dense for a model this small.'
  )
