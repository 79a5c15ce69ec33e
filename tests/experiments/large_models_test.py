"""A training step of a sharded transformer, compiled and never run.

Nothing of the model's size is made: the step is compiled for shapes, and the
program says what it would send and how much memory it would take. By default
the model is tiny. docs/large_models.md has what came of

  GRADSPARSE_LAYERS=24 GRADSPARSE_WIDTH=2048 python -m pytest -m slow ...
"""

import collections
import functools
import math
import os
import time

from experiments.benchmarks.accelerators import programs
from experiments.run import machine
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests.experiments.faults import attempts

_LAYERS = int(os.environ.get('GRADSPARSE_LAYERS', 2))
_WIDTH = int(os.environ.get('GRADSPARSE_WIDTH', 64))
_LARGE = _WIDTH >= 1024
_HEADS, _VOCABULARY, _CONTEXT = (16, 50_257, 1024) if _LARGE else (4, 510, 16)
_REPLICAS, _SHARDS = 2, 4
_AXIS, _INSIDE = 'replica', programs.INSIDE

# All have one momentum: DGC its own, the others that of the optimizer.
_SCHEMES = {
  'dense': gs.dense,
  'dgc': functools.partial(gs.dgc, 0.001),
  'dgc_chunk': functools.partial(gs.dgc, 0.001, scope='chunk'),
  'qsgd': functools.partial(gs.qsgd, 7),
  'power_sgd': functools.partial(gs.power_sgd, 2),
}
# The default order is for speed on many cores, and keeps everything longer.
_OPTIONS = {'xla_cpu_scheduler_type': 'CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED'}


def _shapes():
  """ShapeDtypeStructs of the parameters; each layer has leaves of its own."""

  def leaf(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)

  def dense(inputs, outputs):
    return {'kernel': leaf(inputs, outputs), 'bias': leaf(outputs)}

  norm = {'scale': leaf(_WIDTH), 'bias': leaf(_WIDTH)}
  block = {
    'norm_1': norm,
    'qkv': dense(_WIDTH, 3 * _WIDTH),
    'out': dense(_WIDTH, _WIDTH),
    'norm_2': norm,
    'up': dense(_WIDTH, 4 * _WIDTH),
    'down': dense(4 * _WIDTH, _WIDTH),
  }
  return {
    'tokens': leaf(_VOCABULARY, _WIDTH),
    'places': leaf(_CONTEXT, _WIDTH),
    'blocks': [block] * _LAYERS,
    'norm': norm,
  }


def _parameters():
  return sum(math.prod(x.shape) for x in jax.tree.leaves(_shapes()))


def _specs(shards=_SHARDS):
  """How the leaves are sharded: norms and biases are whole."""
  return jax.tree.map(lambda x: programs.sharded(x.shape, shards), _shapes())


def _gathered(tree, specs):
  """Whole leaves of a device's shards."""

  def gather(x, spec):
    if _INSIDE not in spec:
      return x
    return jax.lax.all_gather(x, _INSIDE, axis=spec.index(_INSIDE), tiled=True)

  return jax.tree.map(gather, tree, specs)


def _norm(p, x):
  return jax.nn.standardize(x, epsilon=1e-5) * p['scale'] + p['bias']


def _dense(p, x):
  return x @ p['kernel'] + p['bias']


def _block(p, x):
  heads = (*x.shape[:2], 3 * _HEADS, _WIDTH // _HEADS)
  qkv = _dense(p['qkv'], _norm(p['norm_1'], x)).reshape(heads)
  q, k, v = jnp.split(qkv, 3, axis=2)
  attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
  x = x + _dense(p['out'], attended.reshape(x.shape))
  hidden = jax.nn.gelu(_dense(p['up'], _norm(p['norm_2'], x)))
  return x + _dense(p['down'], hidden)


def _loss(params, specs, tokens):
  """The mean loss of tokens, of a device's shards or of whole leaves."""
  embedding = _gathered(params['tokens'], specs['tokens'])
  x = embedding[tokens[:, :-1]] + _gathered(params['places'], specs['places'])
  for block, own in zip(params['blocks'], specs['blocks'], strict=True):
    x = jax.checkpoint(lambda p, x, s=own: _block(_gathered(p, s), x))(block, x)
  logits = _norm(params['norm'], x) @ embedding.T
  losses = optax.softmax_cross_entropy_with_integer_labels(
    logits, tokens[:, 1:]
  )
  return jnp.mean(losses)


def _value_and_grad():
  """The loss of a replica's tokens, and its gradient.

  The collectives of FSDP are written out: a matrix is gathered where it is
  used, and its gradient is reduced and scattered. XLA's backend for CPUs would
  reduce gradients without scattering them.
  """
  specs = _specs()

  def on_device(params, tokens):
    return jax.value_and_grad(
      lambda p: jax.lax.pmean(_loss(p, specs, tokens), _INSIDE)
    )(params)

  return jax.shard_map(
    on_device,
    in_specs=(specs, P(_INSIDE)),
    out_specs=(P(), specs),
    axis_names={_INSIDE},
  )


def _mesh(replicas):
  devices = np.array(jax.devices()[: replicas * _SHARDS])
  devices = devices.reshape(replicas, _SHARDS)
  return Mesh(devices, (_AXIS, _INSIDE), axis_types=(AxisType.Auto,) * 2)


def _lowered(name, mesh):
  """The step of a scheme as a program, and its plan."""
  specs, value_and_grad = _specs(), _value_and_grad()
  params = jax.tree.map(
    lambda x, spec: programs.array(mesh, x.shape, spec), _shapes(), specs
  )
  momentum = None if name.startswith('dgc') else 0.9
  scheme = gs.sharded(_SCHEMES[name](axis_name=_AXIS), specs)
  tx = optax.chain(scheme, optax.sgd(0.1, momentum=momentum))
  own = gs.workers.specs(tx, params, _REPLICAS, _AXIS)

  def step(params, state, tokens):
    loss, grads = value_and_grad(gs.workers.local(params, _AXIS), tokens)
    updates, state = tx.update(grads, state, params)
    params = optax.apply_updates(params, updates)
    return params, state, gs.workers.mean(loss, _AXIS)

  wrapped = gs.workers.wrap(
    step,
    mesh=mesh,
    axis_name=_AXIS,
    in_specs=(P(), own, P(_AXIS)),
    out_specs=(P(), own, P()),
  )
  tokens = (mesh.size, _CONTEXT + 1)  # a sequence for each device
  lowered = jax.jit(wrapped, donate_argnums=(0, 1)).lower(
    params,
    programs.state(tx, params, mesh, _AXIS),
    programs.array(mesh, tokens, P((_AXIS, _INSIDE)), jnp.int32),
  )
  return lowered, gs.plan(tx, params, dict(mesh.shape))


def _over(sent_by_axis, axis):
  """Bytes that cross an axis, alone or with others."""
  return sum(
    sent
    for axes, sent in sent_by_axis.items()
    if axis in (axes if isinstance(axes, tuple) else (axes,))
  )


def _collectives(audit):
  """How often each runs, largest first; of branches the one that sends most."""
  found = collections.Counter()

  def count(part):
    found.update((c.nbytes, c.kind, ' '.join(c.axes)) for c in part.collectives)
    for branches in part.conditionals:
      count(max(branches, key=lambda branch: branch.sent_bytes))

  count(audit)
  return [
    {'kind': kind, 'bytes': nbytes, 'axes': axes, 'times': times}
    for (nbytes, kind, axes), times in sorted(found.items(), reverse=True)
  ]


def _compiled(name):
  """What the compiled step of a scheme would send, and its memory."""
  begin, mesh = time.perf_counter(), _mesh(_REPLICAS)
  lowered, plan = _lowered(name, mesh)
  middle = time.perf_counter()
  program = lowered.compile(compiler_options=_OPTIONS)
  audit = gs.audit(program, mesh)
  return {
    'scheme': name,
    'sent_bytes': _over(audit.sent_by_axis, _AXIS),
    'plan_bytes': _over(plan.sent_by_axis, _AXIS),
    'inside_bytes': audit.sent_by_axis.get(_INSIDE, 0),
    'argument_bytes': program.memory_analysis().argument_size_in_bytes,
    'peak_bytes': machine.peak_bytes(program),
    'trace_seconds': round(middle - begin, 1),
    'compile_seconds': round(time.perf_counter() - middle, 1),
    'collectives': _collectives(audit),
  }


@pytest.fixture(scope='module')
def rows():
  found = {}
  for name in _SCHEMES if _LARGE else ('dense', 'dgc_chunk'):
    found[name] = _compiled(name)
    jax.clear_caches()
  mesh = {_AXIS: _REPLICAS, _INSIDE: _SHARDS}
  made = {'parameters': _parameters(), 'mesh': mesh, 'rows': [*found.values()]}
  attempts.keep({'steps': made})
  return found


@pytest.mark.slow
def test_a_compiled_step_sends_what_is_planned(rows):
  for row in rows.values():
    loss = math.ceil(8 * (_REPLICAS - 1) / _REPLICAS)  # an all-reduce of 4 B
    assert row['sent_bytes'] == row['plan_bytes'] + loss
    crossing = [c for c in row['collectives'] if _AXIS in c['axes']]
    assert {c['axes'] for c in crossing} == {_AXIS}
    # Between two replicas each of these collectives sends its operand once.
    total = sum(c['bytes'] * c['times'] for c in crossing)
    assert total == row['sent_bytes']
  assert rows['dgc_chunk']['sent_bytes'] < rows['dense']['sent_bytes'] / 10


@pytest.mark.slow
def test_the_scheme_leaves_fsdp_as_it_is(rows):
  """It gathers nothing; its devices agree on a few numbers."""
  more = rows['dgc_chunk']['inside_bytes'] - rows['dense']['inside_bytes']
  assert abs(more) < 100
  for row in rows.values():
    kinds = {c['kind'] for c in row['collectives'] if c['axes'] == _INSIDE}
    assert kinds == {'all_gather', 'reduce_scatter', 'all_reduce'}


@pytest.mark.slow
def test_memory_is_that_of_a_device(rows):
  shard = 4 * _parameters() / _SHARDS
  # Parameters and a momentum; DGC has what is pending beside it.
  for name, copies in (('dense', 2), ('dgc_chunk', 3)):
    row = rows[name]
    assert copies * shard < row['argument_bytes'] < 1.2 * copies * shard
    assert row['peak_bytes'] > row['argument_bytes'] + shard


@pytest.mark.slow
@pytest.mark.skipif(_LARGE, reason='the parameters are made here')
def test_the_gradient_is_that_of_a_model_that_is_not_sharded():
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: 0.1 * rng.normal(size=x.shape).astype(np.float32), _shapes()
  )
  tokens = rng.integers(0, _VOCABULARY, (4, _CONTEXT + 1)).astype(np.int32)
  with jax.set_mesh(_mesh(1)):
    found = jax.jit(_value_and_grad())(params, tokens)
  want = jax.jit(jax.value_and_grad(lambda p: _loss(p, _specs(1), tokens)))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5),
    found,
    want(params),
  )


def test_the_page_has_what_was_recorded():
  page, record = (
    attempts.page('large_models'),
    attempts.recorded('large_models'),
  )
  for part in ('steps', 'plans'):
    assert f'{record[part]["parameters"]:,} parameters' in page
  for row in record['steps']['rows']:
    assert row['sent_bytes'] == row['plan_bytes'] + 4
    less = record['steps']['rows'][0]['sent_bytes'] / row['sent_bytes']
    shown = f'| {row["scheme"]} | {row["sent_bytes"]:,} | {less:,.0f} |'
    assert shown in page
  for row in record['plans']['rows']:
    assert f'| {row["scheme"]} | {row["payload_bytes"]:,} |' in page
