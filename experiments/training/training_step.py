"""One step of data-parallel training, written once for every runner.

Inside the step a worker sees its own batch, its own memory and the shared
parameters. What differs between workers is marked so in `specs`, and nowhere
else.

A worker may be a node of several inner workers. Each of these has a batch of
its own; the mean over them is the worker's gradient, and from there on they all
do the same, each with its peers in the other nodes.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

from experiments import data
from experiments.hosts import placement as placing
from experiments.program import errors
from experiments.run import time_breakdown
from experiments.training import blocks
from experiments.training import gradients
from flax import linen as nn
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np
import optax

AXIS = placing.AXIS
INNER_AXIS = placing.INNER_AXIS


class TrainState(NamedTuple):
  """Everything that a step changes, and all that a checkpoint must hold.

  No PRNG key is in here: what is drawn (data order, augmentation, dropout,
  QSGD's rounding) is a pure function of the seed, the step and the worker.
  """

  step: jax.Array  # int32[], steps done
  params: Any  # shared, unless the chain has a gs.local_gradient
  statistics: Any  # batch normalisation's running averages, shared
  opt_state: Any  # worker-local leaves have a leading axis of workers


def init_state(
  model: nn.Module,
  tx: optax.GradientTransformation,
  *,
  image_shape: Sequence[int],
  placement: placing.Placement,
  seed: int,
) -> TrainState:
  """Returns the state before the first step.

  Each device makes its own part, so nothing of it travels.

  Args:
    model: see `experiments.models.create`.
    tx: the whole optimizer chain; its state must not depend on the density.
    image_shape: height, width, channels.
    placement: of the workers.
    seed: of the initial parameters.
  """
  num_workers = placement.num_workers

  def variables(seed):
    images = jnp.zeros((1, *image_shape), jnp.float32)
    return model.init(jax.random.key(seed), images, train=False)

  def create(seed):
    made = variables(seed)
    params = made['params']
    differ = gs.workers.params_spec(tx, params) != PartitionSpec()
    return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=gs.workers.stack(params, num_workers) if differ else params,
      statistics=made.get('batch_stats', {}),
      opt_state=gs.workers.init(tx, params, num_workers),
    )

  shapes = jax.eval_shape(variables, seed)['params']
  return placement.make(create, specs(tx, shapes, num_workers), seed)


def specs(
  tx: optax.GradientTransformation, params: Any, num_workers: int
) -> TrainState:
  """Returns which parts of the state belong to one worker."""
  return TrainState(
    step=PartitionSpec(),
    params=gs.workers.params_spec(tx, params),
    statistics=PartitionSpec(),
    opt_state=gs.workers.specs(tx, params, num_workers, axis_name=AXIS),
  )


def make_train_step(
  model: nn.Module,
  tx: optax.GradientTransformation,
  params: Any,
  *,
  placement: placing.Placement,
  mean: Sequence[float],
  std: Sequence[float],
  moments: bool = False,
  microbatch: int | None = None,
  average_every: int = 500,
  block: int | None = None,
) -> Callable[[TrainState, data.Batch], tuple[TrainState, dict[str, Any]]]:
  """Returns `(state, batch) -> (state, metrics)`, for `blocks.compiled`.

  It can also be called as it is, and compiles itself then.

  Metrics are means over the workers, as scalars on the device: `train/loss`,
  `train/accuracy` and what the scheme measures as `comm/...`.

  Batch normalisation sees a worker's own batch, as on a real cluster; its
  running averages are averaged over the workers each step, so that the model
  is the same everywhere. That mean is a dense all-reduce beside the gradient
  exchange (2 floats a channel; `gs.plan` counts gradients only). So it is with
  an inner worker's batch where a worker has several.

  Args:
    model: see `init_state`.
    tx: the whole optimizer chain.
    params: only their shapes are used.
    placement: of the workers, with their runner.
    mean: of a channel of the images, in units of the stored bytes.
    std: likewise.
    moments: give the scheme second moments of per-example gradients.
    microbatch: examples whose gradients are held at a time for that.
    average_every: steps between two averages of the parameters, where they
      differ between workers.
    block: simulated workers whose gradients are computed at a time; divides
      their number. None: all, in one program with all the rest.
  """
  differ = gs.workers.params_spec(tx, params) != PartitionSpec()
  inner_axis = placement.inner_axis

  def step(
    state: TrainState, batch: data.Batch
  ) -> tuple[TrainState, dict[str, Any]]:
    return update(state, gradients_of(state.params, state.statistics, batch))

  def gradients_of(params, statistics, batch):
    with time_breakdown.scope('compute'):
      images = data.normalise(batch.images, mean, std)
      of_examples = batch.labels, batch.noise
      # Without the cast shard_map would sum the gradients over the workers
      # before the scheme sees them.
      own = gs.workers.local(gs.workers.local(params, AXIS), inner_axis)
      if moments:
        got = gradients.with_moments(
          model, own, statistics, images, *of_examples, microbatch
        )
      else:
        got = gradients.plain(model, own, statistics, images, *of_examples)
    with time_breakdown.scope('exchange'):
      return over_inner_workers(got)

  def over_inner_workers(got):
    """What the worker's whole batch gives, on all of its inner workers."""
    got = gs.workers.mean(got, inner_axis)
    if not moments:
      return got
    # Sums of (gradient / batch size)^2, and the worker's batch is larger.
    return got._replace(
      second_moment=jax.tree.map(
        lambda m: m / placement.inner_workers, got.second_moment
      )
    )

  @time_breakdown.scope('update')
  def update(state, got):
    own = gs.workers.local(state.params, AXIS)
    extra = {'second_moment': got.second_moment} if moments else {}
    updates, opt_state = tx.update(got.grads, state.opt_state, own, **extra)
    new_params = optax.apply_updates(own if differ else state.params, updates)
    measured = {
      f'comm/{name}': value for name, value in gs.metrics(opt_state).items()
    }
    metrics = {
      'train/loss': got.loss,
      'train/accuracy': got.accuracy,
      **measured,
      'comm/rejected_steps_in_a_row': optax.tree.get(
        opt_state, 'rejected_in_a_row'
      ),
    }
    factor = optax.tree.get(opt_state, 'plateau_scale')
    if factor is not None:
      metrics['train/learning_rate_factor'] = factor
    if differ:
      new_params, opt_state = gs.periodic_average(
        new_params,
        opt_state,
        state.step + 1,
        every=average_every,
        axis_name=AXIS,
      )
    new_state = TrainState(
      step=state.step + 1,
      params=new_params,
      statistics=jax.tree.map(
        # A batch that is no number leaves no trace.
        lambda new, old: jnp.where(jnp.all(jnp.isfinite(new)), new, old),
        gs.workers.mean(got.statistics, AXIS),
        state.statistics,
      ),
      opt_state=opt_state,
    )
    return new_state, gs.workers.mean(metrics, AXIS)

  state_specs = specs(tx, params, placement.num_workers)
  # JAX has no types for batch normalisation over a `vmap` of examples.
  typed = not (moments and hasattr(model, 'batch_axis'))
  parallel = functools.partial(
    gs.workers.parallel,
    runner=placement.runner,
    devices=placement.devices,
    check_vma=typed,
  )
  axes, state_and_metrics = placement.axes, (state_specs, PartitionSpec())
  if block is None:
    return parallel(
      step,
      num_workers=axes,
      in_specs=(state_specs, PartitionSpec(*axes)),
      out_specs=state_and_metrics,
      donate_argnums=(0,),
    )
  own = PartitionSpec(AXIS)
  return blocks.InBlocks(
    parallel(
      gradients_of,
      num_workers={**axes, AXIS: block},
      in_specs=(state_specs.params, PartitionSpec(), PartitionSpec(*axes)),
      out_specs=own,
    ),
    parallel(
      update,
      num_workers=axes,
      in_specs=(state_specs, own),
      out_specs=state_and_metrics,
    ),
    workers=placement.num_workers,
    block=block,
    params_spec=state_specs.params,
  )


def check_finite(state: TrainState, step: int) -> None:
  """Raises if the parameters after `step` are not all numbers.

  A loss says so only one step later.

  Raises:
    DivergedError: names the first parameter.
  """
  for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
    # Replicated parameters are looked at once, those that differ all.
    held = leaf.addressable_shards[: 1 if leaf.is_fully_replicated else None]
    if not all(np.isfinite(shard.data).all() for shard in held):
      name = jax.tree_util.keystr(path, simple=True, separator='/')
      raise errors.DivergedError(
        f'parameter {name} is not finite after step {step}; {errors.CALMER}'
      )


def make_average_params(
  differ: bool, placement: placing.Placement
) -> Callable[[Any], Any]:
  """Returns what makes one set of parameters of a state's.

  Args:
    differ: whether they differ between workers; then it is their mean, which
      all processes must ask for.
    placement: of the workers.
  """
  if not differ:
    return lambda params: params

  @jax.jit
  def mean(params):
    return jax.tree.map(lambda p: p.mean(axis=0), params)

  if placement.mesh is None:
    return mean
  everywhere = NamedSharding(placement.mesh, PartitionSpec())
  return jax.jit(mean, out_shardings=everywhere)
