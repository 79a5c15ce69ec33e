"""Which learning rate: each row with several, on the validation split.

A row that was given a rate may only want another one. So every row has equally
many trials, at multiples of the rate that it has without them, with the same
seeds. A trial is tested on the validation split: the file that is published for
it, or else a part of the training set, on which it does not train then. What
the table itself is tested on is not looked at. The rate that did best goes into
`Row.chosen_rate`.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import math
import pathlib
import statistics
import time
from typing import Any

from experiments.papers import record as records
from experiments.papers import running
from experiments.papers import table as tables
from experiments.program import errors
from experiments.program import files
from experiments.program import tables as text
from experiments.run import machine

# Trials never look at what is reported.
_SPLIT = {'data.test_split': 'validation', 'data.final_split': ''}


class Trials:
  """The trials of a table: one JSON list, rewritten after each of them."""

  def __init__(
    self,
    path: pathlib.Path,
    table: tables.Table,
    size: str,
    seeds: Sequence[int] = (0,),
    share: float = 1.0,
  ):
    """Reads what the file has.

    Args:
      path: of the file; it need not be there.
      table: the table.
      size: of its `sizes`.
      seeds: of parameters and data order, the same for all.
      share: of a row's epochs, in (0, 1], that its trials take.

    Raises:
      ConfigError: nothing tells which of two scores is better.
      FileError: the file is damaged.
    """
    if table.score is None:
      raise errors.ConfigError('the rows of this table have no score')
    self._path, self._table, self._size = path, table, size
    self._seeds, self._share = seeds, share
    kept = files.read_json(path)
    self._kept: list[Mapping[str, Any]] = [] if kept is None else kept
    if not isinstance(self._kept, list):
      raise errors.FileError(f'{path} is no list of trials')

  def find(self, row: str, factor: float, seed: int) -> Mapping | None:
    """Returns a trial of the row as it is now, None if there is none."""
    setting = records.changes(self._config(row, factor, seed))
    for kept in self._kept:
      # The setting is without the seed. Old trials had no other than this.
      same = kept['row'] == row and kept.get('seed', 0) == seed
      if same and kept['setting'] == setting:
        return kept
    return None

  def as_rows(
    self, names: Sequence[str], factors: Sequence[float]
  ) -> list[dict[str, Any]]:
    """Returns rows of a CSV file, one a trial; see `run` for the arguments."""
    asked = itertools.product(names, factors, self._seeds)
    found = (self.find(*each) for each in asked)
    return [records.as_row(trial) for trial in found if trial is not None]

  def score(self, row: str, factor: float) -> float | None:
    """Returns the mean of what the trials of a rate ended with.

    None if one of them diverged or is missing.
    """
    found = [self.find(row, factor, seed) for seed in self._seeds]
    score = self._table.score
    ended = [score.of(each['final']) if each else None for each in found]
    return None if None in ended else statistics.fmean(ended)

  def best(self, row: str, factors: Sequence[float]) -> float | None:
    """Returns the factor with the best score, None if there is no score.

    Of equal ones that nearest to the rate that the row has without trials.
    """

    def order(factor: float) -> tuple[float, float]:
      advantage = self._table.score.advantage(self.score(row, factor))
      return advantage, -abs(math.log(factor))

    scored = [each for each in factors if self.score(row, each) is not None]
    return max(scored, key=order, default=None)

  def run(
    self,
    names: Sequence[str],
    factors: Sequence[float],
    *,
    workdir: pathlib.Path,
    command: str,
    budget: float | None = None,
    clock: Callable[[], float] = time.monotonic,
  ) -> list[str]:
    """Trains what is missing, and returns what is still missing, in words.

    Args:
      names: of the rows.
      factors: of the learning rate that a row has before it is chosen.
      workdir: gets a folder for each trial.
      command: what the user typed.
      budget: seconds after which no further trial begins.
      clock: tells seconds.
    """
    begun, missing = clock(), []
    # Trials of a share are other runs.
    own = f'{self._size}{"" if self._share == 1 else f"_{self._share:g}"}'
    for name, factor, seed in itertools.product(names, factors, self._seeds):
      if self.find(name, factor, seed) is not None:
        continue
      config = self._config(name, factor, seed)
      rate = config.train.learning_rate
      what = f'{name}, learning rate {rate:g}'
      if budget is not None and clock() - begun >= budget:
        missing.append(f'{what}, seed {seed}: {running.NO_TIME}')
        continue
      folder = workdir / own / f'{name}_rate{factor:g}_seed{seed}'
      entry = {
        'row': name,
        'factor': factor,
        'learning_rate': rate,
        'seed': seed,
        'setting': records.changes(config),
        'share': self._share,
        'date': machine.today(),
        'command': command,
      }
      try:
        summary = running.train(name, config, folder, command=command)
        kept = ('final', 'seconds', 'environment')
        entry |= {key: summary[key] for key in kept}
      except errors.DivergedError as error:
        # A result of its own: the rate is too large.
        entry |= {'final': {}, 'why': str(error)}
        print(f'{what}, seed {seed}: {error}')
      self._kept.append(entry)
      files.write_json(self._path, self._kept)
    return missing

  def results(
    self, names: Sequence[str], factors: Sequence[float]
  ) -> text.Table:
    """Returns the table that a user sees; the best of a row has a star."""
    rows = []
    for name in names:
      best = self.best(name, factors)
      cells = [f'{self._config(name, 1.0).train.learning_rate:g}']
      for factor in factors:
        score = self.score(name, factor)
        shown = '-' if score is None else f'{score:.2f}'
        cells.append(f'{shown}{"*" if factor == best else ""}')
      rows.append([name, *cells])
    seeds = ', '.join(map(str, self._seeds))
    short = '' if self._share == 1 else f', {self._share:g} of the epochs'
    return text.make(
      ['row', 'rate', *(f'x {factor:g}' for factor in factors)],
      rows,
      title=f'{self._table.title}: {self._size} setting, trials',
      caption=f'{self._table.score.label}, of the validation split; '
      f'mean over seeds {seeds}{short}',
    )

  def _config(self, name: str, factor: float, seed: int = 0) -> Any:
    row = dataclasses.replace(self._table.rows[name], chosen_rate=None)
    config = self._table.config(
      row, self._size, beside=_SPLIT, share=self._share
    )
    config.train.learning_rate *= factor
    config.train.seed = seed
    return config
