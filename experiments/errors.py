"""Mistakes a user can mend: shown as one message, without a traceback."""


class UserError(Exception):
  """Something outside the program is wrong; the message says what to do."""


class ConfigError(UserError):
  """A field of the configuration is unknown, missing or out of range."""


class DataFileError(UserError):
  """A file of a data set is missing or damaged."""


class DivergedError(UserError):
  """The training loss or a parameter stopped being a number."""


# What to do about it.
CALMER = (
  'no checkpoint holds this. Try a smaller train.learning_rate, a longer '
  'compression.warmup_steps or a compression.clip_norm'
)


class ResumeError(UserError):
  """A working directory holds a run that cannot be continued as asked."""
