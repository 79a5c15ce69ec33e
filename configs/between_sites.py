r"""Outer steps and 1-bit Adam beside dense AdamW: a small GPT, four workers.

Commands (Mikolov's text of the Penn Treebank below DIR; see docs/papers.md):
  python -m experiments.papers between_sites
  python -m experiments.papers between_sites diloco sparse_loco --seeds=0,1,2
  python -m experiments.main --config=configs/between_sites.py:diloco \
    --workdir=runs/diloco --config.data.dir=DIR

A GPT of 0.2 M parameters on the characters of PTB: 4 workers with 4 windows of
128 characters each, 2,048 tokens a step, 420 steps, a sixth of a pass. AdamW
(0.9, 0.95), weight decay 0.1 of matrices, a worker's gradient clipped at norm 1
(with an exchange in every step at 2, see `gs.clip_local_norm`), a tenth of the
steps of a linear rise, then a cosine.

`alone` is one worker without the others: what communication must beat. H steps
lie between two exchanges: 15, but in the rows that name it. Outer rate and
momentum are (0.9, 0.5) for DiLoCo, (0.7, 0.6) for MuLoCo (its paper's) and
(1, 0) for SparseLoCo and for the plain average. 28 exchanges at k = 64 of 4096
send each coordinate 0.44 times over the whole run: sparse rows could do better
in a longer one, see configs/between_sites_longer.py. 1-bit Adam is dense for a
fifth of its steps, and also decays the scales of norms. What it freezes are the
squares of about 20 steps, as in AdamW here; of 1,000 in `one_bit_adam_999`.

Each row had seven learning rates, each a factor of two from the next, for half
as many steps with seed 0, tested on the validation text; the best lies between
two others (experiments/results/rates/between_sites.json). `one_bit_adam_999`
has the rate of `one_bit_adam`.
"""

from collections.abc import Mapping

from experiments.papers.table import PTB
from experiments.papers.table import Question
from experiments.papers.table import Row
from experiments.papers.table import Table
import gradsparse as gs
import optax


def one_bit_adam(*, axis_name, **arguments):
  """`gs.one_bit_adam` as a scheme: what `optax.sgd(rate)` then scales."""
  tx = gs.one_bit_adam(1.0, axis_name=axis_name, **arguments)
  return optax.chain(tx, optax.scale(-1.0))


def delayed_dense(*, axis_name):
  """The dense mean, one step late: its exchange can overlap with a step."""
  return gs.delayed(gs.dense(axis_name=axis_name))


def _outer(rate, momentum, every=15, **compression):
  fields = {f'compression.{name}': value for name, value in compression.items()}
  return {
    'optimizer.sync_every': every,
    'optimizer.outer_learning_rate': rate,
    'optimizer.outer_momentum': momentum,
    **fields,
  }


def _sparse(k, mean='senders', **changes):
  return _outer(
    1.0,
    0.0,
    **{
      'name': 'gradient_dropping',
      'density': k / 4096,
      'scope': 'tile',
      'values': 'table4',
      'mean': mean,
      'error_decay': 0.95,
      **changes,
    },
  )


def _one_bit(b2):
  return {
    'compression.name': 'configs.between_sites:one_bit_adam',
    'compression.b2': b2,
    'compression.weight_decay': 0.1,
    'optimizer.name': 'sgd',
    'optimizer.momentum': 0.0,
    'optimizer.weight_decay': 0.0,
  }


_DILOCO = 0.9, 0.5
_SGD = {
  'optimizer.name': 'sgd',
  'optimizer.momentum': 0.9,
  'optimizer.weight_decay': 0.0,
  'train.learning_rate': 0.5,
}
_FIELDS = {
  'dense': {},
  'dense_delayed': {'compression.name': 'configs.between_sites:delayed_dense'},
  'alone': {'parallel.num_workers': 1},
  'average': _outer(1.0, 0.0),
  'diloco_h5': _outer(*_DILOCO, every=5),
  'diloco': _outer(*_DILOCO),
  'diloco_h30': _outer(*_DILOCO, every=30),
  'diloco_exponent4': _outer(
    *_DILOCO, name='gradient_dropping', density=1.0, values='exponent4'
  ),
  'diloco_exponent4_no_residual': _outer(
    *_DILOCO,
    name='gradient_dropping',
    density=1.0,
    values='exponent4',
    error_decay=0.0,
  ),
  'sparse_loco_k32': _sparse(32),
  'sparse_loco': _sparse(64),
  'sparse_loco_k256': _sparse(256),
  'sparse_loco_float32': _sparse(64, values='float32'),
  'sparse_loco_workers': _sparse(64, mean='workers'),
  'muon': {'optimizer.name': 'muon'},
  'muloco': {**_outer(0.7, 0.6), 'optimizer.name': 'muon'},
  'one_bit_adam': _one_bit(0.95),
  'one_bit_adam_999': _one_bit(0.999),
  'sgd': _SGD,
  'dgc': {**_SGD, 'compression.name': 'dgc', 'compression.density': 0.01},
}


def table(title: str, model: str, steps: int, rates: Mapping[str, float]):
  """Returns the rows for a model.

  Args:
    title: what is compared.
    model: its name.
    steps: of 2,048 characters.
    rates: learning rates that trials chose, by row; 8e-3 for the others.
  """
  epochs = (steps + 0.5) * 2048 / 5_017_482
  frozen = {'compression.freeze_step': steps // 5}
  of_its_own = {
    'alone': {'epochs': epochs / 4},
    'one_bit_adam': frozen,
    'one_bit_adam_999': frozen,
  }
  return Table(
    title=title,
    source='ours, of no paper',
    metrics=('bits', 'cross_entropy', 'ratio'),
    full={
      'data.name': 'ptb_characters',
      'model.name': model,
      'parallel.num_workers': 4,
      'train.batch_size': 4,
      'train.bptt_length': 128,
      'epochs': epochs,
      'train.eval_every': 0,
      'train.checkpoint_every': steps // 2,
      'train.learning_rate': 2e-3,
      'optimizer.name': 'adamw',
      'optimizer.weight_decay': 0.1,
      'optimizer.schedule': 'cosine',
      'optimizer.linear_warmup_steps': steps // 10,
      'compression.clip_norm': 1.0,
    },
    quick=None,
    rows={
      name: Row(
        fields=fields | of_its_own.get(name, {}),
        beside={'dense': '', 'sgd': '', 'dgc': 'sgd'}.get(name, 'dense'),
        chosen_rate=rates.get(name, 8e-3),
      )
      for name, fields in _FIELDS.items()
    },
    needs=(PTB,),
    questions=(Question('MuLoCo, Muon in every step', 'muloco', 'muon'),),
  )


TABLE = table(
  'Outer steps and 1-bit Adam, 4 workers',
  model='gpt_200k',
  steps=420,
  rates={
    **dict.fromkeys(('alone', 'average', 'diloco', 'diloco_h30'), 0.016),
    **dict.fromkeys(('one_bit_adam', 'one_bit_adam_999'), 0.016),
    'dense_delayed': 2e-3,
    **{'sparse_loco_k32': 0.032, 'sparse_loco': 0.016},
    'sparse_loco_workers': 0.032,
    **{'muon': 0.032, 'muloco': 0.064, 'sgd': 0.125, 'dgc': 0.0625},
  },
)
get_config = TABLE.get_config
