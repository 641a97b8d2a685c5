"""Workers: `build(rival, model, task, batch)` of a framework returns a Job."""
