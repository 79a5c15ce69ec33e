"""1-bit Adam: its errors, its two versions, and Adam."""

import numpy as np
import pytest
from tests.between_sites.oracles import one_bit_adam
from tests.between_sites.oracles import walks
from tests.oracles import checks
from tests.oracles import leaves

VERSIONS = [one_bit_adam.OneBitAdam, one_bit_adam.DeepSpeed]


def adam(gradients, freeze_step, *, correct, b1=0.9, b2=0.999, eps=1e-8):
  """Directions of Adam in float64, with v frozen after freeze_step."""
  m = v = 0
  for t, g in enumerate(gradients, 1):
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g**2 if t <= freeze_step else v
    one, two = 1, 1
    if correct:
      one, two = 1 - b1**t, 1 - b2 ** min(t, freeze_step)
    yield m / one / (np.sqrt(v / two) + eps)


@pytest.mark.parametrize('version', VERSIONS)
def test_the_dense_steps_are_adam(version):
  rng = np.random.default_rng(0)
  oracle = version(0.1, freeze_step=5, weight_decay=0.01)
  params = walks.start(rng)
  gradients = walks.draw_moves(rng, 3, 5)
  for leaf, p in enumerate(params):
    means = [
      np.mean([tree[leaf] for tree in step], axis=0, dtype=np.float64)
      for step in gradients
    ]
    correct = version is one_bit_adam.OneBitAdam
    oracle = version(0.1, freeze_step=5, weight_decay=0.01)
    for step, u in zip(gradients, adam(means, 5, correct=correct), strict=True):
      actual = oracle.step(step, params)[leaf]
      np.testing.assert_allclose(actual, -0.1 * (u + 0.01 * p), rtol=2e-4)


@pytest.mark.parametrize('num_workers', walks.WORKERS)
@pytest.mark.parametrize('version', VERSIONS)
def test_errors_keep_what_one_bit_cannot_say(version, num_workers):
  rng = np.random.default_rng(1)
  oracle = version(0.1, freeze_step=2, dense=(1,))
  rounds = version is one_bit_adam.OneBitAdam or num_workers > 1
  old = None
  for t in range(1, 7):
    gradients = checks.draw(rng, num_workers)
    m, v = None, None
    if t > 1:
      m, v = leaves.copy([oracle.m, oracle.v])
    oracle.step(gradients)
    assert oracle.received[1] is None
    for leaf in (0, 2, 3) if t > 2 else ():
      n = m[leaf].size
      np.testing.assert_array_equal(oracle.v[leaf], v[leaf])
      for w in range(num_workers):
        local = oracle.local[w][leaf]
        checks.close(
          local[:n],
          np.ravel(0.9 * m[leaf] + 0.1 * gradients[w][leaf]),
        )
        assert not np.any(local[n:])
        checks.close(
          local + old[w][leaf],
          oracle.sent[w][leaf] + oracle.worker_error[w][leaf],
        )
        if rounds:
          assert len(set(np.abs(oracle.sent[w][leaf]))) == 1
      mean = sum(tree[leaf] for tree in oracle.sent) / num_workers
      checks.close(
        mean + old[-1][leaf],
        oracle.received[leaf] + oracle.server_error[leaf],
      )
      checks.close(np.ravel(oracle.m[leaf]), oracle.received[leaf][:n])
    old = leaves.copy([*oracle.worker_error, oracle.server_error])
  assert not np.array_equal(oracle.v[1], v[1])


def test_one_bit_steps_by_hand():
  """Two workers, one server; b1 = 0.5, no dense step, so m begins at zero."""
  oracle = one_bit_adam.OneBitAdam(1.0, freeze_step=0, b1=0.5, num_servers=1)
  # m_w = [3, 1], [-3, 1]: scales sqrt(5); their mean is [0, sqrt(5)].
  oracle.step([[np.float32([6, 2])], [np.float32([-6, 2])]])
  root = np.sqrt(np.float32(5))
  checks.close(oracle.sent[0][0], [root, root])
  checks.close(oracle.sent[1][0], [-root, root])
  checks.close(oracle.worker_error[0][0], [3 - root, 1 - root])
  checks.close(oracle.m[0], [np.sqrt(2.5)] * 2)
  checks.close(oracle.server_error[0], [-np.sqrt(2.5), root - np.sqrt(2.5)])


def test_servers_round_their_own_chunks():
  """Chunks of ceil(5 / 3): 2, 2 and 1 elements, each of one magnitude."""
  rng = np.random.default_rng(2)
  gradients = [[np.float32(rng.normal(size=5))] for _ in range(3)]
  sizes = {}
  for servers in (None, 1, 0):
    oracle = one_bit_adam.OneBitAdam(0.1, freeze_step=0, num_servers=servers)
    oracle.step(gradients)
    sizes[servers] = np.abs(oracle.m[0])
    mean = sum(tree[0] for tree in oracle.sent) / 3
    if servers == 0:
      checks.close(oracle.m[0], mean)
    else:
      chunks = [[0, 1], [2, 3], [4]] if servers is None else [[0, 1, 2, 3, 4]]
      for chunk in chunks:
        scale = np.sqrt(np.mean(mean[chunk] ** 2))
        checks.close(sizes[servers][chunk], scale)
  assert len(set(sizes[None])) > 1


@pytest.mark.parametrize('num_workers', [2, 4])
def test_the_versions_agree_where_nothing_is_padded(num_workers):
  rng = np.random.default_rng(3)
  n = num_workers * num_workers * 8
  code = one_bit_adam.DeepSpeed(0.1, freeze_step=2)
  paper = one_bit_adam.OneBitAdam(0.1, freeze_step=2, bias_correction=False)
  for _ in range(6):
    gradients = [
      [np.float32(rng.normal(size=(n // 4, 4)))] for _ in range(num_workers)
    ]
    walks.same([code.step(gradients)], [paper.step(gradients)])


def test_padding_counts_in_the_codes_scale():
  gradients = [[np.float32([2] * 8)]] * 2
  code = one_bit_adam.DeepSpeed(0.1, freeze_step=0)
  code.step(gradients)
  # 8 of 16 elements are padding: sqrt(8 * 0.04 / 16).
  checks.close(np.abs(code.sent[0][0]), [np.sqrt(0.02)] * 16)
  checks.close(code.worker_error[0][0][8:], [-np.sqrt(0.02)] * 8)
  paper = one_bit_adam.OneBitAdam(0.1, freeze_step=0)
  paper.step(gradients)
  checks.close(paper.sent[0][0], [0.2] * 8)
  assert not np.any(np.abs(paper.worker_error[0][0]) > 1e-6)


def test_the_code_rounds_nothing_alone():
  rng = np.random.default_rng(4)
  gradients = [np.float32(rng.normal(size=4)) for _ in range(6)]
  code = one_bit_adam.DeepSpeed(1.0, freeze_step=2)
  paper = one_bit_adam.OneBitAdam(1.0, freeze_step=2)
  for g, u in zip(gradients, adam(gradients, 2, correct=False), strict=True):
    np.testing.assert_allclose(code.step([[g]])[0], -u, rtol=1e-3)
    paper.step([[g]])
  assert np.any(paper.worker_error[0][0])


def test_equal_magnitudes_are_exact():
  """Signs say all of it: Adam with v frozen, bias correction going on."""
  signs = np.float32([1, -1, -1, 1])
  gradients = [signs * size for size in (1, 2, 3, 2, 1)]
  oracle = one_bit_adam.OneBitAdam(1.0, freeze_step=2)
  for g, u in zip(gradients, adam(gradients, 2, correct=True), strict=True):
    np.testing.assert_allclose(oracle.step([[g]] * 3)[0], -u, rtol=1e-3)


def test_masks_and_reload():
  rng = np.random.default_rng(5)
  mask = np.float32([1, 0, 1, 1])
  oracle = one_bit_adam.DeepSpeed(0.1, freeze_step=0, masks=[mask])
  for _ in range(2):
    oracle.step([[np.float32(rng.normal(size=4))] for _ in range(2)])
  assert oracle.m[0][1] == 0 and np.all(oracle.m[0][[0, 2, 3]])
  errors = [*sum(oracle.worker_error, []), *oracle.server_error]
  assert all(np.any(x) for x in errors)
  oracle.reload()
  assert not any(np.any(x) for x in errors)
