"""What SparseLoCo keeps, and what it reduces to."""

import itertools

import numpy as np
import pytest
from tests.between_sites.oracles import outer
from tests.between_sites.oracles import sparse_loco
from tests.between_sites.oracles import walks
from tests.oracles import checks
from tests.oracles import leaves

KINDS = list(itertools.product(('workers', 'senders'), ('float32', 'table4')))


@pytest.mark.parametrize('num_workers', walks.WORKERS)
@pytest.mark.parametrize(('mean', 'values'), KINDS)
def test_sent_kept_and_forgotten_are_all(mean, values, num_workers):
  rng = np.random.default_rng(0)
  oracle = sparse_loco.Compressor(
    k=2, tile=3, mean=mean, values=values, error_decay=0.9, dense=(1,)
  )
  old = leaves.zeros(checks.draw(rng, num_workers))
  for step in range(5):
    deltas = checks.draw(rng, num_workers)
    present = rng.random(num_workers) < 0.7
    present[0] = True
    update = oracle.step(deltas, present)
    for w, leaf in itertools.product(range(num_workers), (0, 2, 3)):
      checks.close(
        old[w][leaf] + deltas[w][leaf],
        oracle.delivered[w][leaf]
        + oracle.pending[w][leaf]
        + oracle.forgotten[w][leaf],
      )
      checks.close(oracle.forgotten[w][leaf], 0.1 * old[w][leaf])
      if step and num_workers > 2:
        assert leaf == 2 or np.any(oracle.forgotten[w][leaf])
      if not present[w]:
        assert not np.any(oracle.delivered[w][leaf])
    for leaf, u in enumerate(update):
      total = sum(tree[leaf] for tree in oracle.delivered)
      if mean == 'workers':
        checks.close(u * sum(present), total)
      else:
        checks.close(u * oracle.senders[leaf], total)
        assert not np.any(u[oracle.senders[leaf] == 0])
    checks.close(
      update[1],
      leaves.worker_mean(
        [[deltas[w][1]] for w in range(num_workers) if present[w]]
      )[0],
    )
    old = leaves.copy(oracle.pending)


def test_k_of_each_tile_is_not_scaled():
  """6 x 9 in tiles of 3 x 3; 10 in chunks of 2, of which all go."""
  rng = np.random.default_rng(1)
  shapes = [(6, 9), (10,), (2, 3, 9), ()]
  deltas = [[np.float32(rng.normal(size=shape)) for shape in shapes]]
  oracle = sparse_loco.Compressor(k=4, tile=3)
  oracle.step(deltas)
  assert [len(x) for x in oracle.offsets[0]] == [24, 10, 24, 1]
  for leaf in (0, 2):
    sent = oracle.senders[leaf].reshape(2, 3, 3, 3).sum(axis=(1, 3))
    np.testing.assert_array_equal(sent, np.full((2, 3), 4))
  # Joined rows: the leaf of three dimensions is as one of two.
  flat = sparse_loco.Compressor(k=4, tile=3)
  flat.step([[deltas[0][2].reshape(6, 9)]])
  assert flat.offsets[0][0] == oracle.offsets[0][2]
  # Nothing sent is smaller than anything kept in its tile.
  size = np.abs(deltas[0][0])
  for offsets in sparse_loco.tiles((6, 9), 3):
    sent = oracle.senders[0].flat[offsets] == 1
    assert size.flat[offsets][sent].min() > size.flat[offsets][~sent].max()


def test_ties_keep_the_lower_index():
  x = np.float32([[1, -1, 1, 1], [1, 1, -1, 1]])
  assert sparse_loco.select(x, 3, 2) == [0, 1, 2, 3, 4, 6]


@pytest.mark.parametrize('mean', ['workers', 'senders'])
def test_all_elements_of_all_workers_are_the_exact_mean(mean):
  rng = np.random.default_rng(2)
  oracle = sparse_loco.Compressor(k=9, tile=3, mean=mean)
  for _ in range(3):
    deltas = checks.draw(rng, 4)
    walks.same([oracle.step(deltas)], [leaves.worker_mean(deltas)])
    assert not any(np.any(x) for tree in oracle.pending for x in tree)


def test_the_means_differ_by_who_sent():
  """Two workers, one element each; the third of nobody."""
  deltas = [[np.float32(x)] for x in ([4, 0, 1], [2, -6, 0], [2, 0, 0])]
  by = {
    mean: sparse_loco.Compressor(k=1, tile=3, mean=mean)
    for mean in ('workers', 'senders')
  }
  np.testing.assert_array_equal(by['workers'].step(deltas)[0], [2, -2, 0])
  np.testing.assert_array_equal(by['senders'].step(deltas)[0], [3, -6, 0])
  assert by['senders'].senders[0].tolist() == [2, 1, 0]


def test_selected_zeros_count_as_sent():
  deltas = [[np.float32([0, 0])], [np.float32([4, 0])]]
  oracle = sparse_loco.Compressor(k=1, tile=2)
  np.testing.assert_array_equal(oracle.step(deltas)[0], [2, 0])


def test_decay_one_forgets_nothing():
  rng = np.random.default_rng(3)
  oracle = sparse_loco.Compressor(k=1, tile=3, error_decay=1.0)
  for _ in range(3):
    oracle.step(checks.draw(rng, 2))
    assert not any(np.any(x) for tree in oracle.forgotten for x in tree)


def test_table_is_the_means_of_its_bins():
  rng = np.random.default_rng(4)
  for n in (1, 2, 5, 300):
    values = np.float32(rng.normal(size=n) + 3)
    codes, rebuilt = sparse_loco.table(values)
    assert codes.min() >= 0 and codes.max() <= 3
    for b in set(codes.tolist()):
      checks.close(rebuilt[b], values[codes == b].mean())
    checks.close(rebuilt[codes].mean(), values.mean())
    # Codes are in the order of the values.
    assert np.all(np.diff(codes[np.argsort(values)]) >= 0)
  codes, rebuilt = sparse_loco.table(values)
  c = (values - values.mean()) / values.std(ddof=1)
  edges = np.searchsorted([-2.25, -0.75, 0.75], c)
  np.testing.assert_array_equal(codes, edges)


@pytest.mark.parametrize('x', [[7.0], [2.0, 2, 2], [0, 0], []])
def test_table_of_equal_values_is_exact(x):
  codes, rebuilt = sparse_loco.table(np.float32(x))
  np.testing.assert_array_equal(rebuilt[codes], x)


def test_the_method_with_everything_sent_is_diloco():
  rng = np.random.default_rng(5)
  params, moves = walks.start(rng), walks.draw_moves(rng, 3, 6)
  method, _ = sparse_loco.sparse_loco(
    params, sync_every=2, learning_rate=0.5, k=9, tile=3
  )
  plain = outer.DiLoCo(params, sync_every=2, learning_rate=0.5, momentum=0)
  for actual, expected in zip(
    walks.train(method, params, moves),
    walks.train(plain, params, moves),
    strict=True,
  ):
    walks.same(actual, expected)


@pytest.mark.parametrize(('mean', 'values'), KINDS)
def test_workers_are_equal_after_a_sync(mean, values):
  rng = np.random.default_rng(6)
  params, moves = walks.start(rng), walks.draw_moves(rng, 3, 4)
  method, compressor = sparse_loco.sparse_loco(
    params, sync_every=2, k=1, tile=3, mean=mean, values=values
  )
  for t, now in enumerate(walks.train(method, params, moves), 1):
    if t % 2 == 0:
      walks.same(now, [method.anchor] * 3)
  assert any(np.any(x) for x in compressor.pending[0])


def test_the_rate_scales_the_step_and_not_the_memory():
  rng = np.random.default_rng(7)
  params, moves = walks.start(rng), walks.draw_moves(rng, 2, 1)
  residuals, steps = [], []
  for rate in (1.0, 0.5):
    method, compressor = sparse_loco.sparse_loco(
      params, sync_every=1, learning_rate=rate, k=1, tile=3
    )
    (now,) = walks.train(method, params, moves)
    residuals.append(leaves.copy(compressor.pending))
    steps.append([(x - p) / rate for x, p in zip(now[0], params, strict=True)])
  walks.same(*residuals)
  walks.near([steps[0]], [steps[1]])
