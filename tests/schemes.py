"""Every public recipe, in every setting that the contract checks run over.

A setting is one line: a name, what is true of it, and how to make it. A new
recipe gets all laws by its row of `gs.recipes.RECIPES`: without a line here its
setting is the example of that row, and its facts are what the scheme says. It
needs a line where its memory takes in anything but the gradient. Tests that
want one setting of each recipe take `example`.
"""

from __future__ import annotations

from collections.abc import Callable
import inspect
from typing import Any, NamedTuple

import gradsparse as gs
import jax
import jax.numpy as jnp

AXIS = gs.workers.AXIS

# 132 numbers: a matrix, a vector, a scalar; what is None has no gradient.
SMALL = {'kernel': (12, 10), 'bias': (11,), 'scale': (), 'nothing': None}
# A matrix whose streams of levels have few sizes, and use the middle ones.
SHORT = {'kernel': (8, 11), 'bias': (11,), 'scale': (), 'nothing': None}
# Large enough that thresholds are sampled and selections take two stages.
LARGE = {'kernel': (64, 80), 'bias': (11,), 'scale': (), 'nothing': None}


class Facts(NamedTuple):
  """What the laws may ask of a setting.

  Attributes:
    inflow: what its memory takes in: 'gradient', 'heavy_ball', 'nesterov',
      'correction' (of an estimate of the gradient, which the update adds up),
      or None without a memory.
    exempt: why law 1 does not apply, by definition ('' if it does).
    momentum: m of momentum correction, or weight of a correction's gradient.
    unbiased: the expectation of what is delivered is the gradient.
    mean_rounding: relative error of the returned mean, by design.
    dense: leaves that stay dense.
    shapes: of the parameters.
  """

  inflow: str | None = None
  exempt: str = ''
  momentum: float = 0.9
  unbiased: bool = False
  mean_rounding: float = 0.0
  dense: tuple[str, ...] = ()
  shapes: dict[str, tuple[int, ...] | None] = SMALL

  def but(self, **changes) -> Facts:
    return self._replace(**changes)


class Setting(NamedTuple):
  """One line of the list: a recipe with its arguments."""

  name: str
  facts: Facts
  recipe: Callable[..., gs.CompressedMean]
  args: tuple[Any, ...]
  kwargs: dict[str, Any]

  def make(self, axis_name: str | None = AXIS, **overrides):
    kwargs = self.kwargs | overrides
    return self.recipe(*self.args, axis_name=axis_name, **kwargs)

  @property
  def params(self):
    return zeros(self.facts.shapes)


def example(name: str, *, axis_name: str | None, **wanted: Any):
  """The example of `gs.recipes.RECIPES`, with what it takes of `wanted`."""
  recipe = gs.recipes.RECIPES[name]
  taken = inspect.signature(recipe.factory).parameters
  changes = {k: v for k, v in wanted.items() if k in taken}
  return recipe.make(axis_name=axis_name, **changes)


def zeros(shapes):
  """A tree of parameters."""
  return {
    name: None if shape is None else jnp.zeros(shape)
    for name, shape in shapes.items()
  }


def _s(name, facts, recipe, *args, **kwargs):
  return Setting(name, facts, recipe, args, kwargs)


def of_example(recipe: gs.recipes.Recipe) -> Setting:
  """The setting of a recipe that has no line in the list."""
  kwargs = dict(recipe.example)
  if 'min_size' in inspect.signature(recipe.factory).parameters:
    kwargs['min_size'] = 0
  tx = recipe.factory(**kwargs, axis_name=AXIS)
  rows = gs.plan(tx, zeros(SMALL), 3).rows
  memory = tx.scheme.memory
  loses = memory.floats and not memory.facts.lossless
  facts = Facts(
    inflow='gradient' if memory.floats else None,
    exempt='as its memory says' if loses else '',
    unbiased=tx.scheme.compressor.unbiased,
    dense=tuple(
      name
      for name in SMALL
      if any(f'{name!r}' in r.name and r.transport == 'dense' for r in rows)
    ),
  )
  return Setting(recipe.name, facts, recipe.factory, (), kwargs)


MEMORYLESS = Facts()
UNBIASED = Facts(unbiased=True)
RESIDUAL = Facts(inflow='gradient')
HEAVY_BALL = Facts(inflow='heavy_ball')
NESTEROV = Facts(inflow='nesterov')
CORRECTION = Facts(inflow='correction', momentum=1.0)
PAPER = RESIDUAL.but(exempt='as printed, it loses gradient')
# Where leaves of fewer than two dimensions stay dense.
NOT_1D = dict(dense=('bias', 'scale'))

# Messages that stay sparse for up to 8 workers, and that go densely from 3 on.
K, THICK = 0.05, 0.7
STAGES = gs.schedules.DensitySchedule(((0, 0.2), (2, 0.05)))
RUNGS = (0.05, 0.3)
ONE_RUNG = dict(ladder=(0.3,))
# Half of all elements pass; those of ONE_RUNG have too little room for them.
ROOMY = (0.05, 0.8)

_dropping, _variance = gs.gradient_dropping, gs.variance_based

_LINES = (
  _s('dense', UNBIASED, gs.dense),
  _s('dense_b16', Facts(mean_rounding=2**-8), gs.dense, wire_dtype='bfloat16'),
  #
  _s('dropping', RESIDUAL, _dropping, K),
  _s('dropping_leaf', RESIDUAL.but(**NOT_1D), _dropping, K, scope='leaf'),
  _s('dropping_bfloat16', RESIDUAL, _dropping, K, values='bfloat16'),
  _s('dropping_exponent4', RESIDUAL, _dropping, K, values='exponent4'),
  _s('dropping_thick', RESIDUAL, _dropping, THICK),
  _s('dropping_schedule', RESIDUAL, _dropping, STAGES),
  _s(
    'dropping_chunk',
    RESIDUAL.but(**NOT_1D),
    _dropping,
    K,
    scope='chunk',
    chunk_size=16,
  ),
  _s(
    'dropping_tile',
    RESIDUAL.but(**NOT_1D),
    _dropping,
    K,
    scope='tile',
    tile=6,
    values='table4',
  ),
  #
  _s('dgc', HEAVY_BALL.but(**NOT_1D), gs.dgc, K),
  _s('dgc_nesterov', NESTEROV.but(**NOT_1D), gs.dgc, K, nesterov=True),
  _s('dgc_unmasked', HEAVY_BALL, gs.dgc, K, factor_masking=False, min_size=0),
  _s('dgc_exponent4', HEAVY_BALL, gs.dgc, K, values='exponent4', min_size=0),
  _s('dgc_runs', HEAVY_BALL, gs.dgc, K, indices='run_length', min_size=0),
  _s(
    'dgc_half',
    NESTEROV.but(momentum=0.5),
    gs.dgc,
    K,
    momentum=0.5,
    nesterov=True,
    scope='global',
  ),
  _s(
    'dgc_sampled',
    HEAVY_BALL.but(shapes=LARGE),
    gs.dgc,
    0.005,
    sample_rate=0.1,
    min_size=0,
  ),
  _s('dgc_schedule', NESTEROV, gs.dgc, STAGES, nesterov=True, min_size=0),
  _s(
    'dgc_chunk',
    HEAVY_BALL,
    gs.dgc,
    STAGES,
    scope='chunk',
    chunk_size=50,
    min_size=0,
  ),
  #
  _s('ef21', CORRECTION.but(**NOT_1D), gs.ef21, K),
  _s(
    'ef21_momentum',
    CORRECTION.but(momentum=0.25, **NOT_1D),
    gs.ef21,
    K,
    momentum=0.25,
  ),
  _s('ef21_exponent4', CORRECTION, gs.ef21, K, values='exponent4', min_size=0),
  #
  _s('gtopk', RESIDUAL, gs.gtopk, K),
  _s('gtopk_tree', RESIDUAL, gs.gtopk, K, topology='tree'),
  _s('gtopk_allgather', RESIDUAL, gs.gtopk, K, topology='allgather'),
  _s('gtopk_paper', PAPER, gs.gtopk, K, topology='tree', put_back='paper'),
  _s('gtopk_schedule', RESIDUAL, gs.gtopk, STAGES),
  #
  _s('strom', RESIDUAL, gs.strom, 2.0, ladder=RUNGS),
  _s('variance', RESIDUAL, _variance, 2.0, ladder=ROOMY),
  _s(
    'variance_f32',
    RESIDUAL.but(**NOT_1D),
    _variance,
    2.0,
    values='float32',
    min_size=50,
    **ONE_RUNG,
  ),
  _s('variance_paper', PAPER, _variance, 2.0, rounding='paper', **ONE_RUNG),
  _s('variance_qsgd4', RESIDUAL, _variance, 2.0, values='qsgd4', **ONE_RUNG),
  _s(
    'variance_ternary', RESIDUAL, _variance, 2.0, values='ternary', **ONE_RUNG
  ),
  _s(
    'variance_strom',
    RESIDUAL,
    gs.variance_strom,
    1.0,
    threshold=1.0,
    **ONE_RUNG,
  ),
  _s('ada_comp', RESIDUAL, gs.ada_comp, bin_size=16, ladder=ROOMY[1:]),
  #
  _s('qsgd', UNBIASED, gs.qsgd, 7, bucket_size=16, min_size=0),
  _s('qsgd_l2', UNBIASED.but(**NOT_1D), gs.qsgd, 3, norm='l2', min_size=50),
  _s(
    'qsgd_elias',
    UNBIASED.but(shapes=SHORT, **NOT_1D),
    gs.qsgd,
    1,
    norm='l2',
    code='elias_sparse',
    elias='gamma',
    min_size=50,
  ),
  _s(
    'qsgd_elias_dense',
    UNBIASED.but(shapes=SHORT, **NOT_1D),
    gs.qsgd,
    1,
    norm='l2',
    code='elias_dense',
    min_size=50,
  ),
  _s(
    'qsgd_scatter',
    UNBIASED,
    gs.qsgd,
    7,
    bucket_size=16,
    exchange='reduce_scatter',
    min_size=0,
  ),
  _s('qsgd_descent', MEMORYLESS, gs.qsgd_descent),
  _s('terngrad', UNBIASED.but(dense=('scale',)), gs.terngrad, min_size=0),
  _s('one_bit', RESIDUAL, gs.one_bit_sgd),
  _s(
    'one_bit_scatter',
    RESIDUAL.but(**NOT_1D),
    gs.one_bit_sgd,
    exchange='reduce_scatter',
    bucket_size=10,
    min_size=50,
  ),
  _s('sign_majority', MEMORYLESS, gs.sign_majority),
  _s('sign_memory', RESIDUAL, gs.sign_majority, scale=0.5, memory=True),
  _s(
    'sign_scatter',
    RESIDUAL,
    gs.sign_majority,
    memory=True,
    exchange='reduce_scatter',
  ),
  _s('dryden', RESIDUAL, gs.dryden, K / 2),
  _s('random_k', UNBIASED, gs.random_k, THICK),
  _s('random_k_memory', RESIDUAL, gs.random_k, K, memory=True),
  _s('power_sgd', RESIDUAL.but(**NOT_1D), gs.power_sgd, 2),
)

SETTINGS = (
  *_LINES,
  *(
    of_example(recipe)
    for recipe in gs.recipes.RECIPES.values()
    if recipe.factory not in {line.recipe for line in _LINES}
  ),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}
# The first setting of each recipe.
FIRST = tuple({s.recipe: s for s in reversed(SETTINGS)}.values())
FIRST_NAMES = tuple(setting.name for setting in FIRST)


# --- the limits of law 3: what the updates become when nothing is left out --


def plain(means):
  """Plain SGD's updates, from the exact means."""
  return means


def heavy_ball(means, momentum=0.9):
  """Momentum SGD's: u <- m u + g."""
  u, out = jax.tree.map(jnp.zeros_like, means[0]), []
  for mean in means:
    u = jax.tree.map(lambda u, g: momentum * u + g, u, mean)
    out.append(u)
  return out


def nesterov(means, momentum=0.9):
  """Nesterov's as DGC writes it: u <- m (u + g), and u + g."""
  u, out = jax.tree.map(jnp.zeros_like, means[0]), []
  for mean in means:
    u = jax.tree.map(lambda u, g: momentum * (u + g), u, mean)
    out.append(jax.tree.map(jnp.add, u, mean))
  return out


def boosted(means, momentum=0.9):
  """Eq. 10 adds m g before masking wipes u: plain SGD on (1 + m) g."""
  return [jax.tree.map(lambda g: (1 + momentum) * g, m) for m in means]


# (setting, what its updates are equal to). Gradients of the laws are normal,
# so no two are equal and the variance criterion holds everywhere.
LIMITS = (
  (_s('dense', UNBIASED, gs.dense), plain),
  (_s('dropping', RESIDUAL, _dropping, 1.0), plain),
  (
    _s('dropping_leaf', RESIDUAL, _dropping, 1, scope='leaf', min_size=0),
    plain,
  ),
  (
    _s(
      'dropping_chunk',
      RESIDUAL,
      _dropping,
      1.0,
      scope='chunk',
      chunk_size=7,
      min_size=0,
    ),
    plain,
  ),
  (_s('ef21', CORRECTION, gs.ef21, 1.0, min_size=0), plain),
  (_s('dgc', HEAVY_BALL, gs.dgc, 1.0, min_size=0), plain),
  (
    _s('dgc_nesterov', NESTEROV, gs.dgc, 1.0, nesterov=True, min_size=0),
    boosted,
  ),
  (
    _s(
      'dgc_unmasked', HEAVY_BALL, gs.dgc, 1.0, factor_masking=False, min_size=0
    ),
    heavy_ball,
  ),
  (
    _s(
      'dgc_nesterov_unmasked',
      NESTEROV,
      gs.dgc,
      1.0,
      nesterov=True,
      factor_masking=False,
      min_size=0,
    ),
    nesterov,
  ),
  (_s('gtopk', RESIDUAL, gs.gtopk, 1.0), plain),
  (_s('gtopk_tree', RESIDUAL, gs.gtopk, 1.0, topology='tree'), plain),
  (_s('random_k', UNBIASED, gs.random_k, 1.0), plain),
  (_s('random_k_memory', RESIDUAL, gs.random_k, 1.0, memory=True), plain),
  (
    _s('variance', RESIDUAL, _variance, 1e-30, values='float32', ladder=(1.0,)),
    plain,
  ),
)
