"""The schemes that `gs.advise` compares, and the names of their records.

Schemes whose bytes depend on the data (strom, the variance-based ones,
ada_comp) are left out: `gs.plan` counts their largest messages, which says
nothing about a training. random_k, a baseline, is left out too.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from gradsparse import recipes
from gradsparse.wrappers.one_bit_adam import one_bit_adam
from gradsparse.wrappers.outer import Outer
from gradsparse.wrappers.outer import outer
import optax


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A scheme that `gs.advise` compares.

  Attributes:
    label: the scheme's name in tables.
    recipe: the scheme's name in `gs.recipes.RECIPES`, or 'one_bit_adam'.
    arguments: added to the arguments of the recipe's example.
    if_large: further arguments, for a model that is sharded inside a worker or
      has more elements than one message can count.
    estimate: the scheme's name in experiments/results/accelerators.json.
    records: task -> the name of the scheme's row in the project's record.
    sync_every: H; the scheme exchanges once in H steps. 1 is every step.
    outer: learning rate and Nesterov momentum of the outer optimizer, if the
      scheme is in an outer step.
    decodes_all: whether each worker decodes the full gradient of every other.
    overlaps: whether each leaf is exchanged while the backward pass runs.
    note: a remark for users of the scheme.
  """

  label: str
  recipe: str
  arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  if_large: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  estimate: str = ''
  records: Mapping[str, str] = dataclasses.field(default_factory=dict)
  sync_every: int = 1
  outer: tuple[float, float] | None = None
  decodes_all: bool = False
  overlaps: bool = False
  note: str = ''

  def make(
    self, axis_name: str, *, adam: bool = False, large: bool = False
  ) -> Any:
    """Builds the scheme.

    Args:
      axis_name: the workers' axis.
      adam: whether Adam follows; DGC then has no momentum of its own.
      large: whether `if_large` applies.

    Raises:
      ValueError: gs.one_bit_adam was to be made for a sharded model.
    """
    if self.recipe == 'one_bit_adam':
      if large:
        raise ValueError('gs.sharded takes no whole optimizer')
      return one_bit_adam(0.001, axis_name=axis_name, **self.arguments)
    further = dict(self.if_large) if large else {}
    if adam and self.recipe == 'dgc':
      further['momentum'] = 0.0
    return recipes.RECIPES[self.recipe].make(
      axis_name=axis_name, **{**self.arguments, **further}
    )

  def outer_step(self, scheme: Any) -> Outer:
    """The outer step around the scheme; only with `outer`."""
    assert self.outer is not None
    rate, momentum = self.outer
    return outer(
      scheme,
      optax.sgd(rate, momentum or None, nesterov=bool(momentum)),
      sync_every=self.sync_every,
    )


BASELINE = Candidate(
  'dense bfloat16',
  'dense',
  {'wire_dtype': 'bfloat16'},
  overlaps=True,
  note='the baseline, an all-reduce of each leaf beside the backward pass',
)
FLOAT32 = Candidate('dense float32', 'dense', overlaps=True)

_WARMUP = 'the bytes are those after a warm-up, which sends more'
_OUTER = (
  'workers train alone between two exchanges; tune the outer optimizer for the '
  'steps between (sync_every)'
)

CANDIDATES = (
  FLOAT32,
  Candidate(
    'gs.dense bfloat16',
    'dense',
    {'wire_dtype': 'bfloat16'},
    note='all leaves in one exchange, which comes after the backward pass',
  ),
  Candidate(
    'dgc 0.001',
    'dgc',
    estimate='dgc',
    records={
      'cifar10': 'dgc',
      'digits': 'dgc',
      'gpt': 'dgc',
      'ptb': 'dgc',
      'resnet20': 'dgc',
      'speech': 'dgc',
      'translation': 'adam_dgc',
    },
    note=_WARMUP,
  ),
  Candidate(
    'dgc 0.001, 4 bits',
    'dgc',
    {'values': 'exponent4'},
    estimate='dgc',
    # Where DGC itself loses accuracy, its record stands for 4-bit values too.
    records={
      'cifar10': 'dgc_4bit',
      'digits': 'dgc_exponent4',
      'gpt': 'dgc',
      'ptb': 'dgc',
      'resnet20': 'dgc_4bit',
      'translation': 'adam_dgc',
    },
    note=_WARMUP,
  ),
  Candidate(
    'gradient_dropping 0.01',
    'gradient_dropping',
    if_large={'scope': 'leaf'},
    estimate='dropping',
    records={
      'cifar10': 'dropping_0.01',
      'digits': 'gradient_dropping',
      'ptb': 'dropping',
      'speech': 'dropping',
      'translation': 'adam_dropping',
    },
  ),
  Candidate(
    'gtopk 0.001',
    'gtopk',
    estimate='gtopk',
    records={
      'cifar10': 'gtopk',
      'digits': 'gtopk_0.001',
      'ptb': 'gtopk',
      'resnet20': 'gtopk',
      'speech': 'gtopk',
      'translation': 'gtopk',
    },
    note=_WARMUP,
  ),
  Candidate('ef21 0.01', 'ef21', estimate='ef21', records={'digits': 'ef21'}),
  Candidate(
    'qsgd 4 bits',
    'qsgd',
    estimate='qsgd4',
    records={
      'cifar10': 'qsgd_4bit',
      'digits': 'qsgd',
      'ptb': 'qsgd_4bit',
      'resnet20': 'qsgd_4bit',
      'speech': 'qsgd_4bit',
      'translation': 'qsgd_4bit',
    },
    decodes_all=True,
  ),
  Candidate(
    'qsgd 4 bits, scatter',
    'qsgd',
    {'exchange': 'reduce_scatter'},
    estimate='qsgd4',
    records={'digits': 'qsgd_scatter'},
  ),
  Candidate(
    'one_bit_sgd',
    'one_bit_sgd',
    estimate='one_bit',
    records={'cifar10': 'one_bit', 'digits': 'one_bit_sgd'},
    decodes_all=True,
  ),
  Candidate(
    'one_bit_sgd, scatter',
    'one_bit_sgd',
    {'exchange': 'reduce_scatter'},
    estimate='one_bit',
    records={'digits': 'one_bit_sgd_scatter'},
  ),
  Candidate(
    'sign_majority',
    'sign_majority',
    estimate='sign_majority',
    records={'cifar10': 'sign', 'digits': 'sign_majority'},
    note='no mean: the learning rate alone sets the step',
  ),
  Candidate(
    'terngrad',
    'terngrad',
    estimate='terngrad',
    records={
      'cifar10': 'terngrad',
      'digits': 'terngrad',
      'ptb': 'terngrad',
      'speech': 'terngrad',
      'translation': 'terngrad',
    },
  ),
  Candidate(
    'power_sgd rank 2',
    'power_sgd',
    estimate='power_sgd',
    records={'cifar10': 'power_sgd', 'digits': 'power_sgd'},
  ),
  Candidate(
    'one_bit_adam',
    'one_bit_adam',
    {'freeze_step': 1000},
    estimate='one_bit',
    records={'gpt': 'one_bit_adam'},
    note='the bytes are those after the dense updates before freeze_step',
  ),
  Candidate(
    'diloco',
    'dense',
    records={'gpt': 'diloco_h30'},
    sync_every=30,
    outer=(0.7, 0.9),
    note=_OUTER,
  ),
  Candidate(
    'sparse_loco',
    'gradient_dropping',
    {
      'density': 1 / 64,
      'scope': 'tile',
      'values': 'table4',
      'mean': 'senders',
      'error_decay': 0.95,
    },
    estimate='sparse_loco',
    records={'gpt': 'sparse_loco'},
    sync_every=30,
    outer=(1.0, 0.0),
    note=_OUTER,
  ),
)
BY_LABEL = {candidate.label: candidate for candidate in CANDIDATES}
