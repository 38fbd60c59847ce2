-- One row per sample, question of a test set or trace that can be forgotten by its name; of some traces there is only what
-- was logged about them.
select sample_id
from run_samples
union
select sample_id
from llm_calls
where sample_id is not null
union
select sample_id
from preferences
union
select question_id
from testset_questions
union
select trace_id
from spans
union
select trace_id
from span_events
