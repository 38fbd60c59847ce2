-- What the newest migration has added, laid over a warehouse that an older evalhouse wrote last. Until then only these
-- three metrics were better when low.
create temp view {relation} as
select *, if(metric in ('hallucination', 'noise_sensitivity_irrelevant', 'noise_sensitivity_relevant'), 'low', 'high') as better
from {database}.main.{relation}
