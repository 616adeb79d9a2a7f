"""Targets that are transformed with their image: masks, boxes, points and labels of boxes."""
