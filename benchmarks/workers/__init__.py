"""One module a framework: `build(rival, model, task, batch)` gives a Job."""
