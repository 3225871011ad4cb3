-- Services that need more replicas, most urgent first
-- state
-- The newest recommendation of each service.
SELECT r.service, r.gpu_type, r.current_replicas, r.target_replicas, r.reason,
       r.needed_by_us, r.cost_per_hour, r.currency
FROM recommendation r
JOIN (SELECT service, max(id) AS id FROM recommendation GROUP BY service) newest ON newest.id = r.id
WHERE r.target_replicas > r.current_replicas
ORDER BY r.needed_by_us, r.service;
