-- Nodes of a service at a given time
-- state
-- Everything that `:service`, a key such as prod/service/llm/chat, ran on at `:at_us`.
WITH RECURSIVE below (entity) AS (
  SELECT :service
  UNION
  SELECT e.supporter
  FROM topology_edge e JOIN below b ON e.supported = b.entity
  WHERE e.valid_from_us <= :at_us AND (e.valid_to_us IS NULL OR e.valid_to_us > :at_us)
)
SELECT t.entity, l.value AS gpu_type
FROM topology_entity t
JOIN below b ON b.entity = t.entity
LEFT JOIN topology_label l
  ON l.entity = t.entity AND l.name = 'gpu_type'
  AND l.valid_from_us <= :at_us AND (l.valid_to_us IS NULL OR l.valid_to_us > :at_us)
WHERE t.kind = 'node'
  AND t.valid_from_us <= :at_us AND (t.valid_to_us IS NULL OR t.valid_to_us > :at_us)
ORDER BY t.entity;
