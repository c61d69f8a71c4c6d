"""Choosing launch configurations by measurement (spec 9.6): the space, the search, the cost model, isolated measuring, records."""
