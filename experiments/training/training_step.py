"""One step of data-parallel training, written once for every runner.

Inside the step a worker sees its own batch, its own memory and the shared
parameters. What differs between workers is marked so in `specs`, and nowhere
else.

A worker may be a node of several inner workers. Each of these has a batch of
its own; the mean over them is the worker's gradient, and from there on they all
do the same, each with its peers in the other nodes.
"""

from collections.abc import Callable, Iterable, Mapping
import functools
from typing import Any, NamedTuple

from experiments import data
from experiments import tasks
from experiments.hosts.placement import AXIS
from experiments.hosts.placement import Placement
from experiments.training import gradients
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import optax


class TrainState(NamedTuple):
  """Everything that a step changes, and all that a checkpoint must hold.

  No PRNG key is in here: what is drawn (data order, augmentation, dropout,
  QSGD's rounding) is a pure function of the seed, the step and the worker.
  """

  step: jax.Array  # int32[], steps done
  params: Any  # shared, unless the chain has a gs.local_gradient
  statistics: Any  # batch normalisation's running averages, one a worker
  opt_state: Any  # worker-local leaves have a leading axis of workers
  carry: Any = ()  # of `tasks.Task`; as `statistics`, leading axes of workers
  smoothed: Any = ()  # a moving average of params, where there is one


def init_state(
  task: tasks.Task,
  tx: optax.GradientTransformation,
  *,
  placement: Placement,
  seed: int,
  smoothed: bool = False,
) -> TrainState:
  """Returns the state before the first step.

  Each device makes its own part, so nothing of it travels.

  Args:
    task: has the model.
    tx: the whole optimizer chain; its state must not depend on the density.
    placement: of the workers.
    seed: of the initial parameters.
    smoothed: keep a moving average of the parameters.
  """
  shapes = jax.eval_shape(task.init, jax.random.key(seed)).params
  placed = specs(tx, shapes, placement)

  def create(seed):
    params, statistics = task.init(jax.random.key(seed))
    held = params
    if placed.params != PartitionSpec():
      held = gs.workers.stack(params, placement.num_workers)
    return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=held,
      statistics=for_each_worker(statistics, placement),
      opt_state=gs.workers.init(tx, params, placement.num_workers),
      carry=for_each_worker(task.carry(), placement),
      smoothed=held if smoothed else (),
    )

  return placement.compile(create, placed)(seed)


def for_each_worker(tree: Any, placement: Placement) -> Any:
  """Returns the tree once for each inner worker; can be traced."""
  sizes = tuple(placement.axes.values())
  return jax.tree.map(lambda x: jnp.broadcast_to(x, (*sizes, *x.shape)), tree)


def specs(
  tx: optax.GradientTransformation, params: Any, placement: Placement
) -> TrainState:
  """Returns which parts of the state belong to one worker."""
  held = gs.workers.params_spec(tx, params)
  return TrainState(
    step=PartitionSpec(),
    params=held,
    statistics=PartitionSpec(*placement.axes),
    opt_state=gs.workers.specs(
      tx, params, placement.num_workers, axis_name=AXIS
    ),
    carry=PartitionSpec(*placement.axes),
    smoothed=held,
  )


def tested_params(state: TrainState) -> Any:
  """Returns the parameters that a test is of: the smoothed, if there are."""
  return state.smoothed if jax.tree.leaves(state.smoothed) else state.params


def make_train_step(
  task: tasks.Task,
  tx: optax.GradientTransformation,
  params: Any,
  *,
  placement: Placement,
  moments: bool = False,
  microbatch: int | None = None,
  param_sync_every: int = 500,
  ema_decay: float = 0.0,
  block: int | None = None,
) -> Callable[[TrainState, data.Batch], tuple[TrainState, dict[str, Any]]]:
  """Returns `(state, batch) -> (state, metrics)`, which compiles itself.

  Metrics are means over the workers, as scalars on the device: `train/loss`,
  what the task measures as `train/...` and the scheme as `comm/...`.

  Batch normalisation sees a worker's own batch, as on a real cluster, and its
  running averages stay the worker's own: a step sends nothing for them. What
  is tested has their mean (`evaluation.Evaluation`), which is, but for
  rounding, what averaging in each step would give. Where a worker has several
  inner workers, all this is of these.

  Args:
    task: see `init_state`.
    tx: the whole optimizer chain.
    params: only their shapes are used.
    placement: of the workers, with their runner.
    moments: give the scheme second moments of per-example gradients.
    microbatch: examples whose gradients are held at a time for that.
    param_sync_every: steps between two averages of the parameters, where they
      differ between workers.
    ema_decay: share of the smoothed parameters that stays in a step; early
      steps keep less, (1 + step) / (10 + step), so that the first parameters
      are forgotten. For a state with smoothed parameters.
    block: simulated workers whose gradients are computed at a time; divides
      their number. None: all, in one program with all the rest.
  """
  state_specs = specs(tx, params, placement)
  differ = state_specs.params != PartitionSpec()
  outer = isinstance(tx, gs.Outer)  # its updates are parameters
  inner_axis = placement.inner_axis
  everyone = placement.num_workers * placement.inner_workers

  def step(state, batch):
    return update(state, gradients_of(*computed_from(state), batch))

  def computed_from(state):
    return state.params, state.statistics, state.carry

  def gradients_of(params, statistics, carry, batch):
    with jax.named_scope('train.compute'):
      # Without the cast shard_map would sum the gradients over the workers
      # before the scheme sees them.
      own = gs.workers.local(gs.workers.local(params, AXIS), inner_axis)
      worker = task, own, statistics, carry, batch
      if moments:
        got = gradients.with_moments(*worker, microbatch)
      else:
        got = gradients.plain(*worker)
    with jax.named_scope('train.exchange'):
      return over_inner_workers(got)

  def over_inner_workers(got):
    """What the worker's whole batch gives, on all of its inner workers."""
    # What goes on to the next batch is each inner worker's own.
    mean = gs.workers.mean(got._replace(statistics=(), carry=()), inner_axis)
    return mean._replace(
      statistics=got.statistics,
      carry=got.carry,
      # Sums of (gradient / batch size)^2, and the worker's batch is larger.
      second_moment=jax.tree.map(
        lambda m: m / placement.inner_workers, mean.second_moment
      ),
    )

  @jax.named_scope('train.update')
  def update(state, got):
    own = gs.workers.local(state.params, AXIS)
    extra = {'second_moment': got.second_moment} if moments else {}
    updates, opt_state = tx.update(got.grads, state.opt_state, own, **extra)
    new_params = updates
    if not outer:
      new_params = optax.apply_updates(own if differ else state.params, updates)
    # Counts are of all workers; what follows takes means.
    counts = {name: everyone * n for name, n in got.counts.items()}
    metrics = {
      **_in('train', {'loss': got.loss, **got.measured, **counts}),
      **_in('comm', gs.metrics(opt_state)),
      'comm/rejected_steps_in_a_row': optax.tree.get(opt_state, 'consecutive'),
    }
    factor = optax.tree.get(opt_state, 'plateau_scale')
    if factor is not None:
      metrics['train/learning_rate_factor'] = factor
    step = state.step + 1
    if differ and not outer:
      new_params, opt_state = gs.periodic_average(
        new_params, opt_state, step, every=param_sync_every, axis_name=AXIS
      )
    new_state = TrainState(
      step=step,
      params=new_params,
      # A batch that is no number leaves no trace.
      statistics=_finite(got.statistics, state.statistics),
      opt_state=opt_state,
      carry=_finite(got.carry, state.carry),
      smoothed=smooth(state, new_params),
    )
    # The same on all workers; a mean would round them to float32.
    exact = {
      name: jax.lax.pmax(metrics.pop(name), AXIS)
      for name in ('comm/payload_bytes', 'comm/sent_bytes')
    }
    return new_state, {**gs.workers.mean(metrics, AXIS), **exact}

  def smooth(state, new_params):
    step = state.step.astype(jnp.float32)
    kept = jnp.minimum(ema_decay, (1 + step) / (10 + step))
    if not jax.tree.leaves(state.smoothed):
      return ()
    return optax.incremental_update(new_params, state.smoothed, 1 - kept)

  # JAX has no types for batch normalisation over a `vmap` of examples.
  typed = not (moments and task.has_batch_axis)
  parallel = functools.partial(placement.parallel, check_vma=typed)
  every, state_and_metrics = state_specs.carry, (state_specs, PartitionSpec())
  if block is None:
    return parallel(
      step,
      in_specs=(state_specs, every),
      out_specs=state_and_metrics,
      donate_argnums=(0,),
    )
  own = [PartitionSpec(AXIS)] * len(gradients.Gradients._fields)
  own = gradients.Gradients(*own)._replace(statistics=every, carry=every)
  compute = parallel(
    gradients_of,
    num_workers={**placement.axes, AXIS: block},
    in_specs=(*computed_from(state_specs), every),
    out_specs=own,
  )
  update_all = parallel(
    update, in_specs=(state_specs, own), out_specs=state_and_metrics
  )

  @functools.partial(jax.jit, donate_argnums=0)
  def join_and_update(state, parts):
    joined = jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)
    return update_all(state, joined)

  def of_block(first, tree):
    return jax.tree.map(lambda x: x[first : first + block], tree)

  def split(state, batch):
    params, *own = *computed_from(state), batch
    for first in range(0, placement.num_workers, block):
      yield of_block(first, params) if differ else params, *of_block(first, own)

  return InBlocks(compute, join_and_update, split)


class InBlocks(NamedTuple):
  """A training step of two programs, the first of which runs once a block.

  A simulation computes the gradients of all workers together, and holds what
  the backward pass needs of all of them: memory grows with their number. A
  gradient needs no other worker. So a program of fewer workers can compute
  those of one block after the other; a second program then exchanges and
  updates for all of them.

  A loop inside one program would hold as little. But XLA on CPUs brings the
  convolutions of a program into the form for which it has fast code only
  outside of loops (jax-ml/jax issue 12868): ResNet-20's gradient took ten times
  as long.

  Attributes:
    compute: from what a block of workers has to its gradients, whose arrays
      have a leading axis.
    update: `(state, gradients of each block) -> (state, metrics)`.
    split: `(state, batch) ->` what each block has.
  """

  compute: Callable[..., Any]
  update: Callable[..., Any]
  split: Callable[[Any, Any], Iterable[tuple[Any, ...]]]

  def __call__(self, state: Any, batch: Any) -> Any:
    # One at a time: a CPU would begin with the next blocks meanwhile.
    blocks = self.split(state, batch)
    parts = [jax.block_until_ready(self.compute(*block)) for block in blocks]
    return self.update(state, parts)


def compiled(
  step: Any, state: Any, batch: Any
) -> tuple[Callable[..., Any], tuple[jax.stages.Compiled, ...]]:
  """Compiles a step that `make_train_step` made.

  Returns:
    What runs it, and the programs that this runs.
  """
  if not isinstance(step, InBlocks):
    program = step.lower(state, batch).compile()
    return program, (program,)
  blocks = [*step.split(state, batch)]
  compute = step.compute.trace(*blocks[0])
  update = step.update.lower(state, [compute.out_info] * len(blocks))
  programs = compute.lower().compile(), update.compile()
  return InBlocks(*programs, step.split), programs


def _in(section: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
  return {f'{section}/{name}': value for name, value in metrics.items()}


def _finite(new: Any, old: Any) -> Any:
  """Returns the new arrays, but for those that are not all numbers."""
  return jax.tree.map(
    lambda new, old: jnp.where(jnp.all(jnp.isfinite(new)), new, old), new, old
  )


def mean_over(axes: int, tree: Any) -> Any:
  """Returns means over so many leading axes; can be traced."""
  return jax.tree.map(lambda x: x.mean(axis=tuple(range(axes))), tree)
