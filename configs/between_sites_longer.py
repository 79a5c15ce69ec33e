r"""Rows of configs/between_sites.py: a larger GPT, four times as many steps.

Commands (Mikolov's text of the Penn Treebank below DIR; see docs/papers.md):
  python -m experiments.papers between_sites_longer
  python -m experiments.main --config=configs/between_sites_longer.py:diloco \
    --workdir=runs/diloco --config.data.dir=DIR

A GPT of 0.8 M parameters, 1,680 steps, two thirds of a pass. 112 exchanges at
k = 64 of 4096 send each coordinate 1.75 times. On record is one seed. Fifteen
rows ran on a GPU, side by side: their seconds say little.

Each row had three learning rates or more, each a factor of two from the next,
for half as many steps, tested on the validation text; the best lies between two
others. `diloco_exponent4_no_residual` and `sparse_loco_k32` ran on CPUs with
their trials, and so did three trials at 32e-3. `one_bit_adam_999` has the rate
of `one_bit_adam`, and ran on a CPU; `dense_delayed` and `muon` did not run.
"""

from configs.between_sites import table

TABLE = table(
  'Outer steps and 1-bit Adam, 4 workers, a larger GPT',
  model='gpt_800k',
  steps=1680,
  rates={
    'sgd': 0.5,
    'dgc': 0.5,
    **dict.fromkeys(('alone', 'diloco_h5', 'sparse_loco_k256'), 4e-3),
    **dict.fromkeys(('average', 'muloco', 'sparse_loco_workers'), 16e-3),
  },
)
get_config = TABLE.get_config
