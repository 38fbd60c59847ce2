-- One row per threshold of the rules that give a sample its cause. To try others, create this view again and
-- `evalhouse rescore` the runs, with no model call; they hold until evalhouse creates its own views again.
create or replace view cause_thresholds as
with thresholds (threshold, value, meaning) as (
    values
        ('minor_share', 0.2, 'a fault that touches no more than this share of a text''s statements is let pass: of the ground truth, a statement_recall of 0.8 or more'),
        ('most_share', 0.5, 'from this share on most of a text''s statements are meant'),
        ('top_ranks', 3, 'contexts from rank 1 to this one stand high enough'),
        ('least_bytes', 24, 'a statement shorter than this (in UTF-8: 24 Latin letters, 8 Chinese characters) holds no fact by itself, such as "No.": it is not looked for in other samples, and where a context supports another statement of the same ground truth it is taken to follow from that'),
        ('split_share', 0.5, 'from this share of a sample''s verdicts with split votes on the judge is not trusted there'),
        ('earlier_runs', 30, 'how many runs of the series before this one are looked through for contexts that supported what no context supports now')
)

select threshold, value::decimal(6, 2) as value, meaning
from thresholds;

comment on view cause_thresholds is 'One row per threshold of the rules behind sample_causes.';
comment on column cause_thresholds.threshold is 'Name of the threshold.';
comment on column cause_thresholds.value is 'Its value.';
comment on column cause_thresholds.meaning is 'What it decides, in words.';
