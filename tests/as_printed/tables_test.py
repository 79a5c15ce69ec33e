"""The tables of variants: their names are those that recipes offer."""

import inspect
import typing

import gradsparse as gs
from gradsparse.codes.sparse import INDICES
from gradsparse.exchanges.gtopk import PUT_BACK
from gradsparse.exchanges.gtopk import TOPOLOGIES
from gradsparse.memories.variance import ROUNDING
from gradsparse.wire.elias import KINDS
import pytest


@pytest.mark.parametrize(
  'recipe, argument, table',
  [
    (gs.dgc, 'indices', INDICES),
    (gs.gtopk, 'topology', TOPOLOGIES),
    (gs.gtopk, 'put_back', PUT_BACK),
    (gs.variance_based, 'rounding', ROUNDING),
    (gs.qsgd, 'elias', KINDS),
  ],
)
def test_a_recipe_offers_all_that_a_table_has(recipe, argument, table):
  offered = typing.get_type_hints(recipe)[argument]
  assert set(typing.get_args(offered)) == set(table)
  # The first entry is the main road's own, and the default.
  assert inspect.signature(recipe).parameters[argument].default == next(
    iter(table)
  )
