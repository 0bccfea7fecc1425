"""The steps of a conversion, each in a file: share the data, wrap, average the metric, one writer, connect."""
