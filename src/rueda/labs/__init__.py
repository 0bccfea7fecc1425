"""The course: four labs as marimo notebooks, which open in the browser or become static pages.

A lab is made of blocks (figures that move, questions, exercises) that are declared once: marimo shows them live, and
the exporter writes them into a page that works from disk. What a block shows is computed by the other folders.
"""
