"""Loops an expert would write on bare JAX. Make them faster if you can: they are the measure."""
