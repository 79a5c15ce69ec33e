"""Steps for TPUs and GPUs have the bits of CPUs; kernels are interpreted."""

import functools

import gradsparse as gs
from gradsparse.backend import chunks
from gradsparse.backend import platforms
import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests import replicas
from tests import runs
from tests.kernels import interpreted


@functools.cache
def trained(recipe, platform, rejected=None, **arguments):
  """The bits of parameters and state after three steps of two workers.

  Args:
    recipe: a scheme's factory, or its name.
    platform: for which the program is traced.
    rejected: the number of a step that the second worker refuses.
    **arguments: of the factory.
  """
  jax.clear_caches()
  params = {
    'stack': jnp.ones((6, 16, 128)),  # a kernel reads it as it is
    'short': jnp.ones((9, 128)),  # so too; its last chunk is short
    'tiles': jnp.ones((32, 96)),  # of 32 x 48
    'small': jnp.ones((7, 9)),
    'bias': jnp.ones(5),
  }
  make = getattr(gs, recipe) if isinstance(recipe, str) else recipe
  tx = optax.chain(
    make(axis_name='data', **arguments),
    optax.sgd(0.1),
  )

  def step(params, state, grads):
    grads = jax.tree.map(lambda x: x[0], grads)
    updates, state = tx.update(grads, state, params)
    updates = jax.tree.map(jnp.nan_to_num, updates)
    return optax.apply_updates(params, updates), state

  specs = gs.workers.specs(tx, params, 2, 'data')
  run = jax.jit(
    gs.workers.wrap(
      step,
      mesh=jax.make_mesh(
        (2,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)
      ),
      axis_name='data',
      in_specs=(jax.P(), specs, jax.P('data')),
      out_specs=(jax.P(), specs),
      check_vma=platform != 'gpu',  # the interpreter has no types
    )
  )
  state = gs.workers.init(tx, params, 2, 'data')
  take, used = chunks.take, []

  def taken(*args):
    used.append(args)
    return take(*args)

  with interpreted(platform), pytest.MonkeyPatch.context() as patch:
    patch.setattr(chunks, 'take', taken)
    for number in range(3):
      grads = runs.gradients(params, 2, seed=number)
      if number == rejected:
        grads['small'][1, 0, 0] = np.nan
      params, state = run(params, state, grads)
  if arguments.get('scope') == 'chunk':
    assert bool(used) == (platform != 'cpu')
  assert int(np.max(state[0].stats.rejected_steps)) == (rejected is not None)
  return [np.asarray(x).tobytes() for x in jax.tree.leaves((params, state))]


def chunks_for(platform):
  """On GPUs a kernel is used for chunks that XLA could search, too."""
  size = 1024 if platform == 'gpu' else 256
  return {'density': 0.01, 'scope': 'chunk', 'chunk_size': size}


PLATFORMS = pytest.mark.parametrize('platform', ['tpu', 'gpu'])


@pytest.mark.slow
@pytest.mark.parametrize(
  ('recipe', 'arguments'),
  [
    ('gradient_dropping', {}),
    ('dgc', {}),
    ('ef21', {}),
    # A leaf has fewer elements than a chunk has entries.
    ('dgc', {'min_size': 0}),
    # The memory learns only later what was delivered.
    ('dgc', {'values': 'exponent4'}),
  ],
)
@pytest.mark.parametrize('rejected', [None, 1])
@PLATFORMS
def test_a_step_has_the_bits_of_cpus(recipe, arguments, rejected, platform):
  arguments = {'rejected': rejected, **chunks_for(platform), **arguments}
  assert trained(recipe, platform, **arguments) == trained(
    recipe, 'cpu', **arguments
  )


def every_other(sent):
  return sent.keep(jnp.arange(sent.slots) % 2 == 0)


def arranges_less(exchange):
  return exchange._replace(arrange=lambda sent, code, size: every_other(sent))


def delivers_less(exchange):
  def run(message, comm):
    back = exchange.run(message, comm)
    return back._replace(delivered=every_other(message.own))

  return exchange._replace(run=run)


def removes_less(exchange):
  def run(message, comm):
    back = exchange.run(message, comm)
    extras = back.extras._replace(removed=every_other(message.own))
    return back._replace(extras=extras)

  return exchange._replace(run=run)


@pytest.mark.slow
@pytest.mark.parametrize(
  'changed', [arranges_less, delivers_less, removes_less]
)
@PLATFORMS
def test_what_an_exchange_does_not_deliver_stays_in_the_memory(
  changed, platform
):
  def make(axis_name, **chunks_of):
    return gs.compressed_mean(
      gs.extend.memories.residual(),
      gs.extend.compressors.top_k(
        chunks_of.pop('density'), gs.extend.codes.sparse(), **chunks_of
      ),
      changed(gs.extend.exchanges.all_gather()),
      axis_name=axis_name,
    )

  own = chunks_for(platform)
  assert trained(make, platform, **own) == trained(make, 'cpu', **own)


@pytest.mark.slow
@pytest.mark.parametrize(
  'shapes',
  [
    # All leaves of the second message are shorter than a chunk.
    {'sharded': (32, 128), 'whole': (7, 9)},
    # Both messages have leaves that no kernel reads as they are.
    {'sharded': (64, 128), 'sharded_too': (8, 20), 'whole': (20, 30)},
  ],
)
@PLATFORMS
def test_leaves_of_two_messages_have_the_bits_of_cpus(
  shapes, platform, monkeypatch
):
  """Leaves that are sharded over a worker's devices have one of their own."""
  specs = {
    name: jax.P('model', None) if 'sharded' in name else jax.P()
    for name in shapes
  }
  params = {name: jnp.ones(shape) for name, shape in shapes.items()}
  scheme = gs.dgc(**chunks_for(platform), axis_name=replicas.REPLICA)
  call = pl.pallas_call

  def anew(*args, input_output_aliases=None, **more):
    del input_output_aliases
    return call(*args, interpret=True, **more)

  monkeypatch.setattr(pl, 'pallas_call', anew)
  mesh = jax.make_mesh(
    (2, 2),
    (replicas.REPLICA, 'model'),
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
  )
  bits = []
  for own in ('cpu', platform):
    jax.clear_caches()
    monkeypatch.setattr(platforms, 'name', lambda name=own: name)
    run = replicas.Program(
      gs.sharded(scheme, specs),
      mesh,
      specs=specs,
      params=params,
      check_vma=False,
    )
    state, results = run.state, []
    for seed in range(2):
      *own, state = run(state, replicas.draw(params, 2, seed=seed))
      results.append(own)
    leaves = jax.tree.leaves((results, state))
    bits.append([np.asarray(x).tobytes() for x in leaves])
  assert bits[0] == bits[1]


@pytest.mark.slow
def test_a_search_of_tiles_has_the_bits_of_cpus():
  """With more entries of a tile than are added up chunk by chunk."""
  tiles = {'density': 0.02, 'scope': 'tile', 'tile': 48, 'mean': 'senders'}
  on_tpu = trained('gradient_dropping', 'tpu', **tiles)
  assert on_tpu == trained('gradient_dropping', 'cpu', **tiles)


@pytest.mark.slow
def test_dense_messages_have_the_sum_of_cpus():
  """But for a rounding: XLA may join the product with the addition."""
  # The largest of a bucket: of a norm the order of the sum would matter.
  largest = {'levels': 7, 'norm': 'max', 'min_size': 0}
  pairs = zip(
    trained('qsgd', 'gpu', **largest)[:3],
    trained('qsgd', 'cpu', **largest)[:3],
    strict=True,
  )
  for pair in pairs:
    on_gpu, on_cpu = (np.frombuffer(x, np.float32) for x in pair)
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-6)
