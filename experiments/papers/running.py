"""Runs the rows of a table; what is finished is kept, and not run again."""

from collections.abc import Callable, Mapping, Sequence
import pathlib
import statistics
import time
from typing import Any, NamedTuple

from experiments.benchmarks import rows as benchmark_rows
from experiments.papers import record as records
from experiments.papers import table as tables
from experiments.program import errors
from experiments.run import machine
from experiments.run import records as files_of_run
from experiments.run import scores
from experiments.training import train as training
import jax
import ml_collections

NO_TIME = 'no time was left'


class Missing(NamedTuple):
  """A run that was asked for and is not there."""

  row: str
  seed: int
  why: str


def with_dense(table: tables.Table, names: Sequence[str]) -> list[str]:
  """Returns rows once each, after the dense rows that they are compared to.

  Args:
    table: that has them.
    names: of rows; none means all.

  Raises:
    ConfigError: the table has no such row.
  """
  found: dict[str, None] = {}
  for name in names or table.rows:
    found |= {each: None for each in (table.row(name).beside, name) if each}
  return list(found)


def train(
  name: str,
  config: ml_collections.ConfigDict,
  folder: pathlib.Path,
  command: str,
) -> dict[str, Any]:
  """Trains a row, or goes on with what its folder has, and returns a summary.

  Args:
    name: of the row.
    config: with its seed.
    folder: of the run.
    command: what the user typed, for the record.
  """
  seed, steps = config.train.seed, config.train.steps
  print(f'{name}, seed {seed}: {steps:,} steps in {folder}')
  try:
    summary = training.train_and_evaluate(config, folder, command=command)
  finally:
    jax.clear_caches()  # the next row compiles its own programs
  score, seconds = scores.worded(summary['final']), summary['seconds']
  print(f'{name}, seed {seed}: {score}, {seconds:.1f} s', flush=True)
  return summary


def run(
  table: tables.Table,
  names: Sequence[str],
  *,
  size: str,
  seeds: Sequence[int],
  workdir: pathlib.Path,
  record: records.Record,
  command: str,
  budget: float | None = None,
  clock: Callable[[], float] = time.monotonic,
) -> list[Missing]:
  """Trains what the record lacks, all rows with a seed before the next seed.

  Args:
    table: that has the rows.
    names: of the rows.
    size: of `table.SIZES`.
    seeds: of parameters and data order.
    workdir: gets a folder for each run.
    record: gets each run as soon as it is finished.
    command: what the user typed.
    budget: seconds after which no further run begins.
    clock: tells seconds.

  Returns:
    What is still missing, with the reason.

  Raises:
    StoppedError: a signal; the run goes on from there the next time.
  """
  begun, missing = clock(), []
  for seed in seeds:
    for name in names:
      if seed in record.runs(size, name):
        continue
      if seed in (failed := record.failures(size, name)):
        missing.append(Missing(name, seed, failed[seed]['why']))
        continue
      if budget is not None and clock() - begun >= budget:
        missing.append(Missing(name, seed, NO_TIME))
        continue
      folder = workdir / size / f'{name}_seed{seed}'
      try:
        config = table.config(table.rows[name], size)
        config.train.seed = seed
        summary = train(name, config, folder, command)
      except errors.StoppedError:
        raise
      except errors.UserError as error:
        if isinstance(error, errors.DivergedError):
          # A result of its own: the same again would not go better.
          why = {'why': str(error), 'setting': records.changes(config)}
          record.add(
            size, name, seed, {'date': machine.today(), **why}, 'failures'
          )
        missing.append(Missing(name, seed, str(error)))
        print(f'{name}, seed {seed}: {error}')
        continue
      record.add(size, name, seed, _entry(config, summary, folder))
  return missing


def _entry(config, summary, folder: pathlib.Path) -> dict[str, Any]:
  """Returns what is kept of a run."""
  lines = files_of_run.read_metrics(folder / files_of_run.METRICS)
  parallel = config.parallel
  workers = parallel.num_workers * parallel.devices_per_node
  return {
    'date': machine.today(),
    'setting': records.changes(config),
    **summary,
    'evaluations': benchmark_rows.evaluations(lines),
    **benchmark_rows.step_times(lines, summary['steps']),
    'step_images': workers * config.train.batch_size,
    **_step_words(lines),
  }


def _step_words(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Returns the words that all workers take in a step, if they take words."""
  found = [line['train/words'] for line in lines if 'train/words' in line]
  return {'step_words': statistics.fmean(found)} if found else {}
