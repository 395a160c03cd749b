"""A report as one HTML page that needs no other file."""

from __future__ import annotations

import base64
from importlib import resources

from . import text
from .plots import ulp_svg
from .report import Report


def page(report: Report) -> str:
    """The page.

    Raises:
        ImportError: jinja2 or matplotlib is missing; the message says what to install.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            "pages need jinja2, which is not installed; run: pip install 'flashasc[precision]'"
        ) from error
    source = resources.files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    plots = [
        _data_url(ulp_svg(t.errors.ulp_histogram, t.theirs.ulp_histogram if t.theirs else None))
        if t.errors and t.errors.elements
        else None
        for t in report.tensors
    ]
    return environment.from_string(source).render(
        report=report, tensors=list(zip(report.tensors, plots)), text=text
    )


def _data_url(svg: str) -> str:
    """An image inside the page; apart, so that names in one don't meet those in another."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
