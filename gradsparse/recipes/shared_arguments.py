"""The types and the documentation of arguments that recipes share."""

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
from gradsparse.transform.described import described

Exchange = Literal['all_gather', 'reduce_scatter']
Scope = Literal['leaf', 'global', 'chunk', 'tile']
Values = Literal['float32', 'bfloat16', 'exponent4', 'qsgd4', 'ternary']
Mean = Literal['workers', 'senders']
Indices = Literal['elias_fano', 'run_length', 'word28']

# The result of a recipe's function.
Sockets = tuple[sockets.Memory, sockets.Compressor, sockets.Exchange]

_P = ParamSpec('_P')
# Arguments that go to `compressed_mean`.
_JOINING = ('axis_name', 'min_size', 'dense_paths', 'seed', 'verify')

# Each argument's text. A recipe may have a part of its own in place of what is
# in braces.
_ARGUMENTS = {
  'density': (
    'fraction of the elements that a worker sends, in (0, 1]: a number, a '
    'schedule (a function of the step, such as `gs.schedules.{dgc}_warmup`), '
    'or a traced scalar. `init` checks the density of a schedule at step 0. If '
    'a later or a traced density is not in (0, 1], all workers reject the '
    'step. '
    'The message of a schedule or a traced density has the size of the next '
    'larger density of `gs.schedules.ladder_of`; for a traced density these '
    'are 0.001, 0.004, 0.015625, 0.0625, 0.25 and 1. At a traced 0.01, the '
    'message has the bytes of 0.015625 and the coordinates of 0.01.'
  ),
  'scope': (
    "the scope of top-k. 'leaf' is each leaf, 'global' the whole gradient, "
    "'chunk' each run of `chunk_size` consecutive elements of a leaf, 'tile' "
    'each tile of a leaf. {}'
  ),
  'chunk_size': (
    "elements of a chunk, at least 1, with scope 'chunk'; a leaf's last chunk "
    'may be shorter.'
  ),
  'tile': (
    "the longest side of a tile, at least 1, with scope 'tile': each side is "
    'the largest divisor of its dimension that is not longer. A tile sends '
    'ceil(density * tile^2) elements, or all if it has fewer.'
  ),
  'values': (
    "the code of a value. 'float32'; 'bfloat16', 16 bits; 'exponent4', 4 bits, "
    "a sign and a power of two; {'qsgd4', 4 bits, and 'ternary', 1 bit, which "
    "round at random without bias; 'table4', 2 bits, four numbers a leaf. "
    'Rounding errors stay in the memory and are sent later}.'
  ),
  'indices': (
    "the code of a coordinate. 'elias_fano', about 2 + log2(1 / density) bits; "
    "'run_length', 16 bits (DGC's; needs values='float32'); 'word28', 28 bits "
    "(needs values='exponent4')."
  ),
  'mean': (
    "'workers' divides the sum of the messages by the number of workers; "
    "'senders' divides each coordinate by the number of workers that sent it. "
    'Either way, what a worker sent leaves its memory.'
  ),
  'error_decay': (
    'factor on the residual at each step, in [0, 1], but not on a worker whose '
    'gradient is not finite. With less than 1, what is not sent is forgotten '
    'little by little, and `gs.metrics` has the norm of what the next step '
    'forgets.'
  ),
  'ladder': (
    'sizes that a message can have, as fractions of the elements of all '
    'compressed leaves, ascending, each in (0, 1]. All workers use the '
    'smallest size that is large enough for every worker. The default goes '
    'from 1/32768 by factors of eight to 1.0, which holds all elements. If the '
    'ladder ends below 1.0, elements that do not fit stay in the memory, and '
    '`gs.metrics` counts them as `overflow_elements`. Each size adds to the '
    'compile time.'
  ),
  'axis_name': (
    'mapped axis of the workers (of vmap, pmap or shard_map), or a tuple of '
    'axes, whose devices all count as workers. None is one worker without '
    'communication. There is no default, so that nobody trains without '
    'averaging by mistake.'
  ),
  'min_size': (
    'leaves with fewer elements stay dense: an all-reduce averages them '
    "exactly. None is the scheme's own rule: {no leaf stays dense. 0 "
    'compresses every leaf}.'
  ),
  'dense_paths': (
    'leaves that stay dense, whatever their size: a regular expression that is '
    "searched for in a leaf's path (such as \"['dense']['bias']\"), or a "
    'function of the path that returns True for these leaves. None: no further '
    'dense leaves. {}'
  ),
  'seed': (
    'a whole number in 0..2^32 - 1 that decides {}. All workers must use the '
    'same seed.'
  ),
  'verify': (
    'True adds a checksum to each message (4 bytes); all workers reject a step '
    'in which a message arrived damaged. False by default.'
  ),
  'verify_sums': (
    'True makes workers compare their copies of sums; all reject a step in '
    'which these differ. False by default.'
  ),
}
_OWN = re.compile(r'\{([^}]*)\}')
# A line of a docstring such as {verify} or {min_size: 1-D leaves stay dense}.
_MARK = re.compile(
  r'^    \{(' + '|'.join(_ARGUMENTS) + r')(?:: ([^}]*))?\}$', re.MULTILINE
)


def recipe(factory: Callable[_P, Sockets]) -> Callable[_P, CompressedMean]:
  """Decorates a function that returns a memory, a compressor and an exchange.

  The decorated recipe joins them by `compressed_mean`, which also gets the
  arguments that all schemes share. The docstring names shared arguments in
  braces. The repr of the result is the call that made it.
  """
  signature = inspect.signature(factory)

  @described
  @functools.wraps(factory)
  def make(*args: _P.args, **kwargs: _P.kwargs) -> CompressedMean:
    sockets_of_it = factory(*args, **kwargs)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    shared = {k: v for k, v in bound.arguments.items() if k in _JOINING}
    return compressed_mean(*sockets_of_it, **shared)

  def explained(match: re.Match[str]) -> str:
    name, own = match[1], ' '.join((match[2] or '').split())
    words = _OWN.sub(lambda default: own or default[1], _ARGUMENTS[name])
    return textwrap.fill(
      f'{name.removesuffix("_sums")}: {words}',
      width=80,
      initial_indent='    ',
      subsequent_indent='      ',
      break_on_hyphens=False,
      break_long_words=False,
    )

  make.__doc__ = _MARK.sub(explained, factory.__doc__ or '')
  # The decorated function's return type, for `help` and type hints.
  make.__annotations__ = {**factory.__annotations__, 'return': CompressedMean}
  returning = signature.replace(return_annotation=CompressedMean)
  make.__signature__ = returning  # type: ignore[attr-defined]
  return make
