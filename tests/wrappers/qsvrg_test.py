"""QSVRG: its epoch beside the oracle's, and theorem 3.6's linear rate."""

import math

import gradsparse as gs
from gradsparse import draws
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests.oracles import qsgd as qsgd_oracle
from tests.oracles import qsvrg as oracle

WORKERS = 4
SHARD = 25  # examples a worker
SIZE = 12  # parameters
RIDGE = 0.1


def problem(num_workers=WORKERS):
  """Logistic regression: labelled rows, so that the loss is log(1 + e^-ax)."""
  rng = np.random.default_rng(7)
  rows = rng.normal(size=(num_workers, SHARD, SIZE))
  labels = np.sign(
    rows @ rng.normal(size=SIZE) + rng.normal(size=rows.shape[:2])
  )
  return (labels[..., None] * rows).astype(np.float32)


def loss_of_one(params, row):
  margin = row[:-1] @ params['w'] + row[-1] * params['last']
  square = jnp.sum(params['w'] ** 2) + params['last'] ** 2
  return jnp.logaddexp(0.0, -margin) + RIDGE / 2 * square


def parameters(x):
  """ravel_pytree's order is 'last', then 'w'."""
  return {'last': jnp.float32(x[-1]), 'w': jnp.asarray(x[:-1], jnp.float32)}


def vector(params):
  return np.append(np.float64(params['w']), np.float64(params['last']))


def loss(rows, x):
  """The mean loss over all workers' examples, float64."""
  rows = np.float64(rows).reshape(-1, SIZE)
  return np.mean(np.logaddexp(0, -rows @ x)) + RIDGE / 2 * x @ x


def gradient_of(rows):
  """(j, x) -> gradient of example j of all, float64."""
  rows = np.float64(rows).reshape(-1, SIZE)

  def gradient(j, x):
    return -rows[j] / (1 + np.exp(rows[j] @ x)) + RIDGE * x

  return gradient


def minimum(rows):
  """By Newton's method."""
  rows, x = np.float64(rows).reshape(-1, SIZE), np.zeros(SIZE)
  for _ in range(30):
    chance = 1 / (1 + np.exp(rows @ x))
    slope = -rows.T @ chance / len(rows) + RIDGE * x
    weight = (chance * (1 - chance))[:, None]
    curvature = rows.T @ (weight * rows) / len(rows) + RIDGE * np.eye(SIZE)
    x = x - np.linalg.solve(curvature, slope)
  return x


def compiled(optimizer, num_workers, runner='simulate'):
  return gs.workers.parallel(
    optimizer.epoch,
    runner=runner,
    num_workers=num_workers,
    in_specs=(P(), P('workers')),
    out_specs=P(),
  )


def make(levels=None, inner_steps=10, learning_rate=0.2, seed=0, **given):
  return gs.qsvrg(
    loss_of_one,
    learning_rate=learning_rate,
    inner_steps=inner_steps,
    levels=levels,
    axis_name='workers',
    seed=seed,
    **given,
  )


def keys(seed, epoch, worker, step):
  """(draw, rounding): seed, epoch, worker, step."""
  key = jax.random.fold_in(jax.random.key(seed), epoch)
  key = jax.random.fold_in(jax.random.fold_in(key, worker), step)
  return jax.random.split(key)


def replayed(rows, y, epoch, *, seed, inner_steps, learning_rate, quantise):
  """The oracle's epoch with the library's draws."""
  num_workers = len(rows)
  draws = []
  for t in range(inner_steps):
    draws.append([])
    for w in range(num_workers):
      draw, _ = keys(seed, epoch, w, t)
      own = int(jax.random.randint(draw, (), 0, SHARD))
      draws[-1].append(w * SHARD + own)
  return oracle.epoch(
    y,
    gradient_of(rows),
    num_workers * SHARD,
    draws,
    learning_rate,
    quantise,
  )


@pytest.mark.slow
@pytest.mark.parametrize('num_workers', [1, 3])
def test_an_epoch_with_fine_levels_is_svrgs(num_workers):
  rows = problem(num_workers)
  optimizer = make(levels=2**20, inner_steps=5, seed=3, code='fixed')
  fn = compiled(optimizer, num_workers)
  y = np.linspace(-1, 1, SIZE)
  state = optimizer.init(parameters(y))
  for epoch in range(3):
    state = fn(state, rows)
    y, iterates = replayed(
      rows,
      y,
      epoch,
      seed=3,
      inner_steps=5,
      learning_rate=0.2,
      quantise=None,
    )
    np.testing.assert_allclose(vector(state.params), y, atol=1e-5)
    # The mean of the iterates, not the last one.
    assert np.max(np.abs(y - iterates[-1])) > 1e-3
  assert int(state.epochs) == 3


def test_an_epoch_quantises_as_the_oracle_does():
  """To s = ceil(sqrt n) levels of the 2-norm of the whole vector."""
  rows, seed = problem(3), 1
  optimizer = make(inner_steps=4, seed=seed)
  fn = compiled(optimizer, 3)
  y = np.linspace(-1, 1, SIZE)
  state = optimizer.init(parameters(y))
  levels = math.ceil(math.sqrt(SIZE))

  for epoch in range(2):

    def quantise(u, t, w, epoch=epoch):
      _, rounding = keys(seed, epoch, w, t)
      uniforms = np.ravel(draws.uniform(rounding, (1, SIZE)))
      order = np.roll(np.arange(SIZE), 1)  # 'last' comes first in a ravel
      out = np.zeros(SIZE)
      out[order] = qsgd_oracle.quantise(u[order], levels, SIZE, 'l2', uniforms)
      return out

    state = fn(state, rows)
    y, _ = replayed(
      rows,
      y,
      epoch,
      seed=seed,
      inner_steps=4,
      learning_rate=0.2,
      quantise=quantise,
    )
    np.testing.assert_allclose(vector(state.params), y, atol=1e-5)


@pytest.fixture(scope='module')
def optimum():
  rows = problem()
  best = minimum(rows)
  slope = np.mean(
    [gradient_of(rows)(j, best) for j in range(rows.size // SIZE)], 0
  )
  assert np.max(np.abs(slope)) < 1e-12
  return rows, best


EPOCHS, INNER = 40, 50


@pytest.mark.slow
def test_the_error_shrinks_by_a_tenth_an_epoch(optimum):
  """Theorem 3.6: f(y_p) - f* <= 0.9^p (f(y_0) - f*), on every epoch's way.

  Down to float32's resolution. Plain QSGD with the same step, levels, draws
  and number of messages stops at a noise floor.
  """
  rows, best = optimum
  optimizer = make(inner_steps=INNER)
  fn = compiled(optimizer, WORKERS)
  state = optimizer.init(parameters(np.full(SIZE, 2.0)))
  errors = [loss(rows, vector(state.params)) - loss(rows, best)]
  for _ in range(EPOCHS):
    state = fn(state, rows)
    errors.append(loss(rows, vector(state.params)) - loss(rows, best))
  errors = np.array(errors)
  resolution = 1e-11
  assert np.all(errors <= 0.9 ** np.arange(EPOCHS + 1) * errors[0] + resolution)
  assert errors[-1] < 1e-9 * errors[0]
  assert plain_qsgd(rows, best) > 1e5 * errors[-1]


def plain_qsgd(rows, best):
  """The same optimizer without variance reduction: its last errors' mean."""
  tx = gs.qsgd(
    math.ceil(math.sqrt(SIZE)),
    bucket_size=SIZE,
    norm='l2',
    min_size=0,
    axis_name='workers',
  )
  start = jnp.full(SIZE, 2.0)

  def run(data):
    def step(carry, t):
      x, state = carry
      key = jax.random.fold_in(jax.random.key(0), t)
      own = jax.random.fold_in(key, jax.lax.axis_index('workers'))
      row = data[jax.random.randint(own, (), 0, SHARD)]
      grads = jax.grad(lambda x: loss_of_one(parameters_of(x), row))(x)
      updates, state = tx.update(grads, state)
      return (x - 0.2 * updates, state), x

    return jax.lax.scan(
      step, (start, tx.init(start)), jnp.arange(EPOCHS * INNER)
    )[1]

  def parameters_of(x):
    return {'last': x[-1], 'w': x[:-1]}

  path = jax.jit(jax.vmap(run, axis_name='workers'))(rows)[0]
  errors = [loss(rows, np.float64(x)) - loss(rows, best) for x in path[-200:]]
  return np.mean(errors)


@pytest.mark.slow
@pytest.mark.parametrize('code', ['elias', 'fixed'])
def test_an_epoch_moves_the_bytes_it_says(code):
  """Under shard_map, on real devices; the state is the same on all."""
  rows = problem()
  optimizer = make(inner_steps=6, code=code)
  params = parameters(np.zeros(SIZE))
  fn = compiled(optimizer, WORKERS, 'shard_map')
  state = fn(optimizer.init(params), rows)
  expected = compiled(optimizer, WORKERS)(optimizer.init(params), rows)
  np.testing.assert_allclose(
    vector(state.params), vector(expected.params), atol=1e-6
  )
  most = optimizer.bytes_per_epoch(params)
  audit = gs.audit(fn.lower(optimizer.init(params), rows).compile())
  bytes_of = [(c.kind, c.nbytes) for c in audit.collectives]
  full = ('all_reduce', 4 * SIZE)
  if code == 'fixed':
    # 12 numbers in 4 bits (9 codes) are two words, and the norm is a third.
    assert sorted(bytes_of) == [('all_gather', 12), full]
    assert int(state.sent_bytes) == most == 4 * SIZE + 6 * 12
  else:
    # Beside them a word that says which code follows, and the agreement.
    assert sorted(bytes_of) == [('all_reduce', 4), full]
    assert audit.branches == ((3 * 12, 3 * 16),)
    assert most == 4 * SIZE + 6 * 16
    assert 4 * SIZE + 6 * 12 <= int(state.sent_bytes) <= most
  assert int(expected.sent_bytes) == int(state.sent_bytes)


@pytest.mark.slow
@pytest.mark.parametrize('n', [10**e for e in range(2, 7)])
def test_a_message_has_the_bits_of_theorem_3_6(n):
  """2.8 n + 32, and what says how long it is, on Gaussian vectors.

  At the start all gradients are -example: what is quantised is Gaussian.
  """
  rows = np.random.default_rng(n).normal(size=(2, 1, n)).astype(np.float32)

  def epochs(code):
    return gs.qsvrg(
      lambda w, row: -row @ w,
      learning_rate=1e-9,
      inner_steps=1,
      code=code,
      axis_name='workers',
    )

  optimizer = epochs('elias')
  state = compiled(optimizer, 2)(optimizer.init(jnp.zeros(n)), rows)
  bits = 8 * (int(state.sent_bytes) - 4 * n)
  blocks = -(-n // 256)
  lengths = 32 * (1 + -(-(blocks - 1) * 13 // 32))
  assert bits <= 1.03 * (2.8 * n + 32) + lengths
  fixed = 8 * (epochs('fixed').bytes_per_epoch(jnp.zeros(n)) - 4 * n)
  assert bits < 0.7 * fixed


@pytest.mark.parametrize(
  'wrong, message',
  [
    ({'learning_rate': 0.0}, 'learning_rate must be a finite number > 0'),
    ({'inner_steps': 0}, 'inner_steps must be at least 1'),
    ({'levels': 0}, 'levels must be in 1..65534'),
    ({'code': 'huffman'}, 'code must be one of'),
    ({'levels': 65_535}, 'levels must be in 1..65534, got 65535'),
    ({'levels': 2**25, 'code': 'fixed'}, 'in 1..16777216'),
  ],
)
def test_an_argument_out_of_range_is_an_error(wrong, message):
  with pytest.raises(ValueError, match=message):
    make(**wrong)


@pytest.mark.slow
def test_parameters_of_16_bits():
  rows = problem()
  optimizer = make(inner_steps=5)
  wide = {'last': jnp.float32(0.5), 'w': jnp.full(SIZE - 1, 0.25)}
  narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), wide)
  run = compiled(optimizer, WORKERS)
  after = run(optimizer.init(narrow), rows).params
  expected = run(optimizer.init(wide), rows).params
  for name, x in after.items():
    assert x.dtype == jnp.bfloat16
    np.testing.assert_allclose(
      np.float32(x), expected[name], atol=0.02, rtol=0.02
    )
