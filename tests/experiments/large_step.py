"""A training step of a sharded transformer, compiled and never run.

Nothing of the model's size is made: the step is compiled for shapes, and the
program says what it would send and how much memory it would take. The model is
tiny, unless variables name its layers and its width:
docs/large_models.md has what came of

  GRADSPARSE_LAYERS=24 GRADSPARSE_WIDTH=2048 python -m pytest -m slow ...
"""

import collections
import dataclasses
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
import optax

AXIS, INSIDE = 'replica', programs.INSIDE

# All have one momentum: DGC its own, the others that of the optimizer.
SCHEMES = {
  'dense': gs.dense,
  'dgc': functools.partial(gs.dgc, 0.001),
  'dgc_chunk': functools.partial(gs.dgc, 0.001, scope='chunk'),
  'qsgd': functools.partial(gs.qsgd, 7),
  'power_sgd': functools.partial(gs.power_sgd, 2),
}


@dataclasses.dataclass(frozen=True)
class Transformer:
  """Its sizes.

  Attributes:
    layers: how many.
    width: of the stream between them.
    shards: devices of a replica.
    scanned: whether a leaf holds all layers, for `jax.lax.scan`. Else each
      layer has leaves of its own.
  """

  layers: int
  width: int
  shards: int
  scanned: bool = False

  @property
  def large(self):
    return self.width >= 1024

  @property
  def heads(self):
    return 16 if self.large else 4

  @property
  def vocabulary(self):
    return 50_257 if self.large else 510

  @property
  def context(self):
    return 1024 if self.large else 16

  @property
  def parameters(self):
    return sum(math.prod(x.shape) for x in jax.tree.leaves(self.shapes()))

  def shapes(self):
    """ShapeDtypeStructs of the parameters."""
    width, each = self.width, (self.layers,) if self.scanned else ()

    def leaf(*shape):
      return jax.ShapeDtypeStruct(shape, jnp.float32)

    def dense(inputs, outputs):
      kernel = leaf(*each, inputs, outputs)
      return {'kernel': kernel, 'bias': leaf(*each, outputs)}

    def norm(*each):
      return {'scale': leaf(*each, width), 'bias': leaf(*each, width)}

    block = {
      'norm_1': norm(*each),
      'qkv': dense(width, 3 * width),
      'out': dense(width, width),
      'norm_2': norm(*each),
      'up': dense(width, 4 * width),
      'down': dense(4 * width, width),
    }
    return {
      'tokens': leaf(self.vocabulary, width),
      'places': leaf(self.context, width),
      'blocks': block if self.scanned else [block] * self.layers,
      'norm': norm(),
    }

  def specs(self):
    """How the leaves are sharded: what has one dimension is whole."""
    return jax.tree.map(
      lambda x: programs.sharded(x.shape, self.shards), self.shapes()
    )

  def loss(self, params, specs, tokens):
    """The mean loss of tokens, of a device's shards or of whole leaves."""
    embedding = _gathered(params['tokens'], specs['tokens'])
    x = embedding[tokens[:, :-1]] + _gathered(params['places'], specs['places'])

    def layer(x, params, specs):
      block = lambda p, x: self._block(_gathered(p, specs), x)
      return jax.checkpoint(block)(params, x)

    if self.scanned:
      # No leaf is sharded along its layers.
      own = jax.tree.map(lambda spec: P(*spec[1:]), specs['blocks'])
      turn = lambda x, p: (layer(x, p, own), None)
      x, _ = jax.lax.scan(turn, x, params['blocks'])
    else:
      for own in zip(params['blocks'], specs['blocks'], strict=True):
        x = layer(x, *own)
    logits = _norm(params['norm'], x) @ embedding.T
    losses = optax.softmax_cross_entropy_with_integer_labels(
      logits, tokens[:, 1:]
    )
    return jnp.mean(losses)

  def _block(self, p, x):
    heads = (*x.shape[:2], 3 * self.heads, self.width // self.heads)
    qkv = _dense(p['qkv'], _norm(p['norm_1'], x)).reshape(heads)
    q, k, v = jnp.split(qkv, 3, axis=2)
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + _dense(p['out'], attended.reshape(x.shape))
    hidden = jax.nn.gelu(_dense(p['up'], _norm(p['norm_2'], x)))
    return x + _dense(p['down'], hidden)

  def value_and_grad(self):
    """The loss of a replica's tokens, and its gradient.

    The collectives of FSDP are written out: a matrix is gathered where it is
    used, and its gradient is reduced and scattered. XLA's backend for CPUs
    would reduce gradients without scattering them.
    """
    specs = self.specs()

    def on_device(params, tokens):
      return jax.value_and_grad(
        lambda p: jax.lax.pmean(self.loss(p, specs, tokens), INSIDE)
      )(params)

    return jax.shard_map(
      on_device,
      in_specs=(specs, P(INSIDE)),
      out_specs=(P(), specs),
      axis_names={INSIDE},
    )


def from_environment(*, width, shards, scanned=False):
  """The model that variables name; else of two layers, and so wide."""
  return Transformer(
    int(os.environ.get('GRADSPARSE_LAYERS', 2)),
    int(os.environ.get('GRADSPARSE_WIDTH', width)),
    shards,
    scanned,
  )


def _gathered(tree, specs):
  """Whole leaves of a device's shards."""

  def gather(x, spec):
    if INSIDE not in spec:
      return x
    return jax.lax.all_gather(x, INSIDE, axis=spec.index(INSIDE), tiled=True)

  return jax.tree.map(gather, tree, specs)


def _norm(p, x):
  return jax.nn.standardize(x, epsilon=1e-5) * p['scale'] + p['bias']


def _dense(p, x):
  return x @ p['kernel'] + p['bias']


def mesh(devices):
  """Of devices as an array, replicas first."""
  return Mesh(devices, (AXIS, INSIDE), axis_types=(AxisType.Auto,) * 2)


def _lowered(name, model, mesh):
  """The step of a scheme as a program, and its plan."""
  specs, value_and_grad = model.specs(), model.value_and_grad()
  params = jax.tree.map(
    lambda x, spec: programs.array(mesh, x.shape, spec), model.shapes(), specs
  )
  momentum = None if name.startswith('dgc') else 0.9
  scheme = gs.sharded(SCHEMES[name](axis_name=AXIS), specs)
  tx = optax.chain(scheme, optax.sgd(0.1, momentum=momentum))
  own = gs.workers.specs(tx, params, mesh.shape[AXIS], AXIS)

  def step(params, state, tokens):
    loss, grads = value_and_grad(gs.workers.local(params, AXIS), tokens)
    updates, state = tx.update(grads, state, params)
    params = optax.apply_updates(params, updates)
    return params, state, gs.workers.mean(loss, AXIS)

  wrapped = gs.workers.wrap(
    step,
    mesh=mesh,
    axis_name=AXIS,
    in_specs=(P(), own, P(AXIS)),
    out_specs=(P(), own, P()),
  )
  tokens = (mesh.size, model.context + 1)  # a sequence for each device
  lowered = jax.jit(wrapped, donate_argnums=(0, 1)).lower(
    params,
    programs.state(tx, params, mesh, AXIS),
    programs.array(mesh, tokens, P((AXIS, INSIDE)), jnp.int32),
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


def compiled(name, model, mesh, options):
  """The compiled step of a scheme.

  Returns:
    The program, and what it would send and its memory: bytes of a device.
  """
  begin = time.perf_counter()
  lowered, plan = _lowered(name, model, mesh)
  middle = time.perf_counter()
  program = lowered.compile(compiler_options=dict(options))
  end = time.perf_counter()
  audit = gs.audit(program, mesh)
  memory = program.memory_analysis()
  return program, {
    'scheme': name,
    'sent_bytes': _over(audit.sent_by_axis, AXIS),
    'plan_bytes': _over(plan.sent_by_axis, AXIS),
    'inside_bytes': audit.sent_by_axis.get(INSIDE, 0),
    'argument_bytes': memory.argument_size_in_bytes,
    'temporary_bytes': memory.temp_size_in_bytes,
    'peak_bytes': machine.peak_bytes(program),
    'trace_seconds': round(middle - begin, 1),
    'compile_seconds': round(end - middle, 1),
    'collectives': _collectives(audit),
  }
