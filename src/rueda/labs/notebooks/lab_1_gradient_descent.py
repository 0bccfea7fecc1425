# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""Lab 1: gradient descent."""

import marimo

app = marimo.App(app_title="Rueda, lab 1: gradient descent", width="medium")


@app.cell
def _():
    import marimo as mo

    from rueda.labs.exercises import Exercise
    from rueda.labs.explore import Control, Exploration, figure
    from rueda.labs.questions import Question
    from rueda.labs.showing import begin

    begin()
    return Control, Exercise, Exploration, Question, figure, mo


@app.cell
def _(mo):
    mo.md("""
    # Gradient descent

    A line y = w x + b is fitted to 100 points by small steps.
    """)
    return


@app.cell
def _(Control, Exploration):
    from rueda.report.figures.linear_model import surface
    from rueda.study.gradient_descent import study_gradient_descent

    paths = Exploration(
        "paths",
        lambda batch: surface(study_gradient_descent(batches=[batch], seeds=1)),
        batch=Control("batch size", (1, 8, 32, 100), start=8),
    )
    paths_controls = paths.controls()
    paths.stage(paths_controls)
    return paths, paths_controls


@app.cell
def _(paths, paths_controls):
    paths.show(paths_controls.value)
    return


@app.cell
def _(Question):
    updates_question = Question(
        "1.updates-an-epoch", "How many updates does an epoch have with a batch size of **one**?", unit="updates"
    )
    updates_form = updates_question.ask()
    updates_form
    return updates_form, updates_question


@app.cell
def _(updates_form, updates_question):
    updates_question.reply(updates_form.value)
    return


@app.cell
def _(Exercise):
    updates_exercise = Exercise(
        "1.updates",
        "Write the number of updates in an epoch for any number of points and batch size.",
        start="def updates(points, batch):\n    return ...\n",
    )
    updates_editor = updates_exercise.ask()
    updates_editor
    return updates_editor, updates_exercise


@app.cell
def _(updates_editor, updates_exercise):
    updates_exercise.judge(updates_editor.value)
    return


if __name__ == "__main__":
    app.run()
