"""Missing values: best guesses, completions and prediction intervals."""
