"""Operations on pixels: colour, filters, affine maps, policies, mixing and erasing."""
