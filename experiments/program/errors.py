"""Mistakes a user can mend: shown as one message, without a traceback."""


class UserError(Exception):
  """Something outside the program is wrong; the message says what to do."""

  exit_status = 1  # of the program that it ends


class ConfigError(UserError):
  """A field of the configuration is unknown, missing or out of range."""

  exit_status = 2


class FileError(UserError):
  """A file or a folder cannot be made, read or written."""


class DataFileError(UserError):
  """A file of a data set is missing or damaged."""


class DivergedError(UserError):
  """A parameter or the loss is no number, or no step is taken any more."""


class DisagreementError(UserError):
  """Workers hold different copies of what must be equal on all of them."""


# What to do about it.
CALMER = (
  'no checkpoint holds this. Try a smaller train.learning_rate, a longer '
  'compression.warmup_steps or a compression.clip_norm'
)


class ResumeError(UserError):
  """A working directory holds a run that cannot be continued as asked."""


class StoppedError(UserError):
  """A signal ended a program in order: a run between two steps, for one."""

  def __init__(self, message: str, number: int):
    super().__init__(message)
    self.exit_status = 128 + number  # as a shell tells it
