"""One program, written twice: an essay judged by branches whose judgments are merged. Compared line by line."""
