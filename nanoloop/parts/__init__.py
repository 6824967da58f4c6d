"""The parts that the settings describe, made: the only place that picks concrete classes."""
