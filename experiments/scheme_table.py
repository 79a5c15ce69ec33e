"""Prints the README's table of schemes, from the code.

python -m experiments.scheme_table
"""

from experiments.program import command_line
from experiments.studies import scheme_table


def main() -> None:
  """Prints the table as the README has it."""
  print(scheme_table.markdown())


if __name__ == '__main__':
  command_line.run(main)
