"""What moves along with an image: masks, boxes, points."""
