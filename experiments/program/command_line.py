"""Flags of the programs, by absl, and how a program begins and ends.

A program defines its flags, absl's or those below, and calls `run`. A flag
that several programs have is spelt alike in all of them; a list has commas,
`--seeds=0,1,2`.

  --help           what the program does, and its flags
  exit status 2    a mistake in the flags; 1: anything else that went wrong and
                   that the user can mend. One line says what.
  exit status 130  Ctrl-C (SIGINT); 143: SIGTERM.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
import contextlib
import os
import pathlib
import re
import select
import shlex
import signal
import sys
from typing import Any

from absl import app
from absl import flags
from absl import logging
from experiments.program import errors
from ml_collections import config_flags

# What is defined here belongs to the program that asks for it, in its --help.
flags.disclaim_key_flags()


def run(
  main: Callable[..., int | None],
  *,
  arguments: str = '',
  least: int = 1,
  check: Callable[[], Any] = lambda: None,
) -> None:
  """Runs a program, and ends the process with its exit status.

  Args:
    main: called without arguments, or with the list of those that are no
      flags; returns the exit status, None for 0.
    arguments: what these are, such as 'DIR...'; without a name none is taken.
    least: how many of them there must be.
    check: called when the flags are parsed; raises where they make no sense.
  """

  def parse(argv: Sequence[str]) -> list[str]:
    own = argv[1 : argv.index('--')] if '--' in argv else argv[1:]
    if {'--help', '-h'} & {*own}:
      app.usage(shorthelp=True, writeto_stdout=True, exitcode=0)
    try:
      given = flags.FLAGS(argv)[1:]
      check()
      if given and not arguments:
        raise errors.ConfigError(
          f'unexpected argument {given[0]!r}; a flag is --NAME=VALUE, and a '
          'list of values has commas, no spaces'
        )
      if arguments and len(given) < least:
        raise errors.ConfigError(f'{arguments} is missing')
      return given
    except _MISTAKES as error:
      say(f'error: {_told(error)}\n--help tells the flags')
      sys.exit(errors.ConfigError.exit_status)

  def told(given: list[str]) -> int | None:
    if not flags.FLAGS['verbosity'].present:
      logging.set_verbosity(logging.WARNING)  # Orbax tells a lot
    try:
      return main(given) if arguments else main()
    except errors.StoppedError as stopped:
      say(str(stopped))
      return stopped.exit_status
    except errors.UserError as error:
      say(f'error: {error}')
      return error.exit_status
    except KeyboardInterrupt:
      say('stopped by SIGINT')
      return 128 + signal.SIGINT

  with _ended_by_its_reader():
    app.run(told, flags_parser=parse)


@contextlib.contextmanager
def _ended_by_its_reader() -> Iterator[None]:
  """Ends a program quietly when nobody reads on, as with `| head`."""
  try:
    try:
      yield
    except SystemExit:
      sys.stdout.flush()
      raise
  except BrokenPipeError:
    poll = select.poll()
    poll.register(sys.stdout, select.POLLOUT)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
      raise  # it is another pipe
    # Python flushes once more at the end, and would tell what it meets.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(128 + signal.SIGPIPE)


# Of ml_collections: a section, a field or a file that is not there, a file that
# is not Python.
_IN_CONFIGS = (AttributeError, KeyError, OSError, SyntaxError)
_MISTAKES = (flags.Error, errors.UserError, *_IN_CONFIGS)
# What ml_collections says of a field that is not there: a repr of the others,
# with objects in it.
_OTHERS = re.compile(r'Other fields present: "(\{.*\})"', re.DOTALL)


def _names_alone(told: re.Match[str]) -> str:
  names = re.findall(r"(?:^\{|, )'(\w+)': ", told[1], re.MULTILINE)
  return f'It has {", ".join(names)}.'


def _told(error: Exception) -> str:
  """Returns what one of `_MISTAKES` says, in one line."""
  text = str(error.args[0] if isinstance(error, KeyError) else error)
  if 'Traceback' in text:  # of a file that raises: its last line says what
    first, *_, last = text.strip().splitlines()
    text = f'{first} {last}'
  text = _OTHERS.sub(_names_alone, text)
  return text.replace("module 'config_config'", 'the file of --config')


def typed() -> str:
  """Returns the command that started this program, for its records."""
  spec = sys.modules['__main__'].__spec__
  name = sys.argv[0] if spec is None else spec.name.removesuffix('.__main__')
  return shlex.join(['python', '-m', name, *sys.argv[1:]])


def say(text: str) -> None:
  """Tells the user something that is not the program's result."""
  print(text, file=sys.stderr, flush=True)


# --- flags -----------------------------------------------------------------


class _Parser(flags.ArgumentParser):
  """Parses text by a function that raises ValueError; for `flags.DEFINE`."""

  def __init__(self, kind: Callable[[str], Any]):
    super().__init__()
    self._kind = kind

  def parse(self, argument: Any) -> Any:
    return self._kind(argument) if isinstance(argument, str) else argument


def define_path(
  name: str, default: str | None, text: str
) -> flags.FlagHolder[Any]:
  """Defines a flag for a file or a folder, a `pathlib.Path`."""
  return flags.DEFINE(_Parser(_path), name, default, text)


def define_list(
  name: str, default: Sequence[Any], item: Callable[[str], Any], text: str
) -> flags.FlagHolder[Any]:
  """Defines a flag for values with commas between them.

  Args:
    name: of the flag.
    default: if it is not given.
    item: parses one of them; raises ValueError.
    text: of `--help`.
  """
  parser = _Parser(lambda words: [item(word) for word in words.split(',')])
  commas = flags.CsvListSerializer(',')
  return flags.DEFINE(parser, name, list(default), text, serializer=commas)


def define_json() -> flags.FlagHolder[Any]:
  """Defines `--json`, the file for what a program has measured."""
  return define_path('json', None, 'JSON file to write')


def define_workdir(
  default: str | None, text: str = 'folder for records and checkpoints'
) -> flags.FlagHolder[Any]:
  """Defines `--workdir`, the folder that a program writes to."""
  return define_path('workdir', default, text)


def define_config(
  values: flags.FlagValues = flags.FLAGS, argv: Sequence[str] | None = None
) -> flags.FlagHolder[Any]:
  """Defines `--config`, a file of configs/, and `--config.FIELD` of its fields.

  Fields that the file lacks are let through: whoever checks the configuration
  has the better message. `check_config` belongs to the checks of `run`.

  Args:
    values: of which it is a flag.
    argv: words that set it; those of the program if None.
  """
  return config_flags.DEFINE_config_file(
    'config',
    None,
    'configuration file, such as configs/default.py',
    flag_values=values,
    lock_config=False,
    accept_new_attributes=True,
    sys_argv=argv,
  )


def config_words() -> list[str]:
  """Returns `--config` and `--config.FIELD` as they were given, to pass on."""
  flag = flags.FLAGS['config']
  fields = config_flags.get_override_values(flag)
  return [
    f'--config={config_flags.get_config_filename(flag)}',
    *(f'--config.{name}={value}' for name, value in fields.items()),
  ]


def parse_config(words: Sequence[str]) -> Any:
  """Returns the configuration that a program would get from its flags.

  Args:
    words: `--config=FILE`, then any `--config.FIELD=VALUE`.

  Raises:
    ConfigError: there is no such field or file, or a value is of another kind.
  """
  argv, values = ['', *words], flags.FlagValues()
  try:
    defined = define_config(values, argv)
    values(argv)
    check_config(defined)
  except _MISTAKES as error:
    raise errors.ConfigError(_told(error)) from error
  return defined.value


def check_config(defined: flags.FlagHolder[Any]) -> None:
  """Raises unless the file of `define_config` has a configuration.

  Raises:
    ConfigError: it returns something else.
  """
  if not hasattr(defined.value, 'to_dict'):
    raise errors.ConfigError(
      'get_config() of the file that --config names must return a ConfigDict, '
      f'got {type(defined.value).__name__}'
    )


def define_names(
  name: str, known: Collection[str], default: Sequence[str] = ()
) -> flags.FlagHolder[list[str]]:
  """Defines a flag for some of the names that are known; all by default."""
  item = flags.EnumParser([*known]).parse
  text = 'which of: ' + ', '.join(known)
  return define_list(name, default or tuple(known), item, text)


def define_numbers(
  name: str, default: int, text: str, least: int = 1, most: int | None = None
) -> flags.FlagHolder[list[int]]:
  """Defines a flag for whole numbers in a range."""
  item = flags.IntegerParser(least, most).parse
  return define_list(name, (default,), item, text)


def _path(text: str) -> pathlib.Path:
  if not text or '\0' in text:
    raise ValueError(f'must name a file or a folder, got {text!r}')
  return pathlib.Path(text)
