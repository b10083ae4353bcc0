"""One test (or several) for each of the 36 defects in section 3 of the contract for text calls, with the inputs given there.

``reading`` reads model text in every way, ``upstream`` is a model's server on a real socket, ``doors`` are the ways to it.
A test's number is the defect's number.
"""
