r"""How low the density may be: gTop-k's figure 12.

Commands (CIFAR-10 in its binary version below DIR; see docs/papers.md):
  python -m experiments.papers gtopk_figure12
  python -m experiments.papers gtopk_figure12 --full
  python -m experiments.report runs/papers/gtopk_figure12/quick/*
  python -m experiments.main --workdir=runs/density \
    --config=configs/gtopk_figure12.py:resnet20_0.0005 --config.data.dir=DIR

Shi et al. 2019 (arXiv 1901.04359), section IV-F: training losses of VGG-16 and
ResNet-20 at several densities, "even a very low density of 0.0005 does not have
a big impact". The other densities are not printed in the text; 0.001, 0.005,
0.01 and 0.05 are ours. All else as in configs/gtopk_table5.py; the warm-up ends
where its stages reach the density. Curves only, no numbers.

Quick: ResNet-8 for both networks, a quarter of the run warm-up.
"""

from configs import gtopk_table5
from configs.dgc_table2 import QUICK_WARMUP
from experiments.papers.table import CIFAR
from experiments.papers.table import GPU_HOURS
from experiments.papers.table import Row
from experiments.papers.table import Table

_DENSITIES = (0.0005, 0.001, 0.005, 0.01, 0.05)


def _rows(model: str) -> dict[str, Row]:
  full = gtopk_table5.MODELS[model]
  sparse = {
    f'{model}_{density:g}': Row(
      fields=gtopk_table5.GTOPK | {'compression.density': density},
      beside=f'{model}_dense',
      full=full | gtopk_table5.WARMUP,
      quick=QUICK_WARMUP,
    )
    for density in _DENSITIES
  }
  return {f'{model}_dense': Row(fields={}, full=full), **sparse}


TABLE = Table(
  title='VGG-16 and ResNet-20 at densities from 0.0005, 4 workers',
  source='Shi et al. 2019, figure 12',
  metrics=('top1',),
  full=gtopk_table5.TABLE.full,
  rows={**_rows('vgg16'), **_rows('resnet20')},
  needs=(CIFAR, GPU_HOURS),
)
get_config = TABLE.get_config
