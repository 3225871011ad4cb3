-- Mean load and TTFT p99 by service and hour
-- metrics
-- `:from_at` and `:to_at` are hours such as 2026-11-18T08:00:00Z: their text order is their time order. Hours are written once they are over and settled.
SELECT cluster, namespace, name, at,
       svc_requests_per_second AS mean_requests_per_second,
       svc_ttft_seconds_count AS first_tokens,
       svc_ttft_seconds_p99 AS ttft_p99_seconds
FROM hourly_service
WHERE at >= :from_at AND at < :to_at
ORDER BY cluster, namespace, name, at;
