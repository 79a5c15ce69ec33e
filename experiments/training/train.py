"""Trains a model with compressed gradients and writes down what happened."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import pathlib
from typing import Any

from experiments.hosts.placement import make_placement
from experiments.program import files
from experiments.run import machine
from experiments.run import records
from experiments.run.writers import find_writers
from experiments.training import evaluation
from experiments.training.experiment import Experiment
from experiments.training.loop import Loop
from experiments.training.loop import Progress
import jax
import ml_collections


def train_and_evaluate(
  config: ml_collections.ConfigDict,
  workdir: str | pathlib.Path,
  *,
  progress: Progress = lambda step, steps, line: None,
  announce: Callable[[str], None] = lambda text: None,
  command: str = '',
  writers: Sequence[str] = (),
) -> dict[str, Any]:
  """Runs an experiment to its last step, resuming what `workdir` holds.

  Args:
    config: see `configs/default.py`.
    workdir: where the records and checkpoints go.
    progress: watches the run.
    announce: is told what there is to train on.
    command: what the user typed, for the record.
    writers: names of where numbers go beside `metrics.jsonl`, see
      `experiments.run.writers`.

  Returns:
    The content of `summary.json`.

  Raises:
    UserError: a field, a file, a writer or a former run is in the way, the loss
      is not a number, steps are rejected, or workers have drifted apart.
    StoppedError: SIGTERM or Ctrl-C; what was done is saved.
  """
  workdir = pathlib.Path(workdir)
  parallel = config.parallel
  sizes = parallel.num_workers, parallel.devices_per_node
  placement = make_placement(parallel.runner, *sizes)
  # Before there is a folder: a mistake in a field leaves none.
  factories = find_writers(writers) if placement.is_chief else {}
  experiment = Experiment(config, placement)
  placement.check_same(
    [experiment.asked, repr(experiment.task.files())],
    'was started with other flags, or numbers words differently: its data or '
    'versions differ from those of process 0',
  )
  with contextlib.ExitStack() as held:
    placement.on_chief(lambda: held.enter_context(records.lock(workdir)))
    placement.check_same(
      (workdir / records.LOCK).exists(),
      f'does not see what process 0 wrote to {workdir}: --workdir must lie on '
      'a file system that all hosts share',
    )
    loop = Loop(experiment, workdir, progress, factories)
    if placement.is_chief:
      counts = experiment.sampler.counts.items()
      said = [f'{n:,} {what.replace("_", " ")}' for what, n in counts if n]
      announce(f'training set: {", ".join(said)}')
    loop.run()
    evaluation.check_finite(loop.state, loop.done)
    seconds = round(loop.log.seconds(), 3)  # of what all runs do
    summary = {
      **_reported(experiment, loop),
      'seconds': seconds,
      'compile_seconds': round(loop.compile_seconds, 3),
      'command': command,
      'environment': machine.describe(),
    }
    if placement.is_chief:
      model = loop.models[evaluation.MEAN]
      records.write_params(workdir / records.PARAMS, model.params)
      files.write_json(workdir / records.SUMMARY, summary)
    return summary


def _reported(experiment: Experiment, loop: Loop) -> dict[str, Any]:
  """Returns the results of a run that a repetition would give again.

  Beside `final` the model is tested on another split, where the configuration
  names one. Where each worker has its own parameters, the first worker's model
  is tested too: all other tests take the mean of all models.

  Args:
    experiment: of the run.
    loop: that has taken all steps.
  """
  config, final_task = experiment.config, experiment.final_task
  test_finally = final_task and experiment.evaluation(final_task)

  def tests(name, tested=None):
    model = loop.models[name]
    found = {'final': _named(tested or loop.evaluate(model))}
    if test_finally:
      other = _named(test_finally(model))
      found['final_split'] = {'split': config.data.final_split, **other}
    return found

  reported = {
    'scheme': config.compression.name,
    'steps': loop.done,
    'num_workers': config.parallel.num_workers,
    'inner_workers': config.parallel.devices_per_node,
    'data': dict(experiment.sampler.counts),
    'parameters': sum(leaf.size for leaf in jax.tree.leaves(experiment.shapes)),
    # test_loss, and what else the task tells: test_accuracy, ...
    **tests(evaluation.MEAN, loop.tested),
    'comm': loop.counter.summary(),
  }
  if loop.best_step:
    reported['best_step'] = loop.best_step
  if evaluation.ONE_WORKER in loop.models:
    reported['one_worker'] = tests(evaluation.ONE_WORKER)
  return reported


def _named(tested: Mapping[str, float]) -> dict[str, float]:
  """Returns scores by names such as `test_loss`."""
  return {name.replace('/', '_'): x for name, x in sorted(tested.items())}
