"""The pages of cells: what runs there, resources, image failures, changes and drains."""
