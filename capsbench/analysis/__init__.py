"""From run folders to tables, plots and a report. Imports neither torch nor mlflow: seconds on any laptop."""
