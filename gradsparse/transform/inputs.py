"""Checks of the trees and the state that `init` and `update` are given.

Most checks need only shapes and dtypes, and run during tracing; an error names
the first wrong leaf. The values of a second moment are checked if they are
concrete.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from gradsparse import arguments
from gradsparse.state.inspection import is_masked
from gradsparse.state.scheme import CompressedMeanState
import jax
import jax.numpy as jnp
import numpy as np


def _by_path(tree: Any) -> dict[str, Any]:
  return {
    arguments.leaf_name(path): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def is_placeholder(params: Any) -> bool:
  """Whether params are the placeholder of optax.tree.map_params.

  It is a node without children, of its own class.
  """
  plain = dict, list, tuple, type(None)
  treedef: Any = jax.tree.structure(params)
  empty = treedef.num_nodes == 1 and not treedef.num_leaves
  return empty and not isinstance(params, plain)


def check_floating(tree: Any, what: str) -> None:
  """Refuses leaves that are not real floating-point numbers.

  Args:
    tree: parameters, gradients or second moments.
    what: the tree's name, for the message.

  Raises:
    TypeError: a leaf has another dtype, or is a sparse array; the message names
      the first such leaf.
  """
  arguments.arrays(what, tree)
  _refuse_sparse(tree, what)
  for name, leaf in _by_path(tree).items():
    dtype = jnp.result_type(leaf)
    if not jnp.issubdtype(dtype, jnp.floating):
      cure = (
        'give its real and its imaginary part as two leaves'
        if jnp.issubdtype(dtype, jnp.complexfloating)
        else 'keep leaves without a gradient out of the tree (give them '
        'optax.set_to_zero() by optax.partition)'
      )
      raise TypeError(
        f'{what}: {name} must be floating-point numbers, got {dtype}; {cure}'
      )


def _refuse_sparse(tree: Any, what: str) -> None:
  """Refuses arrays of jax.experimental.sparse, trees of data and indices."""
  sparse = sys.modules.get('jax.experimental.sparse')
  if sparse is None:  # not imported, so there are no such arrays
    return

  def is_sparse(x):
    return isinstance(x, sparse.JAXSparse)

  leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_sparse)
  for path, leaf in leaves:
    if is_sparse(leaf):
      raise TypeError(
        f'{what}: {arguments.leaf_name(path)} must be a dense array, got '
        f'{type(leaf).__name__}: sparse arrays are not supported. Give the '
        'dense one, x.todense(), or keep such a leaf out of the tree'
      )


def _first_difference(
  tree: Any, like: Any, *, types: bool = False
) -> str | None:
  """The first difference of a tree of arrays from another one, in words.

  Args:
    tree: tree of arrays.
    like: the other tree.
    types: whether dtypes are compared, in addition to names and shapes.
  """
  own, other = _by_path(tree), _by_path(like)
  for name in other:
    if name not in own:
      return f'{name} is missing'
  for name, leaf in own.items():
    if name not in other:
      return f'{name} should not be there'
    shape, wanted = jnp.shape(leaf), jnp.shape(other[name])
    if shape != wanted:
      return f'{name} has shape {shape} and not {wanted}'
    if types and jnp.result_type(leaf) != other[name].dtype:
      return f'{name} is {jnp.result_type(leaf)} and not {other[name].dtype}'
  given: Any = jax.tree.structure(tree)
  wanted_tree: Any = jax.tree.structure(like)
  if given != wanted_tree:
    return f'it is {given} and not {wanted_tree}'
  return None


def check_like(tree: Any, like: Any, what: str, of_what: str) -> None:
  """Refuses a tree that differs from another one in names or in shapes.

  Args:
    tree: the tree.
    like: the other tree.
    what: name of `tree`, for the message.
    of_what: name of `like`.

  Raises:
    ValueError: the trees differ; the message names the first difference.
  """
  difference = _first_difference(tree, like)
  if difference:
    raise ValueError(f'{what} must be a tree like {of_what}: {difference}')


def second_moment_of(extra: dict[str, Any], grads: Any) -> Any:
  """Checks and returns the second moment of an update.

  Args:
    extra: keyword arguments of the update.
    grads: gradients. optax.partition masks gradients of other labels, but not
      further arguments; the masked leaves are dropped here.

  Raises:
    TypeError: the second moment is not floating-point.
    ValueError: the second moment is missing, has another tree or shape, or is
      known to be negative.
  """
  moments = extra.get('second_moment')
  if moments is None:
    raise ValueError(
      'this scheme needs the second moment of the per-example gradients: '
      'tx.update(grads, state, params, second_moment=...), a tree like the '
      'gradients; gs.value_and_grad_moments computes it'
    )
  if any(map(is_masked, jax.tree.leaves(grads, is_leaf=is_masked))):
    # For another tree, the check below says how it differs.
    with contextlib.suppress(ValueError, TypeError):
      moments = jax.tree.map(
        lambda g, x: g if is_masked(g) else x, grads, moments, is_leaf=is_masked
      )
  check_like(moments, grads, 'second_moment', 'the gradients')
  check_floating(moments, 'second_moment')
  for name, leaf in _by_path(moments).items():
    if isinstance(leaf, jax.core.Tracer):
      continue  # the step is rejected, see `health`
    least = np.min(np.asarray(leaf, np.float32), initial=0.0)
    if least < 0:
      raise ValueError(
        f'second_moment must be at least 0, a sum of squares, got {least} in '
        f'{name}'
      )
  return moments


def check_state(state: Any, expected: Any, grads: Any, scheme: str) -> None:
  """Refuses a state that this scheme's `init` cannot have returned.

  Args:
    state: what `update` was given.
    expected: what `init` would return for parameters like the gradients.
    grads: gradients.
    scheme: its name, for the message.

  Raises:
    TypeError: a leaf of the state is no array.
    ValueError: another kind of state, or another scheme's; or the gradients
      are no tree like the parameters that the state was made for.
  """
  if not isinstance(state, CompressedMeanState):
    raise ValueError(
      f'{scheme} needs the state that its own init returned, a '
      f'CompressedMeanState, got {type(state).__name__}'
    )
  arguments.arrays('state', state)
  kind, other = type(state.memory).__name__, type(expected.memory).__name__
  if type(state.memory) is not type(expected.memory):
    raise _foreign(scheme, f'memory is {kind} and not {other}')
  pending = jax.eval_shape(lambda: state.memory.pending())
  check_like(grads, pending, 'gradients', 'the parameters given to init')
  for part in state._fields:
    if part == 'dense_leaves':
      continue  # below, in words
    difference = _first_difference(
      getattr(state, part), getattr(expected, part), types=True
    )
    if difference:
      raise _foreign(scheme, f'{part}: {difference}')
  others = set(state.dense_leaves) ^ set(expected.dense_leaves)
  if others:
    name = arguments.leaf_names(grads, others)[0]
    raise _foreign(
      scheme,
      f'leaf {name} is dense in one scheme and compressed in the other '
      '(min_size or dense_paths differs)',
    )


def _foreign(scheme: str, difference: str) -> ValueError:
  return ValueError(
    f"{scheme} was given another scheme's state: its {difference}. A state "
    'belongs to the transformation that made it; gs.switch(tx_old, tx_new, '
    'state) carries over what is pending'
  )


def refuse_stacked(state: Any, expected: Any) -> None:
  """Refuses a state that still has its worker axis.

  It would be broadcast against gradients, which have no such axis.

  Args:
    state: of a scheme, as given to its update.
    expected: the same state with the shapes that it has inside a step.

  Raises:
    ValueError: a leaf has the axis; the message names the first one, its shape
      and the expected shape.
  """

  def unlike():
    treedef: Any = jax.tree.structure(expected)
    return jax.tree.structure(state) != treedef

  if isinstance(state, CompressedMeanState) and unlike():
    # Gradients may have that axis too (optax.MultiSteps keeps them in a state);
    # then other leaves would be compressed.
    state = state._replace(memory=(), compressor=(), exchange=())
    expected = state._replace(stats=expected.stats)
  if unlike():
    return  # not this scheme's state at all
  leaves = jax.tree_util.tree_leaves_with_path(state)
  for (path, x), like in zip(leaves, jax.tree.leaves(expected), strict=True):
    shape = np.shape(x)
    if shape[1:] == like.shape and len(shape) == len(like.shape) + 1:
      raise ValueError(
        f'state{jax.tree_util.keystr(path)} must have shape {like.shape} in '
        f'update, got {shape}: it still has the worker axis of '
        'gs.workers.init. Run the step by gs.workers.parallel; in your own '
        'vmap or shard_map, remove the axis first (in_axes=0, or x[0] of a '
        'block); outside of them, start from tx.init(params).'
      )
