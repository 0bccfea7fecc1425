"""The objective: loss and error of a model as a function of its parameters, on examples that lie in memory."""
