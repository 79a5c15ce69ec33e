"""The worker axis outside of a step: what every runner refuses."""

import warnings

import gradsparse as gs
from gradsparse.collectives import Comm
from gradsparse.traffic.counting import Recorder
from gradsparse.traffic.counting import recording
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests.workers.regression import AXIS
from tests.workers.regression import NUM_WORKERS
from tests.workers.regression import OWN
from tests.workers.regression import PARAMS
from tests.workers.regression import batches
from tests.workers.regression import loss_fn
from tests.workers.regression import training


def program(step, runner, in_specs, out_specs, **kwargs):
  return gs.workers.parallel(
    step,
    runner=runner,
    num_workers=NUM_WORKERS,
    in_specs=in_specs,
    out_specs=out_specs,
    **kwargs,
  )


@pytest.mark.parametrize('runner', marks.few(gs.workers.RUNNERS, 'simulate'))
def test_a_worker_axis_of_another_size_is_refused(runner):
  """shard_map would drop rows, pmap would leave workers out."""
  fn = program(
    lambda scale, batch: gs.workers.mean(scale * jnp.sum(batch['x'])),
    runner,
    (P(), OWN),
    P(),
  )
  assert float(fn(2.0, {'x': jnp.ones((NUM_WORKERS, 2))})) == 4.0
  for shape in ((6, 2), (2,), (1, 3), ()):
    for call in (fn, fn.lower):
      with pytest.raises(ValueError) as e:
        call(2.0, {'x': jnp.ones(shape)})
      for said in (
        f"args[1]['x'] has shape {shape}",
        '(3, ...)',
        'x.reshape(3, -1, *x.shape[1:])',
      ):
        assert said in str(e.value)


@pytest.mark.parametrize('runner', marks.few(gs.workers.RUNNERS, 'shard_map'))
def test_state_without_its_worker_axis_is_refused(runner):
  tx = gs.dgc(0.2, min_size=0, axis_name=AXIS)
  fn = training(tx, runner)
  (batch,) = batches(1)
  with pytest.raises(ValueError, match=r"\['b'\].*\(4,\).*workers\.init"):
    fn.lower(PARAMS, tx.init(PARAMS), batch)


def drifting(own, batch):
  """A step of plain SGD in which nobody averages."""
  loss, grads = jax.value_and_grad(loss_fn)(gs.workers.local(own), batch)
  return jax.tree.map(lambda p, g: p - g, own, grads), {'loss': loss}


@pytest.mark.parametrize('runner', marks.few(gs.workers.RUNNERS, 'simulate'))
@pytest.mark.parametrize(
  'out_specs, path',
  [((OWN, P()), "output[1]['loss']"), ((P(), OWN), "output[0]['b']")],
)
def test_an_output_that_differs_is_not_the_same_for_all(
  runner, out_specs, path
):
  (batch,) = batches(1)
  fn = program(drifting, runner, (P(), OWN), out_specs)
  for call in (fn, fn.lower):
    with pytest.raises(ValueError) as e:
      call(PARAMS, batch)
    for said in (path, 'differs between workers', 'P()', 'gs.workers.mean'):
      assert said in str(e.value)
  params, metrics = program(drifting, runner, (P(), OWN), OWN)(PARAMS, batch)
  assert params['w'].shape == (NUM_WORKERS, 6, 4)
  assert metrics['loss'].shape == (NUM_WORKERS,)


@pytest.mark.parametrize('runner', marks.few(gs.workers.RUNNERS, 'shard_map'))
def test_a_mean_left_in_before_a_scheme_is_refused(runner):
  tx = gs.gradient_dropping(0.2, axis_name=AXIS)
  specs = gs.workers.specs(tx, PARAMS, NUM_WORKERS)

  def step(state, grads):
    return tx.update(jax.lax.pmean(grads, AXIS), state)

  fn = program(step, runner, (specs, OWN), (P(), specs))
  with pytest.raises(ValueError, match=r"\['b'\] was already summed.*pmean"):
    fn.lower(
      gs.workers.init(tx, PARAMS, NUM_WORKERS),
      gs.workers.stack(PARAMS, NUM_WORKERS),
    )


def counting(start):
  """A loop whose carry comes to differ between workers."""

  def step(batch):
    return jax.lax.fori_loop(0, 2, lambda _, c: c + batch, start())

  return step


@pytest.mark.parametrize('runner', marks.few(gs.workers.RUNNERS, 'simulate'))
def test_types_too_strict_for_a_loop_can_be_left_unchecked(
  runner,
):
  zero = lambda: jnp.float32(0)
  batch = np.arange(3, dtype=np.float32)
  strict = program(counting(zero), runner, (OWN,), OWN)
  if runner == 'shard_map':
    with pytest.raises(TypeError, match='carry'):
      strict(batch)
  else:
    with pytest.warns(UserWarning, match='TypeError.*carry.*check_vma=False'):
      np.testing.assert_array_equal(strict(batch), 2 * batch)
  typed = counting(lambda: gs.workers.local(zero()))
  for step, check_vma in ((typed, True), (counting(zero), False)):
    fn = program(step, runner, (OWN,), OWN, check_vma=check_vma)
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      np.testing.assert_array_equal(fn(batch), 2 * batch)


def test_a_mistake_of_another_kind_comes_without_a_warning():
  fn = program(lambda x: x @ jnp.ones(5), 'simulate', (OWN,), OWN)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    with pytest.raises(TypeError, match='dot_general'):
      fn(jnp.ones((NUM_WORKERS, 4)))


@pytest.mark.parametrize('runner', marks.few(['simulate', 'pmap'], 'simulate'))
def test_types_are_checked_once_for_arguments_of_the_same_shapes(runner):
  checked = []

  def step(x):
    if Comm(AXIS).mode == 'checked':
      checked.append(x.shape)
    return x

  fn = program(step, runner, (OWN,), OWN)
  for size in (2, 2, 5, 2):
    fn(np.ones((NUM_WORKERS, size), np.float32))
  assert checked == [(2,), (5,)]


def test_the_check_is_no_traffic_and_needs_no_mesh_of_its_own():
  tx = gs.dense(axis_name=AXIS)
  (batch,) = batches(1)
  sent = {}
  mesh = jax.make_mesh((2,), ('data',), axis_types=(AxisType.Auto,))
  with jax.set_mesh(mesh):
    state = gs.workers.init(tx, PARAMS, NUM_WORKERS)
    for check_vma in (False, True):
      fn = training(tx, 'simulate', check_vma=check_vma)
      recorder = Recorder(NUM_WORKERS)
      with recording(recorder):
        jax.eval_shape(fn, PARAMS, state, batch)
      sent[check_vma] = recorder.most_sent
  assert sent[True] == sent[False] > 0


# --- state outside of its axis ----------------------------------------------


@pytest.mark.parametrize('axis_name', [None, AXIS])
@pytest.mark.parametrize('recipe', [gs.dgc, gs.random_k])
def test_stacked_state_without_a_mapped_axis_is_refused(recipe, axis_name):
  """It would be broadcast: a worker's update in the shape of all workers'."""
  state = gs.workers.init(
    recipe(0.2, min_size=0, axis_name=AXIS), PARAMS, NUM_WORKERS
  )
  tx = optax.chain(recipe(0.2, min_size=0, axis_name=axis_name))
  with pytest.raises(ValueError) as e:
    jax.eval_shape(tx.update, PARAMS, (state,))
  leaf, shape = {
    gs.dgc: (".memory.momentum['b']", (4,)),
    gs.random_k: ('.stats.payload_bytes', ()),
  }[recipe]
  for said in (
    f'state{leaf} must have shape {shape}',
    f'got {(NUM_WORKERS, *shape)}',
    'gs.workers.parallel',
  ):
    assert said in str(e.value)


def test_specs_that_fit_no_tree_are_told_in_a_line():
  """Of a tree with many leaves: where it begins to differ, and how."""
  params = {f'layer_{i}': jnp.ones((2, 2)) for i in range(40)}
  tx = optax.chain(
    gs.sign_majority(axis_name=AXIS), optax.sgd(0.1, momentum=0.9)
  )
  state = gs.workers.init(tx, params, NUM_WORKERS)
  scheme, (trace, rest) = gs.workers.specs(tx, params, NUM_WORKERS)
  mesh = jax.sharding.AbstractMesh(
    (NUM_WORKERS,), (AXIS,), axis_types=(AxisType.Auto,)
  )
  for given, says in (
    (scheme, 'at [1] CompressedMeanState for tuple'),
    ((scheme, P(), P()), 'at [1] tuple of 3 for tuple of 2'),
    (
      (scheme._replace(stats=None), P()),
      'at [1][0].stats NoneType for Stats',
    ),
    (
      (scheme, (trace._replace(trace={'layer_7': P()}), rest)),
      "at [1][1][0].trace dict without 'layer_0', 'layer_1', ",
    ),
  ):
    kwargs = dict(in_specs=(P(), given), out_specs=P())
    for run in (
      gs.workers.wrap(lambda *args: 0.0, mesh=mesh, **kwargs),
      program(lambda *args: 0.0, 'simulate', **kwargs).lower,
    ):
      with pytest.raises(ValueError) as e:
        run(params, state)
      assert e.value.__suppress_context__  # it prints both trees
      said = str(e.value).splitlines()[0]
      assert says in said and len(said) <= 300


def test_specs_of_other_functions_are_made_by_replace():
  one, other = (
    jax.tree_util.Partial(lambda x: x, jnp.ones(2)) for _ in range(2)
  )
  specs = jax.tree.map(lambda _: P(), one)
  run = program(lambda f: f(), 'simulate', (specs,), P())
  match = 'got at .0. Partial for Partial, which differ in static fields'
  with pytest.raises(ValueError, match=match):
    run.lower(other)
