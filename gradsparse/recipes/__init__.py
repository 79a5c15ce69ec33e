"""The schemes by name: each is one line in an `optax.chain`.

Every recipe returns a transformation whose update is the mean over workers with
the sign of the gradient. The optimizer that follows descends and, except after
DGC, applies momentum.

`RECIPES` is the table of all recipes. A new recipe is a function in a module of
this folder that returns a memory, a compressor and an exchange, and a line in
the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gradsparse.collectives import AxisName
from gradsparse.recipes.quantisers import one_bit_sgd
from gradsparse.recipes.quantisers import qsgd
from gradsparse.recipes.quantisers import qsgd_descent
from gradsparse.recipes.quantisers import sign_majority
from gradsparse.recipes.quantisers import terngrad
from gradsparse.recipes.sparsifiers import dgc
from gradsparse.recipes.sparsifiers import dryden
from gradsparse.recipes.sparsifiers import ef21
from gradsparse.recipes.sparsifiers import gradient_dropping
from gradsparse.recipes.sums import dense
from gradsparse.recipes.sums import gtopk
from gradsparse.recipes.sums import power_sgd
from gradsparse.recipes.sums import random_k
from gradsparse.recipes.thresholds import ada_comp
from gradsparse.recipes.thresholds import strom
from gradsparse.recipes.thresholds import variance_based
from gradsparse.recipes.thresholds import variance_strom
from gradsparse.transform.compressed_mean import CompressedMean


class Recipe(NamedTuple):
  """A line of the table.

  Attributes:
    factory: the recipe.
    paper: the source of the scheme.
    example: arguments to begin with; all others have their defaults.
    about: the expectation of an unbiased scheme; '' is the gradient.
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
    """The scheme of the example, with these arguments added or replaced."""
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
