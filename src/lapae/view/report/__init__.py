"""What a person sees of a run: figures, tables of task results, and the page that holds them all."""
