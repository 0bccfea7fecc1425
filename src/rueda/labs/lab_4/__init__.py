"""What lab 4, *Planning*, computes: forecasts, predicted steps, plans, and how they compare with measurements."""
