-- Which way a score is better, for a warehouse last written by an evalhouse that did not keep it. Until then only these
-- three metrics were better when low.
create temp view {relation} as
select *, if(metric in ('hallucination', 'noise_sensitivity_irrelevant', 'noise_sensitivity_relevant'), 'low', 'high') as better
from {database}.main.{relation}
