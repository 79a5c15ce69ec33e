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

from gradsparse.around import uses
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


@dataclasses.dataclass(frozen=True, eq=False)
class View:
  """How a value is made of parameters only, by turning them.

  Attributes:
    leaves: numbers of the parameters in it.
    of: makes it from parameters by number, in float32.
  """

  leaves: frozenset[int]
  of: Callable[[Mapping[int, Any]], Any]


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
    unknown: numbers of parameters in other equations, with their primitive.
  """

  def __init__(self, taps: list[Any] | None):
    self.taps = taps
    self.uses: list[Any] = []
    self.met: list[Any] = []
    self.results: list[Any] | None = [] if taps is None else None
    self.unknown: dict[int, str] = {}

  def tap(self) -> Any:
    """Of the next entry."""
    return None if self.taps is None else self.taps[len(self.uses)]

  def enter(self, use: Any, met: Any, result: Any) -> None:
    """Writes an entry down."""
    self.uses.append(use)
    self.met.append(met)
    if self.results is not None:
      self.results.append(result)

  def plain(self, value: Any, why: str) -> Any:
    """A value for who does not know views."""
    if not isinstance(value, Seen):
      return value
    for leaf in value.view.leaves:
      self.unknown.setdefault(leaf, why)
    return value.value


def run(
  jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], tape: Tape
) -> list[Any]:
  """The results of a jaxpr of which some arguments are `Seen`."""
  env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
  env.update(zip(jaxpr.invars, args, strict=True))

  def read(x):
    return x.val if isinstance(x, jex_core.Literal) else env[x]

  for eqn in jaxpr.eqns:
    with eqn.ctx.manager:
      results = _equation(eqn, [read(x) for x in eqn.invars], tape)
    env.update(zip(eqn.outvars, results, strict=True))
  return [read(x) for x in jaxpr.outvars]


def _equation(eqn: Any, values: list[Any], tape: Tape) -> list[Any]:
  seen = [x for x in values if isinstance(x, Seen)]
  name = eqn.primitive.name
  if not seen:
    return _bind(eqn, values)
  if name == 'jit':
    inner = eqn.params['jaxpr']
    return run(inner.jaxpr, inner.consts, values, tape)
  if name == 'scan':
    return _scan(eqn, values, tape)
  if len(seen) == len(values) and _turns(eqn, seen):
    return [_turned(eqn, seen)]
  if len(seen) == 1 and (rule := uses.match(eqn, values.index(seen[0]))):
    # All that `uses` knows have two operands.
    (other,) = (x for x in values if x is not seen[0])
    (result,) = _bind(eqn, [x.value if x is seen[0] else x for x in values])
    tap = tape.tap()
    tape.enter(Use(seen[0].view, rule), other, result)
    return [result if tap is None else result + tap]
  return _bind(eqn, [tape.plain(x, name) for x in values])


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
  return Seen(View(leaves, of), value)


def _scan(eqn: Any, values: list[Any], tape: Tape) -> list[Any]:
  """A loop, whose taps and whose kept values go step by step beside it."""
  closed = eqn.params['jaxpr']
  constants, carried = _scan_counts(eqn.params)
  own = values[:constants]
  moving = [tape.plain(x, 'scan') for x in values[constants:]]
  inner = Tape(None)

  def body(carry, step):
    nonlocal inner
    xs, taps = step
    inner = Tape(taps)
    out = run(closed.jaxpr, closed.consts, [*own, *carry, *xs], inner)
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
  tape.unknown = {**inner.unknown, **tape.unknown}
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
