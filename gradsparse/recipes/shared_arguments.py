"""What arguments of several recipes may be, as types, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
import functools
import inspect
import re
import textwrap
from typing import Literal, ParamSpec

from gradsparse import sockets
from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.compressed_mean import compressed_mean
from gradsparse.transform.described import call
from gradsparse.transform.described import given

Exchange = Literal['all_gather', 'reduce_scatter']
Scope = Literal['leaf', 'global', 'chunk']
Values = Literal['float32', 'bfloat16', 'exponent4', 'qsgd4', 'ternary']
Indices = Literal['elias_fano', 'run_length', 'word28']

# What a recipe chooses.
Sockets = tuple[sockets.Memory, sockets.Compressor, sockets.Exchange]

_P = ParamSpec('_P')
# Arguments of `compressed_mean`, whatever the sockets are.
_JOINING = ('axis_name', 'min_size', 'dense_paths', 'seed', 'verify')

# Each argument's text; {} is what a recipe says of its own.
_ARGUMENTS = {
  'density': (
    'fraction of the elements that a worker sends, in (0, 1]: a number, or a '
    'schedule, a function of the step (such as `gs.schedules.{}_warmup`), or a '
    'traced scalar. `init` checks what a schedule returns at step 0. Where a '
    'later or a traced density is not in (0, 1], all workers reject the step. '
    'The size of the message is then rounded up to the next density of '
    '`gs.schedules.ladder_of`, for a traced one 0.001, 0.004, 0.015625, '
    '0.0625, 0.25 or 1. At a traced 0.01 it has as many bytes as at 0.015625, '
    'and the coordinates of 0.01.'
  ),
  'chunk_size': (
    "elements of a chunk, at least 1, with scope 'chunk'; the last one of a "
    'leaf may be shorter.'
  ),
  'ladder': (
    'sizes that a message can have, as fractions of the elements of all '
    'compressed leaves, ascending, each in (0, 1]. All workers take the '
    'smallest that holds what every one of them wants to send. The default '
    'leads from 1/32768 by factors of eight to 1.0, which holds everything. If '
    'yours ends below 1.0, what does not fit waits in the memory, and '
    '`gs.metrics` counts it as `overflow_elements`. For each size there is a '
    'piece of the program to compile.'
  ),
  'axis_name': (
    'mapped axis of the workers (of vmap, pmap or shard_map), or a tuple of '
    'axes, whose devices all count as workers. None is one worker, without '
    'communication. It has no default, so that nobody trains without averaging '
    'by mistake.'
  ),
  'min_size': (
    'leaves with fewer elements stay dense: they are averaged exactly, by an '
    "all-reduce. None is the scheme's own rule: {}."
  ),
  'dense_paths': (
    'which leaves stay dense, whatever their size: a regular expression that '
    "is searched for in a leaf's path (such as \"['dense']['bias']\"), or a "
    'function that is given the path and returns True for some. None: no such '
    'leaves.'
  ),
  'seed': (
    'a whole number in 0..2^32 - 1 that decides {}. All workers must be given '
    'the same.'
  ),
  'verify': (
    'messages carry a checksum (4 bytes each), and all workers reject a step '
    'of which one arrived damaged. False by default.'
  ),
  'verify_sums': (
    'workers compare the sums that they have got, and all reject a step in '
    'which these differ. False by default.'
  ),
}
# A line of a docstring such as {verify} or {min_size: no leaf stays dense}.
_MARK = re.compile(
  r'^    \{(' + '|'.join(_ARGUMENTS) + r')(?:: ([^}]*))?\}$', re.MULTILINE
)


def recipe(factory: Callable[_P, Sockets]) -> Callable[_P, CompressedMean]:
  """Decorates a recipe, which returns its three sockets: joins them.

  The arguments that all schemes share go to `compressed_mean`, and the
  recipe's docstring names them in braces. The text of a result is the call
  that made it.
  """
  signature = inspect.signature(factory)

  @functools.wraps(factory)
  def make(*args: _P.args, **kwargs: _P.kwargs) -> CompressedMean:
    sockets_of_it = factory(*args, **kwargs)
    bound = signature.bind(*args, **kwargs)
    text = call(factory.__name__, given(bound))
    bound.apply_defaults()
    shared = {k: v for k, v in bound.arguments.items() if k in _JOINING}
    return compressed_mean(*sockets_of_it, **shared).named(text)

  def explained(match: re.Match[str]) -> str:
    name, own = match[1], ' '.join((match[2] or '').split())
    words = _ARGUMENTS[name].replace('{}', own)
    return textwrap.fill(
      f'{name.removesuffix("_sums")}: {words}',
      width=80,
      initial_indent='    ',
      subsequent_indent='      ',
      break_on_hyphens=False,
      break_long_words=False,
    )

  make.__doc__ = _MARK.sub(explained, factory.__doc__ or '')
  # What it returns now, for `help` and for whoever asks for its types.
  make.__annotations__ = {**factory.__annotations__, 'return': CompressedMean}
  joined = signature.replace(return_annotation=CompressedMean)
  make.__signature__ = joined  # type: ignore[attr-defined]
  return make
