"""The head of a page that loads nothing: its security policy, its title and its style."""

from __future__ import annotations

from rueda.report.escape import to_html
from rueda.report.inlined import packed_plotly, script_hash


def page_head(title: str, *, script: str, style: str) -> str:
    """Return the beginning of a page, up to the end of its head.

    The Content-Security-Policy names the two scripts by their hashes (the page's own and plotly's).

    Args:
        title: plain text.
        script: the page's own script.
        style: its style sheet.
    """
    policy = (
        f"default-src 'none'; script-src {packed_plotly()[0]} {script_hash(script)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{to_html(title)}</title>
<style>
{style}</style>
</head>
"""
