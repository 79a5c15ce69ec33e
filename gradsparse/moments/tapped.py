"""Runs the jaxpr of a loss and records the products that use parameters.

The jaxpr is run equation by equation, with parameters marked as `Seen`. In a
product that `uses` knows, the parameter's other operand is kept, and a zero (a
tap) is added to the result: the derivative with respect to the tap is that with
respect to the result.

Before a product, parameters may be transposed, reshaped or concatenated. Such a
`View` contains each element of the parameters at most once, so that squares
propagate back as gradients do. The run enters compiled functions, and loops
(`jax.lax.scan`) in which the parameter is a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

from gradsparse.moments import uses
import jax
from jax.extend import core as jex_core
import jax.numpy as jnp

# Primitives whose result contains no element of an operand twice.
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
# Primitives that keep a matrix, or transpose it.
_SAME = ('convert_element_type', 'copy', 'transpose')


@dataclasses.dataclass(frozen=True, eq=False)
class View:
  """A rearrangement of parameters.

  Attributes:
    leaves: numbers of the parameters in it.
    of: {number: parameter in float32} -> the view's value.
    matrix: (another view, whether this one is its transpose), if this one is
      the same matrix, perhaps in another precision; else None.
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
  """A use of a view in a product.

  Attributes:
    view: the view.
    rule: the rule of the product.
    loops: the number of loops around the product.
  """

  view: View
  rule: uses.Rule
  loops: int = 0


class Tape:
  """The inputs (taps) and records of one run.

  A loop has one entry in each list: a list of the entries of its body, whose
  arrays have a leading axis of steps.

  Attributes:
    taps: zeros like the results; None in the first run, which finds results.
    uses: products with parameters, in the order of the program.
    met: the other operand of each product.
    results: the result of each product, if there are no taps yet.
    unknown: number of a parameter in another equation -> the primitive; or None
      if the result differs between examples and is as large as the parameter.
  """

  def __init__(self, taps: list[Any] | None):
    self.taps = taps
    self.uses: list[Any] = []
    self.met: list[Any] = []
    self.results: list[Any] | None = [] if taps is None else None
    self.unknown: dict[int, str | None] = {}

  def tap(self) -> Any:
    """The tap of the next entry."""
    return None if self.taps is None else self.taps[len(self.uses)]

  def enter(self, use: Any, met: Any, result: Any) -> None:
    """Records an entry."""
    self.uses.append(use)
    self.met.append(met)
    if self.results is not None:
      self.results.append(result)

  def plain(self, value: Any, why: str | None) -> Any:
    """The plain value; parameters in it become `unknown`.

    Args:
      value: a value, perhaps `Seen`.
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
  """Runs a jaxpr and returns its results.

  Args:
    jaxpr: the jaxpr.
    consts: its constants.
    args: its arguments; parameters are `Seen`.
    own: which arguments differ between examples.
    tape: records products with parameters.
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
    # All primitives of `uses` have two operands.
    view, values[at[0]] = values[at[0]]
    (result,) = _bind(eqn, values)
    tap = tape.tap()
    tape.enter(_use(view, rule), values[1 - at[0]], result)
    return [result if tap is None else result + tap]
  why = None if any(own) and _elementwise(eqn) else name
  return _bind(eqn, [tape.plain(x, why) for x in values])


def _use(view: View, rule: uses.Rule) -> Use:
  """A use of the view, or of its matrix, whose uses can be summed."""
  if view.matrix is None:
    return Use(view, rule)
  matrix, transposed = view.matrix
  own = uses.transposed(rule) if transposed else rule
  return Use(view, rule) if own is None else Use(matrix, own)


def _elementwise(eqn: Any) -> bool:
  """Whether all operands broadcast to the result's shape."""
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
  """Whether the result is a view."""
  leaves = frozenset().union(*(x.view.leaves for x in seen))
  after = eqn.outvars[0].aval
  return (
    eqn.primitive.name in _VIEWS
    and after.size == sum(x.aval.size for x in eqn.invars)
    and jnp.issubdtype(after.dtype, jnp.floating)
    # Concatenated with itself, a parameter would be in it twice.
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
  """`View.matrix` of the result."""
  name = eqn.primitive.name
  if name not in _SAME or eqn.outvars[0].aval.ndim != 2:
    return None
  matrix, transposed = views[0].matrix or (views[0], False)
  return matrix, transposed ^ (eqn.params.get('permutation') == (1, 0))


def _scan(
  eqn: Any, values: list[Any], own: Sequence[bool], tape: Tape
) -> list[Any]:
  """Runs a loop, which scans over its taps and stacks its records."""
  closed = eqn.params['jaxpr']
  constants, carried = _scan_counts(eqn.params)
  still = values[:constants]
  # The carry is assumed to differ between examples.
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
  """The number of constants, and of carried operands."""
  if 'num_consts' in params:
    return params['num_consts'], params['num_carry']
  constants, carry, _ = params['ft_in'].unpack()  # in newer JAX
  return len(constants), len(carry)
