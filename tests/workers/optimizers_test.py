"""Every optimizer of optax can follow a scheme, or go around one."""

import gradsparse as gs
from gradsparse.transform import step
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
from optax import contrib
import pytest
from tests import marks

PARAMS = {
  'w': np.zeros((4, 5), np.float32),
  'v': np.ones((4, 5), np.float32),
}
RATE = 0.1
DROPPING = gs.gradient_dropping(0.3, axis_name='workers', min_size=0)

# Those whose update wants more than gradients, and what.
LINE_SEARCH = ('value', 'grad', 'value_fn')
WANTING = {
  'backtracking': (optax.scale_by_backtracking_linesearch(5), LINE_SEARCH),
  'lbfgs': (optax.lbfgs(RATE), LINE_SEARCH),
  'momo': (contrib.momo(RATE), ('value',)),
  'momo_adam': (contrib.momo_adam(RATE), ('value',)),
  'polyak_sgd': (optax.polyak_sgd(), ('value',)),
  'reduce_on_plateau': (contrib.reduce_on_plateau(), ('value',)),
  'sam': (contrib.sam(optax.sgd(RATE), optax.sgd(0.01)), ()),
  'opaque sam': (
    contrib.sam(optax.sgd(RATE), optax.sgd(0.01), opaque_mode=True),
    ('grad_fn',),
  ),
  'sophia': (contrib.sophia(RATE), ('obj_fn',)),
}
FAST = ('lbfgs', 'momo', 'opaque sam')
# All others, by the package that has them.
PLAIN = {
  optax: (
    'adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan '
    'amsgrad fromage lamb lars lion nadam nadamw noisy_sgd novograd '
    'optimistic_adam optimistic_gradient_descent radam rmsprop rprop sgd '
    'sign_sgd sm3 yogi'
  ),
  contrib: (
    'acprop ademamix cocob dadapt_adamw dog dowg galore muon prodigy '
    'schedule_free_adamw schedule_free_sgd simplified_ademamix'
  ),
}
RATELESS = ('cocob', 'dog', 'dowg')


def _cases():
  for name, (optimizer, wanted) in WANTING.items():
    slow = () if name in FAST else pytest.mark.slow
    yield pytest.param(optimizer, wanted, id=name, marks=slow)
  for package, names in PLAIN.items():
    for name in names.split():
      if not hasattr(package, name):
        continue  # of another version
      factory = getattr(package, name)
      made = factory() if name in RATELESS else factory(learning_rate=RATE)
      yield pytest.param(made, (), id=name, marks=pytest.mark.slow)


def check(tx, params, wanted):
  """The step, its state and its plan, from shapes alone."""
  workers, mean = 2, gs.workers.mean

  def loss_fn(params, batch):
    return jnp.mean((batch @ (params['w'] + params['v']) - 1) ** 2)

  def step(params, state, batch):
    def mean_loss(params, *_):
      return mean(loss_fn(gs.workers.local(params), batch))

    own = gs.workers.local(getattr(params, 'fast', params))
    value, grads = jax.value_and_grad(loss_fn)(own, batch)
    given = {
      'value': mean(value),
      'grad': mean(grads),
      'value_fn': mean_loss,
      'obj_fn': mean_loss,
      'grad_fn': jax.grad(mean_loss),
    }
    update = optax.with_extra_args_support(tx).update
    updates, state = update(
      grads, state, params, **{name: given[name] for name in wanted}
    )
    return optax.apply_updates(params, updates), state

  state = gs.workers.init(tx, params, workers)
  specs = gs.workers.specs(tx, params, workers)
  run = gs.workers.parallel(
    step,
    runner='shard_map',
    num_workers=workers,
    in_specs=(P(), specs, P('workers')),
    out_specs=(P(), specs),
  )
  batch = np.zeros((workers, 3, 4), np.float32)
  new_params, new_state = jax.eval_shape(run, params, state, batch)
  shapes = lambda tree: jax.tree.map(jnp.shape, tree)
  assert shapes((new_params, new_state)) == shapes((params, state))
  assert gs.plan(tx, params, workers).payload_bytes == 60
  mesh = jax.make_mesh((workers,), ('workers',), devices=jax.devices()[:2])
  where = gs.workers.shardings(tx, params, mesh)
  assert jax.tree.map(lambda x: x.spec, where) == specs
  more = gs.workers.resize(tx, state, 3)
  assert gs.pending(more)['w'].shape == (3, 4, 5)
  assert gs.workers.params_spec(tx, params) == P()


@pytest.mark.parametrize('optimizer, wanted', list(_cases()))
def test_an_optimizer_follows_a_scheme(optimizer, wanted):
  check(optax.chain(DROPPING, optimizer), PARAMS, wanted)


@pytest.mark.slow
def test_lookahead_goes_around_a_scheme():
  tx = optax.lookahead(optax.chain(DROPPING, optax.sgd(RATE)), 2, 0.5)
  check(tx, optax.LookaheadParams.init_synced(PARAMS), ())


def _asks(how):
  def update(updates, state, params=None, **extra):
    del params
    return jax.tree.map(lambda u: u * how(extra), updates), state

  init = lambda _: optax.EmptyState()
  return optax.chain(
    DROPPING, optax.GradientTransformationExtraArgs(init, update)
  )


def _by_keyword(updates, state, params=None, *, temperature, **extra):
  del params, extra
  return jax.tree.map(lambda u: u * temperature, updates), state


ASKING = {
  'by key': _asks(lambda extra: extra['temperature']),
  'by keyword': optax.chain(
    DROPPING,
    optax.GradientTransformationExtraArgs(
      lambda _: optax.EmptyState(), _by_keyword
    ),
  ),
}


@pytest.mark.parametrize('how', marks.few(ASKING, 'by keyword'))
def test_what_an_own_optimizer_asks_for_is_given_by_its_name(how):
  tx = ASKING[how]
  mesh = jax.make_mesh((2,), ('workers',), devices=jax.devices()[:2])
  for call in (
    lambda **kw: gs.workers.init(tx, PARAMS, 2, **kw),
    lambda **kw: gs.workers.specs(tx, PARAMS, 2, **kw),
    lambda **kw: gs.workers.shardings(tx, PARAMS, mesh, **kw),
    lambda **kw: gs.plan(tx, PARAMS, 2, **kw),
  ):
    with pytest.raises(TypeError, match='temperature.*update_kwargs'):
      call()
    call(update_kwargs={'temperature': jax.ShapeDtypeStruct((), jnp.float32)})


def test_a_fault_of_the_library_is_no_argument_that_is_missing(monkeypatch):
  tx = gs.terngrad(axis_name='workers', min_size=0)
  monkeypatch.setattr(step, 'REDUCTIONS', {})
  with pytest.raises(KeyError, match="^'max'"):
    gs.plan(tx, PARAMS, 2)


def test_a_loss_of_each_worker_is_refused():
  tx = optax.chain(DROPPING, optax.polyak_sgd())
  specs = gs.workers.specs(tx, PARAMS, 2)

  def step(state, batch):
    grads = jax.tree.map(lambda w: w + batch[0, 0], PARAMS)
    return tx.update(grads, state, PARAMS, value=jnp.sum(batch))

  run = gs.workers.parallel(
    step,
    runner='simulate',
    num_workers=2,
    in_specs=(specs, P('workers')),
    out_specs=(P(), specs),
  )
  with pytest.raises(ValueError, match='gs.workers.mean'):
    jax.eval_shape(run, gs.workers.init(tx, PARAMS, 2), np.zeros((2, 3, 4)))
