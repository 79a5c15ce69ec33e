"""Prints where to begin.

python -m gradsparse
"""

import signal

import gradsparse
import jax

WHERE_TO_BEGIN = """\
gradsparse {version}, with JAX {jax}

Should you compress, and with which scheme? Insert your own numbers:
  python -m gradsparse.advise --params=25e6 --step_ms=150 --workers=8 \\
    --bandwidth=1gbit
List the schemes, and the arguments of one of them:
  python -c 'import gradsparse as gs; print(*gs.recipes.RECIPES)'
  python -c 'import gradsparse as gs; help(gs.dgc)'
In a checkout, docs/train_step.md is the first page, and docs/notebooks/start.md
the first notebook. `make demo` trains with 4 workers, five ways.
"""


def main() -> None:
  """Prints WHERE_TO_BEGIN."""
  print(
    WHERE_TO_BEGIN.format(version=gradsparse.__version__, jax=jax.__version__),
    end='',
  )


if __name__ == '__main__':
  if hasattr(signal, 'SIGPIPE'):  # `| head` ends it without a message
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
  main()
