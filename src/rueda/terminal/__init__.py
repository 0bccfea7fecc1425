"""Terminal output: progress bars, tables, and the formatting of numbers and times, which the report uses as well."""
