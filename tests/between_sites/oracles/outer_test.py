"""The outer step and its two schedules of fragments."""

import itertools

import numpy as np
import pytest
from tests.between_sites.oracles import outer
from tests.between_sites.oracles import sparse_loco
from tests.between_sites.oracles import walks
from tests.oracles import checks
from tests.oracles import leaves


def test_two_syncs_by_hand():
  """theta 8; D = (1 + 3) / 2, then (1 - 1) / 2 = 0."""
  method = outer.DiLoCo(
    [np.float32([8])], sync_every=2, learning_rate=0.5, momentum=0.5
  )
  steps = [
    # After the inner step; after the sync; anchor; buffer.
    ([7.5, 6], [7.5, 6], 8, 0),
    ([7, 5], [6.5, 6.5], 6.5, 2),
    ([6, 7], [6, 7], 6.5, 2),
    # m = 0 + 0.5 * 2 = 1; theta = 6.5 - 0.5 * (0 + 0.5 * 1).
    ([5.5, 7.5], [6.25, 6.25], 6.25, 1),
  ]
  for before, after, anchor, m in steps:
    now = method.step([[np.float32([x])] for x in before])
    assert [tree[0].item() for tree in now] == after
    assert method.anchor[0].item() == anchor
    assert method.m[0].item() == m


@pytest.mark.parametrize('num_workers', walks.WORKERS)
def test_workers_are_equal_after_a_sync_and_free_between(num_workers):
  rng = np.random.default_rng(0)
  params, moves = walks.start(rng), walks.draw_moves(rng, num_workers, 9)
  method = outer.DiLoCo(params, sync_every=3)
  before = [params] * num_workers
  for t, now in enumerate(walks.train(method, params, moves), 1):
    if t % 3:
      walks.near(now, walks.moved(before, moves[t - 1]))
    else:
      walks.same(now, [method.anchor] * num_workers)
    before = now


def test_rate_one_without_momentum_is_plain_averaging():
  rng = np.random.default_rng(1)
  params, moves = walks.start(rng), walks.draw_moves(rng, 3, 4)
  method = outer.DiLoCo(params, sync_every=4, learning_rate=1, momentum=0)
  *_, last = walks.train(method, params, moves)
  ends = [params] * 3
  for move in moves:
    ends = walks.moved(ends, move)
  walks.near([last[0]], [leaves.worker_mean(leaves.copy(ends))])


@pytest.mark.parametrize('schedule', [outer.MaxText, outer.TorchFT])
def test_one_fragment_without_delay_is_diloco(schedule):
  rng = np.random.default_rng(2)
  params, moves = walks.start(rng), walks.draw_moves(rng, 3, 9)
  method = schedule(params, sync_every=3, delay=0, alpha=0)
  plain = outer.DiLoCo(params, sync_every=3)
  for actual, expected in zip(
    walks.train(method, params, moves),
    walks.train(plain, params, moves),
    strict=True,
  ):
    walks.same(actual, expected)
    walks.same([method.anchor, method.m], [plain.anchor, plain.m])


def test_schedules():
  """Three fragments, every second step, one step late."""

  def history(method):
    params = [np.zeros(3, np.float32)]
    trace = []
    for _ in range(8):
      method.step([params])
      trace.append((method.moved, method.given))
    return trace

  options = {
    'fragments': [[(0, slice(f, f + 1))] for f in range(3)],
    'sync_every': 6,
    'delay': 1,
  }
  zeros = [np.zeros(3, np.float32)]
  none = (None, None)
  assert history(outer.MaxText(zeros, **options)) == [
    *(none, (1, None), (None, 1), (2, None)),
    *((None, 2), (0, None), (None, 0), (1, None)),
  ]
  assert history(outer.TorchFT(zeros, **options)) == [
    *(none, (0, 0), none, (1, 1), none, (2, 2), none, (0, 0)),
  ]


@pytest.mark.parametrize(
  ('sync_every', 'spacing'), [(5, 2), (7, 4), (6, 3), (1, 1), (0.4, 1)]
)
def test_maxtext_rounds_half_to_even(sync_every, spacing):
  fragments = [[0], [1]]
  params = [np.float32(0), np.float32(0)]
  method = outer.MaxText(params, sync_every=sync_every, fragments=fragments)
  assert (method.spacing, method.period) == (spacing, 2 * spacing)


@pytest.mark.parametrize('alpha', [0, 0.25, 0.5, 1])
@pytest.mark.parametrize('delay', [0, 1, 2])
@pytest.mark.parametrize('num_fragments', [1, 2, 4])
def test_the_two_schedules_differ_by_the_delay(num_fragments, delay, alpha):
  """MaxText rests for the delay, and numbers its fragments one on."""
  rng = np.random.default_rng(3)
  params, moves = walks.start(rng), walks.draw_moves(rng, 3, 27)
  fragments = [[] for _ in range(num_fragments)]
  for leaf in range(len(params)):
    fragments[leaf % num_fragments].append(leaf)
  options = {
    'sync_every': 3 * num_fragments,
    'delay': delay,
    'alpha': alpha,
  }
  torchft = outer.TorchFT(params, fragments=fragments, **options)
  maxtext = outer.MaxText(
    params, fragments=fragments[-1:] + fragments[:-1], **options
  )
  # torchft's step t is MaxText's t + delay.
  rest = [leaves.zeros(moves[0])] * delay
  late = list(walks.train(maxtext, params, rest + moves))[delay:]
  for actual, expected in zip(
    walks.train(torchft, params, moves), late, strict=True
  ):
    walks.near(actual, expected)


@pytest.mark.parametrize('schedule', [outer.MaxText, outer.TorchFT])
def test_alpha_one_ignores_the_anchor(schedule):
  rng = np.random.default_rng(4)
  params, moves = walks.start(rng), walks.draw_moves(rng, 2, 6)
  method = schedule(params, sync_every=2, delay=1, alpha=1.0)
  free = [params] * 2
  for now, move in zip(walks.train(method, params, moves), moves, strict=True):
    free = walks.moved(free, move)
    walks.same(now, free)


def test_maxtext_anchor_moves_before_the_workers_get_it():
  rng = np.random.default_rng(5)
  params, moves = walks.start(rng), walks.draw_moves(rng, 2, 3)
  methods = [
    schedule(params, sync_every=2, delay=1)
    for schedule in (outer.MaxText, outer.TorchFT)
  ]
  anchors = []
  for method in methods:
    for t, _ in enumerate(walks.train(method, params, moves), 1):
      if t == 2:
        anchors.append(leaves.copy([method.anchor])[0])
  # At t = 2 one has the movement of two steps, the other that of one.
  for leaf in range(len(params)):
    two = [sum(move[w][leaf] for move in moves[:2]) for w in range(2)]
    one = [moves[0][w][leaf] for w in range(2)]
    for anchor, walked in zip(anchors, (two, one), strict=True):
      checks.close(anchor[leaf], params[leaf] + 0.7 * 1.9 * (sum(walked) / 2))


@pytest.mark.parametrize('alpha', [0, 0.5])
def test_an_aborted_exchange_restores_the_anchor(alpha):
  rng = np.random.default_rng(6)
  params, moves = walks.start(rng), walks.draw_moves(rng, 3, 6)
  # With a residual, which an abort must leave alone.
  memories = [sparse_loco.Compressor(k=1) for _ in range(2)]
  method = outer.TorchFT(
    params,
    fragments=[[0, 1], [2, 3]],
    sync_every=4,
    delay=1,
    alpha=alpha,
    exchanges=[memory.step for memory in memories],
  )
  commit = [True] * 5 + [False]
  walk = walks.train(method, params, moves, commit=commit)
  list(itertools.islice(walk, 4))
  assert method.commits == 2 and method.fragment == 0
  anchor, m, residual = (
    leaves.copy([method.anchor]),
    leaves.copy([method.m]),
    leaves.copy(memories[0].pending),
  )
  # D is taken, and a step later it is lost.
  before, now = walk
  assert (method.moved, method.given, method.fragment) == (None, 0, 0)
  walks.same(
    [method.anchor, method.m, *memories[0].pending], anchor + m + residual
  )
  walked = walks.moved(before, moves[5])
  for w in range(3):
    walks.same([now[w][:2]], [method.anchor[:2]])
    walks.same([now[w][2:]], [walked[w][2:]])
  # The same fragment again, a whole spacing later, from the anchor.
  given = []
  for move in walks.draw_moves(rng, 3, 2):
    now = method.step(walks.moved(now, move))
    given.append(method.given)
  assert given == [None, 0]


@pytest.mark.parametrize(
  'options',
  [
    {'sync_every': 3},
    {'sync_every': 4, 'delay': 2},
    {'sync_every': 4, 'alpha': 1.5},
  ],
)
def test_torchft_refuses(options):
  params = [np.float32(0), np.float32(0)]
  with pytest.raises(ValueError):
    outer.TorchFT(params, fragments=[[0], [1]], **options)


@pytest.mark.parametrize('order', ['strided', 'sequential'])
def test_layers_of_a_stacked_leaf(order):
  """A fragment of some layers leaves the other layers alone."""
  rng = np.random.default_rng(7)
  params = [np.float32(rng.normal(size=(6, 2))), np.float32(1)]
  layers = outer.layer_fragments(6, 2, order)
  assert sorted(sum(layers, [])) == list(range(6))
  fragments = [[1], *([(0, rows)] for rows in layers)]
  method = outer.MaxText(params, fragments=fragments, sync_every=3)
  away = [[params[0] + 1, params[1] + 1]] * 2
  now = method.step(away)
  assert method.moved == method.given == 1
  walked = np.ones((6, 2), bool)
  walked[layers[0]] = False
  for tree in now:
    walks.same([[tree[0][walked], tree[1]]], [[away[0][0][walked], away[0][1]]])
    walks.same([tree[0][~walked]], [method.anchor[0][~walked]])
    assert not np.any(tree[0][~walked] == away[0][0][~walked])


def test_the_mean_is_of_those_present():
  rng = np.random.default_rng(8)
  params, (move,) = walks.start(rng), walks.draw_moves(rng, 3, 1)
  options = {'sync_every': 1, 'learning_rate': 1, 'momentum': 0}
  three = outer.DiLoCo(params, **options)
  (now,) = walks.train(three, params, [move], present=[[True, False, True]])
  two = outer.DiLoCo(params, **options)
  (expected,) = walks.train(two, params, [[move[0], move[2]]])
  walks.same(now, expected[:1] * 3)
