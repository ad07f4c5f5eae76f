"""From labelled offers to a checkpoint: data, tokeniser, model, calibration."""
