-- Hottest GPUs
-- metrics
-- Rows of a removed device keep the values of its last cycle; the newest cycle lists the present ones.
SELECT name, at, hw_accel_temperature_celsius AS celsius, hw_accel_power_watts AS watts
FROM latest_gpu
WHERE at = (SELECT max(at) FROM latest_gpu)
  AND hw_accel_temperature_celsius IS NOT NULL
ORDER BY celsius DESC, name
LIMIT 10;
