r"""QSVRG on a strongly convex problem: QSGD's theorem 3.6.

Commands:
  python -m experiments.qsvrg --config=configs/qsvrg.py \
    --json=experiments/results/qsvrg.json
  python -m experiments.qsvrg --config=configs/qsvrg.py --config.epochs=5

Alistarh et al. 2017 (arXiv 1610.02132), theorem 3.6: f is strongly convex with
constant l, its summands are convex and L-smooth; with a learning rate of O(1/L)
and T = O(L/l) inner steps, f(y) - f(x*) shrinks by a factor 0.9 an epoch in
expectation, and an epoch takes at most (F + 2.8 n)(T + 1) + F n bits, F of them
a float. No experiment is printed, and no constant. Ours: logistic regression
with an l2 penalty on handwritten digits, below five or not, n = 65 parameters,
four simulated workers; beside it plain QSGD with as many levels and exchanges.
A message of ours also says how long it is, in a word.

Published: a factor of 0.9 an epoch, and 214 bits a message. What came of it is
in experiments/results/qsvrg.json.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Returns the fields of `experiments.qsvrg`."""
  config = ml_collections.ConfigDict()
  config.num_workers = 4
  config.penalty = 0.01  # times |w|^2 / 2: what makes it strongly convex
  config.learning_rate = 0.05  # of both
  config.inner_steps = 1000  # exchanges of an epoch
  config.epochs = 20
  return config
