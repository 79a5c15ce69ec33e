"""Laws 1, 4, 5 and 6 on drawn trees, dtypes, densities and worker counts."""

from __future__ import annotations

import inspect

import gradsparse as gs
from hypothesis import given
from hypothesis import strategies as st
import jax.numpy as jnp
import pytest
from tests import schemes
from tests.fuzz import programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

DTYPES = (jnp.float32, jnp.float32, jnp.bfloat16, jnp.float16)
SHAPES = st.one_of(
  st.just(()),  # a scalar
  st.sampled_from(((1,), (1, 1), (0,), (0, 4), (3, 0, 2))),
  st.tuples(st.integers(2, 40)),
  st.tuples(st.integers(1, 9), st.integers(1, 9)),
  st.tuples(*[st.integers(1, 3)] * 4),
)
LEAVES = st.one_of(
  st.none(), st.tuples(SHAPES, st.sampled_from(DTYPES)), SHAPES
)
# There is always a matrix that every setting compresses.
TREES = st.fixed_dictionaries(
  {'w': st.tuples(st.just((9, 7)), st.sampled_from(DTYPES))},
  optional={
    'a': LEAVES,
    'b': st.lists(LEAVES, max_size=4),
    'c': st.fixed_dictionaries({'d': LEAVES, 'z': st.lists(LEAVES)}),
  },
)


def laws_of(setting):
  """Those that the setting does not promise, and the slow law 2."""
  return (1, 2) if setting.facts.exempt else (2,)


def takes_density(setting):
  first = next(iter(inspect.signature(setting.recipe).parameters))
  return first == 'density' and isinstance(setting.args[0], float)


@programs.budget(16)
@given(
  st.sampled_from(schemes.SETTINGS),
  TREES,
  st.integers(1, 8),
  st.sampled_from((1e-9, 0.01, 0.1, 0.3, 0.5, 0.999, 1.0)),
  st.integers(0, 2**32 - 1),
)
def test_the_laws_hold_whatever_is_drawn(
  setting, tree, num_workers, density, seed
):
  if takes_density(setting):
    setting = setting._replace(args=(density,))
  gs.testing.check_scheme(
    setting.make,
    num_workers=(num_workers,),
    runners=('simulate',),
    trees={str(tree): tree},
    exempt=laws_of(setting),
    seed=seed,
  )


# One that selects, one that quantises, one of a message for many leaves.
@programs.budget(1)
@given(
  st.sampled_from(('dropping', 'dgc_nesterov', 'qsgd_scatter', 'ada_comp')),
  st.integers(200, 1000),
  st.integers(0, 2**32 - 1),
)
def test_the_laws_hold_on_many_tiny_leaves(name, leaves, seed):
  setting = schemes.BY_NAME[name]
  shapes = ((), (1,), (2, 3), (0,), (5,))
  tree = [shapes[i % len(shapes)] for i in range(leaves)]
  gs.testing.check_scheme(
    setting.make,
    num_workers=(2,),
    runners=('simulate',),
    trees={f'{leaves} tiny leaves': {'w': (9, 7), 'tiny': tree}},
    exempt=laws_of(setting),
    steps=3,
    seed=seed,
  )
