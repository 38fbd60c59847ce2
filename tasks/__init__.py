"""The steps of the pipeline, a file each, and the rooms they rest on."""
