-- What gates decided, check by check, and which runs a person accepted as a baseline.

-- One row per decision of a gate on a run. Nothing is overwritten: of a run's decisions the latest counts.
create table gate_decisions (
    decision_id   varchar not null,
    run_id        varchar not null,
    origin        varchar not null,
    outcome       varchar not null,
    is_baseline   boolean not null,
    undecided     varchar,
    against       varchar,
    base_run_ids  varchar[],
    decided_by    varchar,
    decided_at    timestamp not null
);

comment on table gate_decisions is 'One row per decision of a gate on a run. Of a run''s decisions of one origin the latest counts.';
comment on column gate_decisions.decision_id is 'Decision: when it was made, UTC, and four random digits.';
comment on column gate_decisions.run_id is 'Run that was decided on.';
comment on column gate_decisions.origin is 'suite: the gate of the run''s suite; hand: `evalhouse gate`.';
comment on column gate_decisions.outcome is 'passed or failed.';
comment on column gate_decisions.is_baseline is 'Whether later runs are held against this one: it passed, and no drop that was left undecided is a worsening beyond chance.';
comment on column gate_decisions.undecided is 'What an undecided check did to the gate: pass or fail; NULL for what was decided before this was kept.';
comment on column gate_decisions.against is 'What the drops were measured against: passed, mean_of_passed, previous_any, or a run as it was named; NULL without a drop.';
comment on column gate_decisions.base_run_ids is 'Runs that the drops were measured against; empty where there was none.';
comment on column gate_decisions.decided_by is 'User whose process decided; NULL when it is not known.';
comment on column gate_decisions.decided_at is 'When it was decided, UTC.';

-- One row per check of a decision.
create table gate_checks (
    decision_id  varchar not null,
    run_id       varchar not null,
    kind         varchar not null,
    metric       varchar,
    limit_value  double not null,
    value        double,
    ci_low       double,
    ci_high      double,
    n            bigint,
    beyond       double,
    noise_floor  double,
    outcome      varchar not null,
    reason       varchar,
    detail       varchar not null
);

comment on table gate_checks is 'One row per check of a gate''s decision.';
comment on column gate_checks.decision_id is 'Decision, as in gate_decisions.';
comment on column gate_checks.run_id is 'Run that was decided on.';
comment on column gate_checks.kind is 'min, max, max_drop, trend, min_coverage or max_cost.';
comment on column gate_checks.metric is 'Metric; NULL for the cost.';
comment on column gate_checks.limit_value is 'Limit; a share for min_coverage, dollars for max_cost.';
comment on column gate_checks.value is 'What was found, in the unit of the limit; NULL when there was nothing.';
comment on column gate_checks.ci_low is 'Lower end of its 95 % interval; NULL when it has none.';
comment on column gate_checks.ci_high is 'Upper end of its 95 % interval; NULL when it has none.';
comment on column gate_checks.n is 'Samples it rests on; NULL for the cost.';
comment on column gate_checks.beyond is 'How far the value is on the bad side of the limit, negative on the good side; NULL without a value.';
comment on column gate_checks.noise_floor is 'Largest drop that the judge''s own noise makes; NULL when it is not known, and where there is no drop.';
comment on column gate_checks.outcome is 'passed, failed or undecided.';
comment on column gate_checks.reason is 'Why it did not pass, in a word; NULL when it passed.';
comment on column gate_checks.detail is 'Why, in a sentence.';

-- One row per run that a person accepted as the baseline of its series.
create table gate_acceptances (
    run_id       varchar not null,
    why          varchar not null,
    accepted_by  varchar not null,
    accepted_at  timestamp not null
);

comment on table gate_acceptances is 'One row per acceptance of a run as the baseline of its series, whatever its gate had decided.';
comment on column gate_acceptances.run_id is 'Run that was accepted.';
comment on column gate_acceptances.why is 'Why, in the person''s words.';
comment on column gate_acceptances.accepted_by is 'Who accepted it.';
comment on column gate_acceptances.accepted_at is 'When, UTC.';

-- What the gates of suites had decided until now.
insert into gate_decisions by name
select
    run_id || '-gate' as decision_id,
    run_id,
    'suite' as origin,
    gate as outcome,
    gate = 'passed' as is_baseline,
    coalesce(finished_at, started_at) as decided_at
from runs
where gate in ('passed', 'failed');
