"""``rueda assess``: gives a learner the task of the course, and grades what the learner has made of it.

::

    new          a folder with the serial script, the data and the task as text
    grade        one submission: run apart from the grader, observed, evaluated, graded
    folder       a class: one table, one file each; what is graded already is not graded again
    calibrate    how long the reference solution takes on this machine, and which limit is fair
    verify       whether a certificate was signed with the teacher's key and is unchanged

Three processes share the work, so that nothing which the learner wrote runs where the grader decides:

=====================  =====================================================================================
:mod:`.running`        starts the workers (:mod:`.worker`), which confine themselves (:mod:`.confinement`), observe
                       themselves (:mod:`.watch`, and all of :mod:`rueda.check.audit`) and only then run the script
:mod:`.evaluation`     loads the saved epochs as plain tensors, and evaluates them on data that no script has seen
:mod:`.grading`        in the command itself: criteria, points and reasons, from what the other two found
=====================  =====================================================================================
"""
