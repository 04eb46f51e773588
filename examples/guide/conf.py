"""Settings of the documentation site.

    python -m sphinx -W --keep-going -b html examples/guide build/site

Pages that are written stand in this folder. What is gathered from elsewhere is put into
the folder `gathered/` when the site is built: the scripts of the gallery, by subject,
and the notebook. Reference pages are made from docstrings (`reference/`), and tables of
benchmarks and of the paper's claims are included from the pages beside their scripts.
"""

import inspect
import os
import re
import shutil
import sys
import tomllib
import warnings
from collections import defaultdict
from html import unescape
from pathlib import Path
from urllib.parse import unquote

GUIDE = Path(__file__).resolve().parent
EXAMPLES, ROOT = GUIDE.parent, GUIDE.parents[1]
GATHERED = GUIDE / "gathered"
sys.path[:0] = [str(ROOT), str(EXAMPLES)]
# Scripts of the gallery that run in a process of their own find the package here, too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(EXAMPLES)])
# Scripts are small: threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Real data are not part of the site: it looks the same wherever it is built.
os.environ["SKLEARN_MM_DATA"] = str(GUIDE / "no-data")

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.addnodes import pending_xref
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

import sklearn_mm

with (ROOT / "pyproject.toml").open("rb") as stream:
    PROJECT = tomllib.load(stream)["project"]

LOGGER = logging.getLogger(__name__)

# -- Project -------------------------------------------------------------------------

project = "sklearn_mm"
author = "the sklearn_mm developers"
project_copyright = author
version = release = sklearn_mm.__version__
language = "en"
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["gathered/scripts/**", "gallery/**/*.ipynb", "no-data"]
default_role = "name"  # of an object of this package, or of anything else
templates_path = ["_templates"]
nitpicky = True  # links within the site; objects of other packages are not looked up
OTHERS = r"(sklearn|scipy|numpy|pandas|joblib|matplotlib)\..*"
nitpick_ignore_regex = [(r"py:.*", OTHERS)]
suppress_warnings = ["config.cache"]  # the order of the gallery is given by a function

html_math_renderer = "mathml"  # browsers draw it without any script


def visit_math(self, node):
    """Write a formula of TeX as MathML."""
    block = isinstance(node, nodes.math_block)
    math = str(tex2mathml(node.astext(), as_block=block))
    # docutils puts the index of a symbol with an accent below the symbol.
    math = re.sub(
        r"<munderover>\s*(<mi>.</mi>)\s*(<mi>.</mi>)\s*(<mo.*?</mo>)\s*</munderover>",
        r"<msub><mover>\1\3</mover>\2</msub>",
        math,
    )
    self.body.append(f'<div class="math">{math}</div>' if block else math)
    raise nodes.SkipNode


# -- Pages in Markdown, and the notebook ---------------------------------------------

myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # it is stored with its outputs, and a test runs it
nb_number_source_lines = False

copybutton_exclude = ".linenos, .gp, .go"  # what is copied is code alone

# -- Reference -----------------------------------------------------------------------

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"  # docstrings say what types are
autodoc_default_options = {"member-order": "bysource"}
toc_object_entries_show_parents = "hide"  # "fit()" tells more than the class's name
numpydoc_show_class_members = False
numpydoc_use_plots = False
# Written by scikit-learn about its own pages, to which there are no links here.
ELSEWHERE = ("get_metadata_routing", "set_callbacks")


def skip_member(app, what, name, thing, skip, options):
    """Leave out methods that scikit-learn makes; their pages are elsewhere."""
    made = name in ELSEWHERE or (name.startswith("set_") and name.endswith("_request"))
    return True if made else None


def public_modules():
    """The package, and the modules that it exports."""
    exported = [getattr(sklearn_mm, name) for name in sklearn_mm.__all__]
    return [sklearn_mm, *filter(inspect.ismodule, exported)]


def public_names():
    """Pages of the reference by the names that docstrings use: one page for each."""
    found = defaultdict(set)
    for module in public_modules():
        for name in module.__all__:
            if callable(thing := getattr(module, name)):
                found[name].add((thing, f"{module.__name__}.{name}"))
    # "Huber" is a kernel and a loss, whereas `Bounds` of two modules are one class.
    return {
        name: min(place for _, place in places)
        for name, places in found.items()
        if len({thing for thing, _ in places}) == 1
    }


class NameRole(SphinxRole):
    """What stands between backticks: a link if it is public here, literal otherwise."""

    names = public_names()

    def run(self):
        """Make the nodes."""
        literal = nodes.literal(self.rawtext, self.text)
        place = self.names.get(self.text.removesuffix("()"))
        if place is None:
            return [literal], []
        about = {"refdomain": "py", "reftype": "obj", "reftarget": place}
        link = pending_xref(
            self.rawtext, literal, refdoc=self.env.docname, refexplicit=True, **about
        )
        return [link], []


def plain_references(app, what, name, thing, options, lines):
    """Keep the words of references to pages of scikit-learn, which are not here."""
    if getattr(thing, "__module__", "").startswith("sklearn."):
        text = "\n".join(lines)
        text = re.sub(r":(?:ref|term):`([^<`]+?)(?:\s*<[^>]+>)?`", r"\1", text)
        lines[:] = text.split("\n")


# -- Gallery -------------------------------------------------------------------------

# Where scripts stand on the page; every script with cells is in one of the sections.
SECTIONS = {
    "first_steps": ("First steps", ["quickstart", "overview", "which_criterion"]),
    "regression": (
        "Robust regression",
        [
            "plot_classic_data",
            "grid_search",
            "robust_model_selection",
            "robust_boosting",
            "robust_curve_fit",
        ],
    ),
    "networks": ("Networks", ["hebbian_digits", "online_learning"]),
    "your_own": (
        "Bring your own",
        ["custom_kernel_and_criterion", "own_problem"],
    ),
}


def scripts_with_cells():
    """Names of the scripts of the gallery."""
    return {
        path.stem
        for path in EXAMPLES.glob("*.py")
        if "\n# %%\n" in path.read_text(encoding="utf-8")
    }


def gather():
    """Copy scripts and notebook to where Sphinx looks for them."""
    listed = [name for _, names in SECTIONS.values() for name in names]
    missing = scripts_with_cells() - set(listed)
    if missing:
        raise RuntimeError(f"SECTIONS in conf.py does not know {sorted(missing)}.")
    gallery = GATHERED / "scripts"
    shutil.rmtree(gallery, ignore_errors=True)
    for folder, (title, names) in SECTIONS.items():
        place = gallery / folder
        place.mkdir(parents=True)
        write(place / "GALLERY_HEADER.rst", f"{title}\n{'-' * len(title)}\n")
        for name in names:
            shutil.copy2(EXAMPLES / f"{name}.py", place)
    write(gallery / "GALLERY_HEADER.rst", GALLERY_HEADER)
    shutil.copy2(EXAMPLES / "tour.ipynb", GATHERED / "tour.ipynb")


def write(path, text):
    """Write a file of text."""
    path.write_text(text, encoding="utf-8")


GALLERY_HEADER = """\
.. _gallery:

Gallery
=======

Scripts of the folder ``examples/``, with what they print and draw. Each takes seconds,
and needs no data that does not ship with scikit-learn or statsmodels. The longer ones,
for :doc:`bundle adjustment </least_squares>`, :doc:`scaling out </scaling>`,
:doc:`benchmarks </benchmarks>` and :doc:`the figures of the paper </paper>`, have pages
of their own.
"""


class InOrder:
    """Places of sections on the page, and of scripts in their sections."""

    names = [*SECTIONS, *(name for _, names in SECTIONS.values() for name in names)]

    def __init__(self, folder=None):
        """Take the folder that sphinx-gallery passes; it is not needed."""

    def __call__(self, path):
        """The place of a folder or file."""
        return self.names.index(Path(path).stem)


sphinx_gallery_conf = {
    "examples_dirs": ["gathered/scripts"],
    "gallery_dirs": ["gallery"],
    "backreferences_dir": "gallery/backreferences",  # pages of objects list examples
    "doc_module": ("sklearn_mm",),
    "filename_pattern": r"\.py$",
    "within_subsection_order": InOrder,
    "subsection_order": InOrder(),
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
    "plot_gallery": not tags.has("quick"),  # noqa: F821
    "abort_on_example_error": False,
    "thumbnail_size": (400, 260),
    "copyfile_regex": r"never",
    "show_signature": False,
    "capture_repr": ("_repr_html_",),  # no <matplotlib...> below a picture
}
warnings.filterwarnings("ignore", message=".*non-interactive.*")

# -- Look ----------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = f"sklearn_mm {release}"
html_baseurl = PROJECT.get("urls", {}).get("Documentation", "")
html_static_path = ["_static"]
html_css_files = ["guide.css"]
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}
html_sidebars = {"changelog": [], "index": [], "contributing": []}
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
}


def check_reference(app, env):
    """Every public object of every public module is in the reference."""
    listed = env.domaindata["py"]["objects"]
    for module in public_modules():
        for name in module.__all__:
            thing = getattr(module, name)
            places = {f"{home.__name__}.{name}" for home in public_modules()}
            if inspect.ismodule(thing):
                places = {thing.__name__}
            if not places & set(listed):
                LOGGER.warning("%s.%s is not in the reference", module.__name__, name)


def check_links(app, exception):
    """Every link and picture within the site is there, down to the heading."""
    if exception is not None or app.builder.name != "html":
        return
    site = Path(app.outdir)
    pages = {
        path: path.read_text(encoding="utf-8")
        for path in site.rglob("*.html")
        if "_static" not in path.parts
    }
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', pages[path])) for path in pages}
    for path, text in pages.items():
        for link in re.findall(r'<(?:a|img) [^>]*?(?:href|src)="([^"]+)"', text):
            target, _, anchor = unquote(unescape(link)).partition("#")
            if re.match(r"\w+:", target) or target.startswith("//"):
                continue
            end = (path.parent / target).resolve() if target else path
            known = anchors.get(end, {anchor})
            if not end.exists() or (anchor and anchor not in known):
                LOGGER.warning("%s: dead link to %s", path.relative_to(site), link)


def mark_figures(app, doctree):
    """Mark cells of tables that have figures and no words: they stay on a line."""
    for entry in doctree.findall(nodes.entry):
        text = entry.astext()
        if re.search(r"\d", text) and not re.search(r"[^\W\d_]{2}", text):
            entry["classes"].append("figures")


gather()


def setup(app):
    """Hooks."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.add_role("name", NameRole())
    app.connect("doctree-read", mark_figures)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-docstring", plain_references)
    app.connect("env-updated", check_reference)
    app.connect("build-finished", check_links)
