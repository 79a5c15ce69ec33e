"""The files of a working directory that people and programs read.

  config.json     what was asked for
  metrics.jsonl   one line a logged step, steps always rising
  summary.json    the result, only when the last step was reached
  run.lock        says which process has had the directory last
  plan.txt        bytes of each leaf, in a step of each stage
  params.npz      the final parameters by flat names, or with train.keep_best
                  those of the best test
  best.npz        with train.keep_best: the models of the best test, for a run
                  that goes on
  symbols.json    what the classes of the model stand for, by number, where the
                  data set does not say: words, characters, pieces of words;
                  vocabulary.model, sentencepiece's, cuts a text into those
  trackers.json   with --writer: the run's names in trackers, see `trackers`

All but metrics.jsonl are written whole, see `experiments.program.files`.
"""

from collections.abc import Callable, Mapping
import contextlib
import fcntl
import json
import math
import os
import pathlib
import socket
import time
from typing import Any, TextIO

from absl import logging
from experiments.program import errors
from experiments.program import files
from experiments.run.writers import Writers
import jax
import ml_collections
import numpy as np

CONFIG = 'config.json'
METRICS = 'metrics.jsonl'
SUMMARY = 'summary.json'
PARAMS = 'params.npz'
BEST = 'best.npz'
PLAN = 'plan.txt'
LOCK = 'run.lock'


def write_params(path: pathlib.Path, params: Any) -> None:
  """Writes parameters as a NumPy archive, names such as `Dense_0/kernel`."""
  with files.replacing(path) as file:
    np.savez(file, **_flat(jax.device_get(params)))


def read_params(path: pathlib.Path, like: Any) -> Any:
  """Returns what `write_params` wrote.

  Args:
    path: of the file.
    like: a tree of the same structure.

  Raises:
    FileError: it is missing, damaged, or has other arrays.
  """
  try:
    with np.load(path) as archive:
      found = [archive[name] for name in _flat(like)]
  except Exception as error:  # NumPy, zipfile and zlib have many kinds
    told = f'{path} is missing, damaged, or of another run: {error}'
    raise errors.FileError(told) from error
  return jax.tree.unflatten(jax.tree.structure(like), found)


def _flat(tree: Any) -> dict[str, Any]:
  """Returns leaves by names such as `Dense_0/kernel`."""
  return {
    jax.tree_util.keystr(at, simple=True, separator='/'): leaf
    for at, leaf in jax.tree.leaves_with_path(tree)
  }


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the lines of a metrics file whose steps rise.

  A line that a crash has torn, or a disk damaged, is left out.
  """
  if not path.exists():
    return []
  with files.explained('read', path):
    content = path.read_bytes()
  lines: list[dict[str, Any]] = []
  for text in content.splitlines():
    with contextlib.suppress(ValueError, TypeError, KeyError):
      line = json.loads(text)
      if line['step'] > (lines[-1]['step'] if lines else 0):
        lines.append(line)
  return lines


def last_step(path: pathlib.Path) -> int:
  """Returns the step of the last line of a metrics file, 0 where none is."""
  lines = read_metrics(path)
  return lines[-1]['step'] if lines else 0


def open_metrics(path: pathlib.Path, resume_step: int = 0) -> TextIO:
  """Returns a metrics file to append to.

  Args:
    path: of the file.
    resume_step: steps already done; lines after it were written by an attempt
      that was lost, and go.
  """
  with files.replacing(path) as file:
    for line in read_metrics(path):
      if line['step'] <= resume_step:
        file.write(json.dumps(line).encode() + b'\n')
  with files.explained('write', path):
    return path.open('a')


def json_line(line: Mapping[str, float]) -> str:
  """Returns a line of a metrics file."""
  plain = {name: _plain(value) for name, value in line.items()}
  return json.dumps(plain, allow_nan=False) + '\n'


def _plain(value: float) -> float | int | None:
  """Returns a number that JSON can hold and that shows short."""
  if isinstance(value, int):
    return value
  if not math.isfinite(value):
    return None  # JSON has no NaN
  # Counts arrive as float32 means over workers; show whole ones as such.
  return int(value) if value.is_integer() else float(f'{value:.7g}')


class RunLog:
  """Turns values on the device into lines of `metrics.jsonl`.

  Reading a value waits for the device. One step late the value is there and
  the device has its next step to work on, so watching a run costs nothing.
  """

  def __init__(
    self,
    path: pathlib.Path | None,
    train: ml_collections.ConfigDict,
    *,
    resume_step: int,
    seconds_before: float,
    describe: Callable[[int, Mapping[str, float]], Mapping[str, float]],
    writers: Writers,
  ):
    """Opens the log.

    Args:
      path: of the metrics file; None: this process writes none.
      train: `config.train`. A step with a test result and the last one get a
        line, too.
      resume_step: steps already done.
      seconds_before: what they took.
      describe: `(step, metrics)` to further values; called for each step.
      writers: get each line, too.
    """
    self._writers = writers
    self._file = (
      open_metrics(path, resume_step) if path else open(os.devnull, 'a')
    )
    self._every, self._last_step = train.log_every, train.steps
    self._describe = describe
    self._started = time.perf_counter() - seconds_before
    self._waiting: tuple[int, Any, dict[str, float]] | None = None
    self.latest: dict[str, float] = {}  # the last line
    self.step = resume_step  # the last that was read
    self.rejected_in_a_row = 0  # up to it
    self._loss = 0.0

  def seconds(self) -> float:
    """Returns the time spent on the run, former attempts included."""
    return time.perf_counter() - self._started

  @property
  def may_save(self) -> bool:
    """Whether the last step that was read is worth a checkpoint.

    A run whose steps are rejected, or whose loss is no number, may not recover.
    """
    return not self.rejected_in_a_row and math.isfinite(self._loss)

  def put(self, step: int, metrics: Any) -> None:
    """Takes the metrics of `step` and writes the step before."""
    self.flush()
    self._waiting = step, metrics, {}

  def add(self, values: Mapping[str, float]) -> None:
    """Adds test results to the step that was put last."""
    self._waiting[2].update(values)

  def flush(self) -> None:
    """Writes what is left; waits for the device.

    A step whose loss is not a number gets no line. Its gradient is none either
    then, so the scheme rejects it.

    Raises:
      DivergedError: the loss of the last step is not a number.
    """
    if self._waiting is None:
      return
    step, on_device, added = self._waiting
    self._waiting = None
    metrics = {k: v.item() for k, v in jax.device_get(on_device).items()}
    described = self._describe(step, metrics)
    self.step, self._loss = step, metrics['train/loss']
    # What a scheme measures comes as a mean over workers, a float.
    self.rejected_in_a_row = round(metrics['comm/rejected_steps_in_a_row'])
    if not math.isfinite(self._loss):
      if step < self._last_step:
        return
      raise errors.DivergedError(
        f'train/loss is {self._loss} at step {step}; {errors.CALMER}'
      )
    if added or step % self._every == 0 or step == self._last_step:
      self.latest = {
        'step': step,
        **metrics,
        **described,
        **added,
        'time/seconds': round(self.seconds(), 3),
      }
      line = json_line(self.latest)
      with files.explained('write', self._file.name):
        self._file.write(line)
        self._file.flush()
      numbers = {k: v for k, v in json.loads(line).items() if v is not None}
      self._writers.write(numbers.pop('step'), numbers)

  def close(self) -> None:
    """Closes the file and the writers; what waits is dropped."""
    # What could not be written has been told; it must not be told twice.
    with contextlib.suppress(OSError):
      self._file.close()
    self._writers.close()


def lock(workdir: pathlib.Path) -> TextIO:
  """Makes a working directory, and keeps other runs out of it.

  The kernel holds the lock, on the open file: it ends with the process, however
  that ends. The file itself stays and says who has had it last.

  Returns:
    The file; closing it lets others in.

  Raises:
    FileError: it cannot be made or written.
    ResumeError: a live run has it.
  """
  files.make_folder(workdir)
  path = workdir / LOCK
  with files.explained('write', path):
    file = path.open('a+')
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      file.close()
      raise errors.ResumeError(
        f'{workdir} is in use by a run that is alive{_owner(path)}; wait for '
        'its end, or take another --workdir. Where a launcher has started '
        'both: with --multihost they are one run'
      ) from None
    except OSError as error:  # of some network mounts
      where = f'{workdir} lies on a file system without locks'
      why = error.strerror
      logging.warning('%s (%s): nothing keeps a second run out', where, why)
    file.truncate(0)
    json.dump({'pid': os.getpid(), 'host': socket.gethostname()}, file)
    file.flush()
  return file


def _owner(path: pathlib.Path) -> str:
  """Who has a lock; the file may be just being written."""
  with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
    owner: Any = json.loads(path.read_text())
    return f', process {owner["pid"]} on {owner["host"]}'
  return ''
