"""What is drawn on a terminal: progress bars, tables, and the words for numbers and times that the page uses, too."""
