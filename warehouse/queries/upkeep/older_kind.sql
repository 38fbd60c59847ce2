'evaluation'
