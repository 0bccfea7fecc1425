# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""Lab 4: planning."""

import marimo

app = marimo.App(app_title="Rueda, lab 4: planning", width="medium")


@app.cell
def _():
    import marimo as mo

    from rueda.labs import stored
    from rueda.labs.exercises import Exercise
    from rueda.labs.explore import Control, Exploration, figure
    from rueda.labs.lab_4 import learning_curves, measured, planner, steps
    from rueda.labs.questions import Question
    from rueda.labs.showing import begin

    begin()
    return (
        Control,
        Exercise,
        Exploration,
        Question,
        figure,
        mo,
        learning_curves,
        measured,
        planner,
        steps,
        stored,
    )


@app.cell
def _(mo):
    mo.md("""
    # Planning

    How much data does a target need? How long will the training take, on how many workers, and what will it cost?
    Whoever can answer before buying data or renting machines saves weeks. Three facts make an answer possible: the
    error falls with the data by a simple law, a training step can be predicted from a few measurements, and the
    noise scale says what a larger batch is worth.

    Large trainings are counted in **petaflop/s-days**: the work of a machine that makes 10<sup>15</sup> operations
    a second, for a day. One of 1,000 petaflop/s-days takes a server with two CPUs about a century. A machine of
    eight H100 has a peak of about 32 petaflop/s.
    """)
    return


@app.cell
def _(Question):
    days_question = Question(
        "4.days",
        ("How many days does a training of 1,000 petaflop/s-days take at 32 petaflop/s, if nothing is lost?"),
        unit="days",
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
    ## A power law

    Hestness et al. 2017 trained many models on growing parts of their data and found the same law everywhere: with
    m examples the error is

    <div style="text-align:center;margin:.6rem 0">error(<i>m</i>) = α <i>m</i><sup>β</sup> + γ</div>

    On logarithmic axes that is a straight line, until it reaches the floor γ: the error that no amount of such data
    removes. They found exponents β between -0.07 (language) and -0.35 (images). The model has to grow, too, but
    more slowly than the data.
    """)
    return


@app.cell
def _(Control, Exploration, learning_curves):
    law_moves = Exploration(
        "law",
        learning_curves.law_figure,
        height=500,
        beta=Control("exponent β", (-0.07, -0.1, -0.2, -0.3, -0.35, -0.5), start=-0.3),
        gamma=Control("floor γ", (0.0, 0.01, 0.03, 0.1), start=0.01),
    )
    law_moves_controls = law_moves.controls()
    law_moves.stage(law_moves_controls)
    return law_moves, law_moves_controls


@app.cell
def _(law_moves, law_moves_controls):
    law_moves.show(law_moves_controls.value)
    return


@app.cell
def _(Question):
    halve_question = Question(
        "4.halve",
        "Without a floor and with β = -0.5: how many times as much data halves the error?",
        unit="times",
    )
    halve_form = halve_question.ask()
    halve_form
    return halve_form, halve_question


@app.cell
def _(halve_form, halve_question):
    halve_question.reply(halve_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Three zones

    With very few examples a model only guesses (**small data**). Then the law holds (**power law**). At last the
    floor is most of the error (**irreducible**), and more of the same data is wasted money.

    A forecast has to find the constants from a few noisy trainings. Here the truth is known: trainings are drawn
    around it, and the library's fit gets only the dots. With more seeds the interval becomes narrower. Where it is
    too wide, the forecast refuses to answer.
    """)
    return


@app.cell
def _(Control, Exploration, learning_curves):
    synthetic_moves = Exploration(
        "synthetic",
        learning_curves.synthetic_figure,
        height=620,
        beta=Control("true exponent β", (-0.1, -0.2, -0.3, -0.5), start=-0.5),
        gamma=Control("true floor γ", (0.0, 0.02, 0.05), start=0.05),
        seeds=Control("seeds", (1, 3, 10), start=3),
    )
    synthetic_moves_controls = synthetic_moves.controls()
    synthetic_moves.stage(synthetic_moves_controls)
    return synthetic_moves, synthetic_moves_controls


@app.cell
def _(synthetic_moves, synthetic_moves_controls):
    synthetic_moves.show(synthetic_moves_controls.value)
    return


@app.cell
def _(Question):
    zone_question = Question(
        "4.zone",
        "In which zone is it useless to buy more of the same data?",
        choices=("the small-data zone", "the power-law zone", "the irreducible zone"),
    )
    zone_form = zone_question.ask()
    zone_form
    return zone_form, zone_question


@app.cell
def _(zone_form, zone_question):
    zone_question.reply(zone_form.value)
    return


@app.cell
def _(Exercise):
    data_needed_exercise = Exercise(
        "4.data-needed",
        "Write how many examples a target error needs under the law.",
        start=("def examples(alpha, beta, gamma, target):\n    return ...\n"),
    )
    data_needed_editor = data_needed_exercise.ask()
    data_needed_editor
    return data_needed_editor, data_needed_exercise


@app.cell
def _(data_needed_editor, data_needed_exercise):
    data_needed_exercise.judge(data_needed_editor.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Two measured curves

    This project trained two networks on up to a quarter of their data, three seeds for each size. The law is fitted
    here, to the blue dots only; the red diamond is the whole set, which the fit has never seen. Choose a target,
    and read what it needs. Choose a lower one, until the forecast refuses.
    """)
    return


@app.cell
def _(Control, Exploration, learning_curves, stored):
    forecast_moves = Exploration(
        "forecast",
        learning_curves.forecast_figure,
        source=stored.SEVERAL,
        height=720,
        name=Control("data", tuple(learning_curves.MEASURED), start="Fashion-MNIST"),
        target_error=Control("target error", (0.14, 0.13, 0.12, 0.11, 0.1, 0.09, 0.08, 0.06, 0.04), start=0.1),
    )
    forecast_moves_controls = forecast_moves.controls()
    forecast_moves.stage(forecast_moves_controls)
    return forecast_moves, forecast_moves_controls


@app.cell
def _(forecast_moves, forecast_moves_controls):
    forecast_moves.show(forecast_moves_controls.value)
    return


@app.cell
def _(Question):
    examples_question = Question(
        "4.examples",
        "About how many training examples does a test error of 0.1 on Fashion-MNIST need?",
        unit="examples, to 1,000",
    )
    examples_form = examples_question.ask()
    examples_form
    return examples_form, examples_question


@app.cell
def _(examples_form, examples_question):
    examples_question.reply(examples_form.value)
    return


@app.cell
def _(Question):
    refused_question = Question(
        "4.refused",
        "Why does the forecast refuse a target of 0.06 on glyphs?",
        choices=(
            "it is near or below the floor of the fitted law",
            "the error does not fall with the data",
            "there are too few seeds",
        ),
    )
    refused_form = refused_question.ask()
    refused_form
    return refused_form, refused_question


@app.cell
def _(refused_form, refused_question):
    refused_question.reply(refused_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Predicted, then measured

    A forecast from which nobody ever looked back is a guess. Fit only the smallest sizes, predict the error with
    the whole set, and compare with the training that was really made.
    """)
    return


@app.cell
def _(Control, Exploration, learning_curves, stored):
    check_moves = Exploration(
        "check",
        learning_curves.check_figure,
        source=stored.SEVERAL,
        height=560,
        name=Control("data", tuple(learning_curves.MEASURED), start="Fashion-MNIST"),
        sizes=Control("sizes fitted, from the smallest", (4, 5, 6), start=4),
    )
    check_moves_controls = check_moves.controls()
    check_moves.stage(check_moves_controls)
    return check_moves, check_moves_controls


@app.cell
def _(check_moves, check_moves_controls):
    check_moves.show(check_moves_controls.value)
    return


@app.cell
def _(Question):
    interval_question = Question(
        "4.interval",
        "What happens to the interval of the prediction when more sizes are fitted?",
        choices=("it becomes narrower", "it becomes wider", "it stays the same"),
    )
    interval_form = interval_question.ask()
    interval_form
    return interval_form, interval_question


@app.cell
def _(interval_form, interval_question):
    interval_question.reply(interval_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## From data to compute

    Data have to be collected, but they also have to be trained on. More examples are seen in fewer passes; the
    updates grow more slowly than the data. The table follows from the same forecast.
    """)
    return


@app.cell
def _(Control, Exploration, learning_curves, stored):
    needs_moves = Exploration(
        "needs",
        learning_curves.needs,
        source=stored.SEVERAL,
        height=360,
        name=Control("data", tuple(learning_curves.MEASURED), start="Fashion-MNIST"),
    )
    needs_moves_controls = needs_moves.controls()
    needs_moves.stage(needs_moves_controls)
    return needs_moves, needs_moves_controls


@app.cell
def _(needs_moves, needs_moves_controls):
    needs_moves.show(needs_moves_controls.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## The all-reduce

    Now the time. After each backward pass the workers average their gradients. In a **ring** each of n workers
    sends 2 (n - 1)/n times the gradient to its neighbour, in small pieces; so the time hardly depends on n, but on
    the slowest link. Many small messages pay the latency of every hop, and a tree needs fewer of them: the faster
    way counts.
    """)
    return


@app.cell
def _(Control, Exploration, steps):
    all_reduce_moves = Exploration(
        "all-reduce",
        steps.all_reduce_figure,
        height=520,
        megabytes=Control("megabytes of gradients", (0.1, 1.0, 10.0, 68.4, 100.0, 500.0), start=68.4),
    )
    all_reduce_moves_controls = all_reduce_moves.controls()
    all_reduce_moves.stage(all_reduce_moves_controls)
    return all_reduce_moves, all_reduce_moves_controls


@app.cell
def _(all_reduce_moves, all_reduce_moves_controls):
    all_reduce_moves.show(all_reduce_moves_controls.value)
    return


@app.cell
def _(Question):
    ring_question = Question(
        "4.ring",
        "How long does a ring all-reduce of 100 MB take on 8 workers, at 1 GB/s and without latency?",
        unit="ms",
    )
    ring_form = ring_question.ask()
    ring_form
    return ring_form, ring_question


@app.cell
def _(ring_form, ring_question):
    ring_question.reply(ring_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## A step on many workers

    While the backward pass still computes, the gradients of the last layers are already on their way: most of the
    all-reduce is **hidden**. What cannot be hidden lengthens the step, and so does waiting for the slowest worker.
    This is the course's Wide ResNet (17 million parameters, 68 MB of gradients), predicted from its measured speed
    on one GPU and from the specification of each cluster; all clusters get the same GPU here, so that only the
    links differ.
    """)
    return


@app.cell
def _(Control, Exploration, steps):
    step_moves = Exploration(
        "step",
        steps.step_figure,
        height=620,
        cluster=Control("cluster", steps.CLUSTERS, start="ethernet-25"),
        local_batch=Control("local batch", (8, 16, 32, 64, 128, 256), start=32),
    )
    step_moves_controls = step_moves.controls()
    step_moves.stage(step_moves_controls)
    return step_moves, step_moves_controls


@app.cell
def _(step_moves, step_moves_controls):
    step_moves.show(step_moves_controls.value)
    return


@app.cell
def _(Question):
    limit_question = Question(
        "4.limit",
        "What makes a step on 32 workers of `ethernet-25` so much longer than on one?",
        choices=("computing", "the all-reduce over the network", "waiting for the slowest worker"),
    )
    limit_form = limit_question.ask()
    limit_form
    return limit_form, limit_question


@app.cell
def _(limit_form, limit_question):
    limit_question.reply(limit_form.value)
    return


@app.cell
def _(Question):
    scaling_question = Question(
        "4.scaling",
        (
            "A small CNN was measured at 71,149 images/s on one V100 and at 489,929 on eight. What is the"
            " scaling efficiency?"
        ),
        unit="percent, to 0.5",
    )
    scaling_form = scaling_question.ask()
    scaling_form
    return scaling_form, scaling_question


@app.cell
def _(scaling_form, scaling_question):
    scaling_question.reply(scaling_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Goodput

    Images per second are not progress: lab 3 showed that an image in a large batch is worth less. **Goodput** is
    both in one number (Qiao et al. 2021):

    <div style="text-align:center;margin:.6rem 0">goodput = images per second × (φ + <i>B</i>₀) / (φ + <i>B</i>)</div>

    Each line is a number of workers; along it the local batch grows. Too small a batch wastes the processors, too
    large a one wastes the images. The noise scale decides where the top is.
    """)
    return


@app.cell
def _(Control, Exploration, planner, steps):
    goodput_moves = Exploration(
        "goodput",
        planner.batches_figure,
        height=520,
        cluster=Control("cluster", steps.CLUSTERS, start="dgx-a100"),
        noise_scale=Control("noise scale", (250, 500, 1000, 2000, 4000, 8000), start=2000),
    )
    goodput_moves_controls = goodput_moves.controls()
    goodput_moves.stage(goodput_moves_controls)
    return goodput_moves, goodput_moves_controls


@app.cell
def _(goodput_moves, goodput_moves_controls):
    goodput_moves.show(goodput_moves_controls.value)
    return


@app.cell
def _(Question):
    goodput_question = Question(
        "4.goodput",
        (
            "8,000 images/s at a global batch of 1,032, a noise scale of 968, and one worker trains with "
            "32. What is the goodput?"
        ),
        unit="images/s",
    )
    goodput_form = goodput_question.ask()
    goodput_form
    return goodput_form, goodput_question


@app.cell
def _(goodput_form, goodput_question):
    goodput_question.reply(goodput_form.value)
    return


@app.cell
def _(Exercise):
    progress_exercise = Exercise(
        "4.progress",
        "Write the goodput.",
        start=("def goodput(images_per_second, batch, base_batch, noise_scale):\n    return ...\n"),
    )
    progress_editor = progress_exercise.ask()
    progress_editor
    return progress_editor, progress_exercise


@app.cell
def _(progress_editor, progress_exercise):
    progress_exercise.judge(progress_editor.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## The planner

    Everything together: for each number of workers the best local batch, the time to come as far as one worker does
    in 40 epochs, and the cost. Recommended is the fastest plan that costs at most **twice** as much as the cheapest
    one; without a price each worker has to add at least half of the progress that it makes alone.

    The speed of each cluster's GPU relative to the course's is assumed here (V100 1, A100 2.5, H100 6). For real
    money you would measure it: `rueda measure` writes the profile, `rueda plan` does what these sliders do.
    """)
    return


@app.cell
def _(Control, Exploration, planner, steps):
    plan_moves = Exploration(
        "plan",
        planner.plan_figure,
        height=1100,
        cluster=Control("cluster", steps.CLUSTERS, start="dgx-h100"),
        noise_scale=Control("noise scale", (250, 500, 1000, 2000, 4000, 8000), start=500),
    )
    plan_moves_controls = plan_moves.controls()
    plan_moves.stage(plan_moves_controls)
    return plan_moves, plan_moves_controls


@app.cell
def _(plan_moves, plan_moves_controls):
    plan_moves.show(plan_moves_controls.value)
    return


@app.cell
def _(Question):
    workers_question = Question(
        "4.workers",
        "How many workers does the plan recommend on `dgx-h100` at a noise scale of 2,000?",
        unit="workers",
    )
    workers_form = workers_question.ask()
    workers_form
    return workers_form, workers_question


@app.cell
def _(workers_form, workers_question):
    workers_question.reply(workers_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Time is money

    Two of the clusters have a price, of a rented node for an hour. Each dot is a number of workers, from 1 on the
    right to 512 on the left. As long as a node has idle GPUs, which are paid as well, more workers are faster *and*
    cheaper. Beyond one node you buy time: each worker adds less than it costs, and from the noise scale on, much
    less.
    """)
    return


@app.cell
def _(Control, Exploration, planner):
    money_moves = Exploration(
        "money",
        planner.money_figure,
        height=640,
        noise_scale=Control("noise scale", (250, 500, 1000, 2000, 4000, 8000), start=2000),
    )
    money_moves_controls = money_moves.controls()
    money_moves.stage(money_moves_controls)
    return money_moves, money_moves_controls


@app.cell
def _(money_moves, money_moves_controls):
    money_moves.show(money_moves_controls.value)
    return


@app.cell
def _(Question):
    why_not_more_question = Question(
        "4.why-not-more",
        "Why does the plan not recommend the largest number of workers?",
        choices=(
            "there are not enough GPUs",
            "the training would cost more than twice the least",
            "the training would take longer",
        ),
    )
    why_not_more_form = why_not_more_question.ask()
    why_not_more_form
    return why_not_more_form, why_not_more_question


@app.cell
def _(why_not_more_form, why_not_more_question):
    why_not_more_question.reply(why_not_more_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## The recipe, with its reasons

    A plan ends in a recipe: a rate for the larger batch, a warm-up, an optimizer. Each line says why. And a plan
    that does not say what it does not know is not to be trusted with money.
    """)
    return


@app.cell
def _(Control, Exploration, planner, steps):
    advice_moves = Exploration(
        "advice",
        planner.advice,
        height=640,
        cluster=Control("cluster", steps.CLUSTERS, start="dgx-h100"),
        noise_scale=Control("noise scale", (500, 2000, 8000), start=2000),
    )
    advice_moves_controls = advice_moves.controls()
    advice_moves.stage(advice_moves_controls)
    return advice_moves, advice_moves_controls


@app.cell
def _(advice_moves, advice_moves_controls):
    advice_moves.show(advice_moves_controls.value)
    return


@app.cell
def _(Question):
    rate_question = Question(
        "4.rate",
        ("Which learning rate does the planned recipe reach on `dgx-h100` at a noise scale of 2,000, after scaling?"),
        unit="the learning rate",
    )
    rate_form = rate_question.ask()
    rate_form
    return rate_form, rate_question


@app.cell
def _(rate_form, rate_question):
    rate_question.reply(rate_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## From a target to a price

    Now the whole chain: a target error, the data that it needs by the forecast, and the time and the price of
    training on them, on so many workers of a cluster. The learning curve is that of a small CNN and the speed that
    of the Wide ResNet: the notes below the answer say so, and what else is left out.
    """)
    return


@app.cell
def _(Control, Exploration, learning_curves, planner, stored):
    target_moves = Exploration(
        "target",
        planner.target_on_cluster,
        source=stored.source(learning_curves.MEASURED["Fashion-MNIST"]),
        height=420,
        target_error=Control("target error", (0.13, 0.11, 0.1, 0.09, 0.08), start=0.09),
        cluster=Control("cluster", ("dgx-a100", "dgx-h100", "ethernet-25"), start="dgx-h100"),
        workers=Control("workers", (1, 8, 64), start=8),
    )
    target_moves_controls = target_moves.controls()
    target_moves.stage(target_moves_controls)
    return target_moves, target_moves_controls


@app.cell
def _(target_moves, target_moves_controls):
    target_moves.show(target_moves_controls.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Does the prediction hold?

    Scaling efficiencies that others published, predicted from the speed of one device and the specification of the
    machines, by the same model as above. No constant was fitted to a row.
    """)
    return


@app.cell
def _(figure, measured):
    figure("published", measured.published_figure(), source=measured.COMPUTED, height=760)
    return


@app.cell
def _(mo):
    mo.md("""
    ## And on our own machine?

    Throughput on one and on two workers, predicted from measurements at *other* batch sizes, then measured. The
    clock counts either wall time, which other work on the machine disturbs, or processor time.
    """)
    return


@app.cell
def _(Control, Exploration, measured, stored):
    benchmark_moves = Exploration(
        "benchmark",
        measured.benchmark_figure,
        source=stored.source(measured.STORED),
        height=760,
        clock=Control("clock", ("wall", "processor")),
    )
    benchmark_moves_controls = benchmark_moves.controls()
    benchmark_moves.stage(benchmark_moves_controls)
    return benchmark_moves, benchmark_moves_controls


@app.cell
def _(benchmark_moves, benchmark_moves_controls):
    benchmark_moves.show(benchmark_moves_controls.value)
    return


@app.cell
def _(Question):
    off_question = Question(
        "4.off",
        "By how much is the worst of these predictions off, by the wall clock?",
        unit="percent, to 0.3",
    )
    off_form = off_question.ask()
    off_form
    return off_form, off_question


@app.cell
def _(off_form, off_question):
    off_question.reply(off_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## What to take away

    Measure a little, and predict the rest: a learning curve on a quarter of the data, a step on one device, the
    noise scale of one short training. Believe intervals, not points. Prefer a plan that refuses to answer to one
    that always knows. Then look back: compare each run with its plan, `rueda plan profile.json --from-run
    runs/NAME`.

    ## References

    - J. Hestness et al. 2017, *Deep Learning Scaling is Predictable, Empirically*, arXiv 1712.00409
    - S. McCandlish et al. 2018, *An Empirical Model of Large-Batch Training*, arXiv 1812.06162
    - A. Qiao et al. 2021, *Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning*, OSDI
    - P. Patarasuk, X. Yuan 2009, *Bandwidth optimal all-reduce algorithms for clusters of workstations*
    - P. Goyal et al. 2017, *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, arXiv 1706.02677
    - A. Krizhevsky 2014, *One weird trick for parallelizing convolutional neural networks*, arXiv 1404.5997
    - T. Kurth et al. 2018, *Exascale Deep Learning for Climate Analytics*, arXiv 1810.01993
    """)
    return


if __name__ == "__main__":
    app.run()
