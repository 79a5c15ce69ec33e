"""Costs of exchanges: the papers' numbers, and limits."""

import math

from experiments.cost_model import costs
from experiments.cost_model.costs import Network
from gradsparse.traffic import counting
import hypothesis
from hypothesis import strategies as st
import pytest

_PAPER = Network.gtopk_1gbe()
_BYTES_ONLY = Network(0.0, 1.0)
_ROUNDS_ONLY = Network(1.0, 0.0)

# name: seconds of an exchange of 1000 bytes a worker
EXCHANGES = {
  'ring': costs.ring_all_reduce,
  'all_gather': costs.all_gather,
  'tree': costs.gtopk_tree,
  'butterfly': costs.gtopk_butterfly,
  'sparse': lambda n, m, p: costs.sparse_all_reduce(n, m, p, density=0.01),
}

networks = st.builds(
  Network,
  st.floats(1e-6, 1e-2),
  st.floats(1e-11, 1e-6),
)


# --- numbers of the papers -------------------------------------------------


@pytest.mark.parametrize('workers', [2, 4, 8, 16, 32, 64])
def test_table_i_of_gtopk(workers):
  m, rho = 100e6, 0.001
  alpha, beta, k = 0.436e-3, 9e-9, rho * m
  log = math.log2(workers)
  message = costs.sparse_message_bytes(m, rho)
  assert message == 2 * k
  for name, size, expected in (
    (
      'ring',
      m,
      2 * (workers - 1) * alpha + 2 * (workers - 1) / workers * m * beta,
    ),
    ('all_gather', message, log * alpha + 2 * (workers - 1) * k * beta),
    ('tree', message, 2 * log * alpha + 4 * k * log * beta),
    ('butterfly', message, log * alpha + 2 * k * log * beta),
  ):
    seconds = EXCHANGES[name](_PAPER, size, workers)
    assert seconds == pytest.approx(expected, rel=1e-13)


def test_units_of_the_papers_network():
  # 0.436 ms and 9e-6 ms a byte: a megabyte takes 9.436 ms.
  assert _PAPER.seconds(1e6) * 1e3 == pytest.approx(9.436, rel=1e-13)


def test_figure_9_of_gtopk():
  """All-gather wins at few workers, the tree from 8 on, far at 32."""
  message = costs.sparse_message_bytes(100e6, 0.001)

  def ms(name, workers):
    return 1e3 * EXCHANGES[name](_PAPER, message, workers)

  assert ms('all_gather', 4) < ms('tree', 4)
  assert ms('all_gather', 8) > ms('tree', 8)
  assert ms('all_gather', 32) == pytest.approx(57.98)
  assert ms('tree', 32) == pytest.approx(22.36)
  assert ms('butterfly', 32) == pytest.approx(11.18)


def test_alexnet_on_32_gpus():
  """4.7 s a step by the model; table VII has 32 * 64 / 39 = 52.5 s."""
  seconds = costs.ring_all_reduce(_PAPER, 4 * 60_965_224, 32)
  assert 0.369 + seconds == pytest.approx(4.7, abs=0.06)
  assert 32 * 64 / 39 == pytest.approx(52.5, abs=0.02)


def test_dense_psum_on_the_trial_cluster():
  """design.md section 6: 25 MB at 120 MB/s take 208, 312, 365 ms."""
  network = Network.from_rate(8 * 120e6)
  for workers, ms in ((2, 208), (4, 312), (8, 365)):
    seconds = costs.ring_all_reduce(network, 25e6, workers)
    assert 1e3 * seconds == pytest.approx(ms, abs=1)


@pytest.mark.parametrize('workers', [2, 8, 16])
@pytest.mark.parametrize('ratio', [1.0, 52.4, 12396.8])
def test_speedup_of_the_variance_paper(workers, ratio):
  dense = 4e8
  ring = costs.ring_all_reduce(_BYTES_ONLY, dense, workers)
  gathered = workers * dense / ratio + (workers - 1) * 1e3
  expected = 2 * (workers - 1) * ratio / workers**2
  assert costs.pipelined_speedup(ratio, workers) == pytest.approx(expected)
  exact = costs.pipelined_speedup(ratio, workers, 1e3 / dense)
  assert ring / gathered == pytest.approx(exact)
  assert exact < expected


def test_speedup_of_dgc():
  """Section 5 on AlexNet and 64 nodes, with gTop-k's 0.369 s a step.

  Dense at 10 Gbit/s reaches about 30, DGC at 1 Gbit/s more than 40.
  """
  dense = costs.ring_all_reduce(Network.from_rate(10e9), 4 * 60_965_224, 64)
  assert costs.speedup(64, 0.369, dense) == pytest.approx(30, abs=2)
  sparse = costs.sparse_all_reduce(
    Network.from_rate(1e9), 0.389 * 2**20, 64, density=0.001
  )
  assert 40 < costs.speedup(64, 0.369, sparse) < 45


# --- limits ----------------------------------------------------------------


@pytest.mark.parametrize('name', EXCHANGES)
def test_one_worker_costs_nothing(name):
  assert EXCHANGES[name](_PAPER, 1000, 1) == 0


@pytest.mark.parametrize('name', EXCHANGES)
@hypothesis.given(
  network=networks, workers=st.integers(2, 300), size=st.floats(1, 1e9)
)
def test_grows_with_size_and_with_workers(name, network, workers, size):
  """Non-powers of two cost no less than the power below."""
  seconds = EXCHANGES[name]
  here = seconds(network, size, workers)
  assert 0 < here < seconds(network, 2 * size, workers)
  below = 1 << (workers.bit_length() - 1)
  assert seconds(network, size, below) <= here * (1 + 1e-12)
  assert here < seconds(network, size, 4 * below) * (1 + 1e-12)


@hypothesis.given(
  network=networks, rounds=st.integers(1, 10), size=st.floats(1, 1e9)
)
def test_butterfly_is_half_a_tree_and_never_behind_all_gather(
  network, rounds, size
):
  workers = 1 << rounds
  butterfly = costs.gtopk_butterfly(network, size, workers)
  tree = costs.gtopk_tree(network, size, workers)
  assert butterfly == pytest.approx(tree / 2)
  gathered = costs.all_gather(network, size, workers)
  assert butterfly <= gathered * (1 + 1e-12)


@pytest.mark.parametrize(
  'workers, tree, butterfly, gather',
  [(2, 2, 1, 1), (3, 4, 3, 2), (6, 6, 4, 3), (7, 6, 4, 3), (8, 6, 3, 3)],
)
def test_rounds_of_any_number_of_workers(workers, tree, butterfly, gather):
  def rounds(name):
    return EXCHANGES[name](_ROUNDS_ONLY, 0, workers)

  assert rounds('tree') == tree
  assert rounds('butterfly') == butterfly
  assert rounds('all_gather') == gather
  assert rounds('ring') == 2 * (workers - 1)


@pytest.mark.parametrize('workers', range(1, 9))
def test_bytes_are_those_of_the_plan(workers):
  """Where a worker sends what the model counts: not the tree."""
  size = 840 * 8
  for name, collectives in (
    ('ring', [('all_reduce', size)]),
    ('all_gather', [('all_gather', size)]),
    ('ring', [('all_to_all', size), ('all_gather', size // workers)]),
  ):
    sent = sum(
      counting.sent_bytes(kind, nbytes, workers)[0]
      for kind, nbytes in collectives
    )
    assert EXCHANGES[name](_BYTES_ONLY, size, workers) == pytest.approx(sent)


# --- density ---------------------------------------------------------------


@hypothesis.given(st.floats(1e-6, 1), st.integers(1, 64))
def test_sparse_all_reduce_is_bounded(density, workers):
  """It costs no more than sending all dense."""
  message = costs.sparse_message_bytes(4e6, density)
  cost = costs.sparse_all_reduce(
    _BYTES_ONLY, message, workers, density=density, dense_bytes=4e6
  )
  assert cost <= 4e6 * (workers.bit_length() + 1) * (1 + 1e-12)


@pytest.mark.parametrize('workers', [2, 8, 64])
def test_doubling_density_sends_as_much_as_an_all_gather(workers):
  sent = costs.sparse_all_reduce(_BYTES_ONLY, 100, workers, density=0.001)
  assert sent == pytest.approx((workers - 1) * 100)


def test_density_grows_no_further_than_one():
  """Of 1, 2 and 4 messages, each of half the elements, two at most."""
  sent = costs.sparse_all_reduce(_BYTES_ONLY, 100, 8, density=0.5)
  assert sent == pytest.approx(100 + 200 + 200)


# --- training --------------------------------------------------------------


@hypothesis.given(st.integers(1, 512), st.floats(1e-3, 10), st.floats(0, 10))
def test_speedup_is_between_nothing_and_ideal(workers, compute, exchange):
  assert costs.speedup(workers, compute, 0) == workers
  assert 0 < costs.speedup(workers, compute, exchange) <= workers
