-- Refused actions and reasons by week
-- state
-- A week begins on Monday: 1970 began on a Thursday, three days later.
SELECT decided_at_us - (decided_at_us + 259200000000) % 604800000000 AS monday_us,
       kind, reason, count(*) AS refused
FROM action
WHERE decision = 'refused'
GROUP BY decided_at_us - (decided_at_us + 259200000000) % 604800000000, kind, reason
ORDER BY monday_us, refused DESC, kind, reason;
