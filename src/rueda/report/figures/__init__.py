"""The figures of training runs, studies and landscapes, one file each: functions from records to a ``Plot``.

=================  ====================================================================
``techniques``     the metric of each row of a study, against one worker's
``progress``       accuracy and loss of each run against epochs, updates or seconds
``schedule``       learning rate and global batch along the same axis
``speed``          the throughput of each row
``throughput``     throughput against the local batch
``steps``          updates to a target against the batch size
``linear_model``   gradient descent on the loss surface of a linear model
``noise_scale``    the gradient noise scale along a training
``loss_surfaces``  the loss around a model in three dimensions, and as contours
``loss_lines``     the loss along lines, and from one model to another
=================  ====================================================================

They share ``styles`` (colour, dash and name of a row), ``time_axis`` (epochs, updates or seconds) and ``parts``
(logarithmic axes, colours); ``arrangement`` says which of them a section has, and in which order.
"""
