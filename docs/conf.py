"""The site: `make docs`. Warnings are errors, and notebooks are executed."""

import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

# Before a kernel starts: examples need up to eight devices.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('JAX_NUM_CPU_DEVICES', '8')

import docstrings  # noqa: E402
import gradsparse  # noqa: E402

ROOT = pathlib.Path(__file__).parents[1]

project = 'gradsparse'
author = copyright = 'The gradsparse authors'
version = release = gradsparse.__version__

extensions = [
  'myst_nb',
  'sphinx.ext.autodoc',
  'sphinx.ext.autosummary',
  'sphinx.ext.napoleon',
  'sphinx_copybutton',
  'sphinx_design',
]
# Of a notebook the text is the source; beside it may be one for a browser.
exclude_patterns = ['_build', '**.ipynb_checkpoints', 'notebooks/*.ipynb']

# Markdown, as the repository's web view has it.
myst_enable_extensions = ['colon_fence', 'dollarmath']
myst_heading_anchors = 4

nb_execution_mode = 'force'
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# The reference. Docstrings write code in single backticks.
default_role = 'code'
smartquotes_action = 'D'
autodoc_typehints = 'none'
autodoc_inherit_docstrings = False
autodoc_member_order = 'bysource'
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
napoleon_custom_sections = [('Attributes', 'params_style')]
napoleon_use_rtype = False
python_maximum_signature_line_length = 70
toc_object_entries_show_parents = 'hide'

html_theme = 'sphinx_book_theme'
html_title = 'gradsparse'
html_static_path = ['_static']
html_css_files = ['site.css']
html_theme_options = {
  # The side bar has a search already.
  'navbar_center': [],
  'navbar_end': [],
  'navbar_persistent': [],
  'navbar_start': [],
  'show_navbar_depth': 1,
  'show_toc_level': 2,
  'use_download_button': False,
  'use_fullscreen_button': False,
}
copybutton_prompt_text = r'>>> |\.\.\. |\$ '
copybutton_prompt_is_regexp = True

# Pages whose text is a file of the root.
_OF_ROOT = {
  'building': 'BUILD.md',
  'changelog': 'CHANGELOG.md',
  'contributing': 'CONTRIBUTING.md',
  'results': 'RESULTS.md',
}
# A picture that the repository's web view draws is an SVG of that name here.
_DRAWN = re.compile(r'^```mermaid\n.*?^```$', re.DOTALL | re.MULTILINE)
_PAGES = {
  '../README.md': 'index.md',
  **{f'../{file}': f'{page}.md' for page, file in _OF_ROOT.items()},
}
_LINK = re.compile(
  r'\[([^][]*)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)'
)


def _link(match, folder, from_root):
  """A link as the site has it: to its page, its file, or to nothing."""
  shown, path, anchor = match[1], match[2], match[3] or ''
  if from_root:
    path = (
      path.removeprefix('docs/') if path.startswith('docs/') else f'../{path}'
    )
  if path in _PAGES:
    return f'[{shown}]({_PAGES[path]}{anchor})'
  if (folder / path).is_dir():  # seen in the repository only
    return shown if '`' in shown else f'`{shown}`'
  return f'[{shown}]({path}{anchor})'


def _source(app, name, source):
  text, from_root = source[0], name in _OF_ROOT
  if from_root:
    path = ROOT / _OF_ROOT[name]
    app.env.note_dependency(str(path))
    text = path.read_text()
  folder = (pathlib.Path(app.srcdir) / name).parent
  # A section may have places for pages that are not there.
  text = re.sub(
    r'^([\w/]+\*)\n',
    lambda m: m[0] if any(folder.glob(f'{m[1]}.md')) else '',
    text,
    flags=re.MULTILINE,
  )
  text = _DRAWN.sub(f'![The picture of this section]({name}.svg)', text)
  source[0] = _LINK.sub(lambda m: _link(m, folder, from_root), text)


def _skip(app, what, name, obj, skip, options):
  """Leaves out the fields of NamedTuples: their classes explain them."""
  return True if type(obj).__name__ == '_tuplegetter' else None


def _signature(app, what, name, obj, options, signature, returns):
  """Of a NamedTuple, its fields; defaults that are functions say nothing."""
  fields = getattr(obj, '_fields', None)
  if what != 'class' or not fields or not signature:
    return None
  defaults = obj._field_defaults
  shown = [f'{f}=...' if f in defaults else f for f in fields]
  return f'({", ".join(shown)})', returns


def setup(app) -> None:
  app.connect('source-read', _source)
  app.connect('autodoc-skip-member', _skip)
  app.connect('autodoc-process-signature', _signature)
  # Before napoleon.
  app.connect('autodoc-process-docstring', docstrings.process, priority=400)
