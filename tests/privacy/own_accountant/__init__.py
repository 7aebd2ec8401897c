"""An accountant of the tests' own, written from the definitions. It imports neither the project nor dp-accounting."""
