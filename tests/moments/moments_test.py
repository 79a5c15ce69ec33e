"""Second moments: against a loop over examples, and finite differences."""

import itertools

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests import marks
from tests.oracles import moments as oracle

B = 8
RNG = np.random.default_rng(0)
PARAMS = {
  'dense': {
    'kernel': RNG.normal(size=(3, 2)).astype(np.float32),
    'bias': RNG.normal(size=2).astype(np.float32),
  },
  'scale': np.float32(0.7),
}
BATCH = {
  'x': RNG.normal(size=(B, 3)).astype(np.float32),
  'y': RNG.normal(size=(B, 2)).astype(np.float32),
}


def loss_of_one(params, example):
  hidden = example['x'] @ params['dense']['kernel'] + params['dense']['bias']
  error = params['scale'] * jnp.tanh(hidden) - example['y']
  return jnp.sum(error**2)


_OF_ONE = jax.jit(jax.value_and_grad(loss_of_one))


def by_loop(params, batch):
  """(value, mean gradient, second moment), one example at a time."""
  size = batch['x'].shape[0]
  examples = [{k: x[z] for k, x in batch.items()} for z in range(size)]
  out = [_OF_ONE(params, example) for example in examples]
  each = jax.tree.map(
    lambda *g: np.stack(g).astype(np.float64), *[g for _, g in out]
  )
  return (
    np.mean([float(v) for v, _ in out]),
    jax.tree.map(lambda g: g.mean(axis=0), each),
    jax.tree.map(oracle.exact, each),
  )


def close(actual, expected, tolerance=2e-6):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      a, b, rtol=10 * tolerance, atol=tolerance
    ),
    actual,
    expected,
  )


@pytest.mark.parametrize('microbatch', marks.few([None, 1, 2, 8], 2))
def test_moments_are_those_of_a_loop_over_examples(microbatch):
  fn = gs.value_and_grad_moments(loss_of_one, microbatch=microbatch)
  value, grads, moments = jax.jit(fn)(PARAMS, BATCH)
  close((value, grads, moments), by_loop(PARAMS, BATCH))
  # Not the mean of squares, and not the square of the mean.
  kernel = moments['dense']['kernel']
  assert np.all(kernel > np.square(grads['dense']['kernel']) / B)


@pytest.mark.parametrize('microbatch', marks.few([None, 2], None))
def test_aux_of_all_examples_is_stacked(microbatch):
  def with_aux(params, example):
    return loss_of_one(params, example), {
      'first': example['x'][0],
      'x': example,
    }

  fn = gs.value_and_grad_moments(with_aux, microbatch=microbatch, has_aux=True)
  (value, aux), grads, moments = jax.jit(fn)(PARAMS, BATCH)
  close((value, grads, moments), by_loop(PARAMS, BATCH))
  np.testing.assert_array_equal(aux['first'], BATCH['x'][:, 0])
  jax.tree.map(np.testing.assert_array_equal, aux['x'], BATCH)


def test_gradients_take_the_type_of_the_parameters_and_moments_float32():
  params = jax.tree.map(lambda p: jnp.asarray(p, jnp.bfloat16), PARAMS)
  fn = gs.value_and_grad_moments(loss_of_one, microbatch=4)
  _, grads, moments = jax.jit(fn)(params, BATCH)
  assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype('bfloat16')}
  assert {m.dtype for m in jax.tree.leaves(moments)} == {jnp.dtype('float32')}


@pytest.mark.parametrize('runner', marks.few(gs.workers.RUNNERS, 'shard_map'))
def test_moments_of_worker_local_parameters(runner):
  """Under shard_map the scan's carry must be typed as the worker's own."""
  num_workers = 4
  rng = np.random.default_rng(1)
  batch = {
    'x': rng.normal(size=(num_workers, B, 3)).astype(np.float32),
    'y': rng.normal(size=(num_workers, B, 2)).astype(np.float32),
  }

  def step(params, batch):
    own = gs.workers.local(params)
    return gs.value_and_grad_moments(loss_of_one, microbatch=2)(own, batch)

  fn = gs.workers.parallel(
    step,
    runner=runner,
    num_workers=num_workers,
    in_specs=(P(), P('workers')),
    out_specs=P('workers'),
  )
  got = jax.tree.map(np.asarray, fn(PARAMS, batch))
  for w in range(num_workers):
    own = jax.tree.map(lambda x, w=w: x[w], (got, batch))
    close(own[0], by_loop(PARAMS, own[1]))


def temporary_bytes(loss, microbatch):
  """Of 64 examples; the gradient of one has 160 kB."""
  fn = jax.jit(gs.value_and_grad_moments(loss, microbatch=microbatch))
  compiled = fn.lower(jnp.zeros((200, 200)), jnp.zeros((64, 200))).compile()
  return compiled.memory_analysis().temp_size_in_bytes


def test_no_example_has_a_gradient_of_its_own_in_memory():
  bytes_ = temporary_bytes(lambda q, x: jnp.sum(jnp.tanh(x @ q) ** 2), None)
  assert bytes_ < 3 * 160_000


@pytest.mark.filterwarnings('ignore:second moments')
def test_memory_is_bounded_by_the_chunk():
  """Where each example has a copy: 10 MB, and 320 kB of two examples."""

  def loss(kernel, x):
    return jnp.sum(jnp.tanh(x @ jnp.sin(kernel)) ** 2)

  assert temporary_bytes(loss, 2) < temporary_bytes(loss, None) / 4


@pytest.mark.parametrize(
  'make',
  [
    lambda m: gs.value_and_grad_moments(loss_of_one, microbatch=m),
    lambda m: gs.batch_value_and_grad_moments(norm_loss, microbatch=m),
  ],
)
def test_a_chunk_that_does_not_divide_the_batch_is_an_error(make):
  for microbatch in (3, 16):
    with pytest.raises(ValueError, match='microbatch must divide'):
      make(microbatch)(PARAMS, BATCH)
  with pytest.raises(ValueError, match='microbatch must be at least 1'):
    make(0)


@pytest.mark.parametrize(
  'batch',
  [
    {'x': BATCH['x'], 'y': BATCH['y'][:4]},
    {'x': BATCH['x'], 'y': np.float32(1)},
    {},
  ],
)
def test_a_batch_without_leading_examples_is_an_error(batch):
  with pytest.raises(ValueError, match='examples as leading axis'):
    gs.value_and_grad_moments(loss_of_one)(PARAMS, batch)


# --- shared batch statistics ------------------------------------------------

NORM_PARAMS = {
  'kernel': RNG.normal(size=(3, 2)).astype(np.float32),
  'scale': np.float32([1.1, 0.8]),
}


def norm_loss(params, batch, np=jnp):
  """Batch norm over examples; each has its own copy of the parameters."""
  hidden = np.einsum('bi,bij->bj', batch['x'], params['kernel'])
  mean, var = hidden.mean(axis=0), hidden.var(axis=0)
  out = params['scale'] * (hidden - mean) / np.sqrt(var + 0.1)
  return ((np.tanh(out) - batch['y']) ** 2).sum(axis=1).mean()


def contributions(params, batch):
  """Derivatives with respect to each example's copy, by differences."""
  batch = jax.tree.map(np.float64, batch)
  copies = {k: np.stack([np.float64(p)] * B) for k, p in params.items()}
  out = {k: np.zeros_like(p) for k, p in copies.items()}
  for name, copy in copies.items():
    for i in range(copy.size):
      middle = copy.flat[i]
      ends = []
      for side in (1, -1):
        copy.flat[i] = middle + side * 1e-5
        ends.append(norm_loss(copies, batch, np))
      copy.flat[i] = middle
      out[name].flat[i] = (ends[0] - ends[1]) / 2e-5
  return out


@pytest.mark.parametrize('microbatch', marks.few([None, 1, 4], 4))
def test_with_batch_statistics_contributions_sum_to_the_batch_gradient(
  microbatch,
):
  fn = gs.batch_value_and_grad_moments(norm_loss, microbatch=microbatch)
  value, grads, moments = jax.jit(fn)(NORM_PARAMS, BATCH)

  def of_batch(params):
    tiled = jax.tree.map(lambda p: jnp.stack([p] * B), params)
    return norm_loss(tiled, BATCH)

  expected, gradient = jax.jit(jax.value_and_grad(of_batch))(NORM_PARAMS)
  close((value, grads), (expected, gradient))
  each = contributions(NORM_PARAMS, BATCH)
  close(grads, jax.tree.map(lambda c: c.sum(axis=0), each))
  close(moments, jax.tree.map(lambda c: (c**2).sum(axis=0), each))
  # Statistics held fixed would give other contributions.
  assert np.all(moments['kernel'] > 0)


def test_with_batch_statistics_aux_comes_back():
  def with_aux(params, batch):
    loss = norm_loss(params, batch)
    return loss, batch['x'].mean(axis=0)

  fn = gs.batch_value_and_grad_moments(with_aux, microbatch=2, has_aux=True)
  (value, aux), grads, moments = jax.jit(fn)(NORM_PARAMS, BATCH)
  plain = gs.batch_value_and_grad_moments(norm_loss, microbatch=2)
  close((value, grads, moments), jax.jit(plain)(NORM_PARAMS, BATCH))
  np.testing.assert_allclose(aux, BATCH['x'].mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize(
  'runner', marks.few(['simulate', 'shard_map'], 'shard_map')
)
def test_batch_moments_of_worker_local_parameters(runner):
  batches = jax.tree.map(lambda x: np.stack([x, -x]), BATCH)

  def step(params, batch):
    own = gs.workers.local(params)
    return gs.batch_value_and_grad_moments(norm_loss, microbatch=4)(own, batch)

  fn = gs.workers.parallel(
    step,
    runner=runner,
    num_workers=2,
    in_specs=(P(), P('workers')),
    out_specs=P('workers'),
  )
  got = fn(NORM_PARAMS, batches)
  plain = jax.jit(gs.batch_value_and_grad_moments(norm_loss))
  for w, sign in enumerate((1, -1)):
    batch = jax.tree.map(lambda x, sign=sign: sign * x, BATCH)
    close(jax.tree.map(lambda x, w=w: x[w], got), plain(NORM_PARAMS, batch))


# --- estimates from microbatches --------------------------------------------


def linear_loss(weights, examples):
  """Its gradient for an example is the example."""
  return jnp.mean(examples @ weights)


def partitions(size, parts):
  """All orders of the examples that divide them differently."""
  each, seen = size // parts, {}
  for order in itertools.permutations(range(size)):
    groups = [order[i : i + each] for i in range(0, size, each)]
    seen[tuple(sorted(tuple(sorted(g)) for g in groups))] = order
  return np.array(list(seen.values()))


@pytest.mark.parametrize('parts', marks.few([2, 3, 6], 2))
def test_moments_from_microbatches_are_unbiased(parts):
  """The average over all 10, 15 or 1 partitions is the exact moment."""
  examples = np.random.default_rng(2).normal(1, 1, (6, 4)).astype(np.float32)
  weights = jnp.zeros(4)
  fn = gs.moments_from_microbatches(linear_loss, parts)
  orders = partitions(6, parts)
  assert len(orders) == {2: 10, 3: 15, 6: 1}[parts]
  estimate = jax.jit(jax.vmap(fn, in_axes=(None, 0)))
  _, grads, moments = estimate(weights, examples[orders])
  np.testing.assert_allclose(
    grads, np.tile(examples.mean(axis=0), (len(orders), 1)), atol=1e-6
  )
  np.testing.assert_allclose(
    np.mean(moments, axis=0), oracle.exact(examples), rtol=1e-5
  )
  for order, moment in zip(orders, moments, strict=True):
    means = examples[order].reshape(parts, -1, 4).mean(axis=1)
    np.testing.assert_allclose(
      moment, oracle.unbiased(means, 6), rtol=1e-5, atol=1e-7
    )
  if parts < 6:
    plain = [
      oracle.plain(examples[o].reshape(parts, -1, 4).mean(axis=1))
      for o in orders
    ]
    assert np.max(np.mean(plain, axis=0) / oracle.exact(examples)) > 1.1


def test_moments_from_microbatches_of_a_model_and_errors():
  def batch_loss(params, batch):
    return jnp.mean(jax.vmap(loss_of_one, (None, 0))(params, batch))

  # As many parts as examples: exact.
  fn = jax.jit(gs.moments_from_microbatches(batch_loss, B))
  close(fn(PARAMS, BATCH), by_loop(PARAMS, BATCH))
  with pytest.raises(ValueError, match='at least 2'):
    gs.moments_from_microbatches(batch_loss, 1)
  with pytest.raises(ValueError, match='must divide'):
    gs.moments_from_microbatches(batch_loss, 3)(PARAMS, BATCH)


# --- dense layers -----------------------------------------------------------


def test_dense_layers_have_exact_moments_without_per_example_tensors():
  rng = np.random.default_rng(3)
  kernels = {
    'one': rng.normal(size=(3, 5)).astype(np.float32),
    'two': rng.normal(size=(5, 2)).astype(np.float32),
  }

  def loss(kernels, taps, batch):
    dense = gs.dense_with_moment
    hidden = jnp.tanh(dense(batch['x'], kernels['one'], taps['one']))
    out = dense(hidden, kernels['two'], taps['two'])
    return jnp.mean(jnp.sum((out - batch['y']) ** 2, axis=1))

  taps = jax.tree.map(jnp.zeros_like, kernels)
  fn = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
  value, (grads, moments) = fn(kernels, taps, BATCH)

  def of_one(kernels, example):
    hidden = jnp.tanh(example['x'] @ kernels['one'])
    return jnp.sum((hidden @ kernels['two'] - example['y']) ** 2)

  expected = jax.jit(gs.value_and_grad_moments(of_one))(kernels, BATCH)
  close((value, grads, moments), expected)
  # The identity as the oracle writes it, for the second layer.
  hidden = np.tanh(BATCH['x'] @ kernels['one'])
  cotangent = 2 * (hidden @ kernels['two'] - BATCH['y']) / B
  close(moments['two'], oracle.dense_layer(hidden, cotangent))
