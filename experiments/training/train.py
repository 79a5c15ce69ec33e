"""Trains a model with compressed gradients and writes down what happened."""

from collections.abc import Mapping
import pathlib
from typing import Any

from experiments.config import fields
from experiments.hosts import placement as placing
from experiments.program import files
from experiments.run import machine
from experiments.run import records
from experiments.run import workdir as workdirs
from experiments.training import best
from experiments.training import evaluation
from experiments.training import loop as looping
from experiments.training import training_step
from experiments.training.experiment import build_experiment
import jax
import ml_collections

# Why something is never trained on, by its count in `tasks.Sampler.counts`.
_NEVER = {
  'empty': 'have a side without words',
  'too_long': 'have a side longer than data.max_length',
  'unalignable': 'need more frames than the model gives',
}


def train_and_evaluate(
  config: ml_collections.ConfigDict,
  workdir: str | pathlib.Path,
  *,
  progress: looping.Progress | None = None,
  announce: looping.Announce | None = None,
  command: str = '',
) -> dict[str, Any]:
  """Runs an experiment to its last step, resuming what `workdir` holds.

  Args:
    config: see `configs/default.py`.
    workdir: where the records and checkpoints go.
    progress: watches the run.
    announce: is told what is never trained on, and what memory a step of
      simulated workers takes.
    command: what the user typed, for the record.

  Returns:
    The content of `summary.json`.

  Raises:
    UserError: a field, a file or a former run is in the way, the loss is not
      a number, steps are rejected, or workers have drifted apart.
    StoppedError: SIGTERM or Ctrl-C; what was done is saved.
  """
  workdir = pathlib.Path(workdir)
  placement = placing.provide(
    config.parallel.runner,
    config.parallel.num_workers,
    config.parallel.devices_per_node,
  )
  asked = fields.without_none(config.to_dict())
  placement.check_same(asked, 'the processes were started with different flags')
  # Before there is a folder: a mistake in a field leaves none.
  experiment, state = build_experiment(config, placement)
  lock = workdirs.Lock(workdir, joined=placement.processes > 1)
  placement.on_chief(lock.take)
  try:
    placement.check_shared(workdir / workdirs.LOCK)
    loop = looping.Loop(experiment, asked, workdir, progress, announce)
    state = loop.begin(state)
    unused = _unused(experiment.sampler.counts)
    if unused and announce and placement.is_chief:
      announce(unused)
    state = loop.run(state)
    training_step.check_finite(state, loop.done)
    seconds = round(loop.seconds(), 3)  # of what all runs do
    told, tested = _reported(loop, state)
    summary = {
      **tested,
      'seconds': seconds,
      'compile_seconds': round(loop.compile_seconds, 3),
      'command': command,
      'environment': machine.describe(),
    }
    if placement.is_chief:
      records.write_params(workdir / records.PARAMS, told.params)
      files.write_json(workdir / records.SUMMARY, summary)
    return summary
  finally:
    lock.release()


def _unused(counts: Mapping[str, int]) -> str:
  """Returns what is never trained on, in words; '' if nothing is told.

  Args:
    counts: of a sampler.
  """
  (what, count), *_ = counts.items()
  found = [
    f'{counts[name]:,} {why}'
    for name, why in _NEVER.items()
    if counts.get(name)
  ]
  if not found:
    return ''
  return f'of {count:,} {what} never trained on: {", ".join(found)}'


def _reported(
  loop: looping.Loop, state: training_step.TrainState
) -> tuple[evaluation.Model, dict[str, Any]]:
  """Returns the model that a run reports, and what the run has come to.

  That is the part of the summary that is the same each time. Beside `final` the
  model is tested on another split, where the configuration names one. And where
  each worker has its own parameters, so is that of the first: all other tests
  take their mean.

  Args:
    loop: that has taken all steps.
    state: after the last.
  """
  experiment, counts = loop.experiment, dict(loop.experiment.sampler.counts)
  config, split = experiment.config, experiment.config.data.final_split
  test_finally = experiment.make_final_evaluate()
  if loop.best and loop.best.models:
    models, tested = loop.best.models, {}
    of_best = {'best_step': loop.best.step}
  else:
    models, tested, of_best = loop.models(state), loop.tested, {}

  def tests(model, tested=None):
    final = _named(tested or loop.evaluate.of_model(model))
    if not test_finally:
      return {'final': final}
    other = {'split': split, **_named(test_finally.of_model(model))}
    return {'final': final, 'final_split': other}

  mean = models[best.MEAN]
  result = {
    'scheme': config.compression.name,
    'steps': loop.done,
    'num_workers': config.parallel.num_workers,
    'inner_workers': config.parallel.devices_per_node,
    'data': counts,
    'parameters': sum(leaf.size for leaf in jax.tree.leaves(experiment.shapes)),
    # test_loss, and what else the task tells: test_accuracy, ...
    **tests(mean, tested),
    'comm': loop.counter.summary(),
    **of_best,
  }
  if best.ONE_WORKER in models:
    result['one_worker'] = tests(models[best.ONE_WORKER])
  return mean, result


def _named(tested: Mapping[str, float]) -> dict[str, float]:
  """Returns scores by names such as `test_loss`."""
  return {
    name.replace('/', '_'): value for name, value in sorted(tested.items())
  }
