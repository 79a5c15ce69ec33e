"""Every scheme beside its NumPy oracle: mean, delivered and pending.

In the fast suite tests/laws_test.py has these oracles beside three workers,
whose programs it has compiled. Here are more workers, arguments and ladders.

The oracles are written from the papers and import nothing of ours. (DGC,
gradient dropping, gTop-k, EF21 and fixed-width QSGD have files of their own.)
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import gradsparse as gs
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests.oracles import ada_comp
from tests.oracles import dryden
from tests.oracles import one_bit
from tests.oracles import power_sgd
from tests.oracles import random_k
from tests.oracles import sign_majority
from tests.oracles import strom
from tests.oracles import terngrad
from tests.oracles import variance
from tests.recipes import following

SEED = 5
# The last holds everything: of five workers, densely where a value takes four
# bits and more, gathered where it takes one.
LADDER = (0.15, 1.0)

SAME_UNIFORMS = functools.partial(following.with_same_uniforms, seed=SEED)


class Case(NamedTuple):
  """A scheme and its oracle, of the same arguments.

  Attributes:
    scheme: keywords -> the scheme.
    oracle: dense leaves -> the oracle.
    follow: (oracle, step, numbers of compressed leaves, t) -> its mean.
    all_leaves: the min_size that compresses as much as the oracle can.
  """

  scheme: Callable[..., gs.CompressedMean]
  oracle: Callable[..., Any]
  follow: Callable[..., list[np.ndarray]] = following.plainly
  all_leaves: int = 0


def variance_case(alpha, **kwargs):
  def scheme(**more):
    return gs.variance_based(alpha, ladder=LADDER, **kwargs, **more)

  def oracle(dense):
    return variance.VarianceBased(alpha, dense=dense, **kwargs)

  return Case(scheme, oracle, following.with_moments)


CASES = {
  'strom': Case(
    lambda **k: gs.strom(1.5, ladder=LADDER, **k),
    lambda dense: strom.Strom(1.5, dense=dense),
  ),
  'variance': variance_case(8.0),
  'variance_paper': variance_case(8.0, rounding='paper'),
  'variance_float32': variance_case(2.0, values='float32', decay=0.9),
  'variance_often': variance_case(1.0, decay=0.5),
  'variance_strom': Case(
    lambda **k: gs.variance_strom(
      2.0, threshold=0.5, decay=0.9, ladder=LADDER, **k
    ),
    lambda dense: variance.VarianceStrom(
      2.0, threshold=0.5, decay=0.9, dense=dense
    ),
    following.with_moments,
  ),
  'ada_comp': Case(
    lambda **k: gs.ada_comp(bin_size=16, ladder=LADDER, **k),
    lambda dense: ada_comp.AdaComp(bin_size=16, dense=dense),
  ),
  'ada_comp_default_bins': Case(
    lambda **k: gs.ada_comp(ladder=LADDER, **k),
    lambda dense: ada_comp.AdaComp(dense=dense),
  ),
  'one_bit': Case(gs.one_bit_sgd, lambda dense: one_bit.OneBit(dense=dense)),
  'sign': Case(
    lambda **k: gs.sign_majority(scale=0.25, **k),
    lambda dense: sign_majority.SignMajority(scale=0.25, dense=dense),
  ),
  'sign_memory': Case(
    lambda **k: gs.sign_majority(scale=0.5, memory=True, **k),
    lambda dense: sign_majority.SignMajority(
      scale=0.5, memory=True, dense=dense
    ),
  ),
  'dryden': Case(
    lambda **k: gs.dryden(0.05, **k),
    lambda dense: dryden.Dryden(0.05, dense=dense),
  ),
  # 0.7 of a leaf wants more of one sign than there are.
  'dryden_thick': Case(
    lambda **k: gs.dryden(0.7, **k),
    lambda dense: dryden.Dryden(0.7, dense=dense),
  ),
  'random_k': Case(
    lambda **k: gs.random_k(0.1, seed=SEED, **k),
    lambda dense: random_k.RandomK(dense=dense),
    following.with_same_draw,
  ),
  'random_k_memory': Case(
    lambda **k: gs.random_k(0.1, memory=True, seed=SEED, **k),
    lambda dense: random_k.RandomK(memory=True, dense=dense),
    following.with_same_draw,
  ),
  # A scalar has no deviation to clip at: ours sends it, the oracle's rule
  # (the published code's) never does. It stays dense here.
  'terngrad': Case(
    lambda **k: gs.terngrad(clip=1.5, seed=SEED, **k),
    lambda dense: terngrad.TernGrad(clip=1.5, dense=dense),
    SAME_UNIFORMS,
    all_leaves=2,
  ),
  'qsgd_descent': Case(
    gs.qsgd_descent, lambda dense: following.QSGDDescent(dense=dense)
  ),
}


# A scale, and two rungs where some leaves stay dense that could be compressed.
FAST = (('sign', 3), ('variance_strom', 5))


def run_of(name, num_workers):
  fast = (name, num_workers) in FAST
  return pytest.param(name, num_workers, marks=() if fast else pytest.mark.slow)


@pytest.mark.parametrize(
  'name, num_workers',
  [run_of(name, p) for name in CASES for p in (3, 5, 1, 2, 4, 8)],
)
def test_a_scheme_does_what_its_oracle_does(name, num_workers):
  """Three workers compress every leaf; of five, some leaves stay dense."""
  case = CASES[name]
  min_size = 12 if num_workers == 5 else case.all_leaves
  sizes = [np.prod(s, dtype=int) for s in replay.SHAPES]
  dense = tuple(i for i, n in enumerate(sizes) if n < min_size)
  numbers = [i for i in range(len(sizes)) if i not in dense]
  tx = case.scheme(axis_name=replay.AXIS, min_size=min_size)
  oracle = case.oracle(dense)
  owed = sent = 0
  steps = replay.replay(tx, replay.drawn_steps(num_workers))
  for t, step in enumerate(steps):
    mean = case.follow(oracle, step, numbers, t)
    following.check(step, mean, oracle)
    sent += sum(np.count_nonzero(step.delivered[0][i]) for i in numbers)
    owed += sum(np.count_nonzero(step.pending[0][i]) for i in numbers)
    assert step.metrics['overflow_elements'] == 0
  assert sent
  assert bool(owed) == bool(tx.scheme.memory.floats)


@pytest.mark.slow
def test_terngrad_without_clipping_is_the_oracle_without():
  tx = gs.terngrad(clip=np.inf, axis_name=replay.AXIS, min_size=2, seed=SEED)
  drawn = replay.drawn_steps(3, count=1)
  oracle = terngrad.TernGrad(clip=None, dense=(2,))
  for t, step in enumerate(replay.replay(tx, drawn)):
    following.check(step, SAME_UNIFORMS(oracle, step, [0, 1, 3], t), oracle)


# Two matrices of one shape, between others; at rank 1 each has its own factor.
# At rank 3 the factors of the last are larger than it is: it stays dense.
MATRICES = ((8, 10), (3,), (6, 4, 5), (8, 10), (2, 9))


@pytest.mark.parametrize(
  'rank, num_workers',
  marks.few([(1, 3), (3, 3), (1, 5), (3, 5)], (3, 5)),
)
def test_power_sgd_does_what_its_oracle_does(rank, num_workers):
  tx = gs.power_sgd(rank, axis_name=replay.AXIS, seed=SEED)
  drawn = replay.drawn_steps(num_workers, shapes=MATRICES)
  compressed = (0, 2, 3, 4) if rank == 1 else (0, 2, 3)
  first = dict(zip(compressed, tx.init(drawn[0][0][0]).compressor, strict=True))
  assert not np.array_equal(first[0], first[3])
  oracle = power_sgd.PowerSGD(
    rank,
    [first[i].T if i in first else None for i in range(5)],
    dense=[i for i in range(5) if i not in first],
  )
  # Orthogonalising float32 columns that are nearly parallel loses digits.
  close = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)
  for step in replay.replay(tx, drawn):
    following.check(step, oracle.step(step.grads), oracle, close)
    for leaf in compressed:
      rank_of_mean = np.linalg.matrix_rank(
        power_sgd.matrix(step.mean[leaf]), tol=1e-4
      )
      assert rank_of_mean <= rank
    np.testing.assert_array_equal(step.pending[0][1], 0)
