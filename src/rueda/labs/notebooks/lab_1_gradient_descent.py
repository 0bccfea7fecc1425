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
    from rueda.labs.showing import Source, begin

    begin()
    return Control, Exercise, Exploration, Question, Source, figure, mo


@app.cell
def _(mo):
    mo.md("""
    # Gradient descent

    Training a network means walking downhill on its loss. This lab does so with the smallest model there is, a line,
    because everything about it can be drawn: the loss is a surface over two parameters, and a training is a path on
    it. You will vary the batch size, the learning rate and the noise, and see what each costs in epochs, updates and
    time. At the end stand deep networks, and the reason why people train them on many GPUs.

    Move the sliders, answer the questions, fill in the exercises. A wrong answer gets a hint, and what you have
    answered is kept: `rueda lab` shows it.
    """)
    return


@app.cell
def _(mo):
    mo.md("""
    ## A line and a hundred points

    The model is y = w x + b, with two parameters: the slope w and the intercept b. The data are 100 points made by y
    = 10 (x + noise) + 2, so a good line has w near 10 and b near 2. The **loss** is the mean squared error: the
    vertical distance of each point to the line, squared, averaged over the points.

    Lay the line through the points by hand.
    """)
    return


@app.cell
def _(Control, Exploration):
    from rueda.labs.lab_1.line import line_by_hand

    hand = Exploration(
        "hand",
        line_by_hand,
        height=470,
        w=Control("slope w", tuple(range(21)), start=3),
        b=Control("intercept b", tuple(range(-18, 23, 4)), start=-2),
    )
    hand_controls = hand.controls()
    hand.stage(hand_controls)
    return hand, hand_controls


@app.cell
def _(hand, hand_controls):
    hand.show(hand_controls.value)
    return


@app.cell
def _(Question):
    lowest_question = Question(
        "1.lowest-loss",
        "What is about the lowest loss that a line can reach on these points?",
        unit="to ± 4",
    )
    lowest_form = lowest_question.ask()
    lowest_form
    return lowest_form, lowest_question


@app.cell
def _(lowest_form, lowest_question):
    lowest_question.reply(lowest_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Which way is down

    Nobody moves a million parameters by hand. The **gradient** of the loss says for each parameter how fast the loss
    rises; a step against it goes down. With error = w x + b − y for each point of a batch, the gradient is

    - by w: 2 · mean(x · error)
    - by b: 2 · mean(error)

    and an update is w ← w − rate · gradient by w, and the same for b. The **learning rate** says how long the step
    is.
    """)
    return


@app.cell
def _(Exercise):
    gradient_exercise = Exercise(
        "1.gradient",
        "Write the gradient of the mean squared error. `x` and `y` are lists of the same length; return the list "
        "`[by_w, by_b]`.",
        start="def gradient(w, b, x, y):\n    errors = [w * one + b - other for one, other in zip(x, y)]\n"
        "    by_w = ...\n    by_b = ...\n    return [by_w, by_b]\n",
    )
    gradient_editor = gradient_exercise.ask()
    gradient_editor
    return gradient_editor, gradient_exercise


@app.cell
def _(gradient_editor, gradient_exercise):
    gradient_exercise.judge(gradient_editor.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## The path on the surface

    Each pair (w, b) has a loss: together they form a bowl, long and narrow like a valley. The path begins at w = b =
    0, and each update moves it. How many points an update looks at is the **batch size**: all 100 make *gradient
    descent*, one makes *stochastic gradient descent* (SGD), some make *mini-batches*.

    Change the batch size first. Then change the rate and the noise of the data.
    """)
    return


@app.cell
def _(Control, Exploration):
    from rueda.labs.lab_1.paths import descent_paths

    paths = Exploration(
        "paths",
        descent_paths,
        height=640,
        batch=Control("batch size", (1, 2, 4, 8, 16, 32, 64, 100), start=8, export=(1, 8, 32, 100)),
        rate=Control("learning rate", (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.03), start=0.001),
        noise=Control("noise", (0.0, 0.5, 1.0, 2.0), start=1.0, export=(0.0, 1.0, 2.0)),
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
    wander_question = Question(
        "1.wander",
        "With a batch of one, a rate of 0.01 and noise 1, the path ends up wandering in the valley. What makes it "
        "calm, without a smaller rate?",
        choices=("data without noise", "more epochs", "a start nearer to the minimum"),
    )
    wander_form = wander_question.ask()
    wander_form
    return wander_form, wander_question


@app.cell
def _(wander_form, wander_question):
    wander_question.reply(wander_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Epochs and updates

    An **epoch** is one pass over all the data; an **update** is one step. A batch of one makes 100 updates an epoch,
    the full batch makes one. So two clocks run at different speeds: what looks fast against epochs may be slow
    against updates. Switch between the two.
    """)
    return


@app.cell
def _(Control, Exploration):
    from rueda.labs.lab_1.losses import losses_against

    losses = Exploration(
        "losses", losses_against, height=520, rate=Control("learning rate", (0.0003, 0.001, 0.003), start=0.001)
    )
    losses_controls = losses.controls()
    losses.stage(losses_controls)
    return losses, losses_controls


@app.cell
def _(losses, losses_controls):
    losses.show(losses_controls.value)
    return


@app.cell
def _(Exercise):
    updates_exercise = Exercise(
        "1.updates-per-epoch",
        "Write the number of updates in an epoch, for any number of points and any batch size. The last batch may be "
        "smaller, and counts.",
        start="def updates_per_epoch(num_points, batch):\n    return ...\n",
    )
    updates_editor = updates_exercise.ask()
    updates_editor
    return updates_editor, updates_exercise


@app.cell
def _(updates_editor, updates_exercise):
    updates_exercise.judge(updates_editor.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## What each batch size costs

    Here the line is trained at eight batch sizes, each on many draws of the points, until the loss of an epoch
    changes by less than 0.1 %. Small batches need few epochs and many updates; large ones the opposite. All of them
    find the same line. The last column is the time that one training takes on this machine.
    """)
    return


@app.cell
def _(figure):
    from rueda.labs.lab_1.batch_table import batch_table

    figure("batch-table", batch_table(), height=460)
    return


@app.cell
def _(Question):
    fewest_question = Question(
        "1.fewest-updates",
        "Look at the columns of epochs and updates. From a batch of 8 to all 100 points, an update looks at 12 times "
        "as much data. About how many times fewer updates does it need?",
        choices=("12 times fewer", "2 times fewer", "just as many"),
    )
    fewest_form = fewest_question.ask()
    fewest_form
    return fewest_form, fewest_question


@app.cell
def _(fewest_form, fewest_question):
    fewest_question.reply(fewest_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Time on a parallel machine

    If a machine computes one point after another, the time is that of all the points that were looked at, and small
    batches win. A GPU computes many points at the same time; then a batch of 8 takes as long as a batch of
    one, and what counts is the number of updates. Give the machine more points at once, and watch which batch size is
    best.
    """)
    return


@app.cell
def _(Control, Exploration):
    from rueda.labs.lab_1.batch_table import time_if_parallel

    parallel = Exploration(
        "parallel",
        time_if_parallel,
        height=470,
        at_once=Control("points at the same time", (1, 2, 4, 8, 16, 32, 64, 128), start=1),
    )
    parallel_controls = parallel.controls()
    parallel.stage(parallel_controls)
    return parallel, parallel_controls


@app.cell
def _(parallel, parallel_controls):
    parallel.show(parallel_controls.value)
    return


@app.cell
def _(Question):
    sixteen_question = Question(
        "1.best-for-16", "Which batch size is the fastest on a machine that computes 16 points at once?", unit="points"
    )
    sixteen_form = sixteen_question.ask()
    sixteen_form
    return sixteen_form, sixteen_question


@app.cell
def _(sixteen_form, sixteen_question):
    sixteen_question.reply(sixteen_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## The largest stable rate

    A longer step saves updates, until it oversteps: beyond some rate each update lands higher up on the other side of
    the valley, and the loss grows without end. The limit follows from how strongly the loss curves. With h the
    largest eigenvalue of the **Hessian**, the matrix of second derivatives, gradient descent is stable below a rate
    of 2 / h. The library computes h here as it does for a network of millions of parameters, without ever writing the
    matrix down.

    The slider is the rate, as a share of that limit.
    """)
    return


@app.cell
def _(Control, Exploration):
    from rueda.labs.lab_1.stable_rate import at_rate

    stable = Exploration(
        "stable",
        at_rate,
        height=500,
        share=Control("rate / largest stable rate", (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 1.02, 1.1), start=0.25),
    )
    stable_controls = stable.controls()
    stable.stage(stable_controls)
    return stable, stable_controls


@app.cell
def _(stable, stable_controls):
    stable.show(stable_controls.value)
    return


@app.cell
def _(Question):
    limit_question = Question(
        "1.stable-rate", "What is the largest stable learning rate on these points?", unit="to the third decimal place"
    )
    limit_form = limit_question.ask()
    limit_form
    return limit_form, limit_question


@app.cell
def _(limit_form, limit_question):
    limit_question.reply(limit_form.value)
    return


@app.cell
def _(Exercise):
    rate_exercise = Exercise(
        "1.rate-from-curvature",
        "Write the largest stable rate as a function of the Hessian's eigenvalues, given as a list.",
        start="def largest_rate(eigenvalues):\n    return ...\n",
    )
    rate_editor = rate_exercise.ask()
    rate_editor
    return rate_editor, rate_exercise


@app.cell
def _(rate_editor, rate_exercise):
    rate_exercise.judge(rate_editor.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Small batches bear smaller rates

    A batch of one sees its own valley, which may be much steeper than that of all the points. The dots show the
    largest stable rate of each batch of an epoch, alone. As the batch grows, the dots move together, towards
    the limit of all the points. A training needs a rate that its steepest batch bears, and the lowest dot rises: this
    is one reason why people **raise the rate when they raise the batch size**; lab 3 says by how much.
    """)
    return


@app.cell
def _(Control, Exploration):
    from rueda.labs.lab_1.stable_rate import rate_by_batch

    by_batch = Exploration(
        "rate-by-batch", rate_by_batch, height=480, batch=Control("batch size", (1, 2, 4, 8, 16, 32, 64, 100), start=1)
    )
    by_batch_controls = by_batch.controls()
    by_batch.stage(by_batch_controls)
    return by_batch, by_batch_controls


@app.cell
def _(by_batch, by_batch_controls):
    by_batch.show(by_batch_controls.value)
    return


@app.cell
def _(Question):
    steep_question = Question(
        "1.steepest-point",
        "Which points allow only a small rate when they are a batch of their own?",
        choices=("those with a large x", "those with a large error", "those with a small x"),
    )
    steep_form = steep_question.ask()
    steep_form
    return steep_form, steep_question


@app.cell
def _(steep_form, steep_question):
    steep_question.reply(steep_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Real networks: no bowl any more

    The loss of a line is a bowl, with one minimum. A deep network has layers and nonlinearities, and its loss has
    valleys, plateaus and walls in thousands of dimensions. What can be drawn is a slice: the loss over two random
    directions around the trained network, each scaled filter by filter, so that slices can be compared.

    Below are small networks of 5, 10 and 20 layers, trained on the same 512 images. One of each pair has **skip
    connections**, which add the input of a layer to its output; the output is divided by √layers there, so that the
    sum does not grow. So the two differ in two things, and each was trained once, with one seed: read it as an
    illustration, not as a measurement. Both learn; but look at the heights at the edge.
    """)
    return


@app.cell
def _(Control, Exploration):
    from rueda.labs.lab_1.surfaces import DEPTHS, source, surfaces

    skips = Exploration("skips", surfaces, source=source(), height=860, depth=Control("layers", DEPTHS, start=20))
    skips_controls = skips.controls()
    skips.stage(skips_controls)
    return skips, skips_controls


@app.cell
def _(skips, skips_controls):
    skips.show(skips_controls.value)
    return


@app.cell
def _(Question):
    skip_question = Question(
        "1.skip-connections",
        "What do skip connections change as the network gets deeper?",
        choices=(
            "the loss around the minimum rises less steeply",
            "the loss at the minimum becomes zero",
            "the surface becomes a bowl with one parameter",
        ),
    )
    skip_form = skip_question.ask()
    skip_form
    return skip_form, skip_question


@app.cell
def _(skip_form, skip_question):
    skip_question.reply(skip_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Why more GPUs: what trainings need

    Larger models trained on more data are better, predictably so (lab 4). The compute that a training needs has grown
    faster than any machine: a PF/s-day is 10¹⁵ operations a second, for a day. One machine grew from about 2
    PF/s (16 GPUs) to about 32 (8 GPUs, at a lower precision) within about four years. The trainings of the same years
    grew by thousands.

    Mind the marks: what is *stated* comes from a course or a paper, what is *approximate* was quoted from memory.
    """)
    return


@app.cell
def _(Source, figure):
    from rueda.labs.lab_1.trends import training_table, trend

    _quoted = "Numbers quoted from publications; the marks say how sure they are. Nothing here was measured."
    figure("trend", [trend(), training_table()], source=Source(live=_quoted, static=_quoted), height=860)
    return


@app.cell
def _(mo):
    mo.md("""
    ## More machines, fewer days

    The course's example is a training of 1,000 PF/s-days. On one machine it takes a month or more; on many it takes
    days, if they work together well. The **scaling efficiency** says how well: the images per second of each worker,
    divided by those of a worker alone. Here each machine is a worker.
    """)
    return


@app.cell
def _(Control, Exploration):
    from rueda.labs.lab_1.trends import how_long

    long = Exploration(
        "how-long",
        how_long,
        height=400,
        machines=Control("machines", (1, 2, 4, 8, 16, 32), start=1),
        efficiency=Control("scaling efficiency", (0.5, 0.6, 0.7, 0.8, 0.9, 1.0), start=0.9),
    )
    long_controls = long.controls()
    long.stage(long_controls)
    return long, long_controls


@app.cell
def _(long, long_controls):
    long.show(long_controls.value)
    return


@app.cell
def _(Question):
    days_question = Question(
        "1.days",
        "1,000 PF/s-days on 8 machines of 32 PF/s at a scaling efficiency of 90 %: how many days?",
        unit="days, to one decimal place",
    )
    days_form = days_question.ask()
    days_form
    return days_form, days_question


@app.cell
def _(days_form, days_question):
    days_question.reply(days_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Eight GPUs, measured

    Here is a small network on one to eight GPUs of one machine. The dashed line is what eight independent GPUs would
    do; the rest is lost to the exchange of gradients, which lab 2 looks at. But speed is only half of the matter:
    eight workers make a batch eight times as large, and you have seen above what this does to the number of updates.
    How to keep the accuracy is the subject of lab 3.
    """)
    return


@app.cell
def _(Source, figure):
    from rueda.labs.lab_1.trends import speed_of_workers

    _stated = "Stated in a course on training with many GPUs, which measured it; not measured by this project."
    figure("speed", speed_of_workers(), source=Source(live=_stated, static=_stated), height=460)
    return


@app.cell
def _(Exercise):
    efficiency_exercise = Exercise(
        "1.efficiency",
        "Write the scaling efficiency: `images_per_second` is that of all `workers` together, `alone` that of one.",
        start="def efficiency(images_per_second, workers, alone):\n    return ...\n",
    )
    efficiency_editor = efficiency_exercise.ask()
    efficiency_editor
    return efficiency_editor, efficiency_exercise


@app.cell
def _(efficiency_editor, efficiency_exercise):
    efficiency_exercise.judge(efficiency_editor.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## To read on

    - H. Li, Z. Xu, G. Taylor, C. Studer, T. Goldstein (2018). *Visualizing the loss landscape of neural nets.*
      arXiv:1712.09913. The surfaces with and without skip connections.
    - K. He, X. Zhang, S. Ren, J. Sun (2015). *Deep residual learning for image recognition.* arXiv:1512.03385.
    - J. Hestness et al. (2017). *Deep learning scaling is predictable, empirically.* arXiv:1712.00409. Lab 4 uses it.
    - S. McCandlish, J. Kaplan, D. Amodei et al. (2018). *An empirical model of large-batch training.*
      arXiv:1812.06162.
    - C. Shallue et al. (2018). *Measuring the effects of data parallelism on neural network training.*
      arXiv:1811.03600.
    - In this project: `rueda gradient-descent` draws the table of the batch sizes, `rueda examine` the surfaces and
      the curvature of your own models.

    Go on with `rueda lab 2`: what the workers exchange.
    """)
    return


if __name__ == "__main__":
    app.run()
