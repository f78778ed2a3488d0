"""The model behind the certified lower bound: memory, link and admission as rows of a linear program."""
