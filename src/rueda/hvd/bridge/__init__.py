"""Call the functions of torch tensors, in which the collectives are written, with the tensors of another framework.

``host_call(function, tensors, like)`` of each file hands over a framework's tensors, calls the function and hands its
results back, outside and inside of that framework's compiled functions.
"""
