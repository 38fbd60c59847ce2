-- Of `scores`: which way a score is better. Until it was kept only these three metrics were better when low.
if(metric in ('hallucination', 'noise_sensitivity_irrelevant', 'noise_sensitivity_relevant'), 'low', 'high')
