"""Fusion barriers, and updates in place.

XLA compiles each loop of a CPU program by itself, in 20 to 30 ms. A training
step has several loops for each leaf of a model. Two things then make the step
slow to compile:

- A loop that reads a small part of an array computes that part again, with all
  that leads to the part.
- Loops that differ in a constant alone, such as where a leaf begins, are
  compiled one by one. Equal loops are compiled once.

A barrier is a loop of one iteration or none. XLA does not know which, so arrays
that leave the loop are neither computed again nor known constants. A barrier
also keeps XLA from fusing two computations that are slow in one loop, such as
packing and concatenation. `jax.lax.optimization_barrier` does not help: XLA
removes it from CPU programs before it forms loops. On other platforms a barrier
does nothing, because there a loop waits for the host or stops fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gradsparse.backend import platforms
import jax
from jax.extend import core as jex_core
from jax.interpreters import ad
from jax.interpreters import batching
from jax.interpreters import mlir
import jax.numpy as jnp

_Tree = TypeVar('_Tree')

# For fewer readers the barrier takes longer to compile than it saves.
_MANY = 4


def barrier_if_shared(tree: _Tree, readers: int) -> _Tree:
  """The same arrays, behind a barrier if many loops read them.

  Args:
    tree: small arrays; a barrier copies them.
    readers: about how many loops read the arrays.
  """
  return fusion_barrier(tree) if readers >= _MANY else tree


def fusion_barrier(tree: _Tree) -> _Tree:
  """The same arrays, computed before any loop that reads them."""
  leaves, treedef = jax.tree.flatten(tree)
  if not any(x.size for x in leaves):
    return tree
  return jax.tree.unflatten(treedef, _barrier_p.bind(*leaves))


def hidden_numbers(values: Sequence[int], beside: jax.Array) -> list[jax.Array]:
  """int32 scalars whose values XLA does not know, if there are many of them.

  Args:
    values: the values.
    beside: any array that the program computes. If it is empty, XLA knows the
      values.
  """
  scalars = [jnp.int32(value) for value in values]
  if len(values) < _MANY or not beside.size:
    return scalars
  return _barrier_p.bind(beside.reshape(-1)[:1], *scalars)[1:]


def in_place_if(
  wanted: jax.Array,
  fn: Callable[[Any], Any],
  state: Any,
  *,
  branch: bool = False,
) -> Any:
  """fn(state) if `wanted`, else the state.

  On CPUs the result overwrites a donated state, and readers of the new state
  read that memory; arrays that `fn` returns unchanged are not touched. From a
  plain expression XLA would compute the new state once more for each reader,
  and keep a copy of the old one. For a branch it would copy both.

  Args:
    wanted: bool scalar.
    fn: state -> state of the same shapes and dtypes.
    state: a tree of arrays. CPUs run `fn` inside a loop, so that the result
      lands in the state's memory.
    branch: whether other platforms have a branch, which asks the host once, so
      that `fn` may send. They compute `fn` in any case otherwise.
  """
  if not jax.tree.leaves(state):
    return state

  def turn(wanted, state):
    """A loop of one iteration or none, whose result has one place in memory."""
    return jax.lax.while_loop(
      lambda carry: carry[0],
      lambda carry: (jnp.logical_and(carry[0], False), fn(carry[1])),
      (wanted, state),
    )[1]

  def select(wanted, state):
    return jax.tree.map(lambda n, o: jnp.where(wanted, n, o), fn(state), state)

  def choose(wanted, state):
    return jax.lax.cond(wanted, fn, lambda state: state, state)

  return platforms.elsewhere(choose if branch else select)(turn)(wanted, state)


def _one_turn_or_none(*leaves: jax.Array) -> list[jax.Array]:
  """The leaves, out of a loop whose iterations XLA does not know."""
  first = next(x for x in leaves if x.size).reshape(-1)[0]
  turn = first > jnp.zeros_like(first)

  def same(kept, x):
    return jax.lax.select(kept, x, jnp.zeros_like(x))

  _, out = jax.lax.while_loop(
    lambda carry: carry[0],
    # carry[0] holds in the loop's body, but XLA does not know that.
    lambda carry: (
      carry[0] & jnp.bool_(False),
      [same(carry[0], x) for x in carry[1]],
    ),
    (turn, [same(turn | jnp.bool_(True), x) for x in leaves]),
  )
  return out


# The identity of several arrays. JAX has no public way to make a primitive.
_barrier_p = jex_core.Primitive('gradsparse_fusion_barrier')
_barrier_p.multiple_results = True
_barrier_p.def_impl(lambda *leaves: list(leaves))
_barrier_p.def_abstract_eval(lambda *leaves: list(leaves))
mlir.register_lowering(_barrier_p, lambda _, *leaves: leaves)
mlir.register_lowering(
  _barrier_p,
  mlir.lower_fun(_one_turn_or_none, multiple_results=True),
  platform='cpu',
)
ad.primitive_jvps[_barrier_p] = lambda leaves, tangents: (
  _barrier_p.bind(*leaves),
  list(tangents),
)
batching.primitive_batchers[_barrier_p] = lambda leaves, dims: (
  _barrier_p.bind(*leaves),
  dims,
)
