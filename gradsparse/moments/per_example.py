"""Sums and squares of per-example gradients, in one backward pass.

The loss of one example is traced, and its program is mapped over the batch.
Each parameter is handled in one of two ways:

  shared   the parameter is used only in products that `uses` knows. All
           examples share it. Gradients and squares come from the products'
           other operands and the derivatives of the results (`tapped`). An
           example's gradients of all steps of a loop are added before they are
           squared.
  copied   each example has a copy of the parameter; the derivatives with
           respect to the copies are summed, and their squares too.

Both are exact. Copies of biases and scales are small. Copies of weights make
`jax.vmap(jax.grad(loss))` slow, so a warning names these parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
import math
from typing import Any
import warnings

from gradsparse.collectives import mesh_axes
from gradsparse.moments import tapped
from gradsparse.moments import uses
import jax
import jax.numpy as jnp

_SLOW = (
  'second moments: each example has a copy of its own of parameter {} ({}), '
  'which is exact, but slow and large. No copies are needed of a parameter '
  'with one use in the loss, in dot_general, conv_general_dilated or a lookup '
  'of rows, also in lax.scan. A matrix may have several lookups and products.'
)


class Program:
  """The traced loss of one example, to be differentiated for many.

  Args:
    loss_fn: (params, example) -> loss (and aux).
    params: tree of floating-point arrays.
    batch: tree of arrays whose first axis is that of examples.
    axis_name: name of the axis of examples, if losses have collectives over it.
    has_aux: see `loss_fn`.
  """

  def __init__(
    self,
    loss_fn: Callable[..., Any],
    params: Any,
    batch: Any,
    *,
    axis_name: str | None = None,
    has_aux: bool = False,
  ):
    examples = jax.tree.leaves(batch)
    trace = jax.make_jaxpr(
      loss_fn,
      axis_env=[(axis_name, len(examples[0]))] if axis_name else None,
      return_shape=True,
    )
    one = jax.tree.map(lambda x: x[0], batch)
    self._closed, shapes = trace(params, one)
    self._aux_tree = jax.tree.structure(shapes[1] if has_aux else None)
    self._axis_name = axis_name
    leaves, self._tree = jax.tree.flatten(params)
    self._views = [_view_of(i) for i in range(len(leaves))]
    self._copied, self._used, self._results = self._explored(leaves, examples)
    self._say_slow(params)

  def sums(self, params: Any, batch: Any, size: int) -> Any:
    """The sums of losses, gradients and squares over a chunk of the batch.

    Args:
      params: as in `__init__`.
      batch: a chunk, with as many examples as in `__init__`.
      size: the number of examples of the whole batch.

    Returns:
      (loss, aux of each example, gradients, squares): sums over the examples
      of loss / size, g / size and (g / size)^2, the last two in float32.
    """
    leaves, examples = jax.tree.leaves(params), jax.tree.leaves(batch)
    zero = mesh_axes.varying_zero((leaves, examples))
    taps = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype) + zero.astype(x.dtype),
      self._results,
    )

    def total(taps, copies):
      tape = tapped.Tape(taps)
      losses, aux, met, _ = self._mapped(leaves, examples, copies, tape)
      return jnp.sum(losses) / size, (aux, met)

    (loss, (aux, met)), (derivatives, own) = jax.value_and_grad(
      total, argnums=(0, 1), has_aux=True
    )(taps, _copies(leaves, self._copied, examples))
    found = {
      i: (jnp.sum(g, 0), jnp.sum(g * g, 0))
      for i, g in ((i, g.astype(jnp.float32)) for i, g in own.items())
    }
    meetings = zip(
      self._used,
      jax.tree.leaves(met),
      jax.tree.leaves(derivatives),
      strict=True,
    )
    whole = {i: x.astype(jnp.float32) for i, x in enumerate(leaves)}
    for view, group in _grouped(meetings):
      rules = [use.rule for use, *_ in group]
      pairs = [
        (_one_loop(met, use.loops), _one_loop(derivative, use.loops))
        for use, met, derivative in group
      ]
      back = jax.vjp(view.of, {i: whole[i] for i in view.leaves})[1]
      gradients, squares = (back(x)[0] for x in uses.sums(rules, pairs))
      found |= {i: (gradients[i], squares[i]) for i in view.leaves}
    zeros = {i: (0 * x, 0 * x) for i, x in whole.items() if i not in found}
    both = [(found | zeros)[i] for i in whole]
    return (
      loss,
      jax.tree.unflatten(self._aux_tree, aux),
      *(jax.tree.unflatten(self._tree, x) for x in zip(*both, strict=True)),
    )

  def _mapped(self, leaves, examples, copies, tape):
    """(losses, aux, the products' operands and results), examples first."""

    def one(copies, taps, example):
      tape.taps = taps
      args = [
        copies[i] if i in copies else tapped.Seen(view, leaf)
        for i, (view, leaf) in enumerate(zip(self._views, leaves, strict=True))
      ]
      args += example
      own = [not isinstance(x, tapped.Seen) for x in args]
      closed = self._closed
      loss, *aux = tapped.run(closed.jaxpr, closed.consts, args, own, tape)
      loss = tape.plain(loss, 'the loss')
      aux = [x.value if isinstance(x, tapped.Seen) else x for x in aux]
      return loss, aux, tape.met, tape.results

    return jax.vmap(one, axis_name=self._axis_name)(copies, tape.taps, examples)

  def _explored(
    self, leaves: Sequence[Any], examples: Sequence[Any]
  ) -> tuple[dict[int, str | None], list[tapped.Use], Any]:
    """Which parameters are copied and why, the others' uses, their results.

    The search repeats: a copied parameter is an ordinary value, which may make
    another parameter unknown that is concatenated with it.
    """
    copied: dict[int, str | None] = {}
    while True:
      tape = tapped.Tape(None)
      run = functools.partial(
        self._mapped, leaves, examples, _copies(leaves, copied, examples), tape
      )
      *_, results = jax.eval_shape(run)
      used = jax.tree.leaves(tape.uses)
      unknown = _unknown(used, tape.unknown)
      if not unknown:
        return copied, used, results
      copied |= unknown

  def _say_slow(self, params: Any) -> None:
    for i, (path, leaf) in enumerate(
      jax.tree_util.tree_leaves_with_path(params)
    ):
      why = self._copied.get(i)
      if why and sum(n > 1 for n in leaf.shape) > 1:
        name = jax.tree_util.keystr(path) or 'the only one'
        warnings.warn(_SLOW.format(name, why), UserWarning, stacklevel=4)


def _view_of(leaf: int) -> tapped.View:
  """The view of a whole parameter."""
  return tapped.View(frozenset({leaf}), lambda leaves: leaves[leaf])


def _copies(
  leaves: Sequence[Any], copied: Mapping[int, Any], examples: Sequence[Any]
) -> dict[int, Any]:
  """A copy of these parameters for each example."""
  return {
    i: jnp.broadcast_to(leaves[i], (len(examples[0]), *leaves[i].shape))
    for i in copied
  }


def _unknown(
  used: Sequence[tapped.Use], unknown: Mapping[int, str | None]
) -> dict[int, str | None]:
  """`unknown`, and the parameters with uses that cannot be summed."""
  places: dict[int, set[Any]] = {}
  for use in used:
    place = (use.view, use.rule.layout)
    for leaf in use.view.leaves:
      places.setdefault(leaf, set()).add(place)
  several = {
    i: 'several places'
    for i, at in places.items()
    if len(at) + (i in unknown) > 1
  }
  return several | {i: why or several.get(i) for i, why in unknown.items()}


def _grouped(meetings: Any) -> list[tuple[tapped.View, list[Any]]]:
  """Groups meetings by view."""
  groups: dict[tapped.View, list[Any]] = {}
  for meeting in meetings:
    groups.setdefault(meeting[0].view, []).append(meeting)
  return list(groups.items())


def _one_loop(x: jax.Array, loops: int) -> jax.Array:
  """Reshapes the steps of all loops to one axis: [examples, steps, ...]."""
  examples, *shape = x.shape
  return x.reshape(examples, math.prod(shape[:loops]), *shape[loops:])
