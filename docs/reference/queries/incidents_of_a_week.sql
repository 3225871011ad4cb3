-- Incidents of a week, with time to acknowledge
-- state
-- `:from_us` and `:to_us` bound the week. NULL: not acknowledged.
SELECT id, priority, cause, cause_entity, acknowledged_by,
       round((acknowledged_at_us - opened_at_us) / 60000000.0, 1) AS minutes_to_acknowledge,
       round((resolved_at_us - opened_at_us) / 60000000.0, 1) AS minutes_open
FROM incident
WHERE opened_at_us >= :from_us AND opened_at_us < :to_us
ORDER BY opened_at_us, id;
