"""Compressors that send the elements that satisfy a rule.

The rules are Strom's, the variance criterion and AdaComp's. How many elements
satisfy a rule depends on the data, but the size of a message must be static. So
there is a ladder of sizes. In each step all workers choose the smallest rung
that is large enough for all of them. The largest rung of the default ladder
holds all elements. With a shorter ladder, elements beyond the largest rung stay
in the memory and are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse import traced
from gradsparse.backend import reductions
from gradsparse.sockets import Code
from gradsparse.sockets import Compressor
from gradsparse.sockets import Ladder
from gradsparse.sockets import Signal
import jax
import jax.numpy as jnp

# Fractions of the elements that a message can hold. The smallest is below one
# in 28,954, the smallest average that the variance paper reports. The rungs are
# powers of eight: each is compiled, and a message is at most eight times as
# large as its content.
LADDER = (1 / 32768, 1 / 4096, 1 / 512, 1 / 64, 1 / 8, 1.0)

# (signal of a leaf) -> (values to send, mask), both leaf-shaped.
Rule = Callable[[Signal], tuple[jax.Array, jax.Array]]


class _Picked(NamedTuple):
  """The elements that the rule picked.

  Attributes:
    leaves: the leaves, rounded and coded by `Code.mark`.
    joined: the same, concatenated.
    need: int32, how many elements are picked.
  """

  leaves: Any
  joined: Any
  need: jax.Array


def by_rule(
  rule: Rule,
  code: Code,
  *,
  name: str,
  ladder: Sequence[float] = LADDER,
  positive: Sequence[Any] = (),
) -> Compressor:
  """Sends the elements of all leaves that satisfy a rule.

  >>> import gradsparse as gs
  >>> codes, compressors = gs.extend.codes, gs.extend.compressors
  >>> compressor = compressors.by_rule(
  ...   compressors.rule.strom(0.01), codes.signs_of(0.01), name='mine')
  >>> compressor.ladder.rungs([(1000,)])  # entries of the sizes of a message
  (1, 2, 16, 125, 1000)

  Args:
    rule: Signal -> (values, mask), both leaf-shaped: which elements of a leaf
      are sent, and as which values.
    code: the code of the elements, with a `mark`: such as `codes.sparse` or
      `codes.signs_of`.
    name: the scheme's name, for tables.
    ladder: fractions of the elements that a message can hold, ascending. If
      the last is below 1.0, elements beyond it stay in the memory.
    positive: numbers of the rule that may be traced. If one is not positive and
      finite, all workers reject the step.

  Raises:
    TypeError: code is no `Code`, or ladder is not a sequence of numbers.
    ValueError: ladder does not ascend within (0, 1], or code has no `mark`.
  """
  arguments.instance('code', code, Code)
  mark = code.mark
  if mark is None:
    raise ValueError(
      'code must have a `mark`, as those of codes.sparse (but not with '
      "values='table4') and codes.signs_of have, got one without"
    )
  fractions = arguments.ladder(ladder)
  all_fit = fractions[-1] == 1.0

  def rungs(shapes):
    total = sum(math.prod(shape) for shape in shapes)
    slots = {min(total, max(1, math.ceil(f * total))) for f in fractions}
    return tuple(sorted(slots))

  def look(signals, ctx):
    # Values too small for the code are not marked, so they need no slot.
    leaves = mark(list(map(rule, signals)), ctx)
    joined = leaves.joined()
    return _Picked(leaves, joined, joined.count())

  def choose(ctx):
    sizes = jnp.asarray(rungs(ctx.shapes))
    number = jnp.sum(sizes < ctx.prepared.need)
    return jnp.minimum(number, sizes.shape[0] - 1).astype(jnp.int32)

  def overflow(ctx):
    return jnp.maximum(ctx.prepared.need - ctx.rung, 0)

  def select(signals, ctx):
    del signals
    if all_fit:
      return ctx.prepared.joined.at_most(ctx.rung)
    # Each step begins at another element: otherwise the last leaves would
    # never be sent.
    return ctx.prepared.joined.at_most(ctx.rung, first=ctx.step * ctx.rung)

  return Compressor(
    name,
    select,
    code,
    ladder=Ladder(
      rungs,
      choose,
      look,
      delivered=(
        (lambda ctx: ctx.prepared.leaves)
        if all_fit and code.limits.dropped is None
        else None
      ),
      overflow=overflow,
      usable=lambda step: traced.in_range(
        *((number, arguments.POSITIVE) for number in positive)
      ),
    ),
  )


def strom(threshold: float) -> Rule:
  """Sends sign(r) tau where |r| > tau (Strom 2015).

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> r = jnp.array([3.0, -1.0, 0.5, -4.0])
  >>> rule = gs.extend.compressors.rule.strom(2.0)
  >>> print(*rule(gs.extend.Signal(r, r)))
  [ 2. -2.  2. -2.] [ True False False  True]

  Args:
    threshold: tau, in units of the gradient, > 0; may be traced.

  Raises:
    TypeError: threshold is not a number.
    ValueError: threshold is not positive and finite.
  """
  threshold = arguments.number(
    'threshold', threshold, arguments.POSITIVE, traced=True
  )

  def rule(signal):
    r, now = signal.value, traced.here(threshold)
    return jnp.where(r < 0, -now, now), jnp.abs(r) > now

  return rule


def variance(alpha: float) -> Rule:
  """Sends r where r^2 > alpha v (Tsuzuku et al., eq. 3).

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> r, v = jnp.array([3.0, -1.0]), jnp.array([4.0, 4.0])
  >>> rule = gs.extend.compressors.rule.variance(2.0)
  >>> print(*rule(gs.extend.Signal(r, r, v)))
  [ 3. -1.] [ True False]

  Args:
    alpha: the factor in the rule, > 0; may be traced.

  Raises:
    TypeError: alpha is not a number.
    ValueError: alpha is not positive and finite.
  """
  alpha = arguments.number('alpha', alpha, arguments.POSITIVE, traced=True)

  def rule(signal):
    r = signal.value
    return r, r * r > traced.here(alpha) * signal.moment

  return rule


def variance_strom(alpha: float, threshold: float) -> Rule:
  """Sends sign(r) tau where both `strom` and `variance` send.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> r, v = jnp.array([3.0, -1.0]), jnp.array([4.0, 4.0])
  >>> rule = gs.extend.compressors.rule.variance_strom(2.0, 0.5)
  >>> print(*rule(gs.extend.Signal(r, r, v)))
  [ 0.5 -0.5] [ True False]

  Args:
    alpha: as for `variance`.
    threshold: tau, as for `strom`.

  Raises:
    TypeError: an argument is not a number.
    ValueError: an argument is not positive and finite.

  References:
    Tsuzuku et al., arXiv 1802.06058, section 4.5.
  """
  by_size, by_variance = strom(threshold), variance(alpha)

  def rule(signal):
    values, large = by_size(signal)
    _, unambiguous = by_variance(signal)
    return values, large & unambiguous

  return rule


def ada_comp(bin_size: int | None = None) -> Rule:
  """AdaComp's rule: sends sign(G) scale where |H| >= the bin's max |G|.

  G = R + dW is the residue with this step's gradient, H = G + dW. The scale
  is the mean over the leaf's bins of max |G|.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> r = jnp.array([3.0, -1.0, 0.5, -4.0])
  >>> rule = gs.extend.compressors.rule.ada_comp(bin_size=2)
  >>> print(*jax.jit(rule)(gs.extend.Signal(r, jnp.zeros(4))))
  [ 3.5 -3.5  3.5 -3.5] [ True False False  True]

  Args:
    bin_size: elements of a bin; None is 50 for leaves of three or more
      dimensions (convolutions) and 500 otherwise.

  Raises:
    TypeError: bin_size is not a whole number.
    ValueError: bin_size is not positive.

  References:
    Chen et al., AAAI 2018, arXiv 1712.02679, algorithm 2.
  """
  if bin_size is not None:
    bin_size = arguments.whole_number('bin_size', bin_size, 1)

  def rule(signal):
    length = bin_size or (50 if signal.value.ndim >= 3 else 500)
    g, own = signal.value.reshape(-1), signal.gradient.reshape(-1)
    tops = _tops(g, length)
    # The maxima are broadcast and cut: reshaping a leaf that has no whole
    # number of bins to rows would copy it.
    bars = jnp.broadcast_to(tops[:, None], (tops.shape[0], length))
    bars = bars.reshape(-1)[: g.shape[0]]
    where = (jnp.abs(g + own) >= bars) & (g != 0)
    values = jnp.sign(g) * jnp.sum(tops / tops.shape[0])
    shape = signal.value.shape
    return values.reshape(shape), where.reshape(shape)

  return rule


def _tops(x: jax.Array, length: int) -> jax.Array:
  """The largest magnitude of each bin of a vector; the last may be shorter."""
  # Nonnegative floats order as their bits, of which `max_along` is fast.
  bits = jax.lax.bitcast_convert_type(jnp.abs(x), jnp.int32)
  whole = x.shape[0] // length * length
  tops = reductions.max_along(bits[:whole].reshape(-1, length), axis=1)
  if whole < x.shape[0]:
    tops = jnp.concatenate([tops, jnp.max(bits[whole:])[None]])
  return jax.lax.bitcast_convert_type(tops, jnp.float32)
