# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""Lab 3: scaling the batch."""

import marimo

app = marimo.App(app_title="Rueda, lab 3: scaling the batch", width="medium")


@app.cell
def _():
    import marimo as mo

    from rueda.labs import stored
    from rueda.labs.exercises import Exercise
    from rueda.labs.explore import Control, Exploration, figure
    from rueda.labs.lab_3 import minima, noise, rates, regimes, technique_tables, techniques, throughput
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
        minima,
        noise,
        rates,
        regimes,
        stored,
        technique_tables,
        techniques,
        throughput,
    )


@app.cell
def _(mo):
    mo.md("""
    # Scaling the batch

    More workers mean a larger global batch: each takes its own examples, and one update is made from all of them.
    The throughput rises. Does the accuracy stay?

    A lecture trained one small network on CIFAR-10 for 12 epochs, on one GPU and on eight, with 512 images a GPU in
    each batch. Eight GPUs were six times as fast, and lost more than a third of the accuracy. Then techniques were
    switched on, and the last row ended *above* one GPU. This lab takes that table apart: first what a larger batch
    does, then each technique on its own, then what the table really compared.
    """)
    return


@app.cell
def _(figure, technique_tables):
    figure("published", technique_tables.published_table(), source=technique_tables.AS_PUBLISHED, height=320)
    return


@app.cell
def _(Question):
    updates_question = Question(
        "3.updates",
        (
            "CIFAR-10 has 50,000 training images. How many updates do 8 workers with a batch of 512 each "
            "make in 12 epochs, if the incomplete last batch of an epoch is left out?"
        ),
        unit="updates",
    )
    updates_form = updates_question.ask()
    updates_form
    return updates_form, updates_question


@app.cell
def _(updates_form, updates_question):
    updates_question.reply(updates_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Images per second

    A processor that gets one image at a time is idle most of the time: starting an operation costs as much as
    computing it. A larger local batch fills it, until it is busy all the time. From there a larger batch takes
    longer in proportion, and nothing is won. This is the course's network on its GPU.
    """)
    return


@app.cell
def _(figure, throughput):
    figure("gpu", throughput.published_figure(), source=throughput.PUBLISHED, height=480)
    return


@app.cell
def _(Question):
    saturation_question = Question(
        "3.saturation",
        (
            "Throughput **saturates** at the smallest batch that reaches 95 % of the highest throughput. "
            "At which batch does this GPU saturate?"
        ),
        unit="images",
    )
    saturation_form = saturation_question.ask()
    saturation_form
    return saturation_form, saturation_question


@app.cell
def _(saturation_form, saturation_question):
    saturation_question.reply(saturation_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Your machine

    The same measurement here, with a network small enough for a laptop: 2,000 images of 14 x 14 pixels. Choose a
    wider network: there is more to compute for each image, so fewer images keep the processor busy.
    """)
    return


@app.cell
def _(Control, Exploration, throughput):
    speed_moves = Exploration(
        "speed",
        throughput.measured_figure,
        height=480,
        width=Control("channels of the first layer", (4, 8, 16), start=8),
    )
    speed_moves_controls = speed_moves.controls()
    speed_moves.stage(speed_moves_controls)
    return speed_moves, speed_moves_controls


@app.cell
def _(speed_moves, speed_moves_controls):
    speed_moves.show(speed_moves_controls.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Three regimes

    Throughput is not progress. What counts is how many updates the training needs with that batch. Shallue et al.
    2018 found the same shape everywhere: at first twice the batch halves the updates (**perfect scaling**), then it
    saves less (**diminishing returns**), at last it saves none (**maximal parallelism**). McCandlish et al. 2018
    give the curve:

    <div style="text-align:center;margin:.6rem 0">S = S<sub>min</sub> (1 + B<sub>crit</sub> / B)</div>

    At the **critical batch** <i>B</i><sub>crit</sub> the training makes twice the fewest updates, and sees twice
    the fewest examples.
    """)
    return


@app.cell
def _(Control, Exploration, regimes):
    regimes_moves = Exploration(
        "regimes",
        regimes.curve_figure,
        height=620,
        critical_batch=Control("critical batch", (64, 128, 256, 512, 1024, 2048), start=512),
        batch=Control("your batch", regimes.CURVE_BATCHES, start=512),
    )
    regimes_moves_controls = regimes_moves.controls()
    regimes_moves.stage(regimes_moves_controls)
    return regimes_moves, regimes_moves_controls


@app.cell
def _(regimes_moves, regimes_moves_controls):
    regimes_moves.show(regimes_moves_controls.value)
    return


@app.cell
def _(Question):
    regime_question = Question(
        "3.regime",
        "With a critical batch of 512, in which regime is a batch of 8,192?",
        choices=("perfect scaling", "diminishing returns", "maximal parallelism"),
    )
    regime_form = regime_question.ask()
    regime_form
    return regime_form, regime_question


@app.cell
def _(regime_form, regime_question):
    regime_question.reply(regime_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Each batch size wants its own rate

    The updates that a batch size needs can only be compared if each has its best learning rate. So for every batch
    size several rates are tried. Here the small task is trained, on your machine, until it reaches 75 % test
    accuracy. Move the slider, and wait a few seconds: six trainings are made for each batch size.
    """)
    return


@app.cell
def _(Control, Exploration, regimes):
    tuning_moves = Exploration(
        "tuning",
        regimes.tuning_figure,
        height=620,
        batch=Control("batch size", regimes.BATCHES, start=128, export=(32, 128)),
    )
    tuning_moves_controls = tuning_moves.controls()
    tuning_moves.stage(tuning_moves_controls)
    return tuning_moves, tuning_moves_controls


@app.cell
def _(tuning_moves, tuning_moves_controls):
    tuning_moves.show(tuning_moves_controls.value)
    return


@app.cell
def _(Question):
    tuning_question = Question(
        "3.tuning",
        "What happens to the best rate when the batch grows from 8 to 128?",
        choices=("it rises", "it falls", "it stays the same"),
    )
    tuning_form = tuning_question.ask()
    tuning_form
    return tuning_form, tuning_question


@app.cell
def _(tuning_form, tuning_question):
    tuning_question.reply(tuning_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## The critical batch, measured

    This project tuned the rate at five batch sizes on Fashion-MNIST and counted the updates to 82 % test accuracy.
    The curve is fitted anew while you move the slider: from few batch sizes, or from batch sizes on one side of the
    bend, the critical batch is hardly known.
    """)
    return


@app.cell
def _(Control, Exploration, regimes, stored):
    critical_moves = Exploration(
        "critical",
        regimes.refitted,
        source=stored.source(regimes.STORED),
        height=640,
        num_batches=Control("batch sizes used, from the smallest", (3, 4, 5), start=5),
    )
    critical_moves_controls = critical_moves.controls()
    critical_moves.stage(critical_moves_controls)
    return critical_moves, critical_moves_controls


@app.cell
def _(critical_moves, critical_moves_controls):
    critical_moves.show(critical_moves_controls.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## The gradient noise scale

    Tuning at many batch sizes is dear. There is a cheaper way to the same number. The gradient of a batch is the
    true gradient **G** plus noise, whose variance falls with the batch: S/B. Where the noise is as large as the
    signal, more examples begin to be wasted. That batch is the **noise scale**:

    <div style="text-align:center;margin:.6rem 0"><i>B</i><sub>noise</sub> = <i>S</i> / |<b>G</b>|²</div>

    Data-parallel workers get it for nothing: each has its own gradient before the average, and all have the average
    after it. With n workers of b examples, S = b (Σ|g<sub>i</sub>|² - n|g|²) / (n - 1) and |G|² = |g|² - S / (n b).
    """)
    return


@app.cell
def _(Question):
    noise_scale_question = Question(
        "3.noise-scale",
        (
            "Two workers with 8 examples each measure |g₁|² = |g₂|² = 5, and their average has |g|² = 3. "
            "What is the noise scale?"
        ),
        unit="examples",
    )
    noise_scale_form = noise_scale_question.ask()
    noise_scale_form
    return noise_scale_form, noise_scale_question


@app.cell
def _(noise_scale_form, noise_scale_question):
    noise_scale_question.reply(noise_scale_form.value)
    return


@app.cell
def _(Exercise):
    estimate_exercise = Exercise(
        "3.estimate",
        (
            "Write the estimate for any number of workers. `sum_of_squares` is Σ|gᵢ|², `mean_square` is "
            "|g|², and `batch` is the batch of one worker."
        ),
        start=(
            "def noise_scale(sum_of_squares, mean_square, workers, batch):\n"
            "    S = ...\n"
            "    G = ...\n"
            "    return S / G\n"
        ),
    )
    estimate_editor = estimate_exercise.ask()
    estimate_editor
    return estimate_editor, estimate_exercise


@app.cell
def _(estimate_editor, estimate_exercise):
    estimate_exercise.judge(estimate_editor.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## It grows while you train

    At first all examples agree on where to go. Later they disagree, the true gradient shrinks, and the noise scale
    grows, often tenfold. So a training can bear a larger batch at its end than at its beginning. Here the small
    task is trained with the noise scale measured at every second update.
    """)
    return


@app.cell
def _(Control, Exploration, noise):
    noise_moves = Exploration(
        "noise",
        noise.measured_figure,
        height=480,
        batch=Control("batch", (8, 16, 32, 64), start=16, export=(16, 64)),
    )
    noise_moves_controls = noise_moves.controls()
    noise_moves.stage(noise_moves_controls)
    return noise_moves, noise_moves_controls


@app.cell
def _(noise_moves, noise_moves_controls):
    noise_moves.show(noise_moves_controls.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## The same on Fashion-MNIST

    Over five epochs the noise scale grows from about 70 examples after 250 updates to about 350. The critical batch
    that was measured by tuning, some screens above, lies near 66, somewhere between 32 and 143: of the same order,
    but five batch sizes and three seeds cannot say more.
    """)
    return


@app.cell
def _(figure, noise, stored):
    figure("noise-stored", noise.stored_figure(), source=stored.source(noise.STORED), height=480)
    return


@app.cell
def _(mo):
    mo.md("""
    ## What an example is worth

    From the noise scale φ follows how much an example in a large batch contributes, compared with one in the batch
    B₀ with which one worker trains:

    <div style="text-align:center;margin:.6rem 0">worth = (φ + <i>B</i>₀) / (φ + <i>B</i>)</div>

    Below the noise scale more workers save time almost in proportion. Above it they mostly compute what the others
    have computed already.
    """)
    return


@app.cell
def _(Control, Exploration, noise):
    worth_moves = Exploration(
        "worth",
        noise.efficiency_figure,
        height=640,
        noise_scale=Control("noise scale", (64, 128, 256, 512, 1024, 2048, 4096, 8192), start=1024),
    )
    worth_moves_controls = worth_moves.controls()
    worth_moves.stage(worth_moves_controls)
    return worth_moves, worth_moves_controls


@app.cell
def _(worth_moves, worth_moves_controls):
    worth_moves.show(worth_moves_controls.value)
    return


@app.cell
def _(Question):
    worth_question = Question(
        "3.worth",
        (
            "One worker trains with a batch of 32. At a noise scale of 968, how much is an example worth "
            "in a global batch of 1,032?"
        ),
        unit="percent",
    )
    worth_form = worth_question.ask()
    worth_form
    return worth_form, worth_question


@app.cell
def _(worth_form, worth_question):
    worth_question.reply(worth_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## The generalisation gap

    Now train. One worker makes batches of 16; several workers have 16 each, for the same four epochs, and nothing
    else is changed. The workers are **rehearsed**: one process computes what so many would, with their own shards
    of the data.

    This is what happened in the lecture's second row. It is often called the generalisation gap, but look at the
    *training* accuracy, too: a network that has not learnt the training images has nothing to generalise.
    """)
    return


@app.cell
def _(Control, Exploration, techniques):
    gap_moves = Exploration(
        "gap",
        techniques.gap_figure,
        height=700,
        workers=Control("workers", (1, 2, 4, 8, 16), start=8),
    )
    gap_moves_controls = gap_moves.controls()
    gap_moves.stage(gap_moves_controls)
    return gap_moves, gap_moves_controls


@app.cell
def _(gap_moves, gap_moves_controls):
    gap_moves.show(gap_moves_controls.value)
    return


@app.cell
def _(Question):
    gap_question = Question(
        "3.gap",
        "What do 8 workers have less of than one, when nothing else is changed?",
        choices=("images", "updates", "epochs", "parameters"),
    )
    gap_form = gap_question.ask()
    gap_form
    return gap_form, gap_question


@app.cell
def _(gap_form, gap_question):
    gap_question.reply(gap_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Flat and sharp minima

    Keskar et al. 2016 trained with small and large batches and found that large ones end in **sharp** minima, where
    the loss rises steeply on all sides, and that these generalise worse. Sharpness is measured by the largest
    eigenvalue of the Hessian. This project measured it on the networks of its own studies: is it so?
    """)
    return


@app.cell
def _(Control, Exploration, minima, stored):
    sharp_moves = Exploration(
        "sharp",
        minima.curvature_figure,
        source=stored.SEVERAL,
        height=560,
        task=Control("networks", tuple(minima.TASKS)),
    )
    sharp_moves_controls = sharp_moves.controls()
    sharp_moves.stage(sharp_moves_controls)
    return sharp_moves, sharp_moves_controls


@app.cell
def _(sharp_moves, sharp_moves_controls):
    sharp_moves.show(sharp_moves_controls.value)
    return


@app.cell
def _(Question):
    sharp_question = Question(
        "3.sharp",
        "On CIFAR-10, which network is the **flattest**?",
        choices=(
            "one worker, the reference",
            "8 workers with batch norm, among the best",
            "64 naive workers, the least accurate",
        ),
    )
    sharp_form = sharp_question.ask()
    sharp_form
    return sharp_form, sharp_question


@app.cell
def _(sharp_form, sharp_question):
    sharp_question.reply(sharp_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## From one minimum to the other

    This is the straight line between two networks trained here, one worker's at 0 and that of eight workers at 1. A
    wide valley on one side and a narrow one on the other would be Keskar's picture. Compare how low each of them
    lies first.
    """)
    return


@app.cell
def _(Control, Exploration, minima):
    between_moves = Exploration(
        "between",
        minima.line_figure,
        height=480,
        large=Control("eight workers", ("naive", "sqrt-scaling", "batch-growth")),
    )
    between_moves_controls = between_moves.controls()
    between_moves.stage(between_moves_controls)
    return between_moves, between_moves_controls


@app.cell
def _(between_moves, between_moves_controls):
    between_moves.show(between_moves_controls.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## A longer step: rate scaling

    Eight workers make an eighth of the updates. If the small steps pointed in the same direction, one step eight
    times as long would replace eight of them: multiply the rate by k (the **linear** rule, Goyal et al. 2017). If
    the noise is to stay what it was, multiply by √k (**sqrt**, Krizhevsky 2014, Hoffer et al. 2017). At the start
    the network changes fast and a long step is dangerous, so the rate is raised gradually, over the first epochs:
    **warm-up**.

    These are the rules for ResNet-50 on ImageNet, with a batch of 256 on one server and a rate of 0.1.
    """)
    return


@app.cell
def _(Control, Exploration, rates):
    rates_moves = Exploration(
        "rates",
        rates.schedule_figure,
        height=520,
        workers=Control("servers", rates.SCALES, start=8),
        rule=Control("rule", rates.RULE_NAMES, start="linear"),
        warmup_epochs=Control("warm-up, epochs", (0, 2, 5, 10), start=5),
    )
    rates_moves_controls = rates_moves.controls()
    rates_moves.stage(rates_moves_controls)
    return rates_moves, rates_moves_controls


@app.cell
def _(rates_moves, rates_moves_controls):
    rates_moves.show(rates_moves_controls.value)
    return


@app.cell
def _(Question):
    rate_question = Question(
        "3.rate",
        "Goyal et al. train ResNet-50 with a batch of 8,192. Which rate does the linear rule give?",
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
def _(Exercise):
    warm_up_exercise = Exercise(
        "3.warm-up",
        (
            "Write the rate at a step: the linear rule for `workers` workers, with a gradual warm-up over"
            " `warmup_steps` steps that starts at `base_rate`."
        ),
        start=("def rate_at(step, base_rate, workers, warmup_steps):\n    return ...\n"),
    )
    warm_up_editor = warm_up_exercise.ask()
    warm_up_editor
    return warm_up_editor, warm_up_exercise


@app.cell
def _(warm_up_editor, warm_up_exercise):
    warm_up_exercise.judge(warm_up_editor.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Rate scaling and warm-up, on and off

    Eight workers on the small task. Try the linear rule, with and without warm-up: without batch norm eight times
    the rate is too much for this network, and warm-up does not save it. Try √8. Then switch batch norm on.
    """)
    return


@app.cell
def _(Control, Exploration, rates):
    scaled_moves = Exploration(
        "scaled",
        rates.trained_figure,
        height=760,
        rule=Control("rule", rates.RULE_NAMES, start="sqrt"),
        warmup_epochs=Control("warm-up, epochs", (0, 1), start=1),
        batch_norm=Control("batch norm", ("off", "on")),
    )
    scaled_moves_controls = scaled_moves.controls()
    scaled_moves.stage(scaled_moves_controls)
    return scaled_moves, scaled_moves_controls


@app.cell
def _(scaled_moves, scaled_moves_controls):
    scaled_moves.show(scaled_moves_controls.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Batch norm and ghost batch norm

    Batch norm subtracts the mean of a batch from each feature and divides by its standard deviation; the network
    bears a larger rate then. In data parallelism each worker normalises by the statistics of its **own** batch.
    These are noisy, and that noise is useful: with a large local batch it would vanish. **Ghost batch norm**
    (Hoffer et al. 2017) keeps it by normalising small parts of the local batch separately.

    The fair control is one worker *with* batch norm: it shows what batch norm wins without any large batch.
    """)
    return


@app.cell
def _(Control, Exploration, techniques):
    norms_moves = Exploration(
        "norms",
        techniques.normalisation,
        height=820,
        norm=Control("normalisation", tuple(techniques.NORMS), start="batch norm", export=techniques.EXPORTED_NORMS),
        rate=Control("rate", ("unchanged", "x 8 after a warm-up")),
    )
    norms_moves_controls = norms_moves.controls()
    norms_moves.stage(norms_moves_controls)
    return norms_moves, norms_moves_controls


@app.cell
def _(norms_moves, norms_moves_controls):
    norms_moves.show(norms_moves_controls.value)
    return


@app.cell
def _(Question):
    ghost_question = Question(
        "3.ghost",
        "What is normalised together in ghost batch norm?",
        choices=(
            "the batches of all workers",
            "each ghost batch by its own mean and variance",
            "each image by its own mean and variance",
        ),
    )
    ghost_form = ghost_question.ask()
    ghost_form
    return ghost_form, ghost_question


@app.cell
def _(ghost_form, ghost_question):
    ghost_question.reply(ghost_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Noise, longer training, a growing batch

    Three ways to give back what a large batch takes away.

    - **Gradient noise** (Hoffer et al. 2017): the loss of each example is multiplied by a random number with mean 1
      and standard deviation σ, so that the update is as noisy as with a small batch.
    - **Longer training** (the same paper): as many updates as one worker, so k times the epochs. It costs k times
      as much.
    - **Growing the batch** (Smith et al. 2017): start with one worker's batch, and enlarge it where one would
      otherwise lower the rate; the noise scale grows meanwhile.
    """)
    return


@app.cell
def _(Control, Exploration, techniques):
    updates_moves = Exploration(
        "updates",
        techniques.on_and_off,
        height=1000,
        technique=Control("technique", techniques.UPDATES, start="batch-growth"),
        batch_norm=Control("batch norm", ("off", "on"), export=("off",)),
    )
    updates_moves_controls = updates_moves.controls()
    updates_moves.stage(updates_moves_controls)
    return updates_moves, updates_moves_controls


@app.cell
def _(updates_moves, updates_moves_controls):
    updates_moves.show(updates_moves_controls.value)
    return


@app.cell
def _(Question):
    sigma_question = Question(
        "3.sigma",
        (
            "The batch grows from 16 to 128 at an unchanged rate. Which σ gives the update the covariance"
            " of the small batch?"
        ),
        unit="two decimals",
    )
    sigma_form = sigma_question.ask()
    sigma_form
    return sigma_form, sigma_question


@app.cell
def _(sigma_form, sigma_question):
    sigma_question.reply(sigma_form.value)
    return


@app.cell
def _(Question):
    growth_question = Question(
        "3.growth",
        (
            "With `batch-growth` on 2,000 images, the global batch is 16, 32, 64 and 128 in the four "
            "epochs. How many updates is that in all?"
        ),
        unit="updates",
    )
    growth_form = growth_question.ask()
    growth_form
    return growth_form, growth_question


@app.cell
def _(growth_form, growth_question):
    growth_question.reply(growth_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## A rate for each layer: LARS, LARC, LAMB, NovoGrad

    With one rate for all layers, the layer with the largest gradient for its weights decides how long a step may
    be. LARS (You et al. 2017) gives each layer a **local rate**

    <div style="text-align:center;margin:.6rem 0">λ = η |<i>w</i>| / |<i>g</i>|</div>

    so that every layer moves by the same fraction of its weights. LARC limits the local rate to the global one,
    LAMB does the same to Adam's step (You et al. 2019), and NovoGrad divides the gradient of each layer by its size
    (Ginsburg et al. 2019). Here each has one fixed rate that was not tuned to this network. A control may fail,
    too: LARC's rate is made for large batches, and one worker with it ends at chance.
    """)
    return


@app.cell
def _(Control, Exploration, techniques):
    layers_moves = Exploration(
        "layers",
        techniques.on_and_off,
        height=880,
        technique=Control("optimizer", techniques.LAYERWISE, start="lars"),
        batch_norm=Control("batch norm", ("off", "on"), export=("off",)),
    )
    layers_moves_controls = layers_moves.controls()
    layers_moves.stage(layers_moves_controls)
    return layers_moves, layers_moves_controls


@app.cell
def _(layers_moves, layers_moves_controls):
    layers_moves.show(layers_moves_controls.value)
    return


@app.cell
def _(Question):
    layer_question = Question(
        "3.layer",
        "Two layers have weights of the same norm. Which of them gets the larger local rate?",
        choices=("the one with the larger gradient", "the one with the smaller gradient", "both get the same"),
    )
    layer_form = layer_question.ask()
    layer_form
    return layer_form, layer_question


@app.cell
def _(layer_form, layer_question):
    layer_question.reply(layer_form.value)
    return


@app.cell
def _(Exercise):
    local_rate_exercise = Exercise(
        "3.local-rate",
        "Write the local rate of LARS for a layer; `trust` is η.",
        start=("def local_rate(weights, gradient, trust):\n    return ...\n"),
    )
    local_rate_editor = local_rate_exercise.ask()
    local_rate_editor
    return local_rate_editor, local_rate_exercise


@app.cell
def _(local_rate_editor, local_rate_exercise):
    local_rate_exercise.judge(local_rate_editor.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## The technique table

    Small experiments show what a technique does; they do not show what it does on your task. Here are five tables
    of this project, with sharded data, test accuracy, and each factor on its own. The same technique is first in
    one table and last in another: at 64 workers a rate 64 times as high ends at chance.
    """)
    return


@app.cell
def _(Control, Exploration, stored, technique_tables):
    tables_moves = Exploration(
        "tables",
        technique_tables.table_figure,
        source=stored.SEVERAL,
        height=860,
        table=Control("table", tuple(technique_tables.TABLES)),
    )
    tables_moves_controls = tables_moves.controls()
    tables_moves.stage(tables_moves_controls)
    return tables_moves, tables_moves_controls


@app.cell
def _(tables_moves, tables_moves_controls):
    tables_moves.show(tables_moves_controls.value)
    return


@app.cell
def _(Question):
    table_question = Question(
        "3.table",
        "On CIFAR-10 with 8 workers, which of these four rows keeps the most test accuracy?",
        choices=("batch-norm", "linear-warmup", "lamb", "gradient-noise"),
    )
    table_form = table_question.ask()
    table_form
    return table_form, table_question


@app.cell
def _(table_form, table_question):
    table_question.reply(table_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## What the published table compared

    The scripts behind the lecture's table are public. What they really did:

    - Every figure is **training** accuracy; no validation data were passed.
    - The first two rows have **no batch norm**, all others have it. That one change, and no technique for large
      batches, explains most of the table.
    - The rows *batch norm* and *warm-up* came from the same script, run twice: 64 and 65 %.
    - All workers used one seed and did not shard the data, so all drew the **same batches**: eight workers were
      really a batch of 512, for an eighth of the updates. Only the LAMB script had distinct batches.
    """)
    return


@app.cell
def _(figure, stored, technique_tables):
    figure(
        "beside",
        [technique_tables.beside_ours(), technique_tables.effects()],
        source=stored.source(technique_tables.TABLES["CIFAR-10, 8 workers"]),
        height=640,
    )
    return


@app.cell
def _(Question):
    confounded_question = Question(
        "3.confounded",
        (
            "Somebody concludes from the published table: “LAMB gains 17 points over batch norm.” Which "
            "of these is **no** reason to doubt it?"
        ),
        choices=(
            "the figures are training accuracy",
            "only the LAMB script gave its workers different batches",
            "a step of LAMB takes longer than one of Adam",
            "each row was run once",
        ),
    )
    confounded_form = confounded_question.ask()
    confounded_form
    return confounded_form, confounded_question


@app.cell
def _(confounded_form, confounded_question):
    confounded_question.reply(confounded_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## What to take away

    Measure the noise scale before you add workers; below it, more workers are nearly free. Keep the updates in
    mind, not the epochs. Change one factor at a time, keep a control of one worker with the same change, and look
    at test data. On your own task, one command does what this lab did:

    `rueda study mytask.py --workers 8 --seeds 3`

    Go on with lab 4, which puts throughput and worth together and adds time and money.

    ## References

    - N. S. Keskar et al. 2016, *On Large-Batch Training for Deep Learning: Generalization Gap and Sharp Minima*,
      arXiv 1609.04836
    - P. Goyal et al. 2017, *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, arXiv 1706.02677
    - A. Krizhevsky 2014, *One weird trick for parallelizing convolutional neural networks*, arXiv 1404.5997
    - E. Hoffer, I. Hubara, D. Soudry 2017, *Train longer, generalize better*, arXiv 1705.08741
    - S. L. Smith et al. 2017, *Don't Decay the Learning Rate, Increase the Batch Size*, arXiv 1711.00489
    - Y. You, I. Gitman, B. Ginsburg 2017, *Large Batch Training of Convolutional Networks* (LARS), arXiv 1708.03888
    - Y. You et al. 2019, *Large Batch Optimization for Deep Learning: Training BERT in 76 minutes* (LAMB), arXiv
      1904.00962
    - B. Ginsburg et al. 2019, *Stochastic Gradient Methods with Layer-wise Adaptive Moments* (NovoGrad), arXiv
      1905.11286
    - S. McCandlish et al. 2018, *An Empirical Model of Large-Batch Training*, arXiv 1812.06162
    - C. J. Shallue et al. 2018, *Measuring the Effects of Data Parallelism on Neural Network Training*, arXiv
      1811.03600
    """)
    return


if __name__ == "__main__":
    app.run()
