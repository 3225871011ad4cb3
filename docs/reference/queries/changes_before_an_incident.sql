-- Changes in the two hours before an incident
-- state
-- `:incident` is its id.
SELECT round((i.opened_at_us - c.at_us) / 60000000.0, 1) AS minutes_before,
       c.code, c.service, c.entity, c.actor, c.source
FROM incident i
JOIN change c ON c.at_us >= i.opened_at_us - 7200000000 AND c.at_us <= i.opened_at_us
WHERE i.id = :incident
ORDER BY c.at_us DESC, c.id;
