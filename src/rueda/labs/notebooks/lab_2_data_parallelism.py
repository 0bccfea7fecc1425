# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""Lab 2: data parallelism."""

import marimo

app = marimo.App(app_title="Rueda, lab 2: data parallelism", width="medium")


@app.cell
def _():
    import marimo as mo

    from rueda.labs.exercises import Exercise
    from rueda.labs.explore import Control, Exploration, figure
    from rueda.labs.questions import Question
    from rueda.labs.showing import Code, Source, Text, begin

    begin()
    return Code, Control, Exercise, Exploration, Question, Source, Text, figure, mo


@app.cell
def _(mo):
    mo.md("""
    # Data parallelism

    One worker is too slow, so you take two. What do they have to tell each other, when, and what must a script do so
    that two workers train **one** model?

    This lab starts real processes on your machine. First it measures, on two of them, what travels (the figures appear
    when that is done, after some ten seconds, or a minute on a busy machine) and how long each step of a training
    iteration takes. Then it takes a serial script and makes it parallel, one step at a time; each step is run on two
    processes and audited by `rueda check`.
    """)
    return


@app.cell
def _(mo):
    from rueda.labs.lab_2.measurements import measured

    found = measured()
    mo.md(f"Two processes were started and measured, with {found.threads} thread{'s' * (found.threads > 1)} each.")
    return (found,)


@app.cell
def _(mo):
    mo.md("""
    ## Two ways to divide a training

    Divide the **data**: every worker has the whole model and reads different examples. The workers average their
    *gradients*. Or divide the **model**: all workers see the same examples, and each holds a part of the weights. Then
    *activations* travel. A *pipeline* gives whole layers to each worker; *tensor parallelism* cuts through every layer.

    Here a network of two layers was trained for one step in each way, on two processes that talk over TCP. The bytes
    are those of the tensors, and, next to them, what the operating system saw leave the process.
    """)
    return


@app.cell
def _(Control, Exploration, found):
    from rueda.labs.lab_2.figures import traffic_plot

    traffic = Exploration(
        "traffic",
        lambda batch, width: traffic_plot(found, batch, width),
        height=640,
        batch=Control("batch", sorted({one.batch for one in found.traffic}), start=64),
        width=Control("neurons in a layer", sorted({one.width for one in found.traffic}), start=128),
    )
    traffic_controls = traffic.controls()
    traffic.stage(traffic_controls)
    return traffic, traffic_controls


@app.cell
def _(traffic, traffic_controls):
    traffic.show(traffic_controls.value)
    return


@app.cell
def _(Question):
    doubled_question = Question(
        "2.doubled-batch",
        "You double the batch. Which bytes double?",
        choices=(
            "those of data parallelism",
            "those of pipeline and tensor parallelism",
            "those of all three",
            "none of them",
        ),
    )
    doubled_form = doubled_question.ask()
    doubled_form
    return doubled_form, doubled_question


@app.cell
def _(doubled_form, doubled_question):
    doubled_question.reply(doubled_form.value)
    return


@app.cell
def _(Question):
    crossing_question = Question(
        "2.crossing",
        "With layers of **256** neurons: at which batch does a pipeline send as many bytes as data parallelism?",
        unit="examples",
    )
    crossing_form = crossing_question.ask()
    crossing_form
    return crossing_form, crossing_question


@app.cell
def _(crossing_form, crossing_question):
    crossing_question.reply(crossing_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## A pipeline, and its bubble

    In a pipeline the second worker has nothing to do until the first has finished its layer, and on the way back it is
    the other way round. This idle time is called the *bubble*. The cure is to cut the batch into *micro-batches*:
    while worker 1 computes with the first of them, worker 0 already works on the second.

    Move the slider: these are measured passes of two processes. Many small micro-batches have a cost of their own,
    since each one is sent by itself and small matrices are multiplied less efficiently; and if other programs take a
    core for a moment, both workers wait, since every pass needs the one before it.
    """)
    return


@app.cell
def _(Control, Exploration, found):
    from rueda.labs.lab_2.figures import pipeline_plot

    pipeline = Exploration(
        "pipeline",
        lambda parts: pipeline_plot(found, parts),
        height=380,
        parts=Control("micro-batches", [run.micro_batches for run in found.pipelines]),
    )
    pipeline_controls = pipeline.controls()
    pipeline.stage(pipeline_controls)
    return pipeline, pipeline_controls


@app.cell
def _(pipeline, pipeline_controls):
    pipeline.show(pipeline_controls.value)
    return


@app.cell
def _(Question):
    bubble_question = Question(
        "2.bubble",
        "A pipeline has **4** stages that take equally long, and the batch is cut into **8** micro-batches. "
        "For which share of the time are the workers idle?",
        unit="%, to 1",
    )
    bubble_form = bubble_question.ask()
    bubble_form
    return bubble_form, bubble_question


@app.cell
def _(bubble_form, bubble_question):
    bubble_question.reply(bubble_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Fifteen steps of an iteration

    Everything from here on is data parallelism. What happens between two updates of the weights? A network of three
    layers, trained on images that lie in a file, needs fifteen steps from reading the data to returning control.

    Move the step from 1 to 16 and watch one iteration pass, as it was measured on your machine. Then choose two
    workers: one step is new, between the backward pass and the update.
    """)
    return


@app.cell
def _(Control, Exploration, found):
    from rueda.labs.lab_2.figures import ORDER, timeline

    iteration = Exploration(
        "iteration",
        lambda workers, step: timeline(found, workers, step),
        height=660,
        workers=Control("workers", (1, 2), start=1),
        step=Control("step", range(1, len(ORDER) + 1), start=1),
    )
    iteration_controls = iteration.controls()
    iteration.stage(iteration_controls)
    return iteration, iteration_controls


@app.cell
def _(iteration, iteration_controls):
    iteration.show(iteration_controls.value)
    return


@app.cell
def _(Question):
    where_question = Question(
        "2.average-where",
        "Where must the average of the gradients be complete?",
        choices=(
            "before the forward pass (6)",
            "after the loss (9), before the backward pass (10)",
            "after the backward pass (12), before the update (13)",
            "after the update (14)",
        ),
    )
    where_form = where_question.ask()
    where_form
    return where_form, where_question


@app.cell
def _(where_form, where_question):
    where_question.reply(where_form.value)
    return


@app.cell
def _(Question):
    slow_question = Question(
        "2.slow-worker",
        "The backward pass of one of two workers takes 20 ms longer. Who waits?",
        choices=(
            "nobody",
            "the slow worker itself, for 20 ms in each iteration",
            "the other worker, for 20 ms in each iteration",
            "the other worker, for 10 ms in each iteration",
        ),
    )
    slow_form = slow_question.ask()
    slow_form
    return slow_form, slow_question


@app.cell
def _(slow_form, slow_question):
    slow_question.reply(slow_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## How much is averaged, and how long it takes

    Each weight has one gradient, a number of 4 bytes. In a *ring all-reduce* the gradients are cut into as many parts
    as there are workers; the parts go round twice, once to be added up and once to be handed out. The time is a
    latency plus the bytes divided by a bandwidth. Both were measured here, between two processes of your machine;
    two machines have to use a network, which is slower.
    """)
    return


@app.cell
def _(figure, found):
    from rueda.labs.lab_2.figures import exchange

    figure("exchange", exchange(found))
    return


@app.cell
def _(Question):
    megabytes_question = Question(
        "2.gradient-megabytes",
        "The network of the fifteen steps has layers of 784 × 512, 512 × 512 and 512 × 10 weights, and biases. "
        "How many megabytes of gradients does a worker contribute in an iteration?",
        unit="MB, to 0.05",
    )
    megabytes_form = megabytes_question.ask()
    megabytes_form
    return megabytes_form, megabytes_question


@app.cell
def _(megabytes_form, megabytes_question):
    megabytes_question.reply(megabytes_form.value)
    return


@app.cell
def _(Exercise):
    sent_exercise = Exercise(
        "2.sent",
        "Write how many bytes **each** worker sends in a ring all-reduce of the gradients of a model, 4 bytes each.",
        start="def sent(parameters, workers):\n    return ...\n",
    )
    sent_editor = sent_exercise.ask()
    sent_editor
    return sent_editor, sent_exercise


@app.cell
def _(sent_editor, sent_exercise):
    sent_exercise.judge(sent_editor.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## From a serial script to DDP, step by step

    Here is a serial PyTorch script. Step 0 starts it, unchanged, on two processes. Each further position of the slider
    makes one change: initialise, pin a device, wrap the model, synchronise the state, partition the data, let one
    worker write. The script is then really run on two processes of your machine, which takes some seconds, and
    audited. (Choose *stored* if you do not want to wait.)

    DDP synchronises the state by itself when it wraps the model. Step 3 switches that off (`init_sync=False`), so that
    you can see in step 4 what it is good for.
    """)
    return


@app.cell
def _(Control, Exploration):
    from rueda.labs.lab_2.pages import RUN, run_control, step_page

    ddp = Exploration(
        "ddp",
        lambda step, run: step_page("ddp", step, run),
        source=RUN,
        height=900,
        step=Control("step", range(7), start=0),
        run=run_control(live=True),
    )
    ddp_controls = ddp.controls()
    ddp.stage(ddp_controls)
    return RUN, ddp, ddp_controls, run_control, step_page


@app.cell
def _(ddp, ddp_controls):
    ddp.show(ddp_controls.value)
    return


@app.cell
def _(Question):
    twice_question = Question(
        "2.serial-twice",
        "Step 0: what does the serial script make on two processes?",
        choices=(
            "one model, in half the time",
            "one model, trained on all images twice",
            "two separate models, each trained on half of the images",
            "two separate models, each trained on all images",
        ),
    )
    twice_form = twice_question.ask()
    twice_form
    return twice_form, twice_question


@app.cell
def _(twice_form, twice_question):
    twice_question.reply(twice_form.value)
    return


@app.cell
def _(Question):
    synchronises_question = Question(
        "2.who-synchronises",
        "Which call gives all workers the parameters of rank 0?",
        choices=(
            "dist.init_process_group()",
            "DistributedDataParallel(model)",
            "DistributedSampler(train)",
            "loss.backward()",
        ),
    )
    synchronises_form = synchronises_question.ask()
    synchronises_form
    return synchronises_form, synchronises_question


@app.cell
def _(synchronises_form, synchronises_question):
    synchronises_question.reply(synchronises_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Two ways to partition the data

    A **sampler** shuffles all examples anew in each epoch and deals them out; `set_epoch` tells it which epoch it is.
    Or each worker takes a fixed **slice**, every n-th example, and shuffles within it. Some people let every worker
    **draw at random** from all of them: nothing is divided, but on average it is fair.

    Choose a number of examples that the workers cannot divide, and see what each way does with the remainder.
    """)
    return


@app.cell
def _(Control, Exploration):
    from rueda.labs.lab_2.figures import shares_plot
    from rueda.labs.lab_2.sharing import WAYS

    shares = Exploration(
        "shares",
        lambda way, examples, workers, epoch: shares_plot(WAYS[way](examples, workers, epoch), examples),
        height=330,
        way=Control("partition", tuple(WAYS)),
        examples=Control("examples", (24, 25, 26, 27), start=24),
        workers=Control("workers", (2, 3, 4), start=2),
        epoch=Control("epoch", (0, 1, 2), start=0),
    )
    shares_controls = shares.controls()
    shares.stage(shares_controls)
    return shares, shares_controls


@app.cell
def _(shares, shares_controls):
    shares.show(shares_controls.value)
    return


@app.cell
def _(Question):
    batches_question = Question(
        "2.batches",
        "1,000 examples, 3 workers, a DistributedSampler, batches of 32 on each worker (the last one may be smaller): "
        "how many batches has each worker in an epoch?",
        unit="batches",
    )
    batches_form = batches_question.ask()
    batches_form
    return batches_form, batches_question


@app.cell
def _(batches_form, batches_question):
    batches_question.reply(batches_form.value)
    return


@app.cell
def _(Exercise):
    share_exercise = Exercise(
        "2.share",
        "Write the examples of one worker: every n-th, beginning with its rank, and **equally many on all workers**. "
        "What cannot be divided is left out.",
        start="def share(num_examples, rank, size):\n    return [...]\n",
    )
    share_editor = share_exercise.ask()
    share_editor
    return share_editor, share_exercise


@app.cell
def _(share_editor, share_exercise):
    share_exercise.judge(share_editor.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Unequal shares: out of step, then stuck

    Slices are right as long as all workers have equally many batches. Here rank 0 got 640 examples and rank 1 the other
    384: 20 batches in an epoch against 12. Each backward pass ends with an average for which *all* workers must come.
    The script has four epochs; look how many of them rank 0 has finished.
    """)
    return


@app.cell
def _(Source, figure):
    from rueda.labs.lab_2.pages import STORED, variant_page

    _text = "From a stored run of this project, labs/stored/lab_2_audits.json."
    figure("uneven", variant_page("ddp", "slices", "uneven", run=STORED), source=Source(_text, _text), height=520)
    return


@app.cell
def _(Question):
    uneven_question = Question(
        "2.uneven",
        "What does rank 1 do after the 12 batches of its first epoch?",
        choices=(
            "it waits for rank 0 to finish the epoch",
            "it begins its second epoch; its gradients meet those of rank 0's first",
            "it reads some examples again, until it has 20 batches",
            "it ends, and rank 0 goes on alone",
        ),
    )
    uneven_form = uneven_question.ask()
    uneven_form
    return uneven_form, uneven_question


@app.cell
def _(uneven_form, uneven_question):
    uneven_question.reply(uneven_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## The same with Horovod

    Horovod has the same six steps under other names: it wraps the *optimizer* instead of the model, and you broadcast
    the parameters and the optimizer's state yourself. Rueda runs `import horovod.torch` without Horovod being
    installed.
    """)
    return


@app.cell
def _(Control, Exploration, RUN, run_control, step_page):
    horovod = Exploration(
        "horovod",
        lambda step, run: step_page("horovod", step, run),
        source=RUN,
        height=800,
        step=Control("step", range(7), start=3),
        run=run_control(live=True),
    )
    horovod_controls = horovod.controls()
    horovod.stage(horovod_controls)
    return horovod, horovod_controls


@app.cell
def _(horovod, horovod_controls):
    horovod.show(horovod_controls.value)
    return


@app.cell
def _(Question):
    horovod_question = Question(
        "2.horovod-synchronise",
        "What does DDP do by itself that you have to call by hand with Horovod?",
        choices=(
            "average the gradients",
            "give all workers the state of rank 0",
            "partition the data",
            "save the model on one worker only",
        ),
    )
    horovod_form = horovod_question.ask()
    horovod_form
    return horovod_form, horovod_question


@app.cell
def _(horovod_form, horovod_question):
    horovod_question.reply(horovod_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Keras

    In Keras a *callback* broadcasts the start, since `model.fit` owns the loop. The rest is the same. `rueda check`
    watches PyTorch's loops, so of a Keras script it sees little more than the files; compare what the ranks print.
    First you see stored runs; choose *here, now* to run the step on your machine, if Keras is installed.
    """)
    return


@app.cell
def _(Control, Exploration, RUN, run_control, step_page):
    keras_steps = Exploration(
        "keras",
        lambda step, run: step_page("keras", step, run),
        source=RUN,
        height=800,
        step=Control("step", range(7), start=4),
        run=run_control(live=False),
    )
    keras_controls = keras_steps.controls()
    keras_steps.stage(keras_controls)
    return keras_controls, keras_steps


@app.cell
def _(keras_controls, keras_steps):
    keras_steps.show(keras_controls.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## What goes wrong without each step

    Now the other way round: the whole script, and one step is missing. Some omissions stop the script at once. The
    worse ones do not: the loss falls, a model is saved, and only an audit, or a look at both ranks, shows that it is
    not what you meant. Here both ranks print, so that you can compare them; *here, now* runs the script on your
    machine.
    """)
    return


@app.cell
def _(Control, Exploration, RUN, run_control):
    from rueda.labs.lab_2.pages import without_page
    from rueda.labs.lab_2.scripts import ORDER as NAMES
    from rueda.labs.lab_2.scripts import STYLES, step

    _titles = {step(name).title: name for name in NAMES}
    _styles = {STYLES[name]: name for name in ("ddp", "horovod")}
    omission = Exploration(
        "without",
        lambda missing, style, run: without_page(_styles[style], _titles[missing], run),
        source=RUN,
        height=700,
        missing=Control("without", tuple(_titles), start="synchronise the state"),
        style=Control("script", tuple(_styles)),
        run=run_control(live=False),
    )
    omission_controls = omission.controls()
    omission.stage(omission_controls)
    return omission, omission_controls


@app.cell
def _(omission, omission_controls):
    omission.show(omission_controls.value)
    return


@app.cell
def _(Question):
    equal_question = Question(
        "2.still-equal",
        "One of these steps is left out, and both ranks still have **equal** weights. Which?",
        choices=("wrap", "synchronise the state", "partition the data"),
    )
    equal_form = equal_question.ask()
    equal_form
    return equal_form, equal_question


@app.cell
def _(equal_form, equal_question):
    equal_question.reply(equal_form.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Let a tool do it

    Now that you know the steps, `rueda convert` makes them for you, as a diff with the reasons in comments. It divides
    every batch of the serial script among the workers, so that learning rate and schedule stay right.
    """)
    return


@app.cell
def _(Control, Exploration):
    from rueda.labs.lab_2.pages import conversion_page

    conversion = Exploration(
        "conversion", conversion_page, height=700, style=Control("to", ("rueda", "ddp", "horovod"))
    )
    conversion_controls = conversion.controls()
    conversion.stage(conversion_controls)
    return conversion, conversion_controls


@app.cell
def _(conversion, conversion_controls):
    conversion.show(conversion_controls.value)
    return


@app.cell
def _(mo):
    mo.md("""
    ## What to remember

    - Data parallelism exchanges gradients: as many numbers as there are weights, whatever the batch. Model parallelism
      exchanges activations, which grow with the batch.
    - An iteration on several workers has one step more, and nobody passes it before the slowest has come.
    - Six steps make a script parallel: initialise, pin, wrap, synchronise, partition, one writer. Without one of them a
      script may still run, and train something else.
    - All workers must make equally many updates. `rueda check -np 2 train.py` looks for what you cannot see.

    The workers here took together the batch of the serial script. What happens when the batch grows with the number of
    workers is the subject of lab 3.

    ## References

    - Li et al. 2020, *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, arXiv 2006.15704
    - Sergeev and Del Balso 2018, *Horovod: fast and easy distributed deep learning in TensorFlow*, arXiv 1802.05799
    - Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms for clusters of workstations*
    - Huang et al. 2018, *GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism*,
      arXiv 1811.06965
    - Shoeybi et al. 2019, *Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism*,
      arXiv 1909.08053
    """)
    return


if __name__ == "__main__":
    app.run()
