"""The schemes by name: each one line in an `optax.chain`.

Every recipe returns a transformation whose update is the mean over workers
with the sign of the gradient; descent, and (but for DGC) momentum, are the
business of the optimizer that follows it.

`RECIPES` is the one table of them. A new recipe is a function in one of the
modules here, a line below and one in the table, and its name in
`gradsparse/__init__.py`; `tests/schemes.py` says what the laws may ask of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gradsparse.collectives import AxisName
from gradsparse.recipes import baselines
from gradsparse.recipes import ef21 as ef21_module
from gradsparse.recipes import low_rank
from gradsparse.recipes import quantisers
from gradsparse.recipes import sparsifiers
from gradsparse.recipes import thresholds
from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.described import described

ada_comp = described(thresholds.ada_comp)
dense = described(baselines.dense)
dgc = described(sparsifiers.dgc)
dryden = described(sparsifiers.dryden)
ef21 = described(ef21_module.ef21)
gradient_dropping = described(sparsifiers.gradient_dropping)
gtopk = described(sparsifiers.gtopk)
one_bit_sgd = described(quantisers.one_bit_sgd)
power_sgd = described(low_rank.power_sgd)
qsgd = described(quantisers.qsgd)
qsgd_descent = described(quantisers.qsgd_descent)
random_k = described(baselines.random_k)
sign_majority = described(quantisers.sign_majority)
strom = described(thresholds.strom)
terngrad = described(quantisers.terngrad)
variance_based = described(thresholds.variance_based)
variance_strom = described(thresholds.variance_strom)


class Recipe(NamedTuple):
  """A line of the table.

  Attributes:
    factory: the recipe.
    paper: where the scheme comes from.
    example: the arguments that a user might begin with; all others have
      their defaults.
    about: what the expectation of an unbiased scheme is; '' is the gradient.
  """

  factory: Callable[..., CompressedMean]
  paper: str
  example: Mapping[str, Any] = {}
  about: str = ''

  @property
  def name(self) -> str:
    return self.factory.__name__

  def make(
    self, *, axis_name: AxisName | None, **arguments: Any
  ) -> CompressedMean:
    """The scheme of the example, with these arguments beside or instead."""
    return self.factory(**{**self.example, **arguments}, axis_name=axis_name)


_TABLE = (
  Recipe(dense, 'the baseline'),
  Recipe(gradient_dropping, 'Aji & Heafield 2017', {'density': 0.01}),
  Recipe(dgc, 'Lin et al. 2018', {'density': 0.001}),
  Recipe(gtopk, 'Shi et al. 2019', {'density': 0.001}),
  Recipe(ef21, 'Richtarik et al. 2021', {'density': 0.01}),
  Recipe(strom, 'Strom 2015', {'threshold': 0.01}),
  Recipe(variance_based, 'Tsuzuku et al. 2018', {'alpha': 1.5}),
  Recipe(
    variance_strom,
    'Tsuzuku et al. 2018, section 4.5',
    {'alpha': 2.0, 'threshold': 0.01},
  ),
  Recipe(qsgd, 'Alistarh et al. 2017', {'levels': 7}),
  Recipe(qsgd_descent, 'Alistarh et al. 2017, section 3.3'),
  Recipe(terngrad, 'Wen et al. 2017', about='the clipped gradient'),
  Recipe(one_bit_sgd, 'Seide et al. 2014'),
  Recipe(sign_majority, 'Bernstein et al. 2018'),
  Recipe(dryden, 'Dryden et al. 2016', {'density': 0.001}),
  Recipe(ada_comp, 'Chen et al. 2018'),
  Recipe(random_k, 'baseline', {'density': 0.01}),
  Recipe(power_sgd, 'Vogels et al. 2019', {'rank': 2}),
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _TABLE}

__all__ = ('RECIPES', 'Recipe', *RECIPES)
