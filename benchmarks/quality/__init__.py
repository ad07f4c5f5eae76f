"""The quality table: models of several recipes, trained, served and judged on the same sets."""
