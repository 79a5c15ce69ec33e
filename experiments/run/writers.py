"""Where the numbers of a run go beside `metrics.jsonl`: what `--writer` names.

A writer is an object with `write(step, numbers)` and `close()`. It is made by
a factory, one of `trackers` or `package.module:factory` of the user's own:

  factory(config, workdir, last_step)

  config     fields of the run by section, such as config['train']['steps']
  workdir    its working directory, a `pathlib.Path`
  last_step  of the lines that earlier attempts of this run have written; 0
             for a run that begins

`write` gets what a line of `metrics.jsonl` has, in rising steps, and only those
after `last_step`. Factories are imported and called in process 0 alone.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import importlib
import pathlib
from typing import Any

from absl import flags
from absl import logging
from experiments.program import command_line
from experiments.program import errors
from experiments.program import factories
from experiments.run import trackers

# The flag belongs to the program that asks for it, in its --help.
flags.disclaim_key_flags()


_VALID = f'{", ".join(trackers.TRACKERS)} or package.module:factory'
Factory = Callable[[Mapping[str, Any], pathlib.Path, int], Any]


def define_flag() -> flags.FlagHolder[list[str]]:
  """Defines `--writer`, names with commas between them."""
  text = f'where numbers go beside metrics.jsonl: {_VALID}'
  return command_line.define_list('writer', (), _name, text)


def _name(text: str) -> str:
  """Parses the name of a factory; raises ValueError."""
  module, colon, attribute = text.partition(':')
  if text not in trackers.TRACKERS and not (module and colon and attribute):
    raise ValueError(f'must be one of {_VALID}, got {text!r}')
  return text


def find_writers(names: Sequence[str]) -> dict[str, Factory]:
  """Imports what `--writer` names, before anything is trained.

  Args:
    names: values of the flag.

  Returns:
    Factories by these names.

  Raises:
    ConfigError: a package is not installed, or there is no such factory.
  """
  found = {}
  for name in names:
    if name not in trackers.TRACKERS:
      found[name] = factories.find(
        '--writer',
        name,
        lambda signature: signature.bind({}, pathlib.Path(), 0),
        'a function of (config, workdir, last_step)',
      )
      continue
    package, found[name] = trackers.TRACKERS[name]
    try:
      importlib.import_module(package)
    except ImportError as error:
      raise errors.ConfigError(
        f'--writer={name} needs the package {package} ({error}): '
        f'pip install {package}'
      ) from error
  return found


class Writers:
  """The writers of a run, as one.

  One that fails is closed and left out from there on, with a warning: the lines
  of `metrics.jsonl` have all of it.
  """

  def __init__(
    self,
    factories: Mapping[str, Factory],
    config: Mapping[str, Any],
    workdir: pathlib.Path,
    last_step: int,
  ):
    """Makes the writers.

    Args:
      factories: from `find`.
      config: fields of the run.
      workdir: its working directory.
      last_step: of what earlier attempts have written; 0 where it begins.

    Raises:
      UserError: a factory fails, and the run begins. Where a run goes on this
        is a warning, too: a restart does not depend on another host.
    """
    self._last_step = last_step
    self._made: dict[str, Any] = {}
    for name, factory in factories.items():
      try:
        self._made[name] = factory(config, workdir, last_step)
      except Exception as error:  # of the user's code, or a network's
        if not last_step:
          self.close()
          raise errors.UserError(
            f'--writer={name} cannot begin: {_told(error)}'
          ) from error
        _warn(name, f'after step {last_step}', error)

  def write(self, step: int, numbers: Mapping[str, float]) -> None:
    """Hands on the numbers of a step that no earlier attempt has written."""
    if step <= self._last_step:
      return
    for name, writer in [*self._made.items()]:
      try:
        writer.write(step, numbers)
      except Exception as error:
        _warn(name, f'at step {step}', error)
        del self._made[name]
        with contextlib.suppress(Exception):  # one warning is enough
          writer.close()

  def close(self) -> None:
    """Closes those that are left."""
    while self._made:
      name, writer = self._made.popitem()
      try:
        writer.close()
      except Exception as error:
        _warn(name, 'at its end', error)


def _warn(name: str, when: str, error: Exception) -> None:
  failed = f'--writer={name} failed {when} and is left out from here on'
  logging.warning('%s: %s', failed, _told(error))


def _told(error: Exception) -> str:
  """Returns what kind of error it is, and what it says."""
  return f'{type(error).__name__}: {error}'
