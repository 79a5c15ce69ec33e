"""What is not on record yet, and the records that are told on other pages."""

from collections.abc import Mapping

from experiments.papers import page
from experiments.papers import record as records
from experiments.papers import table as papers
from experiments.program import tables

# Of experiments/results/: what was measured, and the page that tells more.
OTHERS: Mapping[str, tuple[str, str]] = {
  'cifar10_resnet20_short.json': (
    'ResNet-20 on CIFAR-10, a short run',
    '',
  ),
  'qsvrg.json': ('the rate of QSVRG beside plain QSGD', 'docs/papers.md'),
  'compress.json': (
    'a step of each scheme without a network',
    'docs/performance.md',
  ),
  'compress_small_pages.json': (
    'the same, before selection was faster',
    'docs/performance.md',
  ),
  'compress_large_pages.json': (
    'likewise, with large pages',
    'docs/performance.md',
  ),
  'compress_joined_leaves.json': (
    'the same, before and after small leaves are joined',
    'docs/performance.md',
  ),
  'accelerators.json': (
    'what compilers of TPUs and GPUs say of a step; nothing ran',
    'docs/accelerators.md',
  ),
  'moments.json': ('what second moments cost', 'BUILD.md'),
  'exchange.json': ('a step of each scheme on a slow network', 'README.md'),
  'exchange_kernels.json': (
    'the same, before and after faster kernels',
    'docs/performance.md',
  ),
  'training.json': ('a whole training on a slow network', 'README.md'),
  'network.json': ('the slow network itself', 'BUILD.md'),
  'large_models.json': (
    'bytes and memory of models larger than the machine',
    'docs/large_models.md',
  ),
  'kill_and_resume.json': (
    'runs killed at random moments and resumed',
    'docs/checkpoints.md',
  ),
  'network_faults.json': ('networks that fail in a run', 'docs/faults.md'),
  'long_run.json': ('memory over a long run', 'docs/faults.md'),
}


def rows(
  catalogue: Mapping[str, papers.Table],
  found: Mapping[str, records.Record],
) -> str:
  """Returns how many rows of each table were run, and what the others need."""
  lines = []
  for name, table in catalogue.items():
    record, cells = found[name], []
    for size in papers.SIZES:
      possible = [
        row
        for row in table.rows
        if size in table.sizes
        and (size != papers.HELD_OUT or table.holds_out(table.rows[row]))
      ]
      run = [row for row in possible if record.runs(size, row)]
      cells.append(f'{len(run)} of {len(possible)}' if possible else page.NONE)
    left = [row for row in table.rows if not record.runs(papers.FULL, row)]
    needs = page.needed_by(table, left) or 'nothing more'
    lines.append((f'`{name}`', *cells, needs if left else page.NONE))
  sizes = [size.replace('_', ' ') for size in papers.SIZES]
  return tables.markdown(
    ('table', *sizes, 'what the full rows that were not run need'), lines
  )


def others() -> str:
  """Returns what else was measured, and where it is told."""
  folder = 'experiments/results'
  return tables.markdown(
    ('record', 'what', 'told in'),
    [
      (
        f'[{name}]({folder}/{name})',
        what,
        f'[{told}]({told})' if told else page.NONE,
      )
      for name, (what, told) in OTHERS.items()
    ],
  )
