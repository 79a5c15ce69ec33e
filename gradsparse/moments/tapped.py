"""Runs the program of a loss, and taps it where parameters meet examples.

A jaxpr is run again, equation by equation, with some arguments `Seen`: known
to be parameters. Where one is in a product that `uses` knows, what it meets is
kept and a zero (a tap) is added to the result, so that the derivative with
respect to the tap is that with respect to the result.

Parameters may be turned on the way to a product: transposed, reshaped, joined.
Such a `View` has each element of the parameters at most once, so that squares
go back the way that gradients do. Functions that were compiled are entered, and
so are loops (`jax.lax.scan`) around which a parameter stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

from gradsparse.moments import uses
import jax
from jax.extend import core as jex_core
import jax.numpy as jnp

# Each element of the result is one of the operands', none is there twice.
_VIEWS = frozenset(
  {
    'broadcast_in_dim',
    'concatenate',
    'convert_element_type',
    'copy',
    'reshape',
    'squeeze',
    'transpose',
  }
)
# Of these, what leaves a matrix what it is, or transposes it.
_SAME = ('convert_element_type', 'copy', 'transpose')


@dataclasses.dataclass(frozen=True, eq=False)
class View:
  """How a value is made of parameters only, by turning them.

  Attributes:
    leaves: numbers of the parameters in it.
    of: makes it from parameters by number, in float32.
    matrix: another view that this is, perhaps in another precision, and
      whether this is its transpose; None: there is no such view.
  """

  leaves: frozenset[int]
  of: Callable[[Mapping[int, Any]], Any]
  matrix: tuple[View, bool] | None = None


class Seen(NamedTuple):
  """A view and its value in the program that runs."""

  view: View
  value: Any


@dataclasses.dataclass(frozen=True)
class Use:
  """A view in a product.

  Attributes:
    view: which.
    rule: of the product.
    loops: how many loops are around it.
  """

  view: View
  rule: uses.Rule
  loops: int = 0


class Tape:
  """What one run of a program takes and writes down.

  A loop has one entry in each list, itself a list with the entries of its body
  and a leading axis of steps.

  Attributes:
    taps: zeros like the results; None while these are looked for.
    uses: products with parameters, in the order of the program.
    met: what the parameter met in each.
    results: of each, where there are no taps yet.
    unknown: numbers of parameters in other equations, with the primitive; None
      where the result is an example's own and not smaller than the parameter.
  """

  def __init__(self, taps: list[Any] | None):
    self.taps = taps
    self.uses: list[Any] = []
    self.met: list[Any] = []
    self.results: list[Any] | None = [] if taps is None else None
    self.unknown: dict[int, str | None] = {}

  def tap(self) -> Any:
    """Of the next entry."""
    return None if self.taps is None else self.taps[len(self.uses)]

  def enter(self, use: Any, met: Any, result: Any) -> None:
    """Writes an entry down."""
    self.uses.append(use)
    self.met.append(met)
    if self.results is not None:
      self.results.append(result)

  def plain(self, value: Any, why: str | None) -> Any:
    """A value for who does not know views.

    Args:
      value: perhaps of parameters.
      why: see `unknown`.
    """
    if not isinstance(value, Seen):
      return value
    for leaf in value.view.leaves:
      self.unknown[leaf] = self.unknown.get(leaf) or why
    return value.value


def run(
  jaxpr: Any,
  consts: Sequence[Any],
  args: Sequence[Any],
  own: Sequence[bool],
  tape: Tape,
) -> list[Any]:
  """The results of a jaxpr.

  Args:
    jaxpr: what to run.
    consts: of it.
    args: its arguments; parameters are `Seen`.
    own: which arguments differ between examples.
    tape: takes and gives what belongs to products with parameters.
  """
  env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
  env.update(zip(jaxpr.invars, args, strict=True))
  differing = {
    x for x, differs in zip(jaxpr.invars, own, strict=True) if differs
  }

  def read(x):
    return x.val if isinstance(x, jex_core.Literal) else env[x]

  for eqn in jaxpr.eqns:
    differs = [
      not isinstance(x, jex_core.Literal) and x in differing for x in eqn.invars
    ]
    with eqn.ctx.manager:
      values = [read(x) for x in eqn.invars]
      results = _equation(eqn, values, differs, tape)
    env.update(zip(eqn.outvars, results, strict=True))
    if any(differs):
      differing.update(eqn.outvars)
  return [read(x) for x in jaxpr.outvars]


def _equation(
  eqn: Any, values: list[Any], own: Sequence[bool], tape: Tape
) -> list[Any]:
  at = [i for i, x in enumerate(values) if isinstance(x, Seen)]
  name = eqn.primitive.name
  if not at:
    return _bind(eqn, values)
  if name == 'jit':
    inner = eqn.params['jaxpr']
    return run(inner.jaxpr, inner.consts, values, own, tape)
  if name == 'scan':
    return _scan(eqn, values, own, tape)
  if len(at) == len(values) and _turns(eqn, values):
    return [_turned(eqn, values)]
  if len(at) == 1 and (rule := uses.match(eqn, at[0])):
    # All that `uses` knows have two operands.
    view, values[at[0]] = values[at[0]]
    (result,) = _bind(eqn, values)
    tap = tape.tap()
    tape.enter(_use(view, rule), values[1 - at[0]], result)
    return [result if tap is None else result + tap]
  why = None if any(own) and _elementwise(eqn) else name
  return _bind(eqn, [tape.plain(x, why) for x in values])


def _use(view: View, rule: uses.Rule) -> Use:
  """Of the matrix that a view is, where there is one: its uses add up."""
  if view.matrix is None:
    return Use(view, rule)
  matrix, transposed = view.matrix
  own = uses.transposed(rule) if transposed else rule
  return Use(view, rule) if own is None else Use(matrix, own)


def _elementwise(eqn: Any) -> bool:
  """Whether the result is what all operands are broadcast to."""
  result = eqn.outvars[0].aval.shape
  return not any(jex_core.jaxprs_in_params(eqn.params)) and all(
    len(shape) == len(result)
    and all(n in (1, m) for n, m in zip(shape, result, strict=True))
    for shape in (x.aval.shape for x in eqn.invars)
  )


def _bind(eqn: Any, values: Sequence[Any]) -> list[Any]:
  params = eqn.primitive.get_bind_params(eqn.params)
  out = eqn.primitive.bind(*values, **params)
  return list(out) if eqn.primitive.multiple_results else [out]


def _turns(eqn: Any, seen: Sequence[Seen]) -> bool:
  """Whether the result is a view, too."""
  leaves = frozenset().union(*(x.view.leaves for x in seen))
  after = eqn.outvars[0].aval
  return (
    eqn.primitive.name in _VIEWS
    and after.size == sum(x.aval.size for x in eqn.invars)
    and jnp.issubdtype(after.dtype, jnp.floating)
    # What is joined with itself is there twice.
    and len(leaves) == sum(len(x.view.leaves) for x in seen)
  )


def _turned(eqn: Any, seen: Sequence[Seen]) -> Seen:
  views = [x.view for x in seen]
  (value,) = _bind(eqn, [x.value for x in seen])

  def of(leaves):
    parts = [view.of(leaves) for view in views]
    if eqn.primitive.name == 'convert_element_type':
      return parts[0]  # sums of squares stay float32
    return _bind(eqn, parts)[0]

  leaves = frozenset().union(*(view.leaves for view in views))
  return Seen(View(leaves, of, _matrix(eqn, views)), value)


def _matrix(eqn: Any, views: Sequence[View]) -> tuple[View, bool] | None:
  """See `View.matrix`, of the result."""
  name = eqn.primitive.name
  if name not in _SAME or eqn.outvars[0].aval.ndim != 2:
    return None
  matrix, transposed = views[0].matrix or (views[0], False)
  return matrix, transposed ^ (eqn.params.get('permutation') == (1, 0))


def _scan(
  eqn: Any, values: list[Any], own: Sequence[bool], tape: Tape
) -> list[Any]:
  """A loop, whose taps and whose kept values go step by step beside it."""
  closed = eqn.params['jaxpr']
  constants, carried = _scan_counts(eqn.params)
  still = values[:constants]
  # What is carried differs between examples sooner or later.
  differs = [*own[:constants], *[True] * carried, *own[constants + carried :]]
  moving = [tape.plain(x, 'scan') for x in values[constants:]]
  inner = Tape(None)

  def body(carry, step):
    nonlocal inner
    xs, taps = step
    inner = Tape(taps)
    args = [*still, *carry, *xs]
    out = run(closed.jaxpr, closed.consts, args, differs, inner)
    out = [inner.plain(x, 'scan') for x in out]
    return out[:carried], (out[carried:], inner.met, inner.results)

  carry, (ys, met, results) = jax.lax.scan(
    body,
    moving[:carried],
    (moving[carried:], tape.tap()),
    length=eqn.params['length'],
    reverse=eqn.params['reverse'],
    unroll=eqn.params['unroll'],
  )
  for leaf, why in inner.unknown.items():
    tape.unknown[leaf] = tape.unknown.get(leaf) or why
  deeper = jax.tree.map(
    lambda use: dataclasses.replace(use, loops=use.loops + 1), inner.uses
  )
  tape.enter(deeper, met, results)
  return [*carry, *ys]


def _scan_counts(params: Any) -> tuple[int, int]:
  """How many operands are constants, and how many are carried."""
  if 'num_consts' in params:
    return params['num_consts'], params['num_carry']
  constants, carry, _ = params['ft_in'].unpack()  # in newer JAX
  return len(constants), len(carry)
