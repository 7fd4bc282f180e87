"""Images that cells could not pull, which their tasks wait for."""

IMAGES = "FROM controlplane_imagefailure f WHERE true"
